"""Tables that the ledger has filled and that are gone: parked, or made anew where asked for (N5).

The ledger remembers what it has filled beyond one epoch. What is made anew is first *forgotten* by
a decision: what the old table was owed lapses by name there, and a new one owes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from headgate.control_protocol.errors import HeadgateError, TableMissing
from headgate.control_protocol.log_events import LogEvent
from headgate.control_protocol.ports import TableView
from headgate.control_protocol.record import Debt
from headgate.coordinator.actions import FollowersRead, Tell
from headgate.coordinator.moves import term_of
from headgate.coordinator.speech import addressed
from headgate.coordinator.state import State, Term

Troubles = Mapping[str, HeadgateError]


def remembered(state: State, view: TableView, parked: Collection[str]) -> frozenset[str]:
    """The tables whose absence would park them; none where a new one is wanted then."""
    if not state.identity.routed or state.identity.makes_anew:
        return frozenset()
    return frozenset(view.filled) - frozenset(parked) - frozenset(state.identity.followers)


def to_be_looked_for(state: State, now_ms: int) -> frozenset[str]:
    """Those of an epoch, now and then: who is busy with others does not meet a table's absence."""
    term = term_of(state)
    if now_ms - term.listed_at_ms < state.settings.table_check_interval_ms:
        return frozenset()
    return remembered(state, term.view, term.parked) - term.forgotten


def found_gone(state: State, given: FollowersRead) -> dict[str, HeadgateError]:
    """What a look found, apart from the followers that START names."""
    term = term_of(state)
    wanted = term.view.filled.keys() - addressed(state).keys() - term.forgotten
    return {
        name: error
        for name, error in given.troubles.items()
        if name in wanted - term.parked.keys() and isinstance(error, TableMissing)
    }


def made_anew(state: State, troubles: Troubles) -> frozenset[str]:
    """Those that are not parked: the settings ask for a new table."""
    if not state.identity.makes_anew:
        return frozenset()
    return frozenset(n for n, error in troubles.items() if isinstance(error, TableMissing))


def parting(state: State, gone: Collection[str]) -> tuple[State, tuple[Tell, ...]]:
    """The next decision forgets these tables; nothing is paid to them, or taken for them."""
    term = term_of(state)
    new = frozenset(gone) - term.forgotten
    if not new:
        return state, ()
    followers = {name: view for name, view in term.followers.items() if name not in new}
    parted = replace(term, forgotten=term.forgotten | new, followers=followers)
    return replace(state, term=parted), told_anew(new)


def told_anew(gone: Collection[str]) -> tuple[Tell, ...]:
    return tuple(
        Tell(
            f"{name} was dropped: it is made anew when records for it come, and what it was owed "
            "lapses",
            trouble=True,
            event=LogEvent.TABLE_DROPPED,
        )
        for name in sorted(gone)
    )


def replaced(state: State, given: FollowersRead) -> tuple[Tell, ...]:
    """N4: a table that somebody else put in the place of a filled one is filled, and said."""
    known = term_of(state).view.filled
    return tuple(
        Tell(
            f"{name} is another table now than the one that was filled before: what that one held "
            "is not in it",
            trouble=True,
            event=LogEvent.TABLE_DROPPED,
        )
        for name, view in sorted(given.views.items())
        if known.get(name, view.uuid) != view.uuid
    )


def given_up(debts: Collection[Debt], gone: Collection[str]) -> tuple[Debt, ...]:
    """What nobody will ever be paid: it was owed to tables that are forgotten."""
    return tuple(debt for debt in debts if debt.table in gone)


def landed(term: Term, forgets: Collection[str]) -> Term:
    """A decision that forgets tables is under the ledger's tag."""
    return replace(term, forgotten=term.forgotten - frozenset(forgets))
