"""Released schemas and messages stay readable: fingerprints and golden bytes are frozen.

When a test here fails, an old participant would no longer understand a new coordinator. Add a
``v2`` beside ``v1`` instead of changing either.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from support.control_envelopes import EXAMPLES, envelope

from headgate.control_protocol import message_encoding
from headgate.schemas import MessageSchema, control_schemas

GOLDEN: dict[str, str] = json.loads(
    (Path(__file__).parent / "control_messages_v1.json").read_text("utf-8")
)
FROZEN = {
    "start-commit": "962872bbb1b63eaa",
    "end-commit": "a29768ba91fa5253",
    "write-status": "82c64f0bf273b75f",
    "ack-commit": "c20184690aaf72d9",
    "abort-commit": "a610fc019a0bd53e",
    "presence": "a3e9b35912a486f4",
    "pause": "2ffae80a43e52f00",
    "resume": "8196e43389f80f28",
    "notice": "5e55fbb20ebcc188",
    "proposal": "8f82775c5cda7210",
    "tables": "005f5eecaeaf8c81",
}


def test_the_fingerprints_are_the_released_ones() -> None:
    assert {schema.name: schema.fingerprint.hex() for schema in control_schemas()} == FROZEN


@pytest.mark.parametrize("schema", control_schemas(), ids=lambda schema: schema.name)
def test_a_fingerprint_is_its_schemas(schema: MessageSchema) -> None:
    canonical = to_parsing_canonical_form(schema.definition)
    assert fingerprint(canonical, "CRC-64-AVRO") == schema.fingerprint.hex()


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_released_message_still_means_the_same(name: str) -> None:
    assert message_encoding.decode_envelope(bytes.fromhex(GOLDEN[name])) == envelope(EXAMPLES[name])
