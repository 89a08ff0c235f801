"""G and E: what is heard, what is said again, and who leads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Family, Place

import headgate.coordinator.driver as coordinator_driver
import headgate.participant.driver as participant_driver
from headgate.control_protocol import machine_io, multipart_status
from headgate.control_protocol.events import WriteStatus
from headgate.coordinator import machine
from headgate.coordinator.phases import Phase
from headgate.coordinator.state import State
from headgate.coordinator.state import Timer as CoordinatorTimer
from headgate.participant import machine as participant
from headgate.participant.state import Timer

FAMILY = Family()

COORDINATOR_STEP: tuple[Place, ...] = ((coordinator_driver, "step"), (machine, "step"))
PARTICIPANT_STEP: tuple[Place, ...] = ((participant_driver, "step"), (participant, "step"))


@FAMILY.replaces("LOG-1", (machine, "_retry_call_or_append"))
def coordinator_says_once(right: Callable[..., Any], state: State, now_ms: int) -> Any:
    """The coordinator does not say again what it did not hear."""
    if state.phase in (Phase.STARTING, Phase.CLOSING, Phase.SETTLING):
        return state.with_deadline(CoordinatorTimer.RETRY, None), ()
    return right(state, now_ms)


@FAMILY.replaces("LOG-1", (participant, "repeat_unheard_events"))
def participant_says_once(right: Callable[..., Any], state: Any, now_ms: int) -> Any:
    """A participant does not say again what it did not hear."""
    return state.with_deadline(Timer.RESEND, None), ()


@FAMILY.replaces("LOG-1", *PARTICIPANT_STEP)
def said_is_heard(right: Callable[..., Any], state: Any, given: Any, now_ms: int) -> Any:
    """A status takes effect where it was said: its place is the end of what was heard then."""
    before = {own.status.status_number for own in state.said.pending}
    state, actions = right(state, given, now_ms)
    pending = tuple(
        replace(own, offset=state.term.settled_to)
        if own.status.status_number not in before and own.offset is None
        else own
        for own in state.said.pending
    )
    return replace(state, said=replace(state.said, pending=pending)), actions


@FAMILY.replaces("LOG-2", (multipart_status.Assembler, "add_and_pop_if_whole"))
def parts_count(right: Callable[..., Any], self: Any, envelope: Any) -> Any:
    """A part counts as a status."""
    return envelope


@FAMILY.replaces("LOG-2", (multipart_status.Assembler, "add_and_pop_if_whole"))
def last_number_makes_it_whole(right: Callable[..., Any], self: Any, envelope: Any) -> Any:
    """A status counts at the part with the last number, whatever is missing then."""
    whole, part = right(self, envelope), envelope.event
    last = isinstance(part, WriteStatus) and part.parts > 1 and part.part == part.parts - 1
    return replace(envelope, event=replace(part, part=0, parts=1)) if last and not whole else whole


@FAMILY.replaces("LOG-3", *COORDINATOR_STEP)
def coordinator_keeps_epoch(right: Callable[..., Any], state: Any, given: Any, now_ms: int) -> Any:
    """The coordinator goes on in its epoch behind a discontinuity."""
    return (
        (state, ()) if isinstance(given, machine_io.LogTruncated) else right(state, given, now_ms)
    )


@FAMILY.replaces("LOG-3", *PARTICIPANT_STEP)
def participant_keeps_places(right: Callable[..., Any], state: Any, given: Any, now_ms: int) -> Any:
    """A participant keeps its places in a log that lost them."""
    return (
        (state, ()) if isinstance(given, machine_io.LogTruncated) else right(state, given, now_ms)
    )


@FAMILY.replaces("ELECTION-1", (coordinator_driver.CoordinatorDriver, "begin_to_lead_if_caught_up"))
def leads_by_an_edge(right: Callable[..., Any], self: Any) -> None:
    """Leadership is an event, told once, and not a level."""
    if not self.__dict__.get("told") and not self._listener.behind:
        self.__dict__["told"] = True
        right(self)
