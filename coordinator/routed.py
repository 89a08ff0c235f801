"""Tables that rows are routed to, which no START names: found by the statuses that name them (R5).

They are read once per epoch, and again where a status names another UUID, or what is wrong with
one, or files that are not where the table had its data. One that has trouble is suspended (I1); one
that cannot be read now has its statuses refused. So are those that a coordinator before let pending
commits expire of, whose tags it may not have moved (D8).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headgate.control_protocol.errors import SecondaryForeign, TableMissing
from headgate.coordinator.actions import (
    DescribeSecondaries,
    DescribeSources,
    SecondariesRead,
    Tell,
)
from headgate.coordinator.dropped import replaced
from headgate.coordinator.moves import term_of
from headgate.coordinator.pending_commits import refuse_foreign
from headgate.coordinator.speech import addressed, prefixes, with_former_data
from headgate.coordinator.state import State, Term
from headgate.coordinator.suspension import examined


def unknown_tables(state: State) -> tuple[str, ...]:
    """Return the tables to read before judging: unknown as statuses name them, or expired (D8)."""
    if not state.identity.routed:
        return ()
    term = term_of(state)
    strangers = _named(state) | _expired(term)
    return tuple(sorted(strangers - addressed(state).keys() - term.suspended.keys()))


def _named(state: State) -> frozenset[str]:
    term = term_of(state)
    known = {(name, view.uuid) for name, view in term.secondaries.items()}
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
        known = term.secondaries.get(table.table)
        if known is None or not table.files or table.table in found:
            continue
        below = prefixes(state, known)
        if not all(below.holds(file.path) for file in table.files):
            found.add(table.table)
    return found


def _expired(term: Term) -> frozenset[str]:
    """D8: return tables with expired pending commits: a late delivery may be under way until they
    are read.

    The coordinator that let their pending commits expire has read them, but may have ended before
    its next decision.
    """
    record = term.view.record
    expired = record.expired if record else ()
    return frozenset(
        pending_commit.table
        for pending_commit in expired
        if pending_commit.table not in term.secondaries
    )


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


def asked_again(state: State) -> DescribeSecondaries | DescribeSources:
    """Repeat the question for an END or a judgement that was not answered."""
    if term_of(state).asks_tables:
        return DescribeSecondaries(unknown_tables(state))
    return DescribeSources()


def with_tables(
    state: State, given: SecondariesRead, now_ms: int
) -> tuple[State, tuple[Tell, ...]]:
    """Take in the answer. Raises ``SecondaryForeign``, which is the ledger's own trouble.

    A missing table that only a expired pending commit names takes no delivery: it is asked for
    again, not suspended, for whoever dropped it may have meant to.
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
        judged = {name: view for name, view in given.views.items() if name not in term.suspended}
        refuse_foreign(judged, term.view, term.pending_commits)
    except SecondaryForeign as error:
        raise SecondaryForeign(
            error.message,
            f"restore the ledger {term.view.table} if it was re-created; tables that another "
            "ledger fills take a sink of another name",
        ) from None
    secondaries = {**term.secondaries, **given.views}
    known = replace(term, secondaries=secondaries, asks_tables=False)
    known = with_former_data(term, known)  # it is judged at once
    return replace(state, failures=0, term=known), (*tells, *replaced(state, given))


def remembered(state: State) -> Mapping[str, str]:
    """Return the UUIDs for the primary table's record: with routes, only of secondary tables that
    START names.

    A thousand others would make each of its snapshots large.
    """
    known = addressed(state) if state.identity.routed else term_of(state).secondaries
    return {name: view.uuid for name, view in sorted(known.items())}
