"""Follows epochs, transactions and settlements as the coordinator says them, and keeps what was
said to it.

Owner of ``Term`` and ``Announced``: EPOCH-3, POSITION-3, POSITION-4 and CONFIG-1, and the replays
of LOG-5 and LOG-6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from headgate.control_protocol.errors import OtherConfiguration
from headgate.control_protocol.events import (
    DIGEST,
    LogRecord,
    Presence,
    PresenceKind,
    Proposal,
    Settlement,
    StartCommit,
    TableStart,
    WriteStatus,
)
from headgate.control_protocol.identifiers import (
    LEAP_MAX,
    ControlOffset,
    Epoch,
    Sender,
    TopicPartition,
    TransactionNumber,
)
from headgate.control_protocol.machine_io import Append, OutgoingEvent
from headgate.control_protocol.offsets import Offsets
from headgate.participant.batches import (
    build_presence,
    drop_work_and_positions,
    take_work_as_status,
    with_settled_positions,
    with_source_looks_reset,
)
from headgate.participant.state import OpenTransaction, OwnStatus, State, Term, Timer

# --------------------------------------------------------------------- what the coordinator says


def is_believed(state: State, record: LogRecord) -> bool:
    """Return whether to believe an event: EPOCH-3 ignores lower epochs, LOG-6 leaps and impossible
    Ls.

    A START is believed however far it leaps, for its coordinator may have had to claim above words
    that this participant ignored. A START of the true coordinator leads back from a false one.
    """
    said, known = record.envelope, state.term.epoch
    match said.event:
        case StartCommit(settled_to=place) | Settlement(settled_to=place):
            possible = place is None or place <= record.offset
        case _:
            possible = True
    if known == 0:
        return possible
    near = known <= said.epoch <= known + LEAP_MAX
    far = abs(said.epoch - known) > LEAP_MAX
    return possible and (near or (far and isinstance(said.event, StartCommit)))


def enter_epoch(state: State, epoch: Epoch, coordinator: Sender | None) -> State:
    """EPOCH-3: enter a higher epoch: all work, announced statuses and known positions are void."""
    # L begins at 0 again: the new epoch's first START says where to read on, whatever the former
    # coordinator had settled; its ENDs count from 1.
    term = Term(epoch, coordinator, paused=state.term.paused)
    said = replace(state.said, pending=())
    return replace(drop_work_and_positions(state), term=term, said=said)


def open_or_queue_transaction(state: State, started: OpenTransaction | None) -> State:
    """Open a START at once, or behind the answer that is still pending (COMMIT-1)."""
    term = state.term
    if term.ended > term.answered:
        return replace(state, term=replace(term, following=started))
    opened = replace(state, term=replace(term, writing=started, following=None))
    return with_source_looks_reset(opened)


def with_paused(state: State, *, paused: bool) -> State:
    return replace(state, term=replace(state.term, paused=paused))


def with_end_requested(state: State, number: TransactionNumber) -> State:
    """Note an END that is to be answered."""
    return replace(state, term=replace(state.term, ended=max(number, state.term.ended)))


def with_end_answered_and_next_opened(state: State) -> State:
    """Go on with the transaction whose START was heard meanwhile; without one, with none."""
    answered = replace(state, term=replace(state.term, answered=state.term.ended))
    return open_or_queue_transaction(answered, answered.term.following)


def with_suspended_tables(state: State, suspended: Mapping[str, str]) -> State:
    """SUSPEND-2: apply a settlement's suspended tables to the next batch, whatever its
    transaction."""
    return _with_changed_transactions(state, lambda each: replace(each, suspended=suspended))


def with_schema(state: State, table_start: TableStart) -> State:
    """SCHEMA-3: write under the schema that TABLES names, in the same folder."""

    def with_new_schema(opened: OpenTransaction) -> OpenTransaction:
        if opened.table.uuid != table_start.uuid:
            return opened
        table = replace(opened.table, schema_id=table_start.schema_id, refused=table_start.refused)
        return replace(opened, table=table)

    return _with_changed_transactions(state, with_new_schema)


def _with_changed_transactions(
    state: State, change: Callable[[OpenTransaction], OpenTransaction]
) -> State:
    writing, following = state.term.writing, state.term.following
    term = replace(
        state.term,
        writing=change(writing) if writing else None,
        following=change(following) if following else None,
    )
    return replace(state, term=term)


# ------------------------------------------------------------------------------- settlements


def apply_settlement(state: State, offsets: Offsets, settled_to: ControlOffset) -> State:
    """Apply C, settled up to L. A settlement older than one already applied is ignored."""
    # The log repeats what a coordinator appends again: an older C would move positions back to
    # offsets that the table holds, and their records would be written once more.
    if settled_to < state.term.settled_to:
        return state
    unheeded = _count_unheeded_statuses_in_a_row(state, offsets, settled_to)
    pending = tuple(own for own in state.said.pending if _is_late(own, settled_to))
    state = replace(
        state,
        term=replace(state.term, settled_to=settled_to),
        said=replace(state.said, pending=pending, unheeded=unheeded),
    )
    return with_settled_positions(state, _offsets_after_late_statuses(offsets, pending), settled_to)


def _count_unheeded_statuses_in_a_row(
    state: State, offsets: Offsets, settled_to: ControlOffset
) -> int:
    """LOG-6: return how many statuses in a row had no effect: C has not reached their ranges."""
    count = state.said.unheeded
    for own in state.said.pending:
        if not _is_late(own, settled_to) and any(len(span) for span in own.ranges.values()):
            reached = all(offsets.get(p, span.end) >= span.end for p, span in own.ranges.items())
            count = 0 if reached else count + 1
    return count


def _is_late(own: OwnStatus, settled_to: ControlOffset) -> bool:
    """POSITION-4: return whether the status is late, so that it waits for the next settlement."""
    return own.offset is None or own.offset >= settled_to


def _offsets_after_late_statuses(offsets: Offsets, pending: tuple[OwnStatus, ...]) -> Offsets:
    """POSITION-3: return what C will be once the own late statuses are judged, as the coordinator
    would.

    It will judge them in log order onto exactly this pair of C and L. A position behind C itself is
    no contradiction then: what lies between was announced, and must not be read again.
    """
    for own in pending:
        if offsets.are_continued_by(own.ranges):
            offsets = offsets.after_ranges(own.ranges)
    return offsets


# ------------------------------------------------------------------------------ what it says

Step = tuple[State, tuple[Append, ...]]


def number_event(
    state: State,
    transaction: TransactionNumber,
    event: Presence | WriteStatus | Proposal,
    sequence_step: int = 1,
) -> tuple[State, OutgoingEvent]:
    """Return the event with its place in this participant's own order."""
    sequence = state.said.sequence + sequence_step
    numbered = replace(state, said=replace(state.said, sequence=sequence))
    return numbered, OutgoingEvent(state.term.epoch, transaction, event, sequence)


def append_presence(state: State, kind: PresenceKind, concerns: frozenset[TopicPartition]) -> Step:
    state, said = number_event(state, TransactionNumber(0), build_presence(state, kind, concerns))
    if kind in (PresenceKind.JOINED, PresenceKind.GAINED):
        unheard = (*state.said.unheard, said)
        state = replace(state, said=replace(state.said, unheard=unheard))
    return state, (Append((said,)),)


def append_status(state: State, transaction: TransactionNumber) -> Step:
    """Announce all work; the status stays pending until a settlement covers it."""
    # LOG-6: somebody may have used a higher number in its name that it never heard: catch up.
    further = min(LEAP_MAX, 1024 ** min(state.said.unheeded, 2))
    state, status = take_work_as_status(state, state.said.status_number + further)
    state, said = number_event(state, transaction, status, further)
    pending = (*state.said.pending, OwnStatus(said, status))
    announced = replace(state.said, pending=pending, status_number=status.status_number)
    return replace(state, said=announced), (Append((said,)),)


def append_pending_statuses_again(state: State, upto: TransactionNumber) -> Step:
    """ANSWER-2: answer a repeated END with the very events that answered it, files included.

    A status made anew could cut the same records into another range: both might be admitted.
    """
    again = tuple(own.said for own in state.said.pending if own.said.transaction <= upto)
    return state, (Append(again),) if again else ()


def with_resend_deadline(state: State, now_ms: int) -> State:
    """LOG-1: what is not heard is appended again, an interval after it was first missed."""
    if not _unheard_events(state):
        return state.with_deadline(Timer.RESEND, None)
    if Timer.RESEND in state.deadlines:
        return state
    return state.with_deadline(Timer.RESEND, now_ms + state.settings.presence_interval_ms)


def repeat_unheard_events(state: State, now_ms: int) -> Step:  # noqa: ARG001 - as all that is due
    """LOG-1: repeat what was not heard; confirmed is not heard, for a log may be truncated."""
    return state.with_deadline(Timer.RESEND, None), (Append(_unheard_events(state)),)


def _unheard_events(state: State) -> tuple[OutgoingEvent, ...]:
    proposed = (need.said for need in state.needs.open if not need.heard)
    pending = (own.said for own in state.said.pending if own.offset is None)
    return (*state.said.unheard, *pending, *proposed)


def on_own_status(state: State, number: int, offset: ControlOffset) -> State:
    """Note where an own status stands; if others used its name, go on counting from there
    (LOG-6)."""
    pending = tuple(
        replace(own, offset=offset)
        if own.offset is None and own.status.status_number == number
        else own
        for own in state.said.pending
    )
    counted = number_to_continue_from(state.said.status_number, number)
    return replace(state, said=replace(state.said, pending=pending, status_number=counted))


def with_own_sequence_heard(state: State, sequence: int) -> State:
    """LOG-6: if others used its name, go on counting from there.

    Others may have leapt too far in it, and coordinators believed them. Behind such a number they
    take nothing any more as soon as own ones are no further than a leap below it.
    """
    said = state.said
    far = abs(sequence - said.leapt) > LEAP_MAX
    believed = sequence if far else max(sequence, said.leapt)
    counted = number_to_continue_from(number_to_continue_from(said.sequence, sequence), believed)
    leapt = believed if believed > counted else 0
    return replace(state, said=replace(said, sequence=counted, leapt=leapt))


def with_presence_heard(state: State, sequence: int) -> State:
    unheard = tuple(said for said in state.said.unheard if said.sequence != sequence)
    return replace(state, said=replace(state.said, unheard=unheard))


def without_unheard_presences(state: State) -> State:
    """Forget the presences on the way: the log lost its end, and everything is gained again."""
    return replace(state, said=replace(state.said, unheard=()))


def number_to_continue_from(known: int, heard: int) -> int:
    """LOG-6: return the number to count on from, after what was heard in its name, its own or
    not."""
    return heard if known < heard <= known + LEAP_MAX else known


# ---------------------------------------------------------------------------- one configuration


def find_other_configuration_error(
    state: State, coordinator: Sender, start: StartCommit
) -> OtherConfiguration | None:
    """CONFIG-1: return the error if this participant's configuration differs from START's.

    What it wrote would go elsewhere, or be another row than its file says.
    """
    own = {**state.configuration}
    if state.table is not None:
        own["table.identifier"] = state.table
    differences = describe_configuration_differences(start, own)
    if not differences:
        return None
    return OtherConfiguration(
        f"sink {state.sink!r} is coordinated by {coordinator.member} with another sink file than "
        f"this participant's: {differences}",
        "give all participants of the sink the same file (to change these parts, stop all of them "
        "first), or this one another name and group",
    )


def describe_configuration_differences(start: StartCommit, own: Mapping[str, str]) -> str:
    """CONFIG-1: say in which parts both have, START's configuration and this one differ, if any."""
    said = {"table.identifier": start.tables[0].table, **start.configuration}
    other = sorted(name for name in own.keys() & said.keys() if own[name] != said[name])
    return "; ".join(_describe_setting_difference(name, said[name], own[name]) for name in other)


def _describe_setting_difference(name: str, said: str, own: str) -> str:
    if own.startswith(DIGEST) or said.startswith(DIGEST):
        return f"{name} is not the same"
    return f"{name} is {said!r} there and {own!r} here"
