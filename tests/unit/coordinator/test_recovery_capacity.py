"""Too many topics are refused with a name, before a claim is made: no snapshot per restart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, Coordinator
from protocol.values import RIVAL, TOPIC_ID, offsets, record, topics, view
from support.control_envelopes import EXAMPLES, envelope

from headgate.control_protocol import commit_record_codec, message_encoding
from headgate.control_protocol.events import StartCommit
from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import TopicState
from headgate.coordinator.inputs_and_actions import CommitTable
from headgate.coordinator.phases import Phase
from headgate.coordinator.recovery import START_BYTES_MAX, start_event_size_bytes


def many(count: int, characters: int) -> dict[str, TopicState]:
    log = topics((0, 10))["trips"].partitions
    names = [f"{number:0{characters}}" for number in range(count)]
    return {name: TopicState(TopicId("x" * 22), log) for name in names}


@pytest.mark.parametrize(("count", "characters"), [(8_000, 60), (9_000, 200), (100_001, 5)])
@pytest.mark.parametrize("first", [True, False])
def test_too_many_topics_are_refused_before_a_claim(
    count: int, characters: int, first: bool
) -> None:
    table = view() if first else view(record(EPOCH - 1, 4, offsets(10, 20), RIVAL))
    coordinator = Coordinator(
        table, sources=topics((0, 1_000), (0, 1_000)) | many(count, characters)
    )
    for _ in range(4):
        if coordinator.phase is Phase.STOPPED:
            break
        coordinator.goes_on()
        assert not coordinator.wants(CommitTable)
    assert coordinator.phase is Phase.STOPPED
    assert coordinator.error.code == "HG-105"
    assert "divide them among several sinks" in str(coordinator.error)


def test_topics_that_come_later_are_refused_before_they_are_said() -> None:
    coordinator = Coordinator.at(Phase.OPEN)
    coordinator.sources |= many(8_000, 60)
    coordinator.until(Phase.PREPARING)
    coordinator.described()
    coordinator.described()  # with the table's other sinks (TABLE-5)
    assert coordinator.phase is Phase.STOPPED
    assert coordinator.error.code == "HG-105"


def test_topics_that_come_later_are_refused_beside_those_that_are_gone() -> None:
    """The record names these still, a START does not: the commit ended in a traceback."""
    gone = {TopicPartition("gone", n): 1 for n in range(commit_record_codec.PARTITIONS_MAX - 2)}
    stored = record(EPOCH - 1, 4, offsets(10, 20).with_offsets(gone), RIVAL)
    ids = {**stored.topic_ids, "gone": TopicId("x" * 22)}
    coordinator = Coordinator(view(replace(stored, topic_ids=ids)))
    coordinator.until(Phase.OPEN)
    coordinator.sources |= many(1, 5)
    coordinator.until(Phase.PREPARING)
    coordinator.described()
    coordinator.described()
    assert coordinator.phase is Phase.STOPPED
    assert coordinator.error.code == "HG-105"


def test_what_is_let_in_can_be_said_and_read_again() -> None:
    """Close to the limit, with large offsets."""
    count = 5_100
    names = [f"{number:060}" for number in range(count)]
    at = Offsets({TopicPartition(name, 0): 2**40 for name in names})
    ids = dict.fromkeys(names, TopicId("x" * 22))
    assert START_BYTES_MAX * 0.95 < start_event_size_bytes(at, ids) <= START_BYTES_MAX
    example = EXAMPLES["start-commit"]
    assert isinstance(example, StartCommit)
    said = envelope(replace(example, offsets=at, topic_ids=ids))
    assert message_encoding.decode_envelope(message_encoding.encode_envelope(said)) == said

    stored = record(3, 1, at, topic_ids=ids)
    assert (
        commit_record_codec.decode_record(stored.sink, commit_record_codec.encode_record(stored))
        == stored
    )


def test_a_record_that_could_not_be_read_is_not_written() -> None:
    names = [f"{number:0200}" for number in range(9_000)]
    at = Offsets({TopicPartition(name, 0): 1 for name in names})
    with pytest.raises(ValueError, match="at most 2100000 are read"):
        commit_record_codec.encode_record(
            record(3, 1, at, topic_ids=dict.fromkeys(names, TOPIC_ID))
        )
