"""Participants of a version with other event forms are named; they were passed over in silence."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from io import BytesIO

import fastavro
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from support.control_envelopes import EXAMPLES, envelope

from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol import message_encoding
from headgate.control_protocol.event_codec import envelope_to_form
from headgate.control_protocol.identifiers import SinkName, TopicId
from headgate.control_protocol.message_encoding import Skipped, SkipReason, Wire
from headgate.control_protocol.signatures import Keys
from headgate.operations.access import kafka_connection
from headgate.schemas import control_schemas

TOPIC = TopicId("topic-id")
SAID = envelope(EXAMPLES["presence"])
MINUTE_MS = 60_000


def old_form() -> bytes:
    """The event without the last field that it has today, under that form's own fingerprint."""
    (schema,) = (each.definition for each in control_schemas() if each.name == "presence")
    older = {**schema, "fields": schema["fields"][:-1]}
    canonical = to_parsing_canonical_form(older)
    body = BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(older), envelope_to_form(SAID)[1])
    return b"\xc3\x01" + bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO")) + body.getvalue()


def reason(found: object) -> SkipReason | None:
    return found.reason if isinstance(found, Skipped) else None


def test_an_event_of_an_older_form_is_known_as_this_sinks() -> None:
    assert reason(Wire(SAID.sink).verify_and_decode(old_form(), TOPIC)) is SkipReason.OTHER_VERSION
    assert (
        reason(Wire(SinkName("another")).verify_and_decode(old_form(), TOPIC))
        is SkipReason.OTHER_SINK
    )
    assert reason(Wire().verify_and_decode(old_form(), TOPIC)) is SkipReason.UNKNOWN_SCHEMA


def test_with_a_key_nobody_else_can_say_so() -> None:
    keys = Keys(("a key of more than sixteen",))
    sealed = keys.sign_if_keyed(old_form(), SAID.sink, TOPIC)
    assert reason(Wire(SAID.sink, keys).verify_and_decode(old_form(), TOPIC)) is SkipReason.UNSIGNED
    assert (
        reason(Wire(SAID.sink, keys).verify_and_decode(sealed, TOPIC)) is SkipReason.OTHER_VERSION
    )


@pytest.fixture
def settings() -> SinkSettings:
    return parse(
        f'name = "{SAID.sink}"\n[source]\ntopics = ["trips"]\ngroup_id = "group"\n[kafka]\n'
        '"bootstrap.servers" = "127.0.0.1:1"\n[catalog.properties]\ntype = "sql"\n'
        'uri = "sqlite:////tmp/none"\nwarehouse = "file:///tmp/none"\n[table]\n'
        'identifier = "db.trips"\n'
    )


@pytest.mark.parametrize(
    ("ages_ms", "counted"),
    [
        ([None], 1),  # a whole sink of another version than the command
        ([0, None], 1),
        ([None, 0], 0),  # an upgrade, just now
        ([None, 2 * MINUTE_MS, 0], 0),
        ([2 * MINUTE_MS, None, 0, None], 2),  # a mixture
        ([3 * MINUTE_MS, None, 2 * MINUTE_MS, 0], 0),  # one that is over
    ],
)
def test_status_counts_what_another_version_says_beside_this_one(
    settings: SinkSettings,
    monkeypatch: pytest.MonkeyPatch,
    ages_ms: list[int | None],
    counted: int,
) -> None:
    now_ms = time.time_ns() // 1_000_000
    messages = [
        old_form()
        if age is None
        else message_encoding.encode_envelope(replace(SAID, time_ms=now_ms - age))
        for age in ages_ms
    ]
    monkeypatch.setattr(kafka_connection, "read_newest_control_values", lambda *_: messages)
    refused: Counter[SkipReason] = Counter()
    kafka_connection.read_control_tail(settings, 100, refused)
    assert refused[SkipReason.OTHER_VERSION] == counted
