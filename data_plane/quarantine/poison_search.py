"""Finds the few records that make a batch fail through no other system's fault.

An unforeseen error of decoding is traced inside a chunk (``read_around_poison``): the chunk is
halved until the records at fault stand alone; the others become rows. That costs nothing unless
something is raised.

An error that comes later (from partitioning, sorting, statistics, files, a transform) is traced by
writing halves of the batch's ranges, and deleting their files, until the offset at fault stands
alone (``write_around_poison``). That record is bad from then on, and the batch is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from headgate.control_protocol.errors import TransformRaised, Unforeseen
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import (
    Batch,
    BatchFailed,
    BatchNeeds,
    BatchOutcome,
    BatchWritten,
)
from headgate.control_protocol.quarantine_policy import BadRecordLimits, Disposal
from headgate.data_plane.batch.failure_classification import is_bisectable
from headgate.data_plane.batch.writer_task_plan import Handling, WriterPlan
from headgate.data_plane.formats.casting.relabel import rows_from_python
from headgate.kafka.record_fetch import Chunk
from headgate.native.kernels import Integers
from headgate.tables.storage.file_io import delete_quietly, open_file_io

# --------------------------------------------------------------------------------------- in a chunk


BAD_EXCEPTION = "exception"
"""The ``error_class`` in the quarantine of a record that made its batch fail."""

REASON_CHARACTERS_MAX = 500
ALONE_MAX = 64
"""If so many records fail and none succeeds, the records are not at fault."""


@dataclass(frozen=True, slots=True)
class Read:
    """Holds the rows of a chunk's good records, and why the others are bad, by error class."""

    rows: pa.RecordBatch
    bad: Sequence[tuple[Mapping[int, str], str]] = ()


def read_around_poison(chunk: Chunk, schema: pa.Schema, read: Callable[[Chunk], Read]) -> Read:
    """Read the chunk; a record for which ``read`` raises an unforeseen error is bad.

    Raises ``Unforeseen`` when it raises for each of many, and whatever else ``read`` raises.
    """
    try:
        return read(chunk)
    except Exception as error:
        if not is_bisectable(error):
            raise
    return _Search(chunk, read).read_by_halving(schema)


def halve_until_complete(count: int, try_complete_rows: Callable[[Integers], bool]) -> None:
    """Ask for all of ``count`` rows, in order; those of which the answer is no are halved."""
    waiting = [np.arange(count, dtype=np.int64)] if count else []  # halves of none have no end
    while waiting:
        rows = waiting.pop()
        if not try_complete_rows(rows):
            first, second = np.array_split(rows, 2)
            waiting += [second, first]


class _Search:
    def __init__(self, chunk: Chunk, read: Callable[[Chunk], Read]) -> None:
        self._chunk = chunk
        self._read = read
        self._parts: list[pa.RecordBatch] = []
        self._bad: dict[str, dict[int, str]] = {BAD_EXCEPTION: {}}
        self._some_read = False

    def read_by_halving(self, schema: pa.Schema) -> Read:
        halve_until_complete(len(self._chunk.offsets), self._try_complete_rows)
        empty = rows_from_python([], schema)
        together = pa.concat_batches([empty, *self._parts])
        return Read(together, [(bad, why) for why, bad in self._bad.items() if bad])

    def _try_complete_rows(self, rows: Integers) -> bool:
        """Return whether the outcome of each of these rows is known."""
        wanted = np.zeros(len(self._chunk.offsets), np.bool_)
        wanted[rows] = True
        try:
            part = self._read(self._chunk.filter(wanted))
        except Exception as error:
            if not is_bisectable(error):
                raise
            if len(rows) == 1:
                self._mark_poison_or_raise(int(rows[0]), error)
            return len(rows) == 1
        self._some_read = True
        self._parts.append(part.rows)
        for bad, why in part.bad:
            reasons = {int(rows[row]): reason for row, reason in bad.items()}
            self._bad.setdefault(why, {}).update(reasons)
        return True

    def _mark_poison_or_raise(self, row: int, error: Exception) -> None:
        """Note the row as bad; raises ``Unforeseen`` if the first ``ALONE_MAX`` are all bad."""
        reason = bounded_error_text(error)
        alone = self._bad[BAD_EXCEPTION]
        alone[row] = reason
        if not self._some_read and len(alone) >= ALONE_MAX:
            raise Unforeseen(f"none of the first {ALONE_MAX} records can be read: {reason}")


def bounded_error_text(error: BaseException) -> str:
    """Return the error's text, bounded."""
    return f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]


# --------------------------------------------------------------------------------------- in a batch


Attempt = Callable[[WriterPlan, Batch], BatchOutcome]
"""Writes a batch or a part of it, as the plan says; returns its failures as values."""

POISON_RECORDS_MAX = 16
"""The limit for one batch: each record costs about as much as writing the batch twice."""

_FRUITLESS_MAX = 3
_NO_LIMITS = BadRecordLimits(per_thousand_max=1_000)

Ranges = Mapping[TopicPartition, OffsetRange]


def write_around_poison(attempt: Attempt, plan: WriterPlan, batch: Batch) -> BatchOutcome:
    """Write the batch. If a few of its records make that fail, treat them as bad records.

    The outcome is the first failure if no record can be found at fault.
    """
    outcome = first = attempt(plan, batch)
    poison = {at: dict(reasons) for at, reasons in plan.poison_records.items()}
    seen = _CountedAttempts(attempt)
    for tries in range(POISON_RECORDS_MAX):
        if not isinstance(outcome, BatchFailed) or not _is_bisectable(outcome):
            return outcome
        if tries >= _FRUITLESS_MAX and not seen.row:
            return first  # no part of it can be written at all
        result = _find_record_at_fault(seen, plan, batch)
        if isinstance(result, BatchFailed | BatchNeeds):
            return result
        if result is None:
            break
        at, offset, reason = result
        poison.setdefault(at, {})[offset] = reason
        plan = replace(plan, poison_records=poison)
        if plan.source.handling.policy is Disposal.FAIL:
            # It stops the sink (BATCH-2). Alone: others like it fail in other words before it is
            # named.
            return attempt(
                plan, replace(batch, ranges=_ranges_of_one_offset(batch.ranges, at, offset))
            )
        outcome = attempt(plan, batch)
    if isinstance(outcome, BatchFailed) and _is_bisectable(outcome):
        return first
    return outcome


class _CountedAttempts:
    """Makes attempts at parts of a batch, and notes whether any of them wrote a row."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self.row = False

    def __call__(self, plan: WriterPlan, part: Batch) -> BatchOutcome:
        outcome = self._attempt(plan, part)
        if isinstance(outcome, BatchWritten):
            self.row |= any(result.records for result in outcome.partitions.values())
        return outcome


def _is_bisectable(outcome: BatchFailed) -> bool:
    return outcome.unforeseen or isinstance(outcome.fatal, TransformRaised)


def _find_record_at_fault(
    attempt: Attempt, plan: WriterPlan, batch: Batch
) -> tuple[TopicPartition, int, str] | BatchFailed | BatchNeeds | None:
    """Find one record that makes the batch fail by itself; ``None`` if there is no such record.

    A failure of another kind, or a need, that comes up meanwhile is returned as it is.
    """
    plan = replace(
        plan, source=replace(plan.source, handling=_handling_that_skips_bad(plan.source.handling))
    )
    ranges: Ranges = batch.ranges
    reason = ""
    while not reason or sum(map(len, ranges.values())) > 1:
        for half in _halve_ranges(ranges):
            outcome = attempt(plan, replace(batch, ranges=half))
            if isinstance(outcome, BatchWritten):
                delete_unannounced_files(plan, outcome.all_files)
                continue
            if isinstance(outcome, BatchNeeds) or not _is_bisectable(outcome):
                return outcome
            ranges, reason = half, outcome.reason
            break
        else:
            return None
    at, span = next((at, span) for at, span in ranges.items() if not span.is_empty)
    return at, span.begin, reason[:REASON_CHARACTERS_MAX]


def _handling_that_skips_bad(handling: Handling) -> Handling:
    """Let the search pass other bad records: a part of a batch may hold most of them."""
    policy, tombstones = (
        Disposal.SKIP if disposal is Disposal.FAIL else disposal
        for disposal in (handling.policy, handling.tombstones)
    )
    return replace(
        handling,
        policy=policy,
        tombstones=tombstones,
        unrouted_tombstones=handling.unrouted_tombstones and Disposal.SKIP,
        limits=_NO_LIMITS,
    )


def _ranges_of_one_offset(ranges: Ranges, partition: TopicPartition, offset: int) -> Ranges:
    return {
        at: OffsetRange(offset, offset + 1) if at == partition else OffsetRange(span.end, span.end)
        for at, span in ranges.items()
    }


def _halve_ranges(ranges: Ranges) -> Iterable[Ranges]:
    """Cut the ranges in two, as if laid end to end; a single offset is returned as it is."""
    total = sum(map(len, ranges.values()))
    first: dict[TopicPartition, OffsetRange] = {}
    second: dict[TopicPartition, OffsetRange] = {}
    left = total // 2
    for at, span in ranges.items():
        cut = span.begin + min(left, len(span))
        left -= cut - span.begin
        first[at], second[at] = OffsetRange(span.begin, cut), OffsetRange(cut, span.end)
    return (second,) if total == 1 else (first, second)


def delete_unannounced_files(plan: WriterPlan, files: Iterable[WrittenFile]) -> None:
    """Remove files that were never announced: only this process ever knew their names."""
    for file in files:
        owner = _table_plan_of_file(plan, file)
        io = open_file_io(owner.io_properties, owner.shape.data_location)
        delete_quietly(io, [file.path])


def _table_plan_of_file(plan: WriterPlan, file: WrittenFile) -> WriterPlan:
    """Return the plan of the table that the file was for."""
    others = (plan.quarantine, *(table.plan for table in plan.tables.values()))
    return next(
        (own for own in others if own and file.path.startswith(f"{own.shape.data_location}/")), plan
    )
