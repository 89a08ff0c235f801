"""The operator of a small world: PAUSE at any moment, and RESUME until the table says so
(PAUSE-1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from exploration.small_world import SINK, World

from headgate.control_protocol.events import Envelope, Event, Pause, Resume
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    TransactionId,
    TransactionNumber,
)


def operator(world: World) -> Iterator[tuple[str, bool, World]]:
    """Steps: their name, whether they are faults, and the world after them."""
    if world.left("pause") and world.table.record is not None:
        said = _said(world, Pause())
        after = replace(world.delivered("pause"), pause=said).appended(said)
        yield "an operator says PAUSE", True, after
    if world.left("pause again") and world.pause is not None:
        after = world.delivered("pause again").appended(world.pause)
        yield "the operator's PAUSE comes again", True, after
    if _has_to_resume(world):
        yield "the operator says RESUME", False, world.appended(_said(world, Resume()))


def _has_to_resume(world: World) -> bool:
    """The table says that the sink is paused, and nobody has heard or will hear otherwise."""
    record = world.table.record
    coming = any(isinstance(said.envelope.event, Resume) for said in world.log)
    terms = [seat.state.term for seat in world.seats if seat and seat.state.term]
    heard = any(not term.pause.paused for term in terms)
    return record is not None and record.paused and not coming and not heard


def _said(world: World, event: Event) -> Envelope:
    """It bears the newest transaction that the operator read in the table."""
    record = world.table.record
    seen = record.transaction if record else TransactionId(Epoch(0), TransactionNumber(0))
    sender = Sender("operator", type(event).__name__)
    return Envelope(SINK, seen.epoch, seen.number, sender, 0, 0, event)
