"""What the tasks read against what they wrote: one row or none of each record, all counted."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from headgate.control_protocol.errors import TransformFailed, WriteFailed
from headgate.control_protocol.events import TableStart, WrittenFile
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch, BatchFailed, BatchWritten, PartitionResult
from headgate.data_plane.spark.stages import PartWritten, ShareRead, reconcile_reads_and_writes

ONE, TWO = TopicPartition("a", 0), TopicPartition("a", 1)
BATCH = Batch(
    number=5,
    transaction=TransactionId(Epoch(1), TransactionNumber(1)),
    table=TableStart("db.t", "uuid", schema_id=0, spec_id=0, file_prefix="s3://t/data/"),
    ranges={ONE: OffsetRange(10, 20), TWO: OffsetRange(0, 5)},
    target_file_bytes=1,
)
# Numbers 0 to 9 are ONE's offsets from 10 on, of which 17 holds no record; 10 to 14 are TWO's.
FIRST = ShareRead(
    0,
    BatchWritten(5, {ONE: PartitionResult(OffsetRange(10, 20), 9, 90, 77)}),
    BitMap64([0, 1, 2, 3, 4, 5, 6, 8, 9]),
)
SECOND = ShareRead(
    1,
    BatchWritten(5, {TWO: PartitionResult(OffsetRange(0, 5), 4, 40, 88, skipped=1)}),
    BitMap64([10, 11, 12, 13]),
)
EVERYTHING = [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13]


def part(*numbers: int) -> PartWritten:
    held = BitMap64(numbers)
    twice = BitMap64(n for n in held if numbers.count(n) > 1)
    return PartWritten((WrittenFile(f"f{numbers}", len(numbers), 1),), len(numbers), held, twice)


def test_what_was_read_and_not_written_was_filtered_and_counts_as_skipped() -> None:
    outcome = reconcile_reads_and_writes(
        BATCH, [SECOND, FIRST], [part(9, 10), part(0, 1), part()], "transform.sql"
    )
    assert isinstance(outcome, BatchWritten)
    assert outcome.partitions == {
        ONE: PartitionResult(OffsetRange(10, 20), 3, 90, 77, skipped=6, filtered=6),
        TWO: PartitionResult(OffsetRange(0, 5), 1, 40, 88, skipped=4, filtered=3),
    }
    assert sum(file.records for file in outcome.files) == 4


def test_a_share_that_was_read_twice_counts_once() -> None:
    outcome = reconcile_reads_and_writes(BATCH, [FIRST, SECOND, FIRST], [part(*EVERYTHING)], "")
    assert isinstance(outcome, BatchWritten)
    assert [result.records for result in outcome.partitions.values()] == [9, 4]


@pytest.mark.parametrize("parts", [[part(0, 1, 1)], [part(0, 1), part(1, 2)]])
def test_a_record_in_two_rows_is_named(parts: list[PartWritten]) -> None:
    with pytest.raises(TransformFailed, match=r"1 row more .* a partition 0 offset 11"):
        reconcile_reads_and_writes(BATCH, [FIRST, SECOND], parts, "transform.sql")


def test_a_record_that_was_not_read_is_named() -> None:
    with pytest.raises(TransformFailed, match="not read, as a partition 0 offset 17"):
        reconcile_reads_and_writes(BATCH, [FIRST, SECOND], [part(0, 7)], "transform.sql")


def test_without_a_transform_every_record_must_be_written() -> None:
    with pytest.raises(WriteFailed, match="1 row is missing"):
        reconcile_reads_and_writes(BATCH, [FIRST, SECOND], [part(*EVERYTHING[1:])], "")
    with pytest.raises(WriteFailed, match="1 row is there twice"):
        reconcile_reads_and_writes(BATCH, [FIRST, SECOND], [part(*EVERYTHING), part(3)], "")


def test_a_failure_of_any_attempt_of_any_task_is_the_batchs() -> None:
    failed = ShareRead(1, BatchFailed(9, "no broker"), BitMap64())
    for reads in ([FIRST, SECOND, failed], [FIRST, failed, SECOND]):
        outcome = reconcile_reads_and_writes(BATCH, reads, [part(*EVERYTHING)], "")
        assert outcome == BatchFailed(5, "no broker")
    outcome = reconcile_reads_and_writes(
        BATCH, [FIRST, SECOND], [part(0), BatchFailed(1, "disk")], "transform.sql"
    )
    assert outcome == BatchFailed(5, "disk")


def test_shares_that_do_not_make_up_the_batch_are_never_claimed() -> None:
    with pytest.raises(ValueError, match="do not make up"):
        reconcile_reads_and_writes(BATCH, [FIRST], [part(0)], "transform.sql")
