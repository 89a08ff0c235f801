"""Retries batches that fail or hang, up to a limit (P10).

Where another system is to blame (a broker, a catalog, a storage, Spark), they are repeated for
ever, after pauses that double. Where none is, and where a batch hangs, they are repeated
``batch_attempts_max`` times in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headgate.control_protocol.errors import BatchHopeless, BatchStuck, StopBefore, StopSink
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.log_events import LogEvent
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import Batch, BatchFailed
from headgate.participant.actions import Action, Stop, Tell
from headgate.participant.state import PendingStop, State

CUTS_MAX = 16
"""How often a batch is written again because of another record that stops the sink."""

_NAMED_MAX = 10

Step = tuple[State, tuple[Action, ...]]


def batch_failed(state: State, batch: Batch, outcome: BatchFailed, now_ms: int) -> Step:
    """Repeat the batch's ranges, or stop."""
    if isinstance(outcome.fatal, StopBefore) and (first := _within(outcome.fatal.first, batch)):
        return _cut(state, batch, outcome.fatal, first)
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


def _within(first: Offsets, batch: Batch) -> Offsets:
    there = batch.ranges
    return Offsets(
        {at: o for at, o in first.items() if at in there and there[at].begin <= o < there[at].end}
    )


def _cut(state: State, batch: Batch, error: StopBefore, first: Offsets) -> Step:
    """P14: write the batch again without what lies at or after such a record; then stop.

    Behind a transform each attempt may meet but one more of them: after so many, nothing more of
    the batch is written.
    """
    known = state.stop
    cuts = known.cuts + 1 if known else 1
    ends = Offsets({at: span.end for at, span in batch.ranges.items()})
    upto = (known.upto if known else ends).earliest(first)
    if cuts > CUTS_MAX:
        upto = upto.moved({at: span.begin for at, span in batch.ranges.items()})
    text = f"writes what lies before a record, then stops before it: {error}"
    told = Tell(text, trouble=True, event=LogEvent.BATCH_FAILED)
    stop = PendingStop(error, upto, cuts)
    cut = replace(state, batch=None, stop=stop, hopeless=0, foreign=0)
    return replace(cut, retry_at_ms=None, ends_due_ms=0, last_read_done=False), (told,)


def stopped(state: State) -> Step:
    """P14: stop once all that lies before the record is committed.

    Whoever owns its partition meets it; so does this participant again, if it is not committed up
    to there when somebody else's commit or a new epoch moves it.
    """
    stop = state.stop
    if stop is None:
        return state, ()
    positions = state.positions
    if not any(positions.get(at, at_ + 1) <= at_ for at, at_ in stop.error.first.items()):
        if any(at in state.owned and at not in positions for at in stop.error.first):
            return state, ()  # its position is not known yet
        return replace(state, stop=None), ()
    fixed = state.writing.fixed if state.writing else frozenset[TopicPartition]()
    missing = any(positions.get(at, end) < end for at, end in stop.upto.items() if at in fixed)
    if missing or state.unannounced or state.pending:
        return state, ()
    return replace(state, stop=None), (Stop(stop.error),)


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
