"""Feeding one machine of a small world: what its driver does, with every call answered at once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from exploration.small_world import (
    LATE_MS,
    NOW_MS,
    SINK,
    Bounds,
    World,
    file_path,
)
from verdicts import Kind, Violation

from headgate.control_protocol.events import DataFile, Envelope
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import Batch, BatchWritten, PartitionResult
from headgate.coordinator import actions as c
from headgate.coordinator import machine as coordinating
from headgate.coordinator.transitions import Phase
from headgate.participant import actions as p
from headgate.participant import machine as participating

FAILURES_TOLD_APART = 3
"""Beyond so many refusals in a row the machine treats all alike (it waits)."""

WAITS_TO_HEAR_ITSELF = (Phase.STARTING, Phase.CLOSING, Phase.SETTLING)


@dataclass(slots=True)
class Appending:
    """What becomes of the appends of one step: all arrive, but for the first a fault may strike."""

    fate: str = "arrives"
    struck: bool = False

    def to(self, world: World, envelopes: list[Envelope]) -> tuple[World, bool]:
        """The world after the append, and whether it was confirmed."""
        fate = "arrives" if self.struck else self.fate
        self.struck = True
        if fate == "lost":
            return world, False
        world = world.appended(*envelopes)
        return (world.appended(*envelopes) if fate == "doubled" else world), fate != "doubted"


APPEND_FAULTS = ("lost", "doubted", "doubled")


# ----------------------------------------------------------------------------------- coordinators


def coordinator_fed(
    world: World, bounds: Bounds, index: int, given: c.Input, appending: Appending, now_ms: int
) -> World:
    inputs: deque[c.Input] = deque([given])
    while inputs:
        seat = world.seats[index]
        assert seat is not None
        state, actions = coordinating.step(seat.state, inputs.popleft(), now_ms)
        world = world.seated(index, replace(seat, state=state))
        for action in actions:
            world, answer = _coordinator_calls(world, bounds, index, action, appending)
            if answer is not None:
                inputs.append(answer)
        if state.phase in WAITS_TO_HEAR_ITSELF and state.retry_at_ms is None:
            inputs.append(c.Ticked())  # as the driver does after every turn
    return _seat_in_abstract_time(world, index)


def _coordinator_calls(
    world: World, bounds: Bounds, index: int, action: c.Action, appending: Appending
) -> tuple[World, c.Input | None]:
    seat = world.seats[index]
    assert seat is not None
    match action:
        case c.ReadTable():
            return world, c.TableRead(world.table.view())
        case c.DescribeSources():
            return world, c.SourcesDescribed(
                bounds.topics, Offsets(dict.fromkeys(bounds.partitions, 0))
            )
        case c.CommitTable(attempt):
            return world.seated(index, replace(seat, call=attempt)), None
        case c.Append():
            sender = seat.state.identity.sender
            said = [
                Envelope(SINK, action.epoch, number, sender, 0, 0, event)
                for number, event in action.events
            ]
            world, confirmed = appending.to(world, said)
            return world, None if confirmed else c.CallFailed("not confirmed")
        case c.Stop(error):
            raise Violation(Kind.STOP, f"the coordinator stopped without a reason to: {error}")
    return world, None


def _seat_in_abstract_time(world: World, index: int) -> World:
    seat = world.seats[index]
    assert seat is not None
    state = seat.state
    term = state.term and replace(
        state.term,
        end_due_ms=_abstract(state.term.end_due_ms),
        time_out_ms=_abstract(state.term.time_out_ms),
        committed_at_ms=NOW_MS,
    )
    state = replace(
        state,
        term=term,
        failures=min(state.failures, FAILURES_TOLD_APART),
        retry_at_ms=state.retry_at_ms and _abstract(state.retry_at_ms),
        rival_heard_ms=None if state.rival_heard_ms is None else NOW_MS,
    )
    return world.seated(index, replace(seat, state=state))


def _abstract(time_ms: int) -> int:
    return time_ms - LATE_MS if LATE_MS <= time_ms < 2 * LATE_MS else time_ms


# ----------------------------------------------------------------------------------- participants


def participant_fed(
    world: World, bounds: Bounds, index: int, given: p.Input, appending: Appending, now_ms: int
) -> World:
    inputs: deque[p.Input] = deque([given])
    while inputs:
        member = world.members[index]
        state, actions = participating.step(member.state, inputs.popleft(), now_ms)
        world = world.with_member(index, replace(member, state=state))
        for action in actions:
            world, answer = _participant_calls(world, bounds, index, action, appending)
            if answer is not None:
                inputs.append(answer)
    return _member_in_abstract_time(world, index)


def _participant_calls(
    world: World, bounds: Bounds, index: int, action: p.Action, appending: Appending
) -> tuple[World, p.Input | None]:
    state = world.members[index].state
    match action:
        case p.AskEnds(partitions):
            return world, p.EndsKnown({at: bounds.ends[at] for at in partitions})
        case p.Submit(batch) if index not in bounds.slow:
            return world, p.BatchEnded(written(batch, state.sender.member))
        case p.Append(drafts):
            said = [
                Envelope(SINK, d.epoch, d.transaction, state.sender, d.sequence, 0, d.event)
                for d in drafts
            ]
            world, confirmed = appending.to(world, said)
            return world, None if confirmed else p.AppendFailed("not confirmed")
        case p.Stop(error):
            raise Violation(Kind.STOP, f"a participant stopped without a reason to: {error}")
    return world, None


def written(batch: Batch, member: str) -> BatchWritten:
    """The batch's outcome: every offset in its ranges holds a record."""
    results = {at: PartitionResult(r, len(r), len(r)) for at, r in batch.ranges.items()}
    count = sum(map(len, batch.ranges.values()))
    path = file_path(batch.table.file_prefix, member, batch.ranges)
    return BatchWritten(batch.number, results, (DataFile(path, 0, count, count),))


def _member_in_abstract_time(world: World, index: int) -> World:
    member = world.members[index]
    state = replace(
        member.state,
        ends_due_ms=NOW_MS,
        resend_at_ms=member.state.resend_at_ms and _abstract(member.state.resend_at_ms),
        retry_at_ms=member.state.retry_at_ms and _abstract(member.state.retry_at_ms),
    )
    return world.with_member(index, replace(member, state=state))
