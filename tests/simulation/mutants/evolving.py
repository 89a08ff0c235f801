"""SCHEMA-2, SCHEMA-3, SCHEMA-8: columns that records need, and an update that nobody knows to have
been made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Family, Planted

from headgate.control_protocol.ports import EvolvedTable
from headgate.coordinator import machine as coordinator
from headgate.coordinator import schema_changes
from headgate.coordinator.schema_changes import on_table_evolved
from headgate.coordinator.state import Timer
from headgate.participant import machine as participant

FAMILY = Family()


@FAMILY.replaces("SCHEMA-8", (coordinator, "wait_and_retry_table_changes"))
def failure_answers(right: Any, *given: Any) -> Any:
    """An update whose outcome is unknown is asked for no more, however often it is proposed."""
    state, actions = right(*given)
    return state.with_deadline(Timer.CHANGES, 2**62), actions


@FAMILY.replaces("SCHEMA-8", (coordinator, "wait_and_retry_table_changes"))
def unanswered_update_is_believed(_: Any, state: Any, *__: Any) -> Any:
    """An update whose outcome is unknown is taken to have been made."""
    view = state.term.primary.view
    return on_table_evolved(state, EvolvedTable(replace(view, schema_id=view.schema_id + 1)))


@FAMILY.replaces(
    "SCHEMA-2", (participant, "with_resend_deadline"), (participant, "repeat_unheard_events")
)
def proposal_is_said_once(right: Any, state: Any, now_ms: int) -> Any:
    """A proposal that is lost is not said again."""
    heard = tuple(replace(need, heard=True) for need in state.needs.open)
    return right(replace(state, needs=replace(state.needs, open=heard)), now_ms)


@FAMILY.patches("SCHEMA-3")
def tables_answers_nobody() -> tuple[Planted, ...]:
    """TABLES does not say whose proposals it answers, and END waits until none is left."""
    right = schema_changes.Tables
    return (
        (schema_changes, "Tables", lambda _, tables: right((), tables)),
        (coordinator, "must_end_come_first", lambda *_: False),
    )
