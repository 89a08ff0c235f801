"""I1 and I2: a table that has trouble takes nothing, and is not forgotten."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Family

from headgate.coordinator import claim, commitment, pacing, payment

FAMILY = Family()


@FAMILY.replaces("I1", (payment, "examined"))
def set_back_and_paid_on(_right: Any, state: Any, *_: Any) -> Any:
    """A table that was rolled back is paid as if nothing had happened."""
    return state, ()


@FAMILY.replaces("I1", (pacing, "payable"))
def parked_and_paid(_right: Any, term: Any) -> Any:
    """What a parked table is owed is paid."""
    return term.debts


@FAMILY.replaces("I1", (claim, "with_debts_of"))
def parking_forgotten(right: Any, state: Any, bare: Any, record: Any, view: Any) -> Any:
    """A claim does not carry on which tables are parked."""
    return right(state, replace(bare, parked=()), record, view)


@FAMILY.replaces("I1", (commitment, "judge"))
def records_of_parked_dropped(right: Any, statuses: Any, by: Any) -> Any:
    """A status is let in without its files of a parked table."""
    verdict = right(statuses, replace(by, parked=frozenset()))
    kept = {name: f for name, f in verdict.follower_files.items() if name not in by.parked}
    return replace(verdict, follower_files=kept)


@FAMILY.replaces("I2", (commitment, "judge"))
def parked_since_admitted(right: Any, statuses: Any, by: Any) -> Any:
    """A status with files of a table that is parked since is let in."""
    return right(statuses, replace(by, parked=frozenset()))
