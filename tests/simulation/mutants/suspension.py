"""SUSPEND-1 and SUSPEND-2: a table that has trouble takes nothing, and is not forgotten."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Family

from headgate.coordinator import epoch_claim, machine, secondary_delivery

FAMILY = Family()


@FAMILY.replaces("SUSPEND-1", (secondary_delivery, "suspend_troubled_tables"))
def set_back_and_delivered_on(_right: Any, state: Any, *_: Any) -> Any:
    """A table that was rolled back is delivered as if nothing had happened."""
    return state, ()


@FAMILY.replaces("SUSPEND-1", (secondary_delivery, "commits_of_receiving_tables"))
def suspended_and_delivered(_right: Any, term: Any) -> Any:
    """What a suspended table is pending is delivered."""
    return term.delivery.pending


@FAMILY.replaces("SUSPEND-1", (epoch_claim, "add_pending_commits_to_claim"))
def suspension_forgotten(right: Any, state: Any, bare: Any, record: Any, view: Any) -> Any:
    """A claim does not carry on which tables are suspended."""
    return right(state, replace(bare, suspended=()), record, view)


@FAMILY.replaces("SUSPEND-1", (machine, "validate_statuses"))
def records_of_suspended_dropped(right: Any, statuses: Any, by: Any) -> Any:
    """A status is let in without its files of a suspended table."""
    verdict = right(statuses, replace(by, suspended=frozenset()))
    kept = {name: f for name, f in verdict.secondary_files.items() if name not in by.suspended}
    return replace(verdict, secondary_files=kept)


@FAMILY.replaces("SUSPEND-2", (machine, "validate_statuses"))
def suspended_since_admitted(right: Any, statuses: Any, by: Any) -> Any:
    """A status with files of a table that is suspended since is let in."""
    return right(statuses, replace(by, suspended=frozenset()))


@FAMILY.replaces("SUSPEND-1", (epoch_claim, "Suspensions"))
def each_epoch_counts_refusals_anew(right: Any, **facts: Any) -> Any:
    """What was refused in a coordinator's epoch before is not counted."""
    return right(suspended=facts["suspended"])


@FAMILY.replaces("SUSPEND-5", (machine, "resuming_tables_needing_empty_commit"))
def resumed_only_with_rows(_right: Any, *_: Any) -> Any:
    """A table that was resumed waits for a decision that has rows."""
    return ()
