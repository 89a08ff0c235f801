"""Envelopes survive the control topic; foreign bytes are skipped, whatever they are."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.control_envelopes import ENVELOPES, EXAMPLES, envelope

from headgate.control_protocol import message_encoding
from headgate.control_protocol.event_codec import PARTS_MAX, envelope_to_form
from headgate.control_protocol.events import (
    Envelope,
    PartitionPresence,
    Presence,
    PresenceKind,
    WriteStatus,
)
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.message_encoding import Skipped, SkipReason
from headgate.control_protocol.offsets import Offsets
from headgate.schemas import control_schemas

SCHEMAS = {schema.name: schema for schema in control_schemas()}


def reason(message: bytes) -> SkipReason:
    answer = message_encoding.decode_envelope(message)
    assert isinstance(answer, Skipped)
    return answer.reason


def written(name: str, **changes: object) -> bytes:
    """An example message with fields of its Avro record replaced, past every check of ours."""
    body = BytesIO()
    _, form = envelope_to_form(envelope(EXAMPLES[name]))
    schema = fastavro.parse_schema(SCHEMAS[name].definition)
    fastavro.schemaless_writer(body, schema, {**form, **changes})
    return b"\xc3\x01" + SCHEMAS[name].fingerprint + body.getvalue()


@given(ENVELOPES)
def test_an_envelope_comes_back_as_it_went(sent: Envelope) -> None:
    assert message_encoding.decode_envelope(message_encoding.encode_envelope(sent)) == sent


def test_what_nobody_could_read_is_not_said() -> None:
    owned = {TopicPartition("t", 0): PartitionPresence(7, -1001)}
    presence = Presence(PresenceKind.ALIVE, frozenset(), owned)
    with pytest.raises(ValueError, match="-1001"):
        message_encoding.encode_envelope(envelope(presence))
    with pytest.raises(ValueError, match="START without a table"):
        message_encoding.encode_envelope(envelope(replace(EXAMPLES["start-commit"], tables=())))


@pytest.mark.parametrize("name", EXAMPLES)
def test_messages_are_avro_single_objects(name: str) -> None:
    message = message_encoding.encode_envelope(envelope(EXAMPLES[name]))
    assert message[:10] == b"\xc3\x01" + SCHEMAS[name].fingerprint


def test_every_schema_has_an_event() -> None:
    assert set(EXAMPLES) == set(SCHEMAS)


def test_other_messages_of_the_topic_are_told_apart() -> None:
    message = message_encoding.encode_envelope(envelope(EXAMPLES["presence"]))
    newer = replace(envelope(EXAMPLES["end-commit"]), version=2)
    assert reason(b"") == SkipReason.NOT_OURS
    assert reason(b'{"json": 1}') == SkipReason.NOT_OURS
    assert reason(message[:9]) == SkipReason.UNKNOWN_SCHEMA
    assert reason(message[:2] + b"\0" * 8 + message[10:]) == SkipReason.UNKNOWN_SCHEMA
    assert reason(message[:10]) == SkipReason.UNDECODABLE
    assert reason(message[:-1]) == SkipReason.UNDECODABLE
    assert reason(message + b"\0") == SkipReason.UNDECODABLE
    assert reason(message + b"\0" * message_encoding.MESSAGE_BYTES_MAX) == SkipReason.TOO_LONG
    assert reason(message_encoding.encode_envelope(newer)) == SkipReason.OTHER_VERSION


CLAIM = {
    "partition": 0,
    "begin": 1,
    "end": 2,
    "records": 0,
    "quarantined": 0,
    "skipped": 0,
    "bad": 0,
    "bytes_read": 0,
    "max_timestamp_ms": None,
    "deleted": 0,
}


TABLE = {"table": "t", "uuid": "", "schema_id": 0, "files": []}


def claimed(*claims: dict[str, object]) -> list[dict[str, object]]:
    return [{"topic": "orders", "claims": list(claims)}]


def offsets(partitions: list[int], next_offsets: list[int]) -> list[dict[str, object]]:
    return [{"topic": "orders", "partitions": partitions, "offsets": next_offsets}]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("end-commit", {"epoch": -1}),
        ("end-commit", {"epoch": 2**62}),
        ("presence", {"epoch": 2**63 - 1}),
        ("end-commit", {"transaction": 2**62}),
        ("start-commit", {"offsets": offsets([0], [2**62])}),
        ("write-status", {"status_number": 2**62}),
        ("write-status", {"claims": claimed({**CLAIM, "end": 2**62})}),
        ("end-commit", {"transaction": -1}),
        ("start-commit", {"settled_to": -1}),
        ("start-commit", {"offsets": offsets([0], [-1])}),
        ("start-commit", {"offsets": offsets([-1], [1])}),
        ("start-commit", {"offsets": offsets([2**31], [1])}),
        ("start-commit", {"offsets": offsets([0, 1], [1])}),
        ("start-commit", {"offsets": offsets([0, 0], [1, 2])}),
        ("start-commit", {"offsets": offsets([0], [1]) + offsets([0], [2])}),
        ("write-status", {"part": 1}),
        ("write-status", {"part": -1}),
        ("write-status", {"parts": PARTS_MAX + 1}),
        ("write-status", {"tables": [TABLE, TABLE]}),
        ("write-status", {"claims": claimed(CLAIM, CLAIM)}),
        ("write-status", {"claims": claimed({**CLAIM, "begin": 3})}),
        ("write-status", {"claims": claimed({**CLAIM, "begin": -1})}),
        ("write-status", {"claims": claimed({**CLAIM, "records": -1})}),
        ("write-status", {"unknown": [{"topic": "orders", "partitions": [-1]}]}),
        ("ack-commit", {"settled_to": -1}),
        ("presence", {"buffered_bytes": -1}),
    ],
)
def test_absurd_values_are_undecodable(name: str, changes: dict[str, object]) -> None:
    assert not isinstance(message_encoding.decode_envelope(written(name)), Skipped)
    assert reason(written(name, **changes)) == SkipReason.UNDECODABLE


def test_a_file_of_an_unknown_kind_is_undecodable() -> None:
    _, form = envelope_to_form(envelope(EXAMPLES["write-status"]))
    form["tables"][0]["files"][0]["kind"] = "wishes"
    assert reason(written("write-status", tables=form["tables"])) == SkipReason.UNDECODABLE


def test_what_does_not_fit_is_not_sent() -> None:
    many = Offsets({TopicPartition("t", n): 2**61 for n in range(100_000)})
    with pytest.raises(ValueError, match=r"start-commit of \d+ bytes does not fit"):
        message_encoding.encode_envelope(envelope(replace(EXAMPLES["start-commit"], offsets=many)))


BODY_AT = 10
LONGS = [b"\x01", b"\xff" * 9 + b"\x01", b"\xfe" * 9 + b"\x01", b"\x80" * 5_000, b"\xff" * 5_000]


@given(st.sampled_from(sorted(EXAMPLES)), st.binary(max_size=200))
def test_any_body_is_decoded_or_skipped(name: str, body: bytes) -> None:
    message_encoding.decode_envelope(b"\xc3\x01" + SCHEMAS[name].fingerprint + body)


@given(
    st.sampled_from(sorted(EXAMPLES)),
    st.lists(
        st.tuples(st.integers(0, 400), st.binary(max_size=3) | st.sampled_from(LONGS)), max_size=4
    ),
)
def test_any_damage_is_decoded_or_skipped(name: str, damage: list[tuple[int, bytes]]) -> None:
    message = bytearray(message_encoding.encode_envelope(envelope(EXAMPLES[name])))
    for at, patch in damage:
        begin = BODY_AT + at % (len(message) - BODY_AT + 1)
        message[begin : begin + len(patch)] = patch
    message_encoding.decode_envelope(bytes(message))


@pytest.mark.parametrize("filler", [b"\0", b"\x01", b"\x02", b"\x80", b"\xff", b"\xfe\xff\x03"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_full_size_message_of_one_byte_is_no_bomb(name: str, filler: bytes) -> None:
    version = b"\x02"
    header = b"\xc3\x01" + SCHEMAS[name].fingerprint + version
    size = message_encoding.MESSAGE_BYTES_MAX - len(header)
    assert reason(header + (filler * size)[:size]) == SkipReason.UNDECODABLE


def test_endless_block_counts_end_with_the_message() -> None:
    start = message_encoding.encode_envelope(envelope(WriteStatus(0)))
    # the last three bytes: no tables, no unknown partitions, no failure
    assert start.endswith(b"\0\0\0")
    for count in LONGS:
        assert reason(start[:-3] + count + b"\0" * 600_000) == SkipReason.UNDECODABLE


def test_partitions_of_one_topic_share_its_name() -> None:
    topic = "a-topic-with-a-name-of-some-length"
    many = Offsets({TopicPartition(topic, n): 10**10 + n for n in range(5_000)})
    start = replace(EXAMPLES["start-commit"], offsets=many)
    assert len(message_encoding.encode_envelope(envelope(start))) < 8 * 5_000
