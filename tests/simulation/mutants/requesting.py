"""PAUSE-1: what an operator asks, and whether a paused sink reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Family

from headgate.control_protocol.events import Resume
from headgate.control_protocol.identifiers import TransactionNumber
from headgate.coordinator import machine as coordinator
from headgate.coordinator.state import State
from headgate.participant import batches
from headgate.participant import machine as participant
from headgate.participant.state import State as Participant

FAMILY = Family()

REQUESTED = (coordinator, "on_operator_request")


@FAMILY.replaces("PAUSE-1", REQUESTED)
def answered_is_asked_again(right: Any, state: State, *given: Any) -> State:
    """A request counts whenever it is heard, though it was answered long ago."""
    if state.term is not None:
        term = replace(
            state.term,
            pause=replace(state.term.pause, answered=TransactionNumber(0)),
            epoch=state.term.epoch,
        )
        state = replace(state, term=term)
    said, *rest = given
    newest = replace(said, epoch=state.watch.highest_epoch, transaction=TransactionNumber(2**40))
    return right(state, newest, *rest)  # type: ignore[no-any-return]


@FAMILY.replaces("PAUSE-1", REQUESTED)
def paused_for_ever(right: Any, state: State, said: Any, now_ms: int) -> State:
    """RESUME is not obeyed."""
    return state if isinstance(said.event, Resume) else right(state, said, now_ms)


@FAMILY.replaces("PAUSE-1", (participant, "readable_positions"), (batches, "readable_positions"))
def reads_while_paused(right: Any, state: Participant) -> Any:
    """A participant reads whatever START says of a pause."""
    return right(replace(state, term=replace(state.term, paused=False)))
