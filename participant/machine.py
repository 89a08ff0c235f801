"""Decides what a participant does: ``step(state, input, now) -> (state, actions)``, pure.

The caller executes the actions in order and feeds the results back. Time is monotonic milliseconds.

A participant follows one coordinator: the one of the highest epoch that it has heard. START opens a
transaction, with C (where the table ends), the folder that takes files, and the partitions that
take part. It then reads its partitions from C, one batch at a time, and keeps what it has written
until it may announce it: for END, or before partitions are taken away. A status names exactly the
ranges that its files hold, and counts only if the coordinator finds it to continue C. The
settlement (ACK, or ABORT) says the new C and up to which place in the log statuses were judged (L):
what contradicts it is dropped, and read again. Nothing of this is stored: a participant that
starts, or whose log lost its end, owns its partitions without positions until a settlement gives
them.

Here stands what is done with each input, and what is due after it. ``batches`` holds what is read
and not announced, ``heard_coordinator`` what the coordinator said and what was said to it,
``schema_proposals`` what is asked of it. The rules are named where they live.
"""

from __future__ import annotations

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
    ControlOffset,
    Epoch,
    Sender,
    TopicPartition,
    TransactionNumber,
)
from headgate.control_protocol.machine_io import Heard, LogTruncated, Stop, Tick, is_due
from headgate.control_protocol.ports import BatchFailed, BatchNeeds, BatchOutcome
from headgate.participant.batches import (
    batch_records_max,
    cap_ranges,
    drop_unannounced_work,
    filled_eighths_of_commit_limit,
    find_backlog,
    next_source_look_due_ms,
    on_batch_failed,
    on_own_presence,
    plan_batch,
    readable_positions,
    retry_overdue_batch_or_stop,
    stop_once_earlier_records_committed,
    with_announced_limit_steps,
    with_batch_ended_and_retries_reset,
    with_batch_written,
    with_gained_partitions,
    with_last_source_look_done,
    with_partitions_marked_leaving,
    with_source_ends,
    without_lost_partitions,
)
from headgate.participant.heard_coordinator import (
    append_pending_statuses_again,
    append_presence,
    append_status,
    apply_settlement,
    enter_epoch,
    find_other_configuration_error,
    is_believed,
    on_own_status,
    open_or_queue_transaction,
    repeat_unheard_events,
    with_end_answered_and_next_opened,
    with_end_requested,
    with_own_sequence_heard,
    with_paused,
    with_presence_heard,
    with_resend_deadline,
    with_suspended_tables,
    without_unheard_presences,
)
from headgate.participant.inputs_and_actions import (
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
from headgate.participant.schema_proposals import (
    drop_or_renumber_proposals,
    ends_of_repeated_batch,
    forget_expired_refusals,
    forget_proposals_and_answers,
    forget_proposals_of_lost_partitions,
    forget_proposals_of_suspended_tables,
    log_newly_ignored_fields,
    on_batch_needs,
    on_own_proposal,
    on_tables_event,
    ranges_readable_despite_proposals,
    without_batch_once_repeated,
)
from headgate.participant.state import OpenTransaction, Phase, State, Timer

Step = tuple[State, tuple[Action, ...]]


def step(state: State, given: Input, now_ms: int) -> Step:
    """Process one input, then whatever is due now: an answer, a release, the next batch."""
    if is_due(state.deadlines, Timer.PACE, now_ms):
        state = state.with_deadline(Timer.PACE, None)
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
            return _announce_commit_limit_step_if_new(_on_batch_ended(state, outcome, now_ms))
        case EndOffsetsRead():
            return _announce_commit_limit_step_if_new(_on_end_offsets(state, given, now_ms))
        case ReleaseRequested(partitions):
            return with_partitions_marked_leaving(state, partitions), ()
        case ReleaseTimedOut():
            return _on_release_timed_out(state)
        case AppendFailed(reason):
            again_ms = now_ms + state.settings.retry_backoff_ms
            again = state.with_deadline(Timer.RESEND, again_ms)
            return again, (control_log_warning(f"{reason}; it is appended again"),)
        case LogTruncated(reason):
            return _on_log_truncated(state, reason)


# ------------------------------------------------------------------------------------------ time


def _on_tick(state: State, now_ms: int) -> Step:
    """Do what is due. ``LOOK`` and ``RETRY`` only hold something back: ``_begin_due_work``."""
    state = with_resend_deadline(state, now_ms)
    actions: tuple[Action, ...] = ()
    for timer, do_it in (
        (Timer.RESEND, repeat_unheard_events),
        (Timer.BATCH, retry_overdue_batch_or_stop),
        (Timer.ALIVE, _announce_alive),
    ):
        if is_due(state.deadlines, timer, now_ms):
            state, more = do_it(state, now_ms)
            actions = (*actions, *more)
    return state, actions


def _announce_alive(state: State, now_ms: int) -> Step:
    next_ms = now_ms + state.settings.presence_interval_ms
    state = state.with_deadline(Timer.ALIVE, next_ms)
    return append_presence(state, PresenceKind.ALIVE, frozenset())


# ------------------------------------------------------------------------------ what is due now


def _begin_due_work(state: State, now_ms: int) -> Step:
    """Begin at most one piece of work: while a batch runs, everything else waits for it."""
    if state.run.batch is not None:
        return state, ()
    if state.work.leaving:
        return _try_announce_and_release(state)
    state, stop = stop_once_earlier_records_committed(state)
    if stop:
        return state, stop
    if state.phase is Phase.ANSWERING:
        return _look_last_or_answer_end(state, now_ms)
    may_look = state.is_not_held_back_by(Timer.RETRY, now_ms) and now_ms >= next_source_look_due_ms(
        state
    )
    if state.phase is Phase.WRITING and may_look:
        return _read_end_offsets(state, now_ms)
    return state, ()


def _look_last_or_answer_end(state: State, now_ms: int) -> Step:
    """ANSWER-1: answer END once, after a last look at the end of the source."""
    may_read = not state.source.last_read_done and state.is_not_held_back_by(Timer.RETRY, now_ms)
    if may_read and readable_positions(state):
        return _read_end_offsets(state, now_ms)
    if state.said.has_status_not_read_back:
        # LOG-2: the status before this one was not heard. Were it lost, it would be appended again
        # behind this one, whose ranges continue its own: this one would be refused (RANGE-2).
        return state, ()
    return _answer_end(state)


def _answer_end(state: State) -> Step:
    actions: tuple[Action, ...] = ()
    # Before the next transaction opens: the status names files of the folder that it replaces, and
    # its idle partitions by what was looked at in this one.
    if state.work.owned:
        state, actions = append_status(state, state.term.ended)
    return with_end_answered_and_next_opened(state), actions


def _read_end_offsets(state: State, now_ms: int) -> Step:
    asked = frozenset(readable_positions(state))
    asking = state.with_deadline(Timer.LOOK, now_ms + state.settings.end_offset_interval_ms)
    return asking, (ReadEndOffsets(asked),) if asked else ()


# --------------------------------------------------------------------------------------- batches


def _on_end_offsets(state: State, known: EndOffsetsRead, now_ms: int) -> Step:
    """Write a full batch at once; a smaller one waits for END, so that files become large.

    Too many files wait for END as well: a status is bounded, and what was read is not lost. What is
    held back (BATCH-3) was looked for, so that END is answered without it.
    """
    if state.run.batch is not None:
        return state, ()
    # The pause before the next question begins with the answer, not with the question: a source
    # that answers slowly would otherwise be asked again at once, for ever, and log and group would
    # never be polled.
    state = state.with_deadline(Timer.LOOK, now_ms + state.settings.end_offset_interval_ms)
    state = with_source_ends(state, known.ends)
    there = find_backlog(state)
    done_again = False
    if state.needs.open or state.needs.again:
        there = ranges_readable_despite_proposals(state, there, now_ms)
        done_again = bool(ends_of_repeated_batch(state)) and not state.needs.open
    records_max = batch_records_max(state)
    full = sum(map(len, there.values())) >= records_max
    enough = known.full or full or done_again or state.run.stop is not None
    if state.phase is Phase.ANSWERING:
        state = with_last_source_look_done(state)
    elif not enough:
        return state, ()
    ranges = cap_ranges(there, records_max)
    too_many_files = state.work.unannounced_file_count >= state.settings.files_max
    held_back = too_many_files or not state.is_not_held_back_by(Timer.PACE, now_ms)
    if not ranges or state.work.leaving or held_back:
        return state, ()
    if state.needs.answers:
        state = forget_expired_refusals(state, now_ms)
    running, batch = plan_batch(state, ranges, now_ms)
    return running, (Submit(batch),)


def _on_batch_ended(state: State, outcome: BatchOutcome, now_ms: int) -> Step:
    batch = state.run.batch
    if batch is None or outcome.number != batch.number:
        return state, ()  # abandoned: its ranges are read again, its files are orphans
    if isinstance(outcome, BatchFailed):
        return on_batch_failed(state, batch, outcome, now_ms)
    actions: tuple[Action, ...] = ()
    # A batch that met its first need was read to its end for it: for END, what lies before the
    # records that wait is read once more.
    look_again = isinstance(outcome, BatchNeeds) and not state.needs.open
    if isinstance(outcome, BatchNeeds):
        state, actions = on_batch_needs(state, batch, outcome, now_ms)
    else:
        state = with_batch_written(state, outcome)
        if outcome.ignored:
            state, actions = log_newly_ignored_fields(state, outcome.ignored)
    if state.needs.again:
        state = without_batch_once_repeated(state)
    was_last = state.source.last_read_done or state.phase is Phase.ANSWERING
    return with_batch_ended_and_retries_reset(
        state, last_read_done=was_last and not look_again
    ), actions


def _announce_commit_limit_step_if_new(step_so_far: Step) -> Step:
    """COMMIT-5: tell the coordinator at each step how much there is, long before the next ALIVE."""
    state, actions = step_so_far
    steps = filled_eighths_of_commit_limit(state)
    if steps <= state.work.announced_limit_steps:
        return step_so_far
    state, alive = append_presence(
        with_announced_limit_steps(state, steps), PresenceKind.ALIVE, frozenset()
    )
    return state, (*actions, *alive)


# ------------------------------------------------------------------------------------ ownership


def _on_assigned(state: State, partitions: frozenset[TopicPartition]) -> Step:
    owned = state.work.owned.keys()
    gained, lost = frozenset(partitions - owned), frozenset(owned - partitions)
    actions: tuple[Action, ...] = ()
    # First what is lost: whether the rest is gained or joined depends on what is left.
    if lost:
        state, actions = _drop_work_and_announce_loss(state, lost)
    if gained:
        kind = PresenceKind.GAINED if state.work.owned else PresenceKind.JOINED
        state, more = _announce_gain(state, gained, kind)
        actions = (*actions, *more)
    return state, actions


def _announce_gain(state: State, gained: frozenset[TopicPartition], kind: PresenceKind) -> Step:
    """POSITION-1: announce the gain; its place in the log decides which settlement gives the
    position."""
    # Owned before it is said, for PRESENCE names all that is owned; under the sequence that the
    # event gets below, by which its place in the log is found.
    state = with_gained_partitions(state, gained, state.said.sequence + 1)
    return append_presence(state, kind, gained)


def _drop_work_and_announce_loss(state: State, lost: frozenset[TopicPartition]) -> Step:
    """Drop all unannounced work: nothing could be announced, and files mix partitions."""
    state = _without_lost_partitions(drop_unannounced_work(state), lost)
    return append_presence(state, PresenceKind.LOST, lost)


def _try_announce_and_release(state: State) -> Step:
    """POSITION-1: announce what the files hold, then let go."""
    actions: tuple[Action, ...] = ()
    if state.work.has_unannounced_ranges:
        if state.said.has_status_not_read_back or state.term.writing is None:
            return state, ()
        state, actions = append_status(state, state.term.writing.number)
    # Only behind the status: the next owner's PRESENCE follows it in the log, so that the
    # settlement which gives it a position has judged what is announced here (POSITION-2).
    return _without_lost_partitions(state, state.work.leaving), actions


def _on_release_timed_out(state: State) -> Step:
    """POSITION-1 is bounded in time: drop what is not announced by now; it is read again."""
    if not state.work.leaving:
        return state, ()
    return _without_lost_partitions(drop_unannounced_work(state), state.work.leaving), (
        RELEASE_TIMED_OUT,
    )


def _without_lost_partitions(state: State, lost: frozenset[TopicPartition]) -> State:
    state = without_lost_partitions(state, lost)
    return forget_proposals_of_lost_partitions(state) if state.needs.open else state


# --------------------------------------------------------------------------------- what is heard


def _on_record(state: State, record: LogRecord, now_ms: int) -> Step:
    said = record.envelope
    if said.sender == state.sender and isinstance(said.event, Presence | WriteStatus | Proposal):
        return _on_own_event(state, record), ()
    match said.event:
        case StartCommit() | EndCommit() | Settlement() | Tables() if is_believed(state, record):
            return _on_coordinator_event(state, record, now_ms)
        case _:
            # EPOCH-3: lower epochs are ignored. Others' statuses are not for us, nor are an
            # operator's requests: the coordinator's START says what holds (PAUSE-1).
            return state, ()


def _on_own_event(state: State, record: LogRecord) -> State:
    said = record.envelope
    state = with_own_sequence_heard(state, said.sequence)
    if isinstance(said.event, Proposal):
        return on_own_proposal(state, said.event)
    if isinstance(said.event, WriteStatus):
        return on_own_status(state, said.event.status_number, record.offset)
    heard = on_own_presence(state, said.sequence, record.offset)
    return with_presence_heard(heard, said.sequence)


def _on_coordinator_event(state: State, record: LogRecord, now_ms: int) -> Step:
    said = record.envelope
    first = isinstance(said.event, StartCommit) and said.event.settled_to is None
    known = said.epoch == state.term.epoch and said.sender == state.term.coordinator
    if first and known:
        return state, ()  # a repetition; the first one counted
    # Before the event takes effect, whichever it is: an END or ACK of a coordinator that was not
    # known is about work of its epoch, and none of ours is (EPOCH-3).
    if not known:
        state = _enter_epoch_without_proposals(state, Epoch(said.epoch), said.sender)
    match said.event:
        case StartCommit() as start:
            if other := find_other_configuration_error(state, said.sender, start):
                return state, (Stop(other),)
            return _on_start(state, record, start), ()
        case EndCommit():
            return _on_end(state, said.transaction)
        case Tables() as tables:
            return on_tables_event(state, tables, now_ms), ()
        case Settlement() as settlement if settlement.settled_to >= state.term.settled_to:
            return _on_settlement(state, settlement)
        case _:
            return state, ()


def _enter_epoch_without_proposals(state: State, epoch: Epoch, coordinator: Sender | None) -> State:
    return forget_proposals_and_answers(enter_epoch(state, epoch, coordinator))


def _on_start(state: State, record: LogRecord, start: StartCommit) -> State:
    number = record.envelope.transaction
    first_l = ControlOffset(record.offset + 1)
    settled_to = first_l if start.settled_to is None else start.settled_to
    state = apply_settlement(state, start.offsets, settled_to)
    newest = state.term.following or state.term.writing
    # Only C and L stand before this test, for an older L says nothing (POSITION-3). What follows
    # has no such order of its own: an old START would answer needs, pause or go on once more.
    if number <= (newest.number if newest else state.term.answered):
        return state  # a repetition
    state = forget_proposals_of_suspended_tables(state, start.suspended)
    if state.needs.open:
        state = drop_or_renumber_proposals(state, start)
    state = with_paused(state, paused=start.paused)
    return open_or_queue_transaction(state, OpenTransaction.from_start(number, start))


def _on_end(state: State, number: TransactionNumber) -> Step:
    if number > state.term.answered:
        return with_end_requested(state, number), ()
    return append_pending_statuses_again(state, number)


def _on_settlement(state: State, settlement: Settlement) -> Step:
    state = apply_settlement(state, settlement.offsets, settlement.settled_to)
    state = with_suspended_tables(state, settlement.suspended)
    state = forget_proposals_of_suspended_tables(state, settlement.suspended)
    return state, _copy_offsets_to_group(state, settlement)


def _copy_offsets_to_group(state: State, settlement: Settlement) -> tuple[Action, ...]:
    if state.term.writing is None or not state.work.owned:
        return ()
    offsets = settlement.offsets.restricted_to(state.work.owned)
    return (CopyOffsets(offsets, state.term.writing.table.uuid),)


def _on_log_truncated(state: State, reason: str) -> Step:
    """LOG-3: treat earlier events as void; every owned partition is gained again."""
    owned = frozenset(state.work.owned)
    state = _enter_epoch_without_proposals(state, state.term.epoch, state.term.coordinator)
    state = without_unheard_presences(without_lost_partitions(state, owned))
    if not owned:
        return state, (control_log_warning(reason),)
    state, actions = _announce_gain(state, owned, PresenceKind.JOINED)
    return state, (control_log_warning(reason), *actions)
