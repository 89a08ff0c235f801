"""KEY-8 in the coordinator of a keyed table to whose topic partitions are added."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Family

from headgate.coordinator import added_partitions, epoch_claim, machine, table_checks

FAMILY = Family(keyed=True)


@FAMILY.replaces(
    "KEY-8", (machine, "hold_added_partitions"), (epoch_claim, "hold_added_partitions")
)
def added_partitions_are_read(_right: Any, state: Any, *_: Any, **__: Any) -> Any:
    """A partition that is added to a keyed table's topic is read like any other."""
    return state, ()


@FAMILY.replaces("KEY-8", (table_checks, "with_elapsed_holds_noted"))
def what_is_held_is_admitted_too_early(_right: Any, state: Any, *_: Any) -> Any:
    """Producers have no time to learn of a partition before it is read."""
    return replace(state, held=tuple(replace(each, ripe=True) for each in state.held))


@FAMILY.replaces("KEY-8", (added_partitions, "_describe_unread_older_partitions"))
def older_partitions_are_not_waited_for(_right: Any, *_: Any) -> str:
    """A partition is read as soon as no producer sends its keys elsewhere."""
    return ""


@FAMILY.replaces("KEY-8", (added_partitions, "_merge_added_into_held"))
def admitted_in_vain(right: Any, state: Any, added: Any) -> Any:
    """What an epoch admitted, and no commit has, is held anew by the next one."""
    held = tuple(each for each in state.held if not each.admitted)
    return right(replace(state, held=held), added)


@FAMILY.replaces("KEY-8", (machine, "_build_commit_record"))
def generations_are_not_stored(right: Any, *given: Any) -> Any:
    """No commit says which partitions are younger."""
    return replace(right(*given), cohorts={})
