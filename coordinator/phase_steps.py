"""Does what every phase does: enters the next one, begins again, steps down, waits; and says what
it appends (EPOCH-2, COMMIT-1, COMMIT-4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from headgate.control_protocol.errors import (
    HeadgateError,
    LeadershipReleased,
    MissingRights,
    StepDown,
)
from headgate.control_protocol.events import (
    AbortCommit,
    AckCommit,
    EndCommit,
    Event,
    Limits,
    StartCommit,
    TableStart,
)
from headgate.control_protocol.identifiers import Epoch, TopicPartition, TransactionNumber
from headgate.control_protocol.log_event_names import LogEvent
from headgate.control_protocol.machine_io import (
    Append,
    LogLine,
    OutgoingEvent,
    Stop,
    backoff_ms,
    deadlines_with,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import CommitAttempt, TableView
from headgate.coordinator.file_admission import Prefixes
from headgate.coordinator.inputs_and_actions import Action, Look
from headgate.coordinator.phases import TRANSITIONS, Phase
from headgate.coordinator.settings import CoordinatorSettings
from headgate.coordinator.state import Call, State, Term, Timer

# The machine's elementary moves: change the phase, begin again, step down, wait.


Step = tuple[State, tuple[Action, ...]]

PATIENCE_INTERVALS = 3
PATIENCE_MS_MIN = 60_000
"""ELECTION-2: a catalog that is restarted is back sooner, and another leader costs an epoch."""

_ANSWERED = (Phase.FOLLOWING, Phase.STARTING, Phase.OPEN, Phase.CLOSING, Phase.SETTLING)
"""ELECTION-2: whoever comes here got what it had asked for; a commit that is read again and again,
did not.
"""


def enter_phase(
    state: State,
    phase: Phase,
    *,
    attempt: CommitAttempt | None = None,
    failures: int | None = None,
    **changes: Any,
) -> State:
    """Enter the phase; what was asked, and a retry that was due, belong to the former one.

    ``attempt``: the commit whose outcome the phase waits for. ``failures``: those counted so far
    stay where none are given.
    """
    assert phase in TRANSITIONS[state.phase], f"illegal transition {state.phase} -> {phase}"
    known = state.call
    call = Call(
        attempt,
        failures=known.failures if failures is None else failures,
        unanswered_since_ms=None if phase in _ANSWERED else known.unanswered_since_ms,
    )
    kept = state.deadlines if changes.get("term", state.term) is not None else {}
    deadlines = deadlines_with(kept, Timer.RETRY, None)
    return replace(state, phase=phase, deadlines=deadlines, call=call, **changes)


def with_next_table_check_due(state: State, now_ms: int) -> State:
    """Say when the next table check is due (TABLE-4); tables are refreshed no later (FRESH-2)."""
    every_ms, refresh_ms = state.settings.table_check_interval_ms, state.identity.refresh_ms
    every_ms = min(every_ms, refresh_ms) if refresh_ms else every_ms
    return state.with_deadline(Timer.LOOK, now_ms + every_ms)


def ask_look(state: State, question: Look) -> Step:
    """Wait for the answer to this question; after a failure it is asked once more."""
    return replace(state, call=state.call.with_question(question)), (question,)


def term_of(state: State) -> Term:
    assert state.term is not None, f"phase {state.phase} has no term"
    return state.term


def recover_from_table(state: State, why: str) -> Step:
    """Begin again at the table, with a new epoch."""
    suspicion = state.suspicion.with_access_refusals_of_term(state.term)
    moved = enter_phase(state, Phase.RECOVERING, term=None, recovery=None, suspicion=suspicion)
    asking, actions = ask_look(moved, Look(primary=True))
    told = LogLine(why, trouble=state.term is not None, event=LogEvent.EPOCH_RECLAIMED)
    return asking, (told, *actions)


def step_down(state: State, epoch: Epoch, now_ms: int) -> Step:
    """EPOCH-4: step down at once, and log it."""
    followed = enter_phase(
        state,
        Phase.FOLLOWING,
        term=None,
        watch=state.watch.with_superseded(epoch, now_ms),
        suspicion=state.suspicion.with_access_refusals_of_term(
            state.term
        ).without_troubled_tables(),
    )
    why = f"{StepDown.code} superseded by epoch {epoch}: steps down"
    return followed, (LogLine(why, trouble=True, event=LogEvent.EPOCH_SUPERSEDED),)


def stop_sink(state: State, error: HeadgateError) -> Step:
    return enter_phase(state, Phase.STOPPED, term=None, recovery=None), (Stop(error),)


def leader_unanswered_max_ms(settings: CoordinatorSettings) -> int:
    """ELECTION-2: return how long a leader may go without an answer while others could lead."""
    return max(PATIENCE_INTERVALS * settings.commit_interval_ms, PATIENCE_MS_MIN)


def should_release_leadership(state: State, now_ms: int) -> bool:
    """Return whether to give up the lead: nothing is answered for long, and others are there."""
    since_ms, patient_ms = state.call.unanswered_since_ms, leader_unanswered_max_ms(state.settings)
    if since_ms is None or now_ms - since_ms < patient_ms:
        return False
    return any(now_ms - at_ms < patient_ms for at_ms in state.watch.peers.values())


def wait_and_retry(state: State, now_ms: int, why: str, *, refused: bool = False) -> Step:
    """Try again later; each wait is twice the one before, up to the configured longest.

    ELECTION-2: that somebody refused it, or has no rights for it, is an answer: others would get
    it, too.
    """
    settings = state.settings
    wait_ms = backoff_ms(
        state.call.failures, settings.retry_backoff_ms, settings.retry_backoff_max_ms
    )
    known_ms = state.call.unanswered_since_ms
    since_ms = now_ms if known_ms is None else known_ms
    answered = refused or MissingRights.code in why
    call = replace(
        state.call.with_failure_counted(), unanswered_since_ms=None if answered else since_ms
    )
    waiting = replace(state, call=call).with_deadline(Timer.RETRY, now_ms + wait_ms)
    told = f"{why}; tries again in {wait_ms} ms"
    patient = now_ms - since_ms < leader_unanswered_max_ms(settings)
    if not (answered or patient or should_release_leadership(waiting, now_ms)):
        told = f"{LeadershipReleased.code} keeps the lead, for nobody else was heard: {told}"
    return waiting, (LogLine(told, trouble=True, event=LogEvent.COORDINATOR_RETRYING),)


def append_actions_of_phase(state: State) -> tuple[Action, ...]:
    """Append the events that the phase waits to hear; repeated after a failed append."""
    term = term_of(state)
    match state.phase:
        case Phase.STARTING:
            return _as_append_actions(
                term, (term.progress.number, build_start_event(state, first=True))
            )
        case Phase.CLOSING:
            start = (term.progress.number, build_start_event(state, first=False))
            return _as_append_actions(term, (term.previous_transaction_number, EndCommit()), start)
        case Phase.EVOLVING if term.changes.tables is not None:
            return _as_append_actions(term, (term.progress.number, term.changes.tables))
        case Phase.SETTLING:
            assert isinstance(term.progress.settlement, AckCommit | AbortCommit)
            return _as_append_actions(
                term, (term.previous_transaction_number, term.progress.settlement)
            )
        case _:
            return ()


def _as_append_actions(term: Term, *events: tuple[TransactionNumber, Event]) -> tuple[Action, ...]:
    return (Append(tuple(OutgoingEvent(term.epoch, number, event) for number, event in events)),)


def epoch_prefixes(state: State, table: TableView) -> Prefixes:
    """Return the folders of this epoch and incarnation, which were never used before.

    Those where the table's owner had its data earlier in this epoch count, too: nobody could know
    yet that it would move (TOKEN-1).
    """
    former = term_of(state).tokens.former_data.get(table.uuid, ())
    return Prefixes(
        f"{table.data_root}/{relative_epoch_folder(state)}",
        term_of(state).progress.number,
        former=tuple(
            f"{root}/{relative_epoch_folder(state)}" for root in former if root != table.data_root
        ),
    )


def with_former_data_roots(before: Term, after: Term) -> Term:
    """TOKEN-1: remember where tables had their data, as far as a read shows that it has moved.

    Whoever wrote below it could not know: participants and coordinator read tables at other times.
    """
    if (
        after.primary.view is before.primary.view
        and after.delivery.secondaries is before.delivery.secondaries
    ):
        return after
    known = {
        before.primary.view.uuid: before.primary.view,
        **{v.uuid: v for v in before.delivery.secondaries.values()},
    }
    moved = {
        now.uuid: known[now.uuid].data_root
        for now in (after.primary.view, *after.delivery.secondaries.values())
        if now.uuid in known and known[now.uuid].data_root != now.data_root
    }
    if not moved:
        return after
    return replace(after, tokens=after.tokens.with_former_data_roots(moved))


def relative_epoch_folder(state: State) -> str:
    """Return the folder below each table's data."""
    sender, epoch = state.identity.sender, term_of(state).epoch
    return f"headgate/{state.identity.sink}/{epoch}-{sender.incarnation}"


def secondaries_named_by_start(state: State) -> Mapping[str, TableView]:
    """Return the secondary tables that START names; others only receive deliveries."""
    known = term_of(state).delivery.secondaries
    return {name: known[name] for name in state.identity.secondaries if name in known}


def secondary_offsets_ahead(state: State, secondary: TableView) -> Offsets:
    """QUARANTINE-3: return where the secondary table is further than C, of the partitions that are
    read."""
    term = term_of(state)
    return secondary.offsets_ahead_of(
        offsets_of_configured_topics(state, term.progress.offsets), term.sources.topic_ids
    )


def with_described_topics(state: State, topics: Iterable[str]) -> State:
    """Note which topics there are, as they were just described."""
    return replace(state, topics=frozenset(topics))


def offsets_of_configured_topics(state: State, offsets: Offsets) -> Offsets:
    """Drop the topics that the record remembers but the configuration no longer names."""
    return offsets.restricted_to(p for p in offsets if p.topic in state.topics)


def partitions_of_newest_start(state: State) -> frozenset[TopicPartition]:
    """Return the partitions of the newest START (COMMIT-1)."""
    return frozenset(offsets_of_configured_topics(state, term_of(state).progress.offsets))


def build_start_event(state: State, *, first: bool) -> StartCommit:
    term = term_of(state)
    tables = [primary_table_start(state)]
    for secondary in secondaries_named_by_start(state).values():
        named = _table_start(state, secondary)
        tables.append(replace(named, offsets=secondary_offsets_ahead(state, secondary)))
    return StartCommit(
        settled_to=None if first else term.progress.settled_to,
        offsets=offsets_of_configured_topics(state, term.progress.offsets),
        topic_ids=term.sources.topic_ids,
        tables=tuple(tables),
        limits=Limits(
            state.settings.target_file_bytes,
            state.settings.commit_timeout_ms,
            state.settings.commit_records,
            state.settings.commit_bytes,
        ),
        paused=term.pause.paused,
        folder=f"{relative_epoch_folder(state)}/{term.progress.number}"
        if state.identity.routed
        else "",
        configuration=state.identity.configuration,
        suspended=suspension_reasons(term),
    )


def suspension_reasons(term: Term) -> dict[str, str]:
    """Return why tables are suspended, as START and settlements say it (SUSPEND-1)."""
    return {name: suspended.why for name, suspended in sorted(term.suspensions.suspended.items())}


def primary_table_start(state: State) -> TableStart:
    """Return the primary table as START and TABLES name it."""
    term = term_of(state)
    named = replace(_table_start(state, term.primary.view), refused=term.changes.refused)
    return replace(named, file_prefix=term.tokens.marks[0]) if term.tokens.marks else named


def _table_start(state: State, table: TableView) -> TableStart:
    return TableStart(
        table=table.table,
        uuid=table.uuid,
        schema_id=table.schema_id,
        spec_id=table.spec_id,
        file_prefix=epoch_prefixes(state, table).folder_of(term_of(state).progress.number),
    )
