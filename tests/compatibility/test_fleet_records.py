"""A fleet's records stay readable: fingerprints and golden bytes are frozen, as control events are.

When a test here fails, a worker of this release would no longer understand its fleet's topics. Add
a ``v2`` beside ``v1`` instead of changing either.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from support.fleet_records import EXAMPLES

from headgate.runtime.fleet.fleet_records import (
    CommandWire,
    Drain,
    ObservedSink,
    ObservedWorker,
    Removal,
    SinkSpec,
    decode_observed,
    encode_observed,
    state_topic_key_of,
)
from headgate.schemas import MessageSchema, fleet_schemas

GOLDEN: dict[str, str] = json.loads(
    (Path(__file__).parent / "fleet_records_v1.json").read_text("utf-8")
)
FROZEN = {
    "wish": "be1ad852006934ab",
    "removal": "ceaf7e5566ccd03a",
    "drain": "1a3c56f8699461fb",
    "sink": "216e000b09ef853a",
    "worker": "88a7b8069fdeb7cc",
}


def test_the_fingerprints_are_the_released_ones() -> None:
    assert {schema.name: schema.fingerprint.hex() for schema in fleet_schemas()} == FROZEN


@pytest.mark.parametrize("schema", fleet_schemas(), ids=lambda schema: schema.name)
def test_a_fingerprint_is_its_schemas(schema: MessageSchema) -> None:
    canonical = to_parsing_canonical_form(schema.definition)
    assert fingerprint(canonical, "CRC-64-AVRO") == schema.fingerprint.hex()


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_released_record_still_means_the_same(name: str) -> None:
    golden, value = bytes.fromhex(GOLDEN[name]), EXAMPLES[name]
    if isinstance(value, ObservedSink | ObservedWorker):
        assert encode_observed(value) == golden
        assert decode_observed(state_topic_key_of(value), golden) == value
    else:
        assert isinstance(value, SinkSpec | Removal | Drain)
        assert CommandWire().decode(value.key, value.slot, golden) == value
