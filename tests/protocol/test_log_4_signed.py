"""LOG-4: with a key set, only what somebody with a key said for this sink and topic is heard."""

from __future__ import annotations

from itertools import pairwise

import pytest
from protocol.values import SINK
from support.control_envelopes import EXAMPLES, envelope

from headgate.control_protocol import message_encoding
from headgate.control_protocol.events import Envelope
from headgate.control_protocol.identifiers import SinkName, TopicId
from headgate.control_protocol.message_encoding import Skipped, SkipReason, Wire
from headgate.control_protocol.signatures import SEAL_BYTES, Keys
from headgate.control_protocol.testing import FakeLog, FakeLogServer

OLD, NEW, FOREIGN = "old " * 8, "new " * 8, "else" * 8
TOPIC = TopicId("control-id-1")
SIGNED = Wire(SINK, Keys((NEW,)))
PLAIN = Wire(SINK)


def said(name: str = "start-commit", sink: SinkName = SINK) -> Envelope:
    return envelope(EXAMPLES[name], sink=sink)


def reason(heard: Envelope | Skipped) -> SkipReason:
    assert isinstance(heard, Skipped)
    return heard.reason


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_signed_event_of_each_kind_is_heard_as_it_was_said(name: str) -> None:
    assert SIGNED.verify_and_decode(
        SIGNED.encode_and_sign_if_keyed(said(name), TOPIC), TOPIC
    ) == said(name)


@pytest.mark.parametrize("name", EXAMPLES)
def test_without_a_key_nothing_changes_on_the_wire(name: str) -> None:
    assert PLAIN.encode_and_sign_if_keyed(said(name), TOPIC) == message_encoding.encode_envelope(
        said(name)
    )
    assert PLAIN.verify_and_decode(message_encoding.encode_envelope(said(name)), TOPIC) == said(
        name
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_unsigned_events_are_passed_over(name: str) -> None:
    assert (
        reason(SIGNED.verify_and_decode(message_encoding.encode_envelope(said(name)), TOPIC))
        == SkipReason.UNSIGNED
    )


def test_another_key_does_not_speak_for_the_sink() -> None:
    forged = Wire(SINK, Keys((FOREIGN,))).encode_and_sign_if_keyed(said(), TOPIC)
    assert reason(SIGNED.verify_and_decode(forged, TOPIC)) == SkipReason.WRONGLY_SIGNED


def test_a_signature_counts_on_its_own_topic_only() -> None:
    message = SIGNED.encode_and_sign_if_keyed(said(), TOPIC)
    recreated = SIGNED.verify_and_decode(message, TopicId("control-id-2"))
    assert reason(recreated) == SkipReason.WRONGLY_SIGNED


def test_a_signature_counts_for_its_own_sink_only() -> None:
    """Two sinks may share the key: what one says is nothing to the other."""
    other = SinkName("orders")
    signed = Wire(other, Keys((NEW,))).encode_and_sign_if_keyed(said(sink=other), TOPIC)
    assert reason(SIGNED.verify_and_decode(signed, TOPIC)) == SkipReason.OTHER_SINK
    moved = signed[:SEAL_BYTES] + message_encoding.encode_envelope(said())
    assert reason(SIGNED.verify_and_decode(moved, TOPIC)) == SkipReason.WRONGLY_SIGNED


def test_no_bit_can_be_changed() -> None:
    message = SIGNED.encode_and_sign_if_keyed(said("write-status"), TOPIC)
    for at in range(len(message)):
        changed = bytearray(message)
        changed[at] ^= 1
        assert isinstance(SIGNED.verify_and_decode(bytes(changed), TOPIC), Skipped), at
    for end in range(len(message)):
        assert isinstance(SIGNED.verify_and_decode(message[:end], TOPIC), Skipped), end


def test_keys_are_exchanged_in_three_steps_and_everybody_is_heard_all_the_time() -> None:
    """Accept the new one everywhere; sign with it everywhere; forget the old one."""
    steps = [(OLD,), (OLD, NEW), (NEW, OLD), (NEW,)]
    for before, after in pairwise(steps):
        for speaker, hearer in ((before, after), (after, before)):
            message = Wire(SINK, Keys(speaker)).encode_and_sign_if_keyed(said(), TOPIC)
            assert Wire(SINK, Keys(hearer)).verify_and_decode(message, TOPIC) == said()


def test_a_member_without_a_key_knows_that_it_lacks_one() -> None:
    assert (
        reason(PLAIN.verify_and_decode(SIGNED.encode_and_sign_if_keyed(said(), TOPIC), TOPIC))
        == SkipReason.SIGNED
    )


def test_the_key_is_not_in_the_message_nor_in_a_repr() -> None:
    assert NEW.encode() not in SIGNED.encode_and_sign_if_keyed(said(), TOPIC)
    assert "new" not in repr(SIGNED)


def test_what_is_not_believed_is_counted_and_what_is_others_is_not_decoded() -> None:
    server = FakeLogServer()
    log = FakeLog(server, SIGNED)
    log.append([said()])
    server.append(
        message_encoding.encode_envelope(said()),
        b"foreign",
        Wire(SINK, Keys((FOREIGN,))).encode_and_sign_if_keyed(said(), TOPIC),
    )
    torn = message_encoding.encode_envelope(said(sink=SinkName("orders")))[:-1]
    server.append(torn)

    assert [record.envelope for record in log.read(0)] == [said()]
    assert log.skipped == {
        SkipReason.UNSIGNED: 1,
        SkipReason.NOT_OURS: 1,
        SkipReason.WRONGLY_SIGNED: 1,
        SkipReason.OTHER_SINK: 1,
    }
    server.recreate()
    log.seek(server.begin)
    log.append([said()])
    assert [record.envelope for record in log.read(0)] == [said()]
