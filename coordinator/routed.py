"""Tables that rows are routed to, which no START names: found by the statuses that name them (R5).

They are read once per epoch, and again where a status names another UUID, or what is wrong with
one, or files that are not where the table had its data. One that has trouble is parked (I1); one
that cannot be read now has its statuses refused. So are those that a coordinator before let debts
lapse of, whose tags it may not have moved (D8).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headgate.control_protocol.errors import FollowerForeign, TableMissing
from headgate.coordinator.actions import (
    DescribeFollowers,
    DescribeSources,
    FollowersRead,
    Tell,
)
from headgate.coordinator.debts import refuse_foreign
from headgate.coordinator.dropped import replaced
from headgate.coordinator.moves import term_of
from headgate.coordinator.parking import examined
from headgate.coordinator.speech import addressed, prefixes, with_former_data
from headgate.coordinator.state import State, Term


def unknown_tables(state: State) -> tuple[str, ...]:
    """Return the tables to read before judging: unknown as statuses name them, or lapsed (D8)."""
    if not state.identity.routed:
        return ()
    term = term_of(state)
    strangers = _named(state) | _lapsed(term)
    return tuple(sorted(strangers - addressed(state).keys() - term.parked.keys()))


def _named(state: State) -> frozenset[str]:
    term = term_of(state)
    known = {(name, view.uuid) for name, view in term.followers.items()}
    named = {
        (table.table, table.uuid)
        for heard in term.statuses
        for table in heard.status.tables
        if table.files and table.table != term.view.table
    }
    strangers = {name for name, _ in named - known}
    return frozenset(strangers | _elsewhere(state) | words(term).keys())


def _elsewhere(state: State) -> set[str]:
    """Return known tables of which a status names a file that is not below their data.

    Their owner may have moved it: participants read a table again, and see that first.
    """
    term, found = term_of(state), set[str]()
    for table in (table for heard in term.statuses for table in heard.status.tables):
        known = term.followers.get(table.table)
        if known is None or not table.files or table.table in found:
            continue
        below = prefixes(state, known)
        if not all(below.holds(file.path) for file in table.files):
            found.add(table.table)
    return found


def _lapsed(term: Term) -> frozenset[str]:
    """D8: return tables with lapsed debts: a late payment may be under way until they are read.

    The coordinator that let their debts lapse has read them, but may have ended before its next
    decision.
    """
    record = term.view.record
    lapsed = record.lapsed if record else ()
    return frozenset(debt.table for debt in lapsed if debt.table not in term.followers)


def words(term: Term) -> Mapping[str, str]:
    """Return the table troubles that statuses awaiting judgement report (I1)."""
    return {
        table: why
        for heard in term.statuses
        for table, why in heard.status.troubles.items()
        if table != term.view.table
    }


def asking_tables(state: State) -> State:
    """Let the judgement wait for the tables' answer."""
    return replace(state, term=replace(term_of(state), asks_tables=True))


def asked_again(state: State) -> DescribeFollowers | DescribeSources:
    """Repeat the question for an END or a judgement that was not answered."""
    if term_of(state).asks_tables:
        return DescribeFollowers(unknown_tables(state))
    return DescribeSources()


def with_tables(state: State, given: FollowersRead, now_ms: int) -> tuple[State, tuple[Tell, ...]]:
    """Take in the answer. Raises ``FollowerForeign``, which is the ledger's own trouble.

    A missing table that only a lapsed debt names takes no payment: it is asked for again, not
    parked, for whoever dropped it may have meant to.
    """
    named = _named(state)
    troubles = {
        name: error
        for name, error in given.troubles.items()
        if name in named or not isinstance(error, TableMissing)
    }
    given = replace(given, troubles=troubles)
    state, tells = examined(state, given, words(term_of(state)), now_ms)
    term = term_of(state)
    try:
        judged = {name: view for name, view in given.views.items() if name not in term.parked}
        refuse_foreign(judged, term.view, term.debts)
    except FollowerForeign as error:
        raise FollowerForeign(
            error.message,
            f"restore the ledger {term.view.table} if it was re-created; tables that another "
            "ledger fills take a sink of another name",
        ) from None
    followers = {**term.followers, **given.views}
    known = replace(term, followers=followers, asks_tables=False)
    known = with_former_data(term, known)  # it is judged at once
    return replace(state, failures=0, term=known), (*tells, *replaced(state, given))


def remembered(state: State) -> Mapping[str, str]:
    """Return the UUIDs for the lead's record: with routes, only of followers that START names.

    A thousand others would make each of its snapshots large.
    """
    known = addressed(state) if state.identity.routed else term_of(state).followers
    return {name: view.uuid for name, view in sorted(known.items())}
