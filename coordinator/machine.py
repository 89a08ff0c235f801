"""The coordinator's behaviour: ``step(state, input, now) -> (state, actions)``, pure.

The caller executes the actions in order and feeds the results back. Time is monotonic milliseconds.
An event that was appended takes effect when it is *heard*: the log's order is the only order. Rules
C1-C10 of PROTOCOL.md are named where they live: ``claim`` holds C2 and C3, ``commitment`` C6, C7,
C8 and C10, and this module handles events and timers.
"""

from __future__ import annotations

from dataclasses import replace

from headgate.control_protocol.errors import FolderElsewhere, HeadgateError
from headgate.control_protocol.events import (
    EndCommit,
    LogRecord,
    Pause,
    Presence,
    Proposal,
    Resume,
    Settlement,
    StartCommit,
    Tables,
    WriteStatus,
)
from headgate.control_protocol.identifiers import (
    LEAP_MAX,
    ControlOffset,
    TopicPartition,
)
from headgate.control_protocol.log_events import LogEvent
from headgate.control_protocol.ports import TableView
from headgate.coordinator.actions import (
    Action,
    CallFailed,
    CommitAnswered,
    DeliveriesAnswered,
    Discontinued,
    Drafted,
    Heard,
    Input,
    Led,
    ReadTable,
    SecondariesRead,
    SourcesDescribed,
    Stopped,
    TableEvolved,
    TableRead,
    TablesChanged,
    Tell,
    Ticked,
)
from headgate.coordinator.admission import named
from headgate.coordinator.claim import claim, secondaries_found, table_found
from headgate.coordinator.closing import end_and_start
from headgate.coordinator.commitment import answered, collected, judged, resolved, tables_told
from headgate.coordinator.credibility import beyond, gains, leaps, news, said_again, with_gain
from headgate.coordinator.delivery import (
    again,
    begin_delivering,
    deliveries_answered,
    failed,
    primary_read,
    secondaries_read,
    tidied,
)
from headgate.coordinator.drafting import drafted, drafts_again, read_for_drafts
from headgate.coordinator.evolution import due, evolve, evolved, heard_tables, not_evolved, proposed
from headgate.coordinator.fullness import enough, heard_of
from headgate.coordinator.log_ends import told
from headgate.coordinator.making import changed
from headgate.coordinator.moves import Step, move, recover, stop, superseded, term_of, wait
from headgate.coordinator.pacing import pending_now
from headgate.coordinator.refusals import heeded
from headgate.coordinator.releasing import lacks_answers, released, with_peer
from headgate.coordinator.renewal import looked, looked_at_secondaries, prepared
from headgate.coordinator.requests import requested
from headgate.coordinator.routed import asked_again
from headgate.coordinator.speech import say, with_former_data
from headgate.coordinator.state import HeardStatus, State
from headgate.coordinator.transitions import Phase


def step(state: State, given: Input, now_ms: int) -> Step:
    """Process one input. Errors of the kind ``StopSink`` become the action ``Stop``."""
    if state.phase is Phase.STOPPED:
        return state, ()
    try:
        after, actions = _dispatch(state, given, now_ms)
    except HeadgateError as error:
        return stop(state, error)
    if state.term and after.term and state.term.epoch == after.term.epoch:
        term = with_former_data(state.term, after.term)
        after = after if term is after.term else replace(after, term=term)
    return after, actions


def _dispatch(state: State, given: Input, now_ms: int) -> Step:
    match given:
        case Ticked():
            return _ticked(state, now_ms)
        case Heard(record):
            return _heard(state, record, now_ms)
        case Led():
            return _led(state, now_ms)
        case TableRead(view):
            return _table_read(state, view, now_ms)
        case SecondariesRead() | Drafted() | DeliveriesAnswered():
            return _of_secondaries(state, given, now_ms)
        case SourcesDescribed():
            return _described(state, given, now_ms)
        case CommitAnswered(outcome):
            return answered(state, outcome, now_ms)
        case TableEvolved() | TablesChanged():
            return _changed(state, given, now_ms)
        case CallFailed(reason) if state.phase is not Phase.FOLLOWING:
            return _call_failed(state, reason, now_ms)
        case Discontinued(reason):
            return _discontinued(state, reason)
        case Stopped(error):
            return stop(state, error)
        case _:
            return state, ()


def _changed(state: State, given: TableEvolved | TablesChanged, now_ms: int) -> Step:
    if isinstance(given, TableEvolved):
        return evolved(state, given.evolved)
    return changed(state, given.tables, now_ms)


def _call_failed(state: State, reason: str, now_ms: int) -> Step:
    if state.phase is Phase.DELIVERING:
        return failed(state, now_ms, reason)
    if state.phase is Phase.EVOLVING and term_of(state).tables is None:
        return not_evolved(state, now_ms, reason)
    return wait(state, now_ms, reason)


def _table_read(state: State, view: TableView, now_ms: int) -> Step:
    if state.phase is Phase.RECOVERING:
        return table_found(state, view)
    if state.phase is Phase.DELIVERING:
        return primary_read(state, view, now_ms)
    if state.attempt:
        return resolved(state, view, now_ms)
    return looked(state, view) if state.term else (state, ())


def _of_secondaries(
    state: State, given: SecondariesRead | Drafted | DeliveriesAnswered, now_ms: int
) -> Step:
    match state.phase, given:
        case Phase.RECOVERING, SecondariesRead() if state.recovery_view:
            return secondaries_found(state, given, now_ms)
        case Phase.PREPARING, SecondariesRead():
            return looked_at_secondaries(state, given, now_ms)
        case Phase.COLLECTING, SecondariesRead() if term_of(state).asks_tables:
            return tables_told(state, given, now_ms)
        case Phase.DRAFTING, SecondariesRead():
            return read_for_drafts(state, given, now_ms)
        case Phase.DRAFTING, Drafted():
            return drafted(state, given, now_ms)
        case Phase.DELIVERING, SecondariesRead():
            return secondaries_read(state, given, now_ms)
        case Phase.DELIVERING, DeliveriesAnswered():
            return deliveries_answered(state, given, now_ms)
        case _:
            return state, ()


# ------------------------------------------------------------------------------------ leadership


def _led(state: State, now_ms: int) -> Step:
    """C9: after being superseded, claim only when the rival has been silent for long enough."""
    if state.phase is not Phase.FOLLOWING:
        return state, ()
    if state.rival_heard_ms is not None and now_ms < state.rival_heard_ms + _silence_ms(state):
        return state, ()
    return recover(state, "leading: reads table and sources")


def _silence_ms(state: State) -> int:
    """Return how long a rival must be silent: a live one speaks once per interval and time-out."""
    settings = state.settings
    return settings.election_timeout_ms + settings.commit_interval_ms + settings.commit_timeout_ms


def _discontinued(state: State, reason: str) -> Step:
    if state.term is None:
        return state, (Tell(reason, trouble=True, event=LogEvent.CONTROL_TOPIC_UNAVAILABLE),)
    return recover(state, f"{reason}: a new epoch is due")


# ------------------------------------------------------------------------------------------ time


def _ticked(state: State, now_ms: int) -> Step:
    if state.unanswered_since_ms is not None and lacks_answers(state, now_ms):
        return stop(state, released(state, now_ms))
    if state.retry_at_ms is not None:
        return _retry(state, now_ms) if now_ms >= state.retry_at_ms else (state, ())
    match state.phase:
        case Phase.OPEN if due(term_of(state), now_ms):
            return evolve(state)
        case Phase.OPEN if now_ms >= term_of(state).end_due_ms or enough(state):
            return prepared(state, now_ms)
        case Phase.COLLECTING:
            return collected(state, now_ms)
        case Phase.STARTING | Phase.CLOSING | Phase.SETTLING | Phase.EVOLVING:
            # G1: confirmed is not heard; a truncated log may have lost the event
            again_ms = now_ms + state.settings.commit_timeout_ms
            return replace(state, retry_at_ms=again_ms), ()
        case _:
            return state, ()


def _retry(state: State, now_ms: int) -> Step:
    """Retry what failed; a commit's outcome is read from the table, never assumed (C8)."""
    state = replace(state, retry_at_ms=None)
    match state.phase:
        case Phase.RECOVERING | Phase.CLAIMING | Phase.COMMITTING:
            return state, (ReadTable(),)
        case Phase.PREPARING | Phase.COLLECTING:
            return state, (asked_again(state),)
        case Phase.DRAFTING:
            return drafts_again(state, now_ms)
        case Phase.DELIVERING:
            return again(state, now_ms)
        case _:
            return state, say(state)


def _described(state: State, sources: SourcesDescribed, now_ms: int) -> Step:
    if state.phase is Phase.RECOVERING and state.recovery_view:
        return claim(state, state.recovery_view, sources, now_ms)
    if state.phase is Phase.PREPARING:
        return end_and_start(state, sources, now_ms)
    if state.phase is Phase.COLLECTING and term_of(state).asks_ends:
        return judged(told(state, sources.topics), now_ms)
    return state, ()


# ------------------------------------------------------------------------------ what is heard


def _heard(state: State, record: LogRecord, now_ms: int) -> Step:
    said = record.envelope
    state = with_peer(state, said, now_ms)
    if said_again(state, said) or leaps(state, said):
        return _at(state, record), ()
    state = with_gain(state, said)
    if isinstance(said.event, Pause | Resume):
        return requested(_at(state, record), said, now_ms), ()
    coordinates = isinstance(said.event, StartCommit | EndCommit | Settlement | Tables)
    rival = coordinates and said.sender != state.identity.sender
    if said.epoch > state.highest_epoch:
        state = replace(state, highest_epoch=said.epoch, rivals={})
    if rival and said.epoch == state.highest_epoch:
        state, fresh = news(state, said)
        if fresh and state.term is None and state.rival_heard_ms is not None:
            state = replace(state, rival_heard_ms=now_ms)
    if state.term is None:
        return state, ()
    if said.epoch > state.term.epoch:
        if rival:
            return superseded(state, said.epoch, now_ms)
        return recover(state, f"{said.sender} has seen epoch {said.epoch}: claims a higher epoch")
    if coordinates and not rival and beyond(state.term, said):
        return recover(state, "another process uses its name: claims a new epoch")
    if rival and said.epoch == state.term.epoch:
        # The table lost a claim (re-created while its coordinator slept), or the catalog confirmed
        # one that it never made: neither finds out by itself while it has nothing to commit.
        return recover(state, f"{said.sender} also uses epoch {said.epoch}: claims a higher one")
    return _heard_in_term(_at(state, record), record, now_ms)


def _at(state: State, record: LogRecord) -> State:
    if state.term is None:
        return state
    return replace(state, term=replace(state.term, heard_to=ControlOffset(record.offset + 1)))


def _heard_in_term(state: State, record: LogRecord, now_ms: int) -> Step:
    said, term = record.envelope, term_of(state)
    current = said.epoch == term.epoch
    if current and isinstance(said.event, Presence):
        state = heard_of(state, said.sender, said.event)
    match said.event:
        case WriteStatus() as status if current:
            heard = HeardStatus(record.offset, said.sender, said.transaction, status)
            return _heard_status(state, heard)
        case Proposal() as proposal if current:
            return proposed(state, said, proposal, now_ms), ()
        case Presence(concerns=gained) if gains(said):
            return _heard_gain(state, gained, now_ms)
        case _ if current and said.sender == state.identity.sender:
            return _heard_own(state, record, now_ms)
        case _:
            return state, ()


def _heard_own(state: State, record: LogRecord, now_ms: int) -> Step:
    """Let the event take effect now that it is heard (G1).

    A PAUSE or RESUME heard between the append and the hearing of a START contradicts it: the next
    START, which follows at once, corrects that.
    """
    said, term = record.envelope, term_of(state)
    next_end_ms = now_ms + state.settings.commit_interval_ms
    match state.phase, said.event:
        case Phase.STARTING, StartCommit(paused=paused):
            started = replace(
                term,
                settled_to=term.heard_to,
                statuses=(),
                held={},
                named_by_presence=frozenset(),  # gains before L take their position from here
                end_due_ms=next_end_ms if paused == term.paused else now_ms,
                started=True,
            )
            return _opened(replace(state, term=started), now_ms, tidied(started))
        case Phase.CLOSING, StartCommit(paused=paused) if said.transaction == term.number:
            due_ms = now_ms + state.settings.commit_timeout_ms
            collecting = replace(
                term,
                held={},
                time_out_ms=due_ms,
                end_due_ms=next_end_ms if paused == term.paused else now_ms,
            )
            return move(state, Phase.COLLECTING, term=collecting, failures=0), ()
        case Phase.EVOLVING, Tables() as tables:
            return heard_tables(state, tables, now_ms)
        case Phase.SETTLING, Settlement() if said.transaction == term.closing:
            return _opened(state, now_ms)
        case _:
            return state, ()


def _opened(state: State, now_ms: int, also: tuple[Action, ...] = ()) -> Step:
    """Open the transaction; before it may be ended, secondary tables are delivered to (D7)."""
    if given_up := heeded(state, now_ms):
        state, told = given_up
        also = (*also, *told)
        if state.phase is Phase.RECOVERING:
            return state, also
    if pending_now(state, now_ms):
        delivering, actions = begin_delivering(state, now_ms)
        return delivering, (*also, *actions)
    return move(state, Phase.OPEN, failures=0), also


def _heard_status(state: State, heard: HeardStatus) -> Step:
    """C6: count a status once, by its identity, whatever transaction it answers."""
    term = term_of(state)
    number = heard.status.status_number
    known = any(
        s.sender == heard.sender and s.status.status_number == number for s in term.statuses
    )
    behind = term.judged.get(heard.sender, 0) - number
    if known or 0 <= behind <= LEAP_MAX:  # G6: nobody can have counted further than that
        return state, ()
    awaited = term.awaited | named((heard,))
    held = {sender: amounts for sender, amounts in term.held.items() if sender != heard.sender}
    statuses = (*term.statuses, heard)
    # P9: its owner may have moved the table's data; the look finds out, and the next START says so
    soon = term.look_soon or (heard.status.failure or "").startswith(FolderElsewhere.code)
    heard_it = replace(term, statuses=statuses, awaited=awaited, held=held, look_soon=soon)
    return replace(state, term=heard_it), ()


def _heard_gain(state: State, gained: frozenset[TopicPartition], now_ms: int) -> Step:
    """C5: a gain names its partitions "unknown", and makes END come soon."""
    term = term_of(state)
    soon = min(term.end_due_ms, now_ms + state.settings.rebalance_delay_ms)
    gaining = replace(
        term,
        end_due_ms=soon,
        named_by_presence=term.named_by_presence | gained,
        awaited=term.awaited | gained,
    )
    return replace(state, term=gaining), ()
