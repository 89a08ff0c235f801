"""What is put is what can be read; a full buffer pauses the user's consumer."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace

import pytest

from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch, BatchFailed
from headgate.data_plane.write.in_process_writer import PutWriter
from headgate.kafka.push_source import Buffers, EmbeddedMember, Record


def test_the_task_asks_for_a_pause_when_its_buffer_is_full() -> None:
    asked: list[str] = []

    class Steering:
        def seek(self, partition: TopicPartition, offset: int) -> None:
            asked.append(f"seek {partition} {offset}")

        def pause(self, partitions: Iterable[TopicPartition]) -> None:
            asked.append(f"pause {' '.join(map(str, partitions))}")

        def resume(self, partitions: object) -> None:
            asked.append("resume")

    at = TopicPartition("t", 0)
    buffers = Buffers(Steering(), bytes_max=1_000)
    buffers.open([at])
    buffers.put([Record("t", 0, 0, 0, b"x" * 90)])
    assert buffers.end_offsets([at]) == {}, "records before the position is known do not count"
    buffers.reseek_where_off_and_resume({at: 5})
    buffers.put([Record("t", 0, offset, 0, b"x" * 160) for offset in (4, 5, 7, 7)])
    assert buffers.end_offsets([at]) == {at: 8}
    late = TopicPartition("t", 1)
    buffers.open([late])
    buffers.reseek_where_off_and_resume({at: 5, late: 0})
    taken = list(buffers.pop_ranges({at: OffsetRange(5, 8)}))
    assert [record.offset for record in taken[0]] == [5, 7]
    assert EmbeddedMember(buffers).is_buffer_full()
    buffers.reseek_where_off_and_resume({at: 8})
    assert not EmbeddedMember(buffers).is_buffer_full()
    assert asked == ["seek t/0 5", "pause t/0", "seek t/1 0", "pause t/1", "resume"]


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (b"key", None, None),
        (None, b"v" * 20, []),
        (b"k" * 1_000, None, None),
        (None, None, [("trace", b"x" * 32), ("source", None)]),
        (None, None, [("trace", b"x" * 1_000)]),
    ],
)
def test_the_memory_that_records_take_is_what_fills_a_buffer(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]] | None
) -> None:
    """Not their values alone: a tombstone has none, and takes as much as a small record."""
    at, buffers = TopicPartition("trips-of-a-city", 0), Buffers(Ignoring(), bytes_max=1 << 40)
    buffers.open([at])
    buffers.reseek_where_off_and_resume({at: 0})

    packed = pickle.dumps(Record(at.topic, 0, 0, 0, value, key, headers))

    def arriving(offset: int) -> Record:  # as from a consumer: it shares no object with another
        record: Record = pickle.loads(packed)
        return record._replace(offset=offset, timestamp_ms=1_785_585_600_123 + offset)

    tracemalloc.start()
    try:
        buffers.put(map(arriving, range(2_000)))
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken / 1.5 < buffers._bytes < taken * 1.5
    list(buffers.pop_ranges({at: OffsetRange(0, 2_000)}))
    assert buffers._bytes == 0


class Ignoring:
    """A user's consumer that does nothing of what it is asked for."""

    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...


class Steered:
    """A user's consumer that does not deliver again before it is asked for more."""

    def __init__(self) -> None:
        self.sought: list[int] = []

    def seek(self, _partition: TopicPartition, offset: int) -> None:
        self.sought.append(offset)

    def pause(self, partitions: object) -> None: ...

    def resume(self, partitions: object) -> None: ...


def test_what_a_partition_held_that_is_opened_again_no_longer_counts() -> None:
    at, buffers = TopicPartition("t", 0), Buffers(Steered(), bytes_max=1_000)
    for _ in range(3):
        buffers.open([at])
        buffers.reseek_where_off_and_resume({at: 0})
        buffers.put([Record("t", 0, 0, 0, b"x" * 60)])
        assert not buffers.is_full
        assert buffers.end_offsets([at]) == {at: 1}


def test_a_batch_that_is_done_again_waits_until_its_records_are_delivered_again() -> None:
    """Else its range would be claimed without its rows."""
    at, consumer, written = TopicPartition("t", 0), Steered(), []

    def write(batch: Batch, records: list[list[Record]], _: object) -> BatchFailed:
        written.append([record.offset for record in records[0]])
        return BatchFailed(batch.number, "the disk is full")

    def delivered() -> None:
        buffers.put([Record("t", 0, offset, 0, b"x") for offset in range(consumer.sought[-1], 8)])

    buffers = Buffers(consumer, bytes_max=100)
    buffers.open([at])
    buffers.reseek_where_off_and_resume({at: 5})
    delivered()
    writer = PutWriter(buffers, write)
    table = TableStart("db.t", "uuid", 0, 0, "p")
    batch = Batch(
        1, TransactionId(Epoch(1), TransactionNumber(1)), table, {at: OffsetRange(5, 8)}, 1
    )
    try:
        writer.submit(batch)
        assert isinstance(writer.wait_for_outcome(10_000), BatchFailed)
        again = replace(batch, number=2, ranges={at: OffsetRange(5, 7)})
        writer.submit(again)
        outcome = writer.wait_for_outcome(10_000)
        assert isinstance(outcome, BatchFailed)
        assert "delivered again" in outcome.reason
        buffers.reseek_where_off_and_resume({at: 5})
        delivered()
        writer.submit(replace(again, number=3))
        assert writer.wait_for_outcome(10_000) == BatchFailed(3, "the disk is full")
    finally:
        writer.close()
    assert written == [[5, 6, 7], [5, 6]]
    assert consumer.sought == [5, 5]
