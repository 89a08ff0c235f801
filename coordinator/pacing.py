"""When tables are paid: at once, or after what they are owed has gathered for a while (V4).

The epoch that decided knows since when a table's debts gather. A claim pays all that it finds.
"""

from __future__ import annotations

import re
from dataclasses import replace

from headgate.control_protocol.record import Debt
from headgate.coordinator.moves import term_of
from headgate.coordinator.parking import payable
from headgate.coordinator.speech import addressed
from headgate.coordinator.state import State, Term

GATHERED_MAX = 1_000
"""The lead's record names each debt; where more gather, none waits any longer."""


def owed_now(state: State, now_ms: int) -> tuple[Debt, ...]:
    """Return what is to be paid now. A table that was resumed takes rows only once it is paid."""
    term = term_of(state)
    owed = payable(term)
    gathering = {
        name
        for name, due_ms in term.pay_due_ms.items()
        if now_ms < due_ms and name not in term.parked
    }
    waiting = sum(debt.table in gathering for debt in owed)
    if not waiting or waiting > GATHERED_MAX:
        return owed
    return tuple(debt for debt in owed if debt.table not in gathering)


def paced(state: State, now_ms: int) -> Term:
    """Return the term with the time by which each table that gathers debts is paid.

    The newest transaction was just decided. A table that could not be paid before is due already.
    """
    term, apart = term_of(state), addressed(state)
    fresh = {d.table for d in term.debts if d.transaction == term.closing_id and d.manifest}
    before = {d.table for d in term.debts if d.transaction != term.closing_id}
    begun = {
        name: now_ms + every_ms
        for name in fresh - before - apart.keys()
        if (every_ms := _every_ms(state, name))
    }
    kept = {name: due_ms for name, due_ms in term.pay_due_ms.items() if name in before}
    return replace(term, pay_due_ms={**kept, **begun})


def _every_ms(state: State, table: str) -> int:
    paces = state.identity.paces
    return next((each.every_ms for each in paces if re.fullmatch(each.match, table)), 0)
