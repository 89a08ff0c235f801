"""What a run until the latest record still lacks, and when it cannot be told."""

from __future__ import annotations

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import TopicState
from headgate.operations.wait import count_missing_offsets

TRIPS = {
    "trips": TopicState(
        TopicId("second"),
        {0: OffsetRange(0, 10), 1: OffsetRange(40, 50), 2: OffsetRange(7, 7)},
    )
}


def record(topic_id: str, offsets: dict[int, int]) -> CommitRecord:
    return CommitRecord(
        sink="trips",
        group_id="headgate-trips",
        transaction=TransactionId(Epoch(1), TransactionNumber(1)),
        coordinator=Sender("member", "life"),
        offsets=Offsets({TopicPartition("trips", at): end for at, end in offsets.items()}),
        topic_ids={"trips": TopicId(topic_id)},
    )


def at(partition: int) -> TopicPartition:
    return TopicPartition("trips", partition)


def test_without_a_commit_all_that_the_log_still_holds_is_missing() -> None:
    assert count_missing_offsets(None, TRIPS) == {at(0): 10, at(1): 10}


def test_what_is_committed_is_not_missing() -> None:
    assert count_missing_offsets(record("second", {0: 10, 1: 45}), TRIPS) == {at(1): 5}
    assert count_missing_offsets(record("second", {0: 10, 1: 50}), TRIPS) == {}


def test_offsets_of_a_topic_that_was_created_again_count_for_nothing() -> None:
    assert count_missing_offsets(record("first", {0: 10, 1: 50}), TRIPS) == {at(0): 10, at(1): 10}
