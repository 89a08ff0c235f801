"""Decides when a secondary table is paid: at once, or after its debts have gathered (V4).

Only the epoch that decided knows since when a table's debts gather. A claim pays all that it finds.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from headgate.control_protocol.record import Debt
from headgate.coordinator.moves import term_of
from headgate.coordinator.parking import payable
from headgate.coordinator.speech import addressed
from headgate.coordinator.state import Gathering, State, Term

GATHERED_MAX = 1_000
"""The lead's record names each debt; where more gather, all are due."""


def owed_now(state: State, now_ms: int) -> tuple[Debt, ...]:
    """Return what is to be paid now. A table that was resumed takes rows only once it is paid."""
    term = term_of(state)
    owed = payable(term)
    gathering = {
        name
        for name, each in term.gathering.items()
        if now_ms < each.due_ms and name not in term.parked
    }
    return tuple(debt for debt in owed if debt.table not in gathering)


def paced(state: State, now_ms: int) -> Term:
    """Return the term with the time at which each table whose debts gather is paid.

    Called when the newest transaction was just decided. A table that could not be paid before is
    due already. Where too many gather all are due, and what comes next does not gather: it counts
    for D7.
    """
    term, apart = term_of(state), addressed(state)
    fresh = {d.table for d in term.debts if d.transaction == term.closing_id and d.manifest}
    before = {d.table for d in term.debts if d.transaction != term.closing_id}
    begun = {
        name: Gathering(now_ms + every_ms, term.closing_id)
        for name in fresh - before - apart.keys()
        if (every_ms := _every_ms(state, name))
    }
    known = {name: each for name, each in term.gathering.items() if name in before}
    waiting = begun.keys() | {name for name, each in known.items() if now_ms < each.due_ms}
    if sum(debt.table in waiting for debt in payable(term)) > GATHERED_MAX:
        due = {n: replace(each, due_ms=min(each.due_ms, now_ms)) for n, each in known.items()}
        return replace(term, gathering=due)
    kept = {n: replace(e, newest=term.closing_id) if n in waiting else e for n, e in known.items()}
    return replace(term, gathering={**kept, **begun})


def tried(term: Term, owed: Collection[Debt]) -> tuple[Debt, ...]:
    """Return the debts that somebody has tried to pay, as far as this epoch knows.

    Not those of the transaction that was just decided, nor those that gathered.
    """
    return tuple(
        debt
        for debt in owed
        if debt.transaction != term.closing_id
        and not (
            (gathered := term.gathering.get(debt.table)) and debt.transaction <= gathered.newest
        )
    )


def _every_ms(state: State, table: str) -> int:
    paces = state.identity.paces
    return next((each.every_ms for each in paces if re.fullmatch(each.match, table)), 0)
