"""Sends empty deliveries to tables without new rows, so that their valid-through advances (V2).

Tables that the ledger has filled and that this epoch has not seen are looked at a few at a time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from headgate.control_protocol.ports import TableView
from headgate.control_protocol.record import CommitRecord, PendingCommit
from headgate.coordinator.actions import SecondariesRead
from headgate.coordinator.moves import term_of
from headgate.coordinator.pending_commits import followed, renewal
from headgate.coordinator.speech import addressed
from headgate.coordinator.state import State, Term
from headgate.coordinator.suspension import trouble_of

AT_ONCE = 20
"""For one transaction this many tables are looked at, or delivered without rows."""


def listed(state: State, now_ms: int) -> State:
    """List the tables to look at, as often as tables are refreshed."""
    term, every_ms = term_of(state), state.identity.refresh_ms
    at_ms = term.unseen_at_ms
    if not every_ms or (at_ms is not None and now_ms - at_ms < every_ms):
        return state
    known = {*term.secondaries, *addressed(state), *term.suspended, *term.forgotten}
    names = tuple(sorted(term.view.filled.keys() - known))
    return replace(state, term=replace(term, unseen=names, unseen_at_ms=now_ms))


def unseen(term: Term) -> tuple[str, ...]:
    """Return the tables to look at next."""
    return term.unseen[:AT_ONCE]


def seen(state: State, given: SecondariesRead) -> State:
    """Remember the tables that were looked at, if this primary table has delivered them and they
    are in order.

    Nothing goes to the others, so what is wrong with them matters to nobody yet.
    """
    term = term_of(state)
    found = {
        name: view
        for name in unseen(term)
        if (view := given.views.get(name))
        and _ours(view, term.view)
        and trouble_of(view, state, term.topic_ids) is None
    }
    rest, secondaries = term.unseen[AT_ONCE:], {**term.secondaries, **found}
    return replace(state, term=replace(term, unseen=rest, secondaries=secondaries))


def _ours(secondary: TableView, primary: TableView) -> bool:
    return bool(secondary.record and secondary.record.primary == primary.uuid) and followed(
        {secondary.table: secondary}, primary
    )


def behind(state: State, through_ms: int | None, touched: Collection[str]) -> tuple[TableView, ...]:
    """Return the tables to be refreshed, those that are furthest behind first.

    ``touched`` are about to be delivered anyway, as are those that are pending something.
    """
    term, least_ms = term_of(state), state.identity.refresh_ms
    if not least_ms or through_ms is None:
        return ()
    busy = {
        *touched,
        *addressed(state),
        *term.suspended,
        *(pending_commit.table for pending_commit in term.pending_commits),
    }
    known = {
        name: record.valid_through_ms or 0
        for name, view in term.secondaries.items()
        if name not in busy and (record := view.record) and record.primary == term.view.uuid
    }
    late = sorted((at_ms, name) for name, at_ms in known.items() if through_ms - at_ms >= least_ms)
    return tuple(term.secondaries[name] for _, name in late[:AT_ONCE])


def refreshes(
    state: State, record: CommitRecord, touched: Collection[str]
) -> tuple[PendingCommit, ...]:
    """Return the empty pending commits by which tables learn of the record's valid-through."""
    late = behind(state, record.valid_through_ms, touched)
    return tuple(renewal(record, secondary) for secondary in late)
