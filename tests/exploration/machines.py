"""Feeds one machine of a small world like its driver, with every call answered at once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from exploration.small_table import Place, Update, drafted, file_path, timestamp_ms
from exploration.small_world import (
    LATE_MS,
    NOW_MS,
    SINK,
    Bounds,
    Held,
    World,
)
from support.participant_states import check_step
from support.verdicts import Kind, Violation

from headgate.control_protocol import machine_io
from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.events import (
    Destination,
    Envelope,
    FileKind,
    LogRecord,
    WriteStatus,
    WrittenFile,
)
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.multipart_status import Assembler
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import Batch, BatchNeeds, BatchWritten, PartitionResult
from headgate.coordinator import inputs_and_actions as c
from headgate.coordinator import machine as coordinating
from headgate.coordinator.phases import Phase
from headgate.coordinator.state import Timer as CoordinatorTimer
from headgate.participant import inputs_and_actions as p
from headgate.participant import machine as participating
from headgate.participant.schema_proposals import WAIT_MS
from headgate.participant.state import Need, Timer

FAILURES_TOLD_APART = 3
"""Beyond so many refusals in a row the machine treats all alike (it waits)."""

WAITS_TO_HEAR_ITSELF = (Phase.STARTING, Phase.CLOSING, Phase.SETTLING, Phase.EVOLVING)


@dataclass(slots=True)
class Appending:
    """What becomes of the appends of one step: all arrive, but for the first a fault may strike.

    Or of the questions for the source's ends: of one partition nobody knows (``silent``).
    """

    fate: str = "arrives"
    struck: bool = False

    def to(self, world: World, envelopes: list[Envelope]) -> tuple[World, bool]:
        """The world after the append, and whether it was confirmed."""
        fate = "arrives" if self.struck or not self._may_strike(envelopes) else self.fate
        self.struck = self.struck or self.fate != "silent"
        match fate:
            case "lost":
                return world, False
            case "torn":
                return world.appended(*envelopes[:-1]), False
            case "turned":
                return world.appended(*envelopes[::-1]), True
            case "doubled":
                return world.appended(*envelopes, *envelopes), True
            case _:
                return world.appended(*envelopes), fate != "doubted"

    def _may_strike(self, envelopes: list[Envelope]) -> bool:
        """Of one message nothing is torn; only a status may be whole by another order (LOG-2)."""
        alone = len(envelopes) < 2
        statuses = all(isinstance(said.event, WriteStatus) for said in envelopes)
        return self.fate != "silent" and not (
            (self.fate == "torn" and alone) or (self.fate == "turned" and (alone or not statuses))
        )

    def ends(self, ends: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        if self.fate == "silent" and ends:
            self.struck = True
            ends.pop(max(ends))
        return ends


APPEND_FAULTS = ("lost", "doubted", "doubled", "torn", "turned")
FATES = {**{fate: f"append {fate}" for fate in APPEND_FAULTS}, "silent": "end silent"}


def in_parts(said: Envelope) -> list[Envelope]:
    """A status with files in two: claims before files, as ``split_status`` cuts them."""
    status = said.event
    if not isinstance(status, WriteStatus) or not any(table.files for table in status.tables):
        return [said]
    parts = (
        replace(status, tables=(), part=0, parts=2),
        WriteStatus(status.status_number, {}, status.tables, part=1, parts=2),
    )
    return [replace(said, event=part) for part in parts]


def assembled(held: Held, heard: LogRecord) -> tuple[Held, LogRecord | None]:
    """What a driver makes of a message: the parts that it holds then, and what is whole (LOG-2)."""
    said, status = heard.envelope, heard.envelope.event
    assembler = Assembler()
    for part in held:
        assembler.add_and_pop_if_whole(part)
    whole = assembler.add_and_pop_if_whole(said)
    if not isinstance(status, WriteStatus) or status.parts == 1:
        return held, heard
    if whole is None:
        return (held if said in held else (*held, said)), None
    return tuple(part for part in held if not _same(part, said)), replace(heard, envelope=whole)


def _same(one: Envelope, other: Envelope) -> bool:
    """Both are parts of one status."""
    assert isinstance(one.event, WriteStatus)
    assert isinstance(other.event, WriteStatus)
    number, theirs = one.event.status_number, other.event.status_number
    return (one.epoch, one.sender, number) == (other.epoch, other.sender, theirs)


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
        waits = state.phase in WAITS_TO_HEAR_ITSELF and not world.seats[index].calls
        if waits and CoordinatorTimer.RETRY not in state.deadlines:
            inputs.append(machine_io.Tick())  # as the driver does after every turn
    return _seat_in_abstract_time(world, index)


def _coordinator_calls(
    world: World, bounds: Bounds, index: int, action: c.Action, appending: Appending
) -> tuple[World, c.Input | None]:
    seat = world.seats[index]
    assert seat is not None
    match action:
        case c.Look():
            views = {secondary.name: secondary.view() for secondary in world.secondaries}
            start = Offsets(dict.fromkeys(bounds.partitions, 0))
            return world, c.Looked(
                world.view() if action.primary else None,
                c.SecondariesRead(views) if action.tables else None,
                c.SourcesDescribed(bounds.topics, start) if action.sources else None,
                NOW_MS,
            )
        case c.CommitTable(attempt):
            return world.seated(index, replace(seat, calls=(attempt,))), None
        case c.EvolveTable(base, _):
            return world.seated(index, replace(seat, calls=(Update(base),))), None
        case c.StageManifests(drafts):
            return world, c.ManifestsStaged(tuple(map(drafted, drafts)))
        case c.DeliverPendingCommits(deliveries):
            return world.seated(index, replace(seat, calls=deliveries)), None
        case machine_io.Append():
            sender = seat.state.identity.sender
            said = [
                Envelope(SINK, one.epoch, one.transaction, sender, 0, 0, one.event)
                for one in action.events
            ]
            world, confirmed = appending.to(world, said)
            return world, None if confirmed else c.CallFailed("not confirmed")
        case machine_io.Stop(error):
            raise Violation(Kind.STOP, f"the coordinator stopped without a reason to: {error}")
    return world, None


def _seat_in_abstract_time(world: World, index: int) -> World:
    seat = world.seats[index]
    assert seat is not None
    state = seat.state
    term = state.term and replace(
        state.term,
        delivery=replace(
            state.term.delivery,
            moved_at_ms=dict.fromkeys(state.term.delivery.moved_at_ms, NOW_MS),
        ),
        progress=replace(
            state.term.progress,
            activity={
                at: replace(seen, at_ms=NOW_MS) for at, seen in state.term.progress.activity.items()
            },
        ),
    )
    state = replace(
        state,
        term=term,
        call=replace(state.call, failures=min(state.call.failures, FAILURES_TOLD_APART)),
        watch=replace(
            state.watch, superseded_ms=None if state.watch.superseded_ms is None else NOW_MS
        ),
        wall_ahead_ms=0,
        deadlines={
            timer: min(_abstract(due_ms), LATE_MS // 2)
            if timer is CoordinatorTimer.CHANGES
            else _abstract(due_ms)
            for timer, due_ms in state.deadlines.items()
        },
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
        check_step(member.state, state)
        world = world.with_member(index, replace(member, state=state))
        for action in actions:
            world, answer = _participant_calls(world, bounds, index, action, appending)
            if answer is not None:
                inputs.append(answer)
    return _member_in_abstract_time(world, index, now_ms)


def _participant_calls(
    world: World, bounds: Bounds, index: int, action: p.Action, appending: Appending
) -> tuple[World, p.Input | None]:
    state = world.members[index].state
    match action:
        case p.ReadEndOffsets(partitions):
            ends = {at: bounds.ends[at] for at in sorted(partitions)}
            return world, p.EndOffsetsRead(appending.ends(ends))
        case p.Submit() if state.term.paused:
            raise Violation(Kind.UNTRUTH, "a participant reads though START said that it must not")
        case p.Submit(batch) if index not in bounds.slow:
            return world, p.BatchEnded(ended(bounds, batch, state.sender.member))
        case machine_io.Append(drafts):
            said = [
                Envelope(SINK, d.epoch, d.transaction, state.sender, d.sequence, 0, d.event)
                for d in drafts
            ]
            said = [part for whole in said for part in in_parts(whole)] if bounds.parts else said
            world, confirmed = appending.to(world, said)
            return world, None if confirmed else p.AppendFailed("not confirmed")
        case machine_io.Stop(error):
            raise Violation(Kind.STOP, f"a participant stopped without a reason to: {error}")
    return world, None


NEW = Struct((Column("x", "long"),))


def ended(bounds: Bounds, batch: Batch, member: str) -> BatchWritten | BatchNeeds:
    """The batch's outcome: what its records need, or its files (SCHEMA-1)."""
    spans = batch.ranges.items()
    first = {
        at: min(new)
        for at, span in spans
        if (new := [o for p, o in bounds.new if p == at.partition and span.begin <= o < span.end])
    }
    if first and not batch.table.schema_id:
        return BatchNeeds(batch.number, NEW, Offsets(first), len(first))
    named = f"{member}~{batch.table.schema_id}" if bounds.new else member
    return written(bounds, batch, named)


def written(bounds: Bounds, batch: Batch, member: str) -> BatchWritten:
    """The batch's outcome: every offset in its ranges holds a record.

    Which secondary table takes a record is decided by the epoch: routes change between two lives.
    """
    starts = (batch.quarantine, *batch.secondaries) if batch.quarantine else ()
    results, good = {}, []
    routed: list[list[Place]] = [[] for _ in starts]
    for at, span in batch.ranges.items():
        there = [(at.partition, offset) for offset in range(span.begin, span.end)]
        bad = [place for place in there if place in bounds.bad]
        good += [place for place in there if place not in bounds.bad]
        for place in bad:
            routed[(sum(place) + batch.transaction.epoch) % len(starts)].append(place)
        deleted = sum(place in bounds.deletes for place in there)
        results[at] = _result(bounds, at, span, len(bad), deleted)
    files = [
        _files(start.file_prefix, member, places)
        for start, places in zip(starts, routed, strict=True)
    ]
    others = {
        Destination(s.table): more for s, more in zip(starts[1:], files[1:], strict=True) if more
    }
    own = _files(batch.table.file_prefix, member, [p for p in good if p not in bounds.deletes])
    keys = [place for place in good if place in bounds.deletes]
    for file in _files(batch.table.file_prefix, f"{member}-keys", keys):
        own += (replace(file, kind=FileKind.KEYS),)
    return BatchWritten(batch.number, results, own, files[0] if files else (), others)


def _result(
    bounds: Bounds, at: TopicPartition, span: OffsetRange, bad: int, deleted: int
) -> PartitionResult:
    newest = timestamp_ms(at.partition, span.end - 1) if bounds.timed and len(span) else None
    return PartitionResult(
        span,
        len(span) - bad - deleted,
        len(span),
        newest,
        quarantined=bad,
        bad=bad,
        deleted=deleted,
    )


def _files(prefix: str, member: str, places: list[tuple[int, int]]) -> tuple[WrittenFile, ...]:
    if not places:
        return ()
    return (WrittenFile(file_path(prefix, member, places), len(places), len(places)),)


def _member_in_abstract_time(world: World, index: int, now_ms: int) -> World:
    member = world.members[index]
    state = member.state
    waits = (Timer.RESEND, Timer.RETRY)
    deadlines = {
        timer: _abstract(due_ms) if timer in waits else due_ms
        for timer, due_ms in state.deadlines.items()
        if timer is not Timer.LOOK
    }
    needs = replace(state.needs, open=tuple(_waiting(need, now_ms) for need in state.needs.open))
    state = replace(state, deadlines=deadlines, needs=needs)
    return world.with_member(index, replace(member, state=state))


def _waiting(need: Need, now_ms: int) -> Need:
    """It waits until the next tick that is late, and then no more (SCHEMA-4)."""
    passed = now_ms >= need.since_ms + WAIT_MS
    return replace(need, since_ms=NOW_MS - WAIT_MS + (0 if passed else LATE_MS // 2))
