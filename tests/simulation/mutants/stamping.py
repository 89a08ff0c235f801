"""TOKEN-2: files that bear the mark of the one transaction that may bring them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Family

from headgate.control_protocol.events import TableStart
from headgate.coordinator import phase_steps, status_validation
from headgate.coordinator.state import State

FAMILY = Family(stamped=True)


@FAMILY.replaces("TOKEN-2", (status_validation, "_check_folders"))
def late_files_are_admitted(right: Any, heard: Any, written: Any, by: Any) -> str | None:
    """A file of any stamp is as good as one of the transaction's own."""
    return None if by.marks else right(heard, written, by)


@FAMILY.replaces("TOKEN-2", (phase_steps, "primary_table_start"))
def start_says_no_stamp(right: Any, state: State) -> TableStart:
    """START names a folder, as for tables that do not stamp their files."""
    term = state.term
    assert term is not None
    return right(replace(state, term=replace(term, tokens=replace(term.tokens, marks=()))))


@FAMILY.replaces("TOKEN-2", (status_validation, "_primary_prefixes"))
def judged_by_the_next_stamp(right: Any, state: State, now_ms: int) -> Any:
    """Files must bear the stamp that the newest START says, and not the one before."""
    term = state.term
    assert term is not None
    marks = (*term.tokens.marks[:1] * 2, *term.tokens.marks[2:])
    tokens = replace(term.tokens, marks=marks)
    return right(replace(state, term=replace(term, tokens=tokens)), now_ms)
