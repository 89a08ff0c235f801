"""A participant's behaviour: ``step(state, input, now) -> (state, actions)``, pure.

The caller executes the actions in order and feeds the results back. Time is monotonic milliseconds.
Rules P1-P9 of PROTOCOL.md are named where they live: ``settlements`` holds P1, P6, P7 and P8,
``batches`` the claims of P2 and P3, and this module handles events, ownership and announcements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headgate.control_protocol.errors import BatchHopeless, BatchStuck, StopBefore, StopSink
from headgate.control_protocol.events import (
    EndCommit,
    LogRecord,
    Presence,
    PresenceKind,
    Proposal,
    Settlement,
    StartCommit,
    Tables,
    WriteStatus,
)
from headgate.control_protocol.identifiers import (
    LEAP_MAX,
    ControlOffset,
    Epoch,
    TopicPartition,
    TransactionNumber,
)
from headgate.control_protocol.log_events import LogEvent
from headgate.control_protocol.machine_io import (
    Append,
    Heard,
    LogLine,
    LogTruncated,
    Stop,
    Tick,
    backoff_ms,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import Batch, BatchFailed, BatchNeeds, BatchOutcome
from headgate.participant.actions import (
    RELEASE_TIMED_OUT,
    Action,
    AppendFailed,
    Assigned,
    BatchEnded,
    CopyOffsets,
    EndOffsetsRead,
    Input,
    ReadEndOffsets,
    ReleaseRequested,
    ReleaseTimedOut,
    Submit,
    control_log_warning,
)
from headgate.participant.batches import (
    absorb_batch,
    announce_work,
    backlog,
    cap_ranges,
    drop_work,
    open_transaction,
    plan_batch,
    readable_positions,
    with_suspended,
)
from headgate.participant.outgoing_events import (
    append_presence,
    count_on,
    number_event,
    steps_reached,
)
from headgate.participant.schema_proposals import (
    answer_needs_by_start,
    before_waiting_records,
    forget_refusals,
    log_ignored_fields,
    on_batch_needs,
    on_own_proposal,
    on_tables,
    repeat_until,
)
from headgate.participant.settlements import (
    apply_settlement,
    enter_epoch,
    find_other_configuration,
    is_believed,
)
from headgate.participant.state import (
    OpenTransaction,
    Ownership,
    OwnStatus,
    PendingStop,
    Phase,
    State,
)

# Retries batches that fail or hang, up to a limit (P10).
#
# Where another system is to blame (a broker, a catalog, a storage, Spark), they are repeated for
# ever, after pauses that double. Where none is, and where a batch hangs, they are repeated
# ``batch_attempts_max`` times in a row.


CUTS_MAX = 16
"""How often a batch is written again because of another record that stops the sink."""

_NAMED_MAX = 10


def on_batch_failed(state: State, batch: Batch, outcome: BatchFailed, now_ms: int) -> Step:
    """Repeat the batch's ranges, or stop."""
    if isinstance(outcome.fatal, StopBefore) and (
        first := _offsets_within(outcome.fatal.first, batch)
    ):
        return _retry_before_record(state, batch, outcome.fatal, first)
    if outcome.fatal is not None:
        return replace(state, batch=None), (Stop(outcome.fatal),)
    if not outcome.unforeseen:
        state = replace(state, foreign=state.foreign + 1)
        return _retry_later(state, batch, outcome.reason, now_ms)
    state = replace(state, hopeless=state.hopeless + 1)
    named = _describe_ranges(batch.ranges)
    error = BatchHopeless(
        f"{named}: {state.hopeless} batches in a row failed: {outcome.reason}",
        "nothing of them was committed; look at these records, and report the reason if they are "
        "good",
    )
    return _retry_or_stop(state, batch, error, now_ms, reason=outcome.reason)


def _offsets_within(first: Offsets, batch: Batch) -> Offsets:
    there = batch.ranges
    return Offsets(
        {at: o for at, o in first.items() if at in there and there[at].begin <= o < there[at].end}
    )


def _retry_before_record(state: State, batch: Batch, error: StopBefore, first: Offsets) -> Step:
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
    told = LogLine(text, trouble=True, event=LogEvent.BATCH_FAILED)
    stop = PendingStop(error, upto, cuts)
    cut = replace(state, batch=None, stop=stop, hopeless=0, foreign=0)
    return replace(cut, retry_at_ms=None, ends_due_ms=0, last_read_done=False), (told,)


def stop_when_committed(state: State) -> Step:
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


def give_up_overdue_batch(state: State, now_ms: int) -> Step:
    """Give up a batch that runs for longer than any may."""
    batch = state.batch
    if batch is None or now_ms < state.batch_due_ms:
        return state, ()
    state = replace(state, hopeless=state.hopeless + 1)
    limit_ms = state.settings.batch_timeout_ms
    named = _describe_ranges(batch.ranges)
    error = BatchStuck(
        f"{named}: a batch did not end in {limit_ms} ms, {state.hopeless} in a row",
        "nothing of it was committed; find out what Spark or the storage is waiting for, or raise "
        "participant.batch_timeout_ms",
    )
    return _retry_or_stop(state, batch, error, now_ms, reason=str(error))


def _retry_or_stop(
    state: State, batch: Batch, error: StopSink, now_ms: int, *, reason: str
) -> Step:
    if state.hopeless >= state.settings.batch_attempts_max:
        return replace(state, batch=None), (Stop(error),)
    return _retry_later(state, batch, reason, now_ms)


def _retry_later(state: State, batch: Batch, reason: str, now_ms: int) -> Step:
    settings = state.settings
    wait_ms = backoff_ms(
        max(state.foreign - 1, 0), settings.retry_backoff_ms, settings.retry_backoff_max_ms
    )
    failed = replace(
        state,
        batch=None,
        failure=reason,
        failed=state.failed | batch.ranges.keys(),
        retry_at_ms=now_ms + wait_ms,
    )
    told = f"batch {batch.number} failed: {reason}"
    return failed, (LogLine(told, trouble=True, event=LogEvent.BATCH_FAILED),)


def _describe_ranges(ranges: Mapping[TopicPartition, OffsetRange]) -> str:
    there = sorted((at, span) for at, span in ranges.items() if not span.empty)
    named = [
        f"{at.topic} partition {at.partition} offsets {span.begin} to {span.end - 1}"
        for at, span in there[:_NAMED_MAX]
    ]
    more = [f"{len(there) - _NAMED_MAX} more"] if len(there) > _NAMED_MAX else []
    return ", ".join([*named, *more])


Step = tuple[State, tuple[Action, ...]]


def step(state: State, given: Input, now_ms: int) -> Step:
    """Process one input, then whatever is due now: an answer, a release, the next batch."""
    state, actions = _dispatch(state, given, now_ms)
    state, more = _begin_due_work(state, now_ms)
    return state, (*actions, *more)


def _dispatch(state: State, given: Input, now_ms: int) -> Step:
    match given:
        case Heard(record):
            return _on_record(state, record, now_ms)
        case Tick():
            return _on_tick(state, now_ms)
        case Assigned(partitions):
            return _on_assigned(state, partitions)
        case BatchEnded(outcome):
            return _announce_growth(_on_batch_ended(state, outcome, now_ms))
        case EndOffsetsRead():
            return _announce_growth(_on_end_offsets(state, given, now_ms))
        case ReleaseRequested(partitions):
            return replace(state, leaving=partitions & state.owned.keys()), ()
        case ReleaseTimedOut():
            return _on_release_timed_out(state)
        case AppendFailed(reason):
            again_ms = now_ms + state.settings.retry_backoff_ms
            return replace(state, resend_at_ms=again_ms), (
                control_log_warning(f"{reason}; says it again"),
            )
        case LogTruncated(reason):
            return _on_log_truncated(state, reason)


# ------------------------------------------------------------------------------ what is due now


def _begin_due_work(state: State, now_ms: int) -> Step:
    """Begin at most one piece of work: while a batch runs, everything else waits for it."""
    if state.batch is not None:
        return state, ()
    if state.leaving:
        return _release(state)
    state, stop = stop_when_committed(state)
    if stop:
        return state, stop
    if state.phase is Phase.ANSWERING:
        return _finish_transaction(state, now_ms)
    if state.phase is Phase.WRITING and now_ms >= max(state.ends_due_ms, state.retry_at_ms or 0):
        return _read_end_offsets(state, now_ms)
    return state, ()


def _finish_transaction(state: State, now_ms: int) -> Step:
    """P3: answer END once, after a last look at the end of the source."""
    may_read = not state.last_read_done and (
        state.retry_at_ms is None or now_ms >= state.retry_at_ms
    )
    if may_read and readable_positions(state):
        return _read_end_offsets(state, now_ms)
    if state.unconfirmed:
        return state, ()
    return _answer_end(state)


def _read_end_offsets(state: State, now_ms: int) -> Step:
    asked = frozenset(readable_positions(state))
    due_ms = now_ms + state.settings.end_offset_interval_ms
    asking = replace(state, ends_due_ms=due_ms)
    return asking, (ReadEndOffsets(asked),) if asked else ()


def _on_end_offsets(state: State, known: EndOffsetsRead, now_ms: int) -> Step:
    """Write a full batch at once; a smaller one waits for END, so that files become large.

    Too many files wait for END as well: a status is bounded, and what was read is not lost.

    The pause before the next question begins with the answer: a source that answers slowly would
    otherwise be asked again at once, for ever, and log and group would never be polled.
    """
    if state.batch is not None:
        return state, ()
    due_ms = now_ms + state.settings.end_offset_interval_ms
    asked = readable_positions(
        state
    )  # reading one without an answer now would fail the batch for all others
    ends = {p: end for p, end in state.ends.items() if p not in asked} | dict(known.ends)
    state = replace(state, ends=ends, ends_due_ms=due_ms, looked=frozenset(known.ends))
    there = before_waiting_records(state, backlog(state), now_ms)
    full = sum(map(len, there.values())) >= state.settings.batch_records_max
    done_again = bool(repeat_until(state)) and not state.needs
    enough = known.full or full or done_again or state.stop is not None
    if state.phase is Phase.ANSWERING:
        state = replace(state, last_read_done=True)
    elif not enough:
        return state, ()
    ranges = cap_ranges(there, state.settings.batch_records_max)
    if not ranges or state.leaving or state.files_waiting >= state.settings.files_max:
        return state, ()
    running, batch = plan_batch(forget_refusals(state, now_ms), ranges)
    due_ms = now_ms + state.settings.batch_timeout_ms
    return replace(running, batch_due_ms=due_ms), (Submit(batch),)


def _on_batch_ended(state: State, outcome: BatchOutcome, now_ms: int) -> Step:
    if state.batch is None or outcome.number != state.batch.number:
        return state, ()  # abandoned: its ranges are read again, its files are orphans
    if isinstance(outcome, BatchFailed):
        return on_batch_failed(state, state.batch, outcome, now_ms)
    look_again = isinstance(outcome, BatchNeeds) and not state.needs
    if isinstance(outcome, BatchNeeds):
        done, actions = on_batch_needs(state, state.batch, outcome, now_ms)
    else:
        done, actions = log_ignored_fields(absorb_batch(state, outcome), outcome)
    done = replace(done, again=repeat_until(done))
    last = (done.last_read_done or done.phase is Phase.ANSWERING) and not look_again
    done = replace(done, hopeless=0, foreign=0, last_read_done=last)
    return replace(done, ends_due_ms=now_ms, retry_at_ms=None), actions


def _answer_end(state: State) -> Step:
    actions: tuple[Action, ...] = ()
    if state.owned:
        state, actions = _announce(state, state.ended)
    return open_transaction(replace(state, answered=state.ended), state.following), actions


def _announce(state: State, transaction: TransactionNumber) -> Step:
    # G6: somebody may have used a higher number in its name that it never heard: catch up
    further = min(LEAP_MAX, 1024 ** min(state.unheeded, 2))
    state, status = announce_work(state, state.statuses + further)
    state, said = number_event(state, transaction, status)
    state = replace(state, pending=(*state.pending, OwnStatus(said, status)))
    return state, (Append((said,)),)


# ------------------------------------------------------------------------------------ ownership


def _on_assigned(state: State, partitions: frozenset[TopicPartition]) -> Step:
    gained, lost = partitions - state.owned.keys(), state.owned.keys() - partitions
    actions: list[Action] = []
    if lost:
        state, said = _announce_loss(state, frozenset(lost))
        actions.extend(said)
    if gained:
        kind = PresenceKind.GAINED if state.owned else PresenceKind.JOINED
        state, said = _announce_gain(state, frozenset(gained), kind)
        actions.extend(said)
    return state, tuple(actions)


def _announce_gain(state: State, gained: frozenset[TopicPartition], kind: PresenceKind) -> Step:
    """P5: announce the gain; its place in the log decides which settlement gives the position."""
    sequence = state.sequence + 1
    owned = {**state.owned, **{partition: Ownership(sequence) for partition in gained}}
    state = replace(state, owned=owned)
    return append_presence(state, kind, gained)


def _announce_growth(done: Step) -> Step:
    """P12: tell the coordinator at each step how much there is, long before the next ALIVE."""
    state, actions = done
    now = steps_reached(state)
    if now <= state.steps:
        return done
    state, alive = append_presence(replace(state, steps=now), PresenceKind.ALIVE, frozenset())
    return state, (*actions, *alive)


def _announce_loss(state: State, lost: frozenset[TopicPartition]) -> Step:
    """Drop all unannounced work: nothing could be announced, and files mix partitions."""
    state = _without_partitions(drop_work(state), lost)
    return append_presence(state, PresenceKind.LOST, lost)


def _without_partitions(state: State, gone: frozenset[TopicPartition]) -> State:
    kept = {partition: own for partition, own in state.owned.items() if partition not in gone}
    return replace(state, owned=kept, leaving=state.leaving - gone)


def _release(state: State) -> Step:
    """P5: announce what the files hold, then let go."""
    actions: tuple[Action, ...] = ()
    if state.unannounced:
        if state.unconfirmed or state.writing is None:
            return state, ()
        state, actions = _announce(state, state.writing.number)
    return _without_partitions(state, state.leaving), actions


def _on_release_timed_out(state: State) -> Step:
    """P5 is bounded in time: drop what is not announced by now; it is read again."""
    if not state.leaving:
        return state, ()
    return _without_partitions(drop_work(state), state.leaving), (RELEASE_TIMED_OUT,)


# --------------------------------------------------------------------------------- what is heard


def _on_record(state: State, record: LogRecord, now_ms: int) -> Step:
    said = record.envelope
    if said.sender == state.sender and isinstance(said.event, Presence | WriteStatus | Proposal):
        return _on_own_event(state, record), ()
    match said.event:
        case StartCommit() | EndCommit() | Settlement() | Tables() if is_believed(state, record):
            return _on_coordinator_event(state, record, now_ms)
        case _:
            # P1: lower epochs are ignored. Others' statuses are not for us, nor are an operator's
            # requests: the coordinator's START says what holds (C11).
            return state, ()


def _on_own_event(state: State, record: LogRecord) -> State:
    said = record.envelope
    if isinstance(said.event, Proposal):
        return on_own_proposal(state, said.event)
    if isinstance(said.event, WriteStatus):
        number = said.event.status_number
        state = replace(state, statuses=count_on(state.statuses, number))
        pending = tuple(
            replace(own, offset=record.offset)
            if own.offset is None and own.status.status_number == number
            else own
            for own in state.pending
        )
        return replace(state, pending=pending)
    owned = {
        p: replace(own, since=record.offset)
        if own.since is None and own.presence == said.sequence
        else own
        for p, own in state.owned.items()
    }
    unheard = tuple(draft for draft in state.unheard if draft.sequence != said.sequence)
    sequence = count_on(state.sequence, said.sequence)
    return replace(state, owned=owned, unheard=unheard, sequence=sequence)


def _on_coordinator_event(state: State, record: LogRecord, now_ms: int) -> Step:
    said = record.envelope
    first = isinstance(said.event, StartCommit) and said.event.settled_to is None
    known = said.epoch == state.epoch and said.sender == state.coordinator
    if first and known:
        return state, ()  # a repetition; the first one counted
    if not known:
        state = replace(enter_epoch(state, Epoch(said.epoch)), coordinator=said.sender)
    match said.event:
        case StartCommit() as start:
            if other := find_other_configuration(state, said.sender, start):
                return state, (Stop(other),)
            return _on_start(state, record, start), ()
        case EndCommit():
            return _on_end(state, said.transaction)
        case Tables() as tables:
            return on_tables(state, tables, now_ms), ()
        case Settlement() as settlement if settlement.settled_to >= state.settled_to:
            state = apply_settlement(state, settlement.offsets, settlement.settled_to)
            return with_suspended(state, settlement.suspended), _copy_offsets(state, settlement)
        case _:
            return state, ()


def _on_start(state: State, record: LogRecord, start: StartCommit) -> State:
    number = record.envelope.transaction
    first_l = ControlOffset(record.offset + 1)
    settled_to = first_l if start.settled_to is None else start.settled_to
    state = apply_settlement(state, start.offsets, settled_to)
    newest = state.following or state.writing
    if number <= (newest.number if newest else state.answered):
        return state  # a repetition
    state = answer_needs_by_start(state, start)
    return open_transaction(replace(state, paused=start.paused), OpenTransaction.by(number, start))


def _on_end(state: State, number: TransactionNumber) -> Step:
    if number > state.answered:
        return replace(state, ended=max(number, state.ended)), ()
    again = tuple(own.draft for own in state.pending if own.draft.transaction <= number)
    return state, (Append(again),) if again else ()  # P4: identical, files included


def _copy_offsets(state: State, settlement: Settlement) -> tuple[Action, ...]:
    if state.writing is None or not state.owned:
        return ()
    offsets = settlement.offsets.restricted(state.owned)
    return (CopyOffsets(offsets, state.writing.table.uuid),)


def _on_log_truncated(state: State, reason: str) -> Step:
    """Treat earlier events as void: every owned partition is gained again."""
    owned = frozenset(state.owned)
    state = enter_epoch(state, state.epoch)
    state = replace(state, owned={}, unheard=())
    if not owned:
        return state, (control_log_warning(reason),)
    state, actions = _announce_gain(state, owned, PresenceKind.JOINED)
    return state, (control_log_warning(reason), *actions)


# ------------------------------------------------------------------------------------------ time


def _on_tick(state: State, now_ms: int) -> Step:
    state, actions = _repeat_unheard(state, now_ms)
    state, more = give_up_overdue_batch(state, now_ms)
    actions = (*actions, *more)
    if now_ms >= state.alive_due_ms:
        due_ms = now_ms + state.settings.presence_interval_ms
        state = replace(state, alive_due_ms=due_ms)
        state, alive = append_presence(state, PresenceKind.ALIVE, frozenset())
        actions = (*actions, *alive)
    return state, actions


def _repeat_unheard(state: State, now_ms: int) -> Step:
    """G1: repeat what was not heard; confirmed is not heard, for a log may be truncated."""
    proposed = (need.draft for need in state.needs if not need.heard)
    pending = (own.draft for own in state.pending if own.offset is None)
    drafts = (*state.unheard, *pending, *proposed)
    if not drafts:
        return (replace(state, resend_at_ms=None) if state.resend_at_ms is not None else state), ()
    if state.resend_at_ms is None:
        return replace(state, resend_at_ms=now_ms + state.settings.presence_interval_ms), ()
    if now_ms < state.resend_at_ms:
        return state, ()
    return replace(state, resend_at_ms=None), (Append(drafts),)
