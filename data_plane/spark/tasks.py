"""Cuts a batch into shares, one per Spark task, runs each, and joins their results.

The JVM sees one metadata row per share.
"""

from __future__ import annotations

import gc
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Protocol
from zipimport import zipimporter

import pyarrow as pa

from headgate.control_protocol.columns import unify_columns as joined_columns
from headgate.control_protocol.errors import StopBefore
from headgate.control_protocol.events import Destination, WrittenFile
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import (
    Batch,
    BatchFailed,
    BatchNeeds,
    BatchOutcome,
    BatchWritten,
    PartitionResult,
    TableNeed,
)
from headgate.data_plane.batch.failure_classification import LacksTablePlans, failed_outcome_of
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.write.write_batch import write_ranges_around_poison

SHARE_OFFSETS_MIN = 50_000
"""Below this, another task costs more, in start-up and small files, than its core gives."""


def split_into_shares(batch: Batch, shares_max: int) -> list[Batch]:
    """Return at most ``shares_max`` batches of equal size that together cover the batch's ranges.

    A partition may be cut between shares. No offsets, no shares.
    """
    total = sum(map(len, batch.ranges.values()))
    if total == 0:
        return []
    count = max(1, min(shares_max, total // SHARE_OFFSETS_MIN))
    size = -(-total // count)
    shares: list[dict[TopicPartition, OffsetRange]] = [{}]
    room = size
    for partition, whole in sorted(batch.ranges.items()):
        begin = whole.begin
        while begin < whole.end:
            if room == 0:
                shares.append({})
                room = size
            end = min(whole.end, begin + room)
            shares[-1][partition] = OffsetRange(begin, end)
            room -= end - begin
            begin = end
    return [replace(batch, ranges=ranges) for ranges in shares]


def merge_outcomes(batch: Batch, outcomes: Sequence[BatchOutcome]) -> BatchOutcome:
    """Combine the shares' outcomes into the batch's; one that failed fails all.

    Raises ``ValueError`` if the shares do not make up the batch: then nothing may be claimed.
    """
    failures = [outcome for outcome in outcomes if isinstance(outcome, BatchFailed)]
    if failures:
        worst = max(failures, key=_failure_severity)
        wanting = [failure for failure in failures if isinstance(failure, LacksTablePlans)]
        if wanting and worst.fatal is None:
            names = frozenset(name for failure in wanting for name in failure.names)
            return replace(wanting[0], number=batch.number, names=names)
        if isinstance(worst.fatal, StopBefore):
            worst.fatal.merge_first_offsets_in_place(
                each.fatal for each in failures if isinstance(each.fatal, StopBefore)
            )
        return replace(worst, number=batch.number)
    needs = [outcome for outcome in outcomes if isinstance(outcome, BatchNeeds)]
    if needs:
        return merge_needs(batch.number, needs)
    written = [outcome for outcome in outcomes if isinstance(outcome, BatchWritten)]
    results = {partition: _empty_result(whole.begin) for partition, whole in batch.ranges.items()}
    for share in written:
        for partition, result in sorted(share.partitions.items()):
            results[partition] = _merge_results(results[partition], result)
    if {partition: result.range for partition, result in results.items()} != dict(batch.ranges):
        raise ValueError(f"the shares of batch {batch.number} do not make up its ranges")
    quarantined = tuple(file for share in written for file in share.quarantined)
    files = tuple(file for share in written for file in share.files)
    ignored: Counter[str] = Counter()
    for share in written:
        ignored.update(share.ignored)
    return BatchWritten(
        batch.number, results, files, quarantined, secondary_files_by_table(written), dict(ignored)
    )


def _failure_severity(failure: BatchFailed) -> int:
    """Order failures: one that stops the sink before a record lets the rest be written."""
    if failure.fatal is None:
        return 0
    return 1 if isinstance(failure.fatal, StopBefore) else 2


def merge_needs(number: int, needs: Sequence[BatchNeeds]) -> BatchNeeds:
    """SCHEMA-2: return everything that any of the shares needs."""
    return BatchNeeds(
        number,
        reduce(joined_columns, (need.columns for need in needs)),
        reduce(Offsets.minimum_per_partition, (need.first for need in needs)),
        sum(need.records for need in needs),
        needs[0].source,
        _merge_by_table([table for need in needs for table in need.tables]),
    )


def _merge_by_table(needs: Sequence[TableNeed]) -> tuple[TableNeed, ...]:
    """Return one need for each table, of what all shares need."""
    known: dict[str, TableNeed] = {}
    for need in needs:
        before = known.get(need.at.table, replace(need, records=0))
        known[need.at.table] = replace(
            before,
            columns=joined_columns(before.columns, need.columns),
            first=before.first.minimum_per_partition(need.first),
            records=before.records + need.records,
        )
    return tuple(known.values())


class _Wrote(Protocol):
    @property
    def secondary_files(self) -> Mapping[Destination, tuple[WrittenFile, ...]]: ...


def secondary_files_by_table(
    written: Iterable[_Wrote],
) -> dict[Destination, tuple[WrittenFile, ...]]:
    """Return the files of secondary tables, table by table."""
    files: dict[Destination, tuple[WrittenFile, ...]] = {}
    for share in written:
        for at, more in share.secondary_files.items():
            files[at] = (*files.get(at, ()), *more)
    return files


def files_of(outcomes: Sequence[BatchOutcome]) -> tuple[WrittenFile, ...]:
    """Return every file that the outcomes name, of all tables."""
    written = [outcome for outcome in outcomes if isinstance(outcome, BatchWritten)]
    return tuple(file for share in written for file in share.all_files)


def _empty_result(offset: int) -> PartitionResult:
    return PartitionResult(OffsetRange(offset, offset), records=0, bytes_read=0)


def _merge_results(result: PartitionResult, more: PartitionResult) -> PartitionResult:
    times = [t for t in (result.max_timestamp_ms, more.max_timestamp_ms) if t is not None]
    return PartitionResult(
        range=result.range.extended_by(more.range),
        records=result.records + more.records,
        bytes_read=result.bytes_read + more.bytes_read,
        max_timestamp_ms=max(times, default=None),
        quarantined=result.quarantined + more.quarantined,
        skipped=result.skipped + more.skipped,
        bad=result.bad + more.bad,
        deleted=result.deleted + more.deleted,
        filtered=result.filtered + more.filtered,
    )


RESULT_COLUMNS = "share long, outcome binary"
_RESULT_SCHEMA = pa.schema([("share", pa.int64()), ("outcome", pa.binary())])

_frozen = False


def writer_of_shares(
    write_one: Callable[[Batch], BatchOutcome], shares: Sequence[Batch]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for ``mapInArrow`` over share numbers; rows of ``RESULT_COLUMNS``."""

    def write_shares(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                outcome = pickle.dumps(write_one(shares[number]))
                yield pa.RecordBatch.from_arrays(
                    [pa.array([number], pa.int64()), pa.array([outcome], pa.binary())],
                    schema=_RESULT_SCHEMA,
                )
        drop_zip_importers_and_freeze_gc()

    return write_shares


def unpickle_outcome(row: bytes) -> BatchOutcome:
    """Return the outcome in a result row, which comes from this application's own executors."""
    outcome: BatchOutcome = pickle.loads(row)  # noqa: S301 - as trusted as the task that made it
    return outcome


def write_share(plan: WriterPlan, share: Batch) -> BatchOutcome:
    """Write the share. Failures are values: Spark would retry a raised one, and bury its text."""
    try:
        return write_ranges_around_poison(plan, share)
    except Exception as error:  # noqa: BLE001 - it goes on as a value
        return failed_outcome_of(share.number, error)


def drop_zip_importers_and_freeze_gc() -> None:
    """Spare the reused Python worker 0.13 CPU-seconds per task (measured: 131 ms, then 1 ms).

    Before each task Spark invalidates the import caches, which makes every zip importer read its
    archive again (Spark's own libraries, and a jar of the JVM's, are on the path). Forgotten
    importers are recreated from the interpreter's cache when something is imported. After each task
    Spark collects garbage over all modules, which no longer change: they are frozen once.
    """
    global _frozen  # noqa: PLW0603 - one flag per worker process
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True
