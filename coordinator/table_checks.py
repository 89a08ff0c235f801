"""Checks the tables once per interval, before END: what others did to them, and what a sink without
new rows commits all the same, so that its tag stays near the head (TABLE-4, FRESH-2).

By age; and when others have moved the branch, which a check finds: what they expire next may be the
way from the head to the tag. Tables that the ledger has filled and that this epoch has not seen are
looked at a few at a time.
"""

from __future__ import annotations

from dataclasses import replace

from headgate.control_protocol.machine_io import LogLine
from headgate.control_protocol.ports import TableView
from headgate.coordinator.added_partitions import with_elapsed_holds_noted
from headgate.coordinator.inputs_and_actions import Look, SecondariesRead
from headgate.coordinator.phase_steps import (
    Step,
    ask_look,
    enter_phase,
    secondaries_named_by_start,
    term_of,
    with_next_table_check_due,
)
from headgate.coordinator.phases import Phase
from headgate.coordinator.secondary_pending_commits import are_secondaries_own_and_not_ahead
from headgate.coordinator.state import State, Term, Timer
from headgate.coordinator.table_suspension import (
    find_missing_filled_tables,
    find_table_trouble,
    resume_requested_tables,
    resuming_tables_without_pending,
    stop_resuming_tables_without_pending,
    suspend_or_forget_tables,
    tables_of_term_to_suspend_if_missing,
)

AT_ONCE = 20
"""In one transaction so many tables are looked at, or receive a delivery without rows."""


def look_before_end(state: State, now_ms: int) -> Step:
    """Look at the sources because END is due, and at the tables once per interval (TABLE-4)."""
    state = with_elapsed_holds_noted(state, now_ms) if state.held else state
    looks = state.is_due(Timer.LOOK, now_ms)
    state = with_unseen_tables_listed(with_next_table_check_due(state, now_ms)) if looks else state
    term, routed = term_of(state), state.identity.routed
    resuming = (
        sorted(term.suspensions.resume_asked | resuming_tables_without_pending(term))
        if routed
        else ()
    )
    wanted = (*resuming, *next_unseen_tables(term))
    wanted = (*secondaries_named_by_start(state), *wanted) if looks else wanted
    filled = tables_of_term_to_suspend_if_missing(state) if looks and routed else frozenset[str]()
    preparing = enter_phase(state, Phase.PREPARING)
    return ask_look(preparing, Look(looks, wanted, filled, sources=True))


def with_resume_requests_added(state: State, question: Look) -> Look:
    """Return the question with the suspended tables that a person named while it was repeated."""
    asked = sorted(term_of(state).suspensions.resume_asked)
    return replace(question, tables=tuple(dict.fromkeys((*question.tables, *asked))))


def note_primary_changes_by_others(state: State, view: TableView) -> State:
    """Note whether others moved the table; the next commit finds out more (OUTCOME-2).

    Where its owner wants its data now, the next START says (TOKEN-1); what other sinks read counts
    for new topics (TABLE-5).
    """
    term = term_of(state)
    known = term.primary.view
    found = term.primary.with_view(_with_found_location_and_sinks(known, view))
    found = found.with_branch_moved_by_others() if _have_others_moved_branch(known, view) else found
    return replace(state, term=replace(term, primary=found))


def _with_found_location_and_sinks(known: TableView, found: TableView) -> TableView:
    """Return the table as it is known, with its data and other sinks as they were just found."""
    if found.uuid != known.uuid:
        return known
    return replace(
        known,
        location=found.location,
        data_location=found.data_location,
        others=found.others,
    )


def on_look_at_secondaries(
    state: State, given: SecondariesRead, now_ms: int
) -> tuple[State, tuple[LogLine, ...]]:
    """Note what tags and heads of secondary tables show of others' work."""
    state, tells = resume_requested_tables(state, given, now_ms)
    state, stopped = stop_resuming_tables_without_pending(state, given, now_ms)
    state, suspended = suspend_or_forget_tables(
        state, find_missing_filled_tables(state, given), now_ms
    )
    before = term_of(state)
    moved = any(
        _have_others_moved_branch(known, given.views[name])
        for name, known in secondaries_named_by_start(state).items()
        if name in given.views
    )
    found = {
        n: _with_found_location_and_sinks(known, given.views[n])
        for n, known in before.delivery.secondaries.items()
        if n in given.views
    }
    secondaries = {**before.delivery.secondaries, **found}
    looked = replace(
        state,
        term=replace(
            before,
            primary=before.primary.with_branch_moved_by_others() if moved else before.primary,
            delivery=before.delivery.with_secondaries(secondaries),
        ),
    )
    return with_looked_at_tables_adopted(looked, given), (*tells, *stopped, *suspended)


def _have_others_moved_branch(known: TableView, found: TableView) -> bool:
    """Return whether others have moved the table since its tag was moved.

    The table as it is known does not tell: it may have been read after they did, to deliver.
    """
    return found.is_tag_behind or (found.uuid, found.tag) != (known.uuid, known.tag)


def with_unseen_tables_listed(state: State) -> State:
    """List the tables that this check and the next ENDs look at besides.

    A list that is not at its end goes on: else reasons to look soon would hide its last tables.
    """
    term = term_of(state)
    if not state.identity.refresh_ms or term.delivery.unseen:
        return state
    known = {
        *term.delivery.secondaries,
        *secondaries_named_by_start(state),
        *term.suspensions.suspended,
        *term.suspensions.forgotten,
    }
    names = tuple(sorted(term.primary.view.filled.keys() - known))
    return replace(
        state, term=replace(term, delivery=term.delivery.with_tables_left_to_check(names))
    )


def next_unseen_tables(term: Term) -> tuple[str, ...]:
    """Return the tables to look at next."""
    return term.delivery.unseen[:AT_ONCE]


def with_looked_at_tables_adopted(state: State, given: SecondariesRead) -> State:
    """Remember the tables that were looked at, if this primary table fills them and they are in
    order.

    Nothing goes to the others, so what is wrong with them matters to nobody yet.
    """
    term = term_of(state)
    found = {
        name: view
        for name in next_unseen_tables(term)
        if (view := given.views.get(name))
        and _is_filled_by(view, term.primary.view)
        and find_table_trouble(view, state, term.sources.topic_ids) is None
    }
    rest, secondaries = term.delivery.unseen[AT_ONCE:], {**term.delivery.secondaries, **found}
    delivery = term.delivery.with_secondaries(secondaries).with_tables_left_to_check(rest)
    return replace(state, term=replace(term, delivery=delivery))


def _is_filled_by(secondary: TableView, primary: TableView) -> bool:
    return bool(
        secondary.record and secondary.record.primary == primary.uuid
    ) and are_secondaries_own_and_not_ahead({secondary.table: secondary}, primary)


def is_tag_renewal_due(state: State, table: str, now_ms: int) -> bool:
    """Return whether the table's tag is to be moved without rows for it (TABLE-4, QUARANTINE-2)."""
    term = term_of(state)
    age_ms = now_ms - term.delivery.moved_at_ms.get(table, 0)
    return term.primary.overtaken or age_ms >= state.settings.tag_refresh_interval_ms
