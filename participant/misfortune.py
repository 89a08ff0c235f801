"""Batches that fail or do not end: they are repeated, up to a limit (P10).

Where another system is to blame (a broker, a catalog, a storage, Spark), they are repeated for
ever, after pauses that double. Where none is, and where a batch hangs, they are repeated
``batch_attempts_max`` times in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headgate.control_protocol.errors import BatchHopeless, BatchStuck, StopSink
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.log_events import LogEvent
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch, BatchFailed
from headgate.participant.actions import Action, Stop, Tell
from headgate.participant.state import State

_NAMED_MAX = 10

Step = tuple[State, tuple[Action, ...]]


def batch_failed(state: State, batch: Batch, outcome: BatchFailed, now_ms: int) -> Step:
    """Repeat the batch's ranges, or stop."""
    if outcome.fatal is not None:
        return replace(state, batch=None), (Stop(outcome.fatal),)
    if not outcome.unforeseen:
        state = replace(state, foreign=state.foreign + 1)
        return _again(state, batch, outcome.reason, now_ms)
    state = replace(state, hopeless=state.hopeless + 1)
    error = BatchHopeless(
        f"{_ranges(batch.ranges)}: {state.hopeless} batches in a row failed: {outcome.reason}",
        "nothing of them was committed; look at these records, and report the reason if they are "
        "good",
    )
    return _again_or_stop(state, batch, error, now_ms, reason=outcome.reason)


def overdue(state: State, now_ms: int) -> Step:
    """Give up a batch that runs for longer than any may."""
    batch = state.batch
    if batch is None or now_ms < state.batch_due_ms:
        return state, ()
    state = replace(state, hopeless=state.hopeless + 1)
    limit_ms = state.settings.batch_timeout_ms
    error = BatchStuck(
        f"{_ranges(batch.ranges)}: a batch did not end in {limit_ms} ms, {state.hopeless} in a row",
        "nothing of it was committed; find out what Spark or the storage is waiting for, or raise "
        "participant.batch_timeout_ms",
    )
    return _again_or_stop(state, batch, error, now_ms, reason=str(error))


def _again_or_stop(
    state: State, batch: Batch, error: StopSink, now_ms: int, *, reason: str
) -> Step:
    if state.hopeless >= state.settings.batch_attempts_max:
        return replace(state, batch=None), (Stop(error),)
    return _again(state, batch, reason, now_ms)


def _again(state: State, batch: Batch, reason: str, now_ms: int) -> Step:
    doubled_ms = state.settings.retry_backoff_ms * 2 ** min(max(state.foreign - 1, 0), 16)
    failed = replace(
        state,
        batch=None,
        failure=reason,
        failed=state.failed | batch.ranges.keys(),
        retry_at_ms=now_ms + min(doubled_ms, state.settings.retry_backoff_max_ms),
    )
    told = f"batch {batch.number} failed: {reason}"
    return failed, (Tell(told, trouble=True, event=LogEvent.BATCH_FAILED),)


def _ranges(ranges: Mapping[TopicPartition, OffsetRange]) -> str:
    there = sorted((at, span) for at, span in ranges.items() if not span.empty)
    named = [
        f"{at.topic} partition {at.partition} offsets {span.begin} to {span.end - 1}"
        for at, span in there[:_NAMED_MAX]
    ]
    more = [f"{len(there) - _NAMED_MAX} more"] if len(there) > _NAMED_MAX else []
    return ", ".join([*named, *more])
