"""Tables that the ledger has filled and that are gone: suspended, or made again where asked for
(N5).

The ledger remembers the tables that it has filled beyond one epoch. A table that is made again is
first *forgotten* by a decision: what the old table was pending expires by name there, and a new one
has nothing pending.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from headgate.control_protocol.errors import HeadgateError, TableMissing
from headgate.control_protocol.log_events import LogEvent
from headgate.control_protocol.ports import TableView
from headgate.control_protocol.record import PendingCommit
from headgate.coordinator.actions import SecondariesRead, Tell
from headgate.coordinator.moves import term_of
from headgate.coordinator.speech import addressed
from headgate.coordinator.state import State, Term

Troubles = Mapping[str, HeadgateError]


def remembered(state: State, view: TableView, suspended: Collection[str]) -> frozenset[str]:
    """Return the tables to suspend if they are missing; none under ``on_missing = "create"``."""
    if not state.identity.routed or state.identity.makes_anew:
        return frozenset()
    return frozenset(view.filled) - frozenset(suspended) - frozenset(state.identity.secondaries)


def to_be_looked_for(state: State, now_ms: int) -> frozenset[str]:
    """Return the epoch's filled tables, now and then: a busy sink would not miss one of them."""
    term = term_of(state)
    if now_ms - term.listed_at_ms < state.settings.table_check_interval_ms:
        return frozenset()
    return remembered(state, term.view, term.suspended) - term.forgotten


def found_gone(state: State, given: SecondariesRead) -> dict[str, HeadgateError]:
    """Return the tables found missing, apart from the secondary tables that START names."""
    term = term_of(state)
    wanted = term.view.filled.keys() - addressed(state).keys() - term.forgotten
    return {
        name: error
        for name, error in given.troubles.items()
        if name in wanted - term.suspended.keys() and isinstance(error, TableMissing)
    }


def made_anew(state: State, troubles: Troubles) -> frozenset[str]:
    """Return the missing tables that are not suspended, because the settings ask for new ones."""
    if not state.identity.makes_anew:
        return frozenset()
    return frozenset(n for n, error in troubles.items() if isinstance(error, TableMissing))


def parting(state: State, gone: Collection[str]) -> tuple[State, tuple[Tell, ...]]:
    """Let the next decision forget these tables; nothing is delivered to them, or accepted for
    them."""
    term = term_of(state)
    new = frozenset(gone) - term.forgotten
    if not new:
        return state, ()
    secondaries = {name: view for name, view in term.secondaries.items() if name not in new}
    parted = replace(term, forgotten=term.forgotten | new, secondaries=secondaries)
    return replace(state, term=parted), told_anew(new)


def told_anew(gone: Collection[str]) -> tuple[Tell, ...]:
    return tuple(
        Tell(
            f"{name} was dropped: it is created again when records for it come; "
            "what is pending for it expires",
            trouble=True,
            event=LogEvent.TABLE_DROPPED,
        )
        for name in sorted(gone)
    )


def replaced(state: State, given: SecondariesRead) -> tuple[Tell, ...]:
    """N4: log a table that somebody else put in the place of a filled one; it is filled."""
    known = term_of(state).view.filled
    return tuple(
        Tell(
            f"{name} is not the table that was filled before: it lacks that one's rows",
            trouble=True,
            event=LogEvent.TABLE_DROPPED,
        )
        for name, view in sorted(given.views.items())
        if known.get(name, view.uuid) != view.uuid
    )


def given_up(
    pending_commits: Collection[PendingCommit], gone: Collection[str]
) -> tuple[PendingCommit, ...]:
    """Return the pending commits that nobody will ever be delivered: those of forgotten tables."""
    return tuple(
        pending_commit for pending_commit in pending_commits if pending_commit.table in gone
    )


def landed(term: Term, forgets: Collection[str]) -> Term:
    """Drop the forgotten tables from the term: the decision that forgets them has landed."""
    return replace(term, forgotten=term.forgotten - frozenset(forgets))
