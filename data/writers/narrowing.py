"""Narrows a batch that fails through no other system's fault down to the records that cause it.

``singling`` finds what decoding raises inside a chunk. What is raised later (by partitioning,
sorting, statistics, files, a transform) is found here: halves of the batch's ranges are written,
and discarded, until the offset at fault stands alone. It is condemned, which makes it a bad record,
and the batch is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from headgate.control_protocol.bad_records import BadRecordLimits, Disposal
from headgate.control_protocol.errors import TransformRaised
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
from headgate.control_protocol.redacted_log import redacted_logger
from headgate.data.writers.plan import Handling, WriterPlan
from headgate.data.writers.singling import REASON_CHARACTERS_MAX
from headgate.tables.stores.files import open_files

log = redacted_logger(__name__)

Attempt = Callable[[WriterPlan, Batch], BatchOutcome]
"""Writes a batch or a part of it, as the plan says; returns its failures as values."""

CONDEMNED_MAX = 16
"""The limit for one batch: each record costs about as much as writing the batch twice."""

_IN_VAIN_MAX = 3
_NO_LIMITS = BadRecordLimits(per_thousand_max=1_000)

Ranges = Mapping[TopicPartition, OffsetRange]


def narrowed(attempt: Attempt, plan: WriterPlan, batch: Batch) -> BatchOutcome:
    """Write the batch. If a few of its records make that fail, treat them as bad records.

    The outcome is the first failure when it cannot be narrowed down.
    """
    outcome = first = attempt(plan, batch)
    condemned = {at: dict(reasons) for at, reasons in plan.condemned.items()}
    seen = _Seen(attempt)
    for tries in range(CONDEMNED_MAX):
        if not isinstance(outcome, BatchFailed) or not _narrowable(outcome):
            return outcome
        if tries >= _IN_VAIN_MAX and not seen.row:
            return first  # no part of it can be written at all
        found = _record_at_fault(seen, plan, batch)
        if isinstance(found, BatchFailed | BatchNeeds):
            return found
        if found is None:
            break
        at, offset, reason = found
        condemned.setdefault(at, {})[offset] = reason
        plan = replace(plan, condemned=condemned)
        if plan.source.handling.policy is Disposal.FAIL:
            # It stops the sink (P14). Alone: others like it fail in other words before it is named.
            return attempt(plan, replace(batch, ranges=_alone(batch.ranges, at, offset)))
        outcome = attempt(plan, batch)
    if isinstance(outcome, BatchFailed) and _narrowable(outcome):
        return first
    return outcome


class _Seen:
    """Attempts at parts of a batch, and whether any of them wrote a row."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self.row = False

    def __call__(self, plan: WriterPlan, part: Batch) -> BatchOutcome:
        outcome = self._attempt(plan, part)
        if isinstance(outcome, BatchWritten):
            self.row |= any(result.records for result in outcome.partitions.values())
        return outcome


def _narrowable(outcome: BatchFailed) -> bool:
    return outcome.unforeseen or isinstance(outcome.fatal, TransformRaised)


def _record_at_fault(
    attempt: Attempt, plan: WriterPlan, batch: Batch
) -> tuple[TopicPartition, int, str] | BatchFailed | BatchNeeds | None:
    """Find one record that makes the batch fail by itself; ``None`` if there is no such record.

    A failure of another kind, or a need, that comes up meanwhile is returned as it is.
    """
    plan = replace(plan, source=replace(plan.source, handling=_lenient(plan.source.handling)))
    ranges: Ranges = batch.ranges
    reason = ""
    while not reason or sum(map(len, ranges.values())) > 1:
        for half in _halves(ranges):
            outcome = attempt(plan, replace(batch, ranges=half))
            if isinstance(outcome, BatchWritten):
                discard(plan, outcome.every_file)
                continue
            if isinstance(outcome, BatchNeeds) or not _narrowable(outcome):
                return outcome
            ranges, reason = half, outcome.reason
            break
        else:
            return None
    at, span = next((at, span) for at, span in ranges.items() if not span.empty)
    return at, span.begin, reason[:REASON_CHARACTERS_MAX]


def _lenient(handling: Handling) -> Handling:
    """Let the search pass other bad records: a part of a batch may hold most of them."""
    policy, tombstones = (
        Disposal.SKIP if disposal is Disposal.FAIL else disposal
        for disposal in (handling.policy, handling.tombstones)
    )
    return replace(
        handling,
        policy=policy,
        tombstones=tombstones,
        untold_tombstones=handling.untold_tombstones and Disposal.SKIP,
        limits=_NO_LIMITS,
    )


def _alone(ranges: Ranges, partition: TopicPartition, offset: int) -> Ranges:
    return {
        at: OffsetRange(offset, offset + 1) if at == partition else OffsetRange(span.end, span.end)
        for at, span in ranges.items()
    }


def _halves(ranges: Ranges) -> Iterable[Ranges]:
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


def discard(plan: WriterPlan, files: Iterable[WrittenFile]) -> None:
    """Remove files that were never announced: only this process ever knew their names."""
    for file in files:
        owner = _owner(plan, file)
        io = open_files(owner.io_properties, owner.data_location)
        try:
            io.delete(file.path)
        except OSError as error:
            log.warning("%s is left behind, unused: %s", file.path, error)


def _owner(plan: WriterPlan, file: WrittenFile) -> WriterPlan:
    """Return the plan of the table that the file was for."""
    routed = (table.plan for table in plan.tables.values() if table.plan)
    return next((own for own in routed if file.path.startswith(f"{own.data_location}/")), plan)
