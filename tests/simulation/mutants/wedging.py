"""RANGE-3, ELECTION-2 and TOKEN-1: what once made a sink stand still in silence
(``simulation.wedges``)."""

from __future__ import annotations

from typing import Any

from simulation.mutants.mutant import Family

from headgate.control_protocol.ports import TableView
from headgate.coordinator import machine, table_checks

FAMILY = Family()


@FAMILY.replaces("RANGE-3", (machine, "act_on_repeated_refusals"))
def refuses_in_silence(_right: Any, *_: object) -> None:
    """Statuses are refused as often as they come."""


@FAMILY.replaces("ELECTION-2", (machine, "should_release_leadership"))
def never_lets_go(_right: Any, *_: object) -> bool:
    """A leader keeps the lead, whatever is answered."""
    return False


@FAMILY.replaces("TOKEN-1", (table_checks, "_with_found_location_and_sinks"))
def data_stays_where_it_was(_right: Any, known: TableView, _found: TableView) -> TableView:
    """A look does not see that a table's owner has moved its data."""
    return known
