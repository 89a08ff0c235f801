"""Tracks what this process's coordinator says and sees, and derives lag, stall and condition. Pure.

A partition stalls as in Burrow: it had records to read, and its stored offset did not move for a
whole window. There is no threshold of records to choose.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from headgate.control_protocol.events import Settlement, StartCommit, WriteStatus
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange
from headgate.runtime.health import (
    Condition,
    Facts,
    LastError,
    condition_from,
    last_error_from_batch_failure,
    marked_past_if_resolved,
)
from headgate.runtime.telemetry import metric_catalog as names
from headgate.runtime.telemetry.meters import Gauge

_NONE = TransactionId(Epoch(0), TransactionNumber(0))


@dataclass(frozen=True, slots=True)
class Progress:
    """One coordinator's life, as its own events show it.

    ``stored``: the next offsets by the table; ``logs``: the logs at the last look;
    ``still_since_s``: since when a partition has had lag without moving; ``first_unstored_ms``:
    timestamps of the first unstored records, by partition. ``error``: what this coordinator keeps
    failing at; ``batches``: what participants failed to write, and since when nothing newer was
    heard. ``fresh_ms``: valid-through of each table that this coordinator delivered, from the
    table's own record; ``suspended``: how many tables take nothing.
    """

    epoch: int = 0
    paused: bool = False
    settled: TransactionId = _NONE
    opened: Mapping[TransactionId, float] = field(default_factory=dict)
    stored: Mapping[TopicPartition, int] = field(default_factory=dict)
    logs: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict)
    still_since_s: Mapping[TopicPartition, float] = field(default_factory=dict)
    first_unstored_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    last_commit_ms: int | None = None
    valid_through_ms: int | None = None
    error: LastError | None = None
    batches: Mapping[Sender, tuple[float, LastError]] = field(default_factory=dict)
    fresh_ms: Mapping[str, int] = field(default_factory=dict)
    suspended: int = 0

    @property
    def lags(self) -> Mapping[TopicPartition, int]:
        """Return how many records the table lacks, of partitions whose log is known."""
        return {
            at: max(0, log.end - self.stored[at])
            for at, log in self.logs.items()
            if at in self.stored
        } | {at: len(log) for at, log in self.logs_of_unread_partitions.items()}

    @property
    def logs_of_unread_partitions(self) -> Mapping[TopicPartition, OffsetRange]:
        """Return partitions of topics that are read, which nobody reads: they may be held
        (KEY-8)."""
        topics = {at.topic for at in self.stored}
        return {
            at: log for at, log in self.logs.items() if at.topic in topics and at not in self.stored
        }

    def next_offset_of(self, at: TopicPartition) -> int | None:
        """Return the first offset that the table lacks; ``None`` if nobody looked there yet."""
        if at in self.stored:
            return self.stored[at]
        return self.logs[at].begin if at in self.logs else None


def on_start(
    before: Progress, transaction: TransactionId, start: StartCommit, now_s: float
) -> Progress:
    """Take a START of this coordinator; behind a pause no partition has stood still yet."""
    return _with_stored_offsets(
        replace(
            before,
            epoch=transaction.epoch,
            paused=start.paused,
            opened={**before.opened, transaction: now_s},
            still_since_s={} if before.paused else before.still_since_s,
            suspended=len(start.suspended),
            error=before.error and marked_past_if_resolved(before.error, start),
        ),
        start.offsets,
        now_s,
    )


class Moment(NamedTuple):
    """The same moment by two clocks."""

    monotonic_s: float
    wall_ms: int


def on_settlement(
    before: Progress, transaction: TransactionId, settlement: Settlement, now: Moment
) -> Progress:
    """Return the progress after a settlement that was not heard before."""
    now_s, now_ms = now
    rows = any(table.records for table in settlement.tables if table.snapshot_id)
    return _with_stored_offsets(
        replace(
            before,
            settled=transaction,
            opened={key: since for key, since in before.opened.items() if key > transaction},
            last_commit_ms=now_ms if rows else before.last_commit_ms,
            valid_through_ms=settlement.valid_through_ms or before.valid_through_ms,
            suspended=len(settlement.suspended),
            error=before.error and marked_past_if_resolved(before.error, settlement),
        ),
        settlement.offsets,
        now_s,
    )


def on_status(before: Progress, sender: Sender, status: WriteStatus, now: Moment) -> Progress:
    """Return the progress after a participant's status, which may tell of a failed batch."""
    now_s, now_ms = now
    others = {who: error for who, error in before.batches.items() if who != sender}
    if not status.failure:
        return replace(before, batches=others) if status.part == 0 else before
    error = last_error_from_batch_failure(status.failure, LastError("", "", sender.member, now_ms))
    return replace(before, batches={**others, sender: (now_s, error)})


def current_error(progress: Progress, now_s: float, window_s: float) -> LastError | None:
    """Return the error that counts.

    A participant's failed batch counts for a window, since the participant may have died of it.
    """
    if progress.error and not progress.error.past:
        return progress.error
    lately = [error for at_s, error in progress.batches.values() if now_s - at_s < window_s]
    return max(lately, key=lambda error: error.time_ms or 0, default=None)


def on_source_logs(
    before: Progress, logs: Mapping[TopicPartition, OffsetRange], now_s: float
) -> Progress:
    """Take the sources' logs."""
    known = replace(before, logs={**before.logs, **logs})
    return replace(known, still_since_s=_standstill_starts_s(known, before.still_since_s, now_s))


def _with_stored_offsets(
    after: Progress, stored: Mapping[TopicPartition, int], now_s: float
) -> Progress:
    """Replace the stored offsets; a partition that moved is no longer still."""
    kept = {
        at: since for at, since in after.still_since_s.items() if stored.get(at) == after.stored[at]
    }
    first = {
        at: ms
        for at, ms in after.first_unstored_ms.items()
        if stored.get(at) == after.stored.get(at)
    }
    moved = replace(after, stored=dict(stored), first_unstored_ms=first)
    return replace(moved, still_since_s=_standstill_starts_s(moved, kept, now_s))


def _standstill_starts_s(
    after: Progress, known_starts_s: Mapping[TopicPartition, float], now_s: float
) -> Mapping[TopicPartition, float]:
    """Return since when partitions stand still; one that nobody reads yet does not."""
    lags = after.lags.items()
    return {at: known_starts_s.get(at, now_s) for at, lag in lags if lag and at in after.stored}


def stalled_partitions(
    progress: Progress, now_s: float, window_s: float
) -> tuple[TopicPartition, ...]:
    """Return the partitions with lag that have not moved for the whole window."""
    if progress.paused:
        return ()
    return tuple(
        sorted(at for at, since in progress.still_since_s.items() if now_s - since >= window_s)
    )


def condition_of(progress: Progress, now_s: float, window_s: float, *, draining: bool) -> Condition:
    """Return the condition of a sink whose coordinator runs here."""
    return condition_from(
        Facts(
            reachable=True,
            epoch=progress.epoch,
            paused=progress.paused,
            lag=sum(progress.lags.values()),
            alive=1,
            ended=None,
            error=current_error(progress, now_s, window_s),
            stalled=stalled_partitions(progress, now_s, window_s),
            draining=draining,
        )
    )


def sink_gauges(
    progress: Progress, condition: Condition, stalled_count: int, now_ms: int
) -> Iterable[Gauge]:
    """Yield everything that the coordinator alone reports, by sink or by topic."""
    yield from condition_gauges(condition)
    if progress.error and not progress.error.past:
        yield Gauge(names.ERROR_INFO, 1, {"code": progress.error.code})
    yield Gauge(names.EPOCH, progress.epoch)
    yield Gauge(names.STALLED_PARTITIONS, stalled_count)
    yield from unread_partition_gauges(progress.logs_of_unread_partitions)
    if progress.last_commit_ms is not None:
        yield Gauge(names.LAST_COMMIT, progress.last_commit_ms / 1000)
    if progress.valid_through_ms is not None:
        yield Gauge(names.VALID_THROUGH, progress.valid_through_ms / 1000)
    yield from lag_gauges(progress.lags, progress.first_unstored_ms, now_ms)


def condition_gauges(condition: Condition) -> Iterable[Gauge]:
    """Yield 1 for the condition, 0 for each other."""
    return (Gauge(names.STATE, float(c is condition), {"state": c.value}) for c in Condition)


def unread_partition_gauges(logs: Mapping[TopicPartition, OffsetRange]) -> Iterable[Gauge]:
    """Yield what waits in partitions that are not read yet; it is part of the lag, too."""
    yield Gauge(names.UNREAD_PARTITIONS, len(logs))
    records: dict[str, int] = defaultdict(int)
    for at, log in logs.items():
        records[at.topic] += len(log)
    for topic, count in records.items():
        yield Gauge(names.UNREAD_RECORDS, count, {"topic": topic})


def table_gauges(progress: Progress) -> Iterable[Gauge]:
    """Yield what is reported about a sink's many tables."""
    yield Gauge(names.SUSPENDED_TABLES, progress.suspended)
    for table, valid_through_ms in progress.fresh_ms.items():
        yield Gauge(names.TABLE_VALID_THROUGH, valid_through_ms / 1000, {"table": table})


def lag_gauges(
    lags: Mapping[TopicPartition, int], first_unstored_ms: Mapping[TopicPartition, int], now_ms: int
) -> Iterable[Gauge]:
    """Yield lag per topic: records are summed, and the oldest age counts."""
    records: dict[str, int] = defaultdict(int)
    ages_ms: dict[str, list[int]] = defaultdict(list)
    for at, lag in lags.items():
        records[at.topic] += lag
        if lag and at in first_unstored_ms:
            ages_ms[at.topic].append(max(0, now_ms - first_unstored_ms[at]))
    for topic, lag in records.items():
        yield Gauge(names.LAG_RECORDS, lag, {"topic": topic})
        known = ages_ms[topic] if lag else [0]
        if known:
            yield Gauge(names.LAG_SECONDS, max(known) / 1000, {"topic": topic})
