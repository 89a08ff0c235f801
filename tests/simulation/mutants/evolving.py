"""S9: columns that records need, and an update of which nobody knows whether it was made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Family

from headgate.coordinator import machine as coordinator

FAMILY = Family()


@FAMILY.replaces("S9", (coordinator, "not_evolved"))
def failure_answers(right: Any, *given: Any) -> Any:
    """An update whose outcome is unknown is asked for no more."""
    state, actions = right(*given)
    return replace(state, term=replace(state.term, proposals=())), actions
