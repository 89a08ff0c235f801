"""Lists every step that a small world may take next, by name; each fault costs something."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from exploration.machines import (
    FATES,
    WAITS_TO_HEAR_ITSELF,
    Appending,
    assembled,
    coordinator_fed,
    ended,
    participant_fed,
)
from exploration.operating import operator
from exploration.small_table import Update
from exploration.small_world import (
    LATE_MS,
    NOW_MS,
    Bounds,
    Seat,
    World,
    new_member,
    new_seat,
)
from support.verdicts import Kind, Violation

from headgate.control_protocol import machine_io
from headgate.control_protocol.events import (
    AbortCommit,
    EndCommit,
    LogRecord,
    Presence,
    Proposal,
    Settlement,
    StartCommit,
    WriteStatus,
)
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.ports import (
    BatchFailed,
    CommitOutcome,
    EvolvedTable,
    Landed,
    Refused,
    Unknown,
)
from headgate.coordinator import inputs_and_actions as c
from headgate.coordinator.phases import Phase as Coordinating
from headgate.coordinator.state import Timer as CoordinatorTimer
from headgate.participant import inputs_and_actions as p
from headgate.participant.schema_proposals import WAIT_MS
from headgate.participant.state import State as ParticipantState
from headgate.participant.state import Timer


class Step(NamedTuple):
    name: str
    fault: bool
    world: World


def steps(world: World, bounds: Bounds) -> Iterator[Step]:
    """Raises ``Violation`` when one of them does what must never be done.

    What is nobody else's business happens at once, for its moment makes no difference: a
    participant hears what does not make it speak, a coordinator all before it has to decide.
    """
    for step in _steps(world, bounds):
        yield step._replace(world=_settled_down(step.world, bounds))


def _settled_down(world: World, bounds: Bounds) -> World:
    for index in range(len(world.seats)):
        while (seat := world.seats[index]) and _hears_at_once(world, seat):
            world = _hears(world, bounds, index, seat)
    for index in range(len(world.members)):
        world = _member_settled_down(world, bounds, index)
    return world.trimmed()


def _hears_at_once(world: World, seat: Seat) -> bool:
    ready = not seat.broken and not seat.calls and world.next_for(seat.position) is not None
    return ready and seat.state.phase in (*WAITS_TO_HEAR_ITSELF, Coordinating.OPEN)


def _member_settled_down(world: World, bounds: Bounds, index: int) -> World:
    """Nothing can befall it before it hears what makes it speak: then when it hears is its own."""
    while not world.members[index].broken:
        member = world.members[index]
        record = world.next_for(member.position)
        if record is None:
            break
        if _not_for(member.state, record):
            world = world.with_member(index, replace(member, position=member.position + 1))
            continue
        if not _left_alone(world, bounds, index):
            break
        appending = Appending()
        ahead = _member_hears(world, bounds, index, appending)
        if appending.struck:
            break
        world = ahead
    return world


def _member_hears(world: World, bounds: Bounds, index: int, appending: Appending) -> World:
    member = world.members[index]
    record = world.next_for(member.position)
    assert record is not None
    held, whole = assembled(member.held, record)
    ahead = world.with_member(index, replace(member, position=member.position + 1, held=held))
    if whole is None:
        return ahead
    return participant_fed(ahead, bounds, index, machine_io.Heard(whole), appending, NOW_MS)


def _left_alone(world: World, bounds: Bounds, index: int) -> bool:
    state = world.members[index].state
    given = {at for at, o in zip(bounds.partitions, world.owners, strict=True) if o == index}
    return (
        state.work.owned.keys() == given
        and state.run.batch is None
        and not state.work.leaving
        and Timer.RETRY not in state.deadlines
        and not any(world.left(fault) for fault in BEFALL_PARTICIPANTS)
    )


_NO_ANSWER = c.CallFailed("no answer")
BEFALL_PARTICIPANTS = ("move", "participant dies", "log lost", "end silent")


def _not_for(state: ParticipantState, record: LogRecord) -> bool:
    if record.envelope.sender == state.sender:
        return False
    return isinstance(record.envelope.event, WriteStatus | Presence)


def _steps(world: World, bounds: Bounds) -> Iterator[Step]:
    for index, seat in enumerate(world.seats):
        if seat is None:
            yield from _without_coordinator(world, bounds, index)
        elif seat.calls:
            yield from _call_arrives(world, bounds, index, seat)
            yield from _seat_ends(world, bounds, index, seat)
        else:
            yield from _coordinator(world, bounds, index, seat)
            yield from _seat_ends(world, bounds, index, seat)
    for index in range(len(world.members)):
        yield from _participant(world, bounds, index)
    yield from _late_arrivals(world)
    yield from (Step(*step) for step in operator(world))
    yield from _strokes_of_fate(world, bounds)


def complete(world: World, bounds: Bounds) -> bool:
    held = [place for table in (world.table, *world.secondaries) for place in table.held()]
    return len(held) == sum(bounds.records)


# ----------------------------------------------------------------------------------- coordinators


def _without_coordinator(world: World, bounds: Bounds, index: int) -> Iterator[Step]:
    if world.leader == index:
        seat = new_seat(bounds, index, world.lives, world.end)
        yield Step(f"c{index} starts", False, world.seated(index, seat, lives=world.lives + 1))


def _seat_ends(world: World, bounds: Bounds, index: int, seat: Seat) -> Iterator[Step]:
    if world.leader != index:
        yield Step(f"c{index} notices that it leads no more", False, _left(world, index, seat))
    elif world.left("coordinator dies"):
        ended = _left(world.delivered("coordinator dies"), index, seat)
        yield Step(f"c{index} dies", True, ended)
        if seat.calls:
            yield Step(f"c{index} dies, its call with it", True, replace(ended, air=world.air))


def _left(world: World, index: int, seat: Seat) -> World:
    """A call that is still in flight may land; one behind it will never be made."""
    air = (*world.air, *seat.calls[:1])
    return world.seated(index, None, air=air).trimmed()


def _coordinator(world: World, bounds: Bounds, index: int, seat: Seat) -> Iterator[Step]:
    def fed(given: c.Input, now_ms: int, fate: Appending) -> World:
        return coordinator_fed(world, bounds, index, given, fate, now_ms)

    name, phase = f"c{index}", seat.state.phase
    if seat.broken:
        healed = world.seated(index, replace(seat, position=world.end, broken=False, held=()))
        after = coordinator_fed(
            healed, bounds, index, machine_io.LogTruncated("re-created"), Appending(), NOW_MS
        )
        yield Step(f"{name} notices the discontinuity", False, after)
        return
    if world.leader == index and phase is Coordinating.FOLLOWING:
        yield from _fated(
            f"{name} leads", world, lambda fate: fed(c.LeadershipGained(), LATE_MS, fate)
        )
    record = world.next_for(seat.position)
    if record is not None:
        heard = _brief(record.envelope.event)
        yield Step(f"{name} hears {heard}", False, _hears(world, bounds, index, seat))
    if phase is Coordinating.COLLECTING:
        for step in _fated(
            f"{name} decides", world, lambda fate: fed(machine_io.Tick(), NOW_MS, fate)
        ):
            if step.world != world:
                yield step
    if _timer_may_fire(world, bounds, seat):
        for step in _fated(
            f"{name}'s time", world, lambda fate: fed(machine_io.Tick(), LATE_MS, fate)
        ):
            if step.world != world:
                _clean(bounds, index, seat, step.world)
                yield step


def _hears(world: World, bounds: Bounds, index: int, seat: Seat) -> World:
    record = world.next_for(seat.position)
    assert record is not None
    held, whole = assembled(seat.held, record)
    ahead = world.seated(index, replace(seat, position=seat.position + 1, held=held)).trimmed()
    if whole is None:
        return ahead
    after = coordinator_fed(ahead, bounds, index, machine_io.Heard(whole), Appending(), NOW_MS)
    _clean(bounds, index, seat, after)
    return after


def _timer_may_fire(world: World, bounds: Bounds, seat: Seat) -> bool:
    """What may be repeated for ever is repeated only when it can change anything."""
    match seat.state.phase:
        case Coordinating.OPEN:
            return not _crowded(world, bounds)
        case Coordinating.COLLECTING:
            return bounds.time_outs
        case phase if phase in WAITS_TO_HEAR_ITSELF:
            return not _coming(world, seat)
        case _:
            return CoordinatorTimer.RETRY in seat.state.deadlines


def _crowded(world: World, bounds: Bounds) -> bool:
    first = world.end - len(world.log)
    readers: list[Any] = [*world.members, *(seat for seat in world.seats if seat)]
    slowest = min((reader.position for reader in readers if not reader.broken), default=world.end)
    unread = world.log[max(0, slowest - first) :]
    return sum(isinstance(r.envelope.event, EndCommit) for r in unread) >= bounds.lag_max


def _coming(world: World, seat: Seat) -> bool:
    """The coordinator has still to hear something that it said itself."""
    sender = seat.state.identity.sender
    unread = world.log[len(world.log) - (world.end - seat.position) :] if world.log else ()
    return any(r.envelope.sender == sender for r in unread if r.offset >= seat.position)


def _clean(bounds: Bounds, index: int, before: Seat, after: World) -> None:
    """In a world without faults nothing is refused, and no epoch is lost."""
    seat = after.seats[index]
    assert seat is not None
    if not bounds.clean:
        return
    term = seat.state.term
    if before.state.term is not None and term is None:
        raise Violation(Kind.WASTE, f"c{index} gives its epoch up without a reason")
    settlement = term.progress.settlement if term else None
    if settlement is not None and (settlement.reason or isinstance(settlement, AbortCommit)):
        raise Violation(Kind.WASTE, f"c{index} refuses honest work: {settlement.reason}")


def _call_arrives(world: World, bounds: Bounds, index: int, seat: Seat) -> Iterator[Step]:
    """The primary table's call, or the next delivery: each is struck by faults of its own
    (PENDING-5)."""
    attempt, *rest = seat.calls
    if isinstance(attempt, Update):
        yield from _update_arrives(world, bounds, index, attempt)
        return
    name = f"c{index}'s commit {attempt.record.transaction} to {attempt.base.table}"

    def told(after: World, outcome: CommitOutcome, fate: Appending) -> World:
        answers = (*seat.answers, (attempt.base.table, outcome))
        left = replace(seat, calls=tuple(rest), answers=answers)
        if rest:
            return after.seated(index, left)
        answered = after.seated(index, replace(left, answers=()))
        delivers = seat.state.phase is Coordinating.DELIVERING
        given = c.DeliveriesAnswered(dict(answers)) if delivers else c.CommitAnswered(outcome)
        return coordinator_fed(answered, bounds, index, given, fate, NOW_MS)

    if not world.takes(attempt):
        yield Step(f"{name} is refused", False, told(world, Refused("stale"), Appending()))
        return
    taken = world.landed(attempt)
    outcome = Landed(taken.snapshots, taken.of(attempt).view())
    yield from _fated(f"{name} lands", world, lambda fate: told(taken, outcome, fate))
    if world.left("outcome unknown"):
        lost = Unknown("no answer")
        delivered = world.delivered("outcome unknown")
        landed = delivered.landed(attempt)
        yield Step(f"{name} lands unknown", True, told(landed, lost, Appending()))
        yield Step(f"{name} is lost", True, told(delivered, lost, Appending()))
        late = replace(delivered, air=(*delivered.air, attempt))
        yield Step(f"{name} hangs in the air", True, told(late, lost, Appending()))


def _update_arrives(world: World, bounds: Bounds, index: int, call: Update) -> Iterator[Step]:
    """SCHEMA-3, SCHEMA-8: who does not know what became of it asks again of the table as it is
    then."""
    name = f"c{index}'s update of {call.base.table}"

    def told(after: World, given: c.Input, fate: Appending) -> World:
        seat = after.seats[index]
        assert seat is not None
        free = after.seated(index, replace(seat, calls=()))
        return coordinator_fed(free, bounds, index, given, fate, NOW_MS)

    def found(after: World) -> Callable[[Appending], World]:
        given = c.TableEvolved(EvolvedTable(after.view()))
        return lambda fate: told(after, given, fate)

    if world.table.tag != call.base.tag or world.table.schema == call.schema:
        yield from _fated(f"{name} changes nothing", world, found(world))
        return
    if not world.takes(call):
        yield Step(f"{name} is refused", False, told(world, _NO_ANSWER, Appending()))
        return
    yield from _fated(f"{name} lands", world, found(world.landed(call)))
    if world.left("outcome unknown"):
        delivered = world.delivered("outcome unknown")
        yield Step(
            f"{name} lands unknown", True, told(delivered.landed(call), _NO_ANSWER, Appending())
        )
        yield Step(f"{name} is lost", True, told(delivered, _NO_ANSWER, Appending()))
        late = replace(delivered, air=(*delivered.air, call))
        yield Step(f"{name} hangs in the air", True, told(late, _NO_ANSWER, Appending()))


def _late_arrivals(world: World) -> Iterator[Step]:
    """What can no longer land is forgotten; whether a call that can ever does, nobody knows."""
    for call in world.air:
        rest = tuple(other for other in world.air if other is not call)
        if world.takes(call):
            what = "update" if isinstance(call, Update) else f"commit {call.record.transaction}"
            name = f"a late {what} lands"
            yield Step(name, False, replace(world, air=rest).landed(call))


# ----------------------------------------------------------------------------------- participants


def _participant(world: World, bounds: Bounds, index: int) -> Iterator[Step]:
    member, name = world.members[index], f"p{index}"
    state = member.state

    def fed(given: p.Input) -> Callable[[Appending], World]:
        return lambda fate: participant_fed(world, bounds, index, given, fate, NOW_MS)

    if state.run.batch is not None:
        outcome = ended(bounds, state.run.batch, state.sender.member)
        yield from _fated(f"{name}'s batch ends", world, fed(p.BatchEnded(outcome)))
        if world.left("batch fails"):
            failed = p.BatchEnded(BatchFailed(state.run.batch.number, "disk full"))
            after = participant_fed(
                world.delivered("batch fails"), bounds, index, failed, Appending(), NOW_MS
            )
            yield Step(f"{name}'s batch fails", True, after)
    if member.broken:
        standing = replace(member, position=world.end, broken=False, held=())
        healed = world.with_member(index, standing)
        given = machine_io.LogTruncated("re-created")
        after = participant_fed(healed, bounds, index, given, Appending(), NOW_MS)
        yield Step(f"{name} notices the discontinuity", False, after)
        return
    record = world.next_for(member.position)
    if record is not None:
        yield from _fated(
            f"{name} hears {_brief(record.envelope.event)}",
            world,
            lambda fate: _member_hears(world, bounds, index, fate).trimmed(),
        )
    yield from _membership(world, bounds, index)
    waits = (
        Timer.RETRY in state.deadlines
        and not state.said.unheard
        and not state.said.has_status_not_read_back
    )
    waits = waits or any(need.since_ms > NOW_MS - WAIT_MS for need in state.needs.open)
    if waits or _has_to_repeat(world, index):
        waiting = participant_fed(world, bounds, index, machine_io.Tick(), Appending(), NOW_MS)
        for step in _fated(
            f"{name}'s time",
            world,
            lambda fate: participant_fed(waiting, bounds, index, machine_io.Tick(), fate, LATE_MS),
        ):
            if step.world != world:
                yield step


def _has_to_repeat(world: World, index: int) -> bool:
    """Something that it said is not in the log any more: lost, so that it will never hear it."""
    state = world.members[index].state
    coming = {
        (type(r.envelope.event), _number(r.envelope.event, r.envelope.sequence))
        for r in world.log
        if r.envelope.sender == state.sender
    }
    waited = {(Presence, draft.sequence) for draft in state.said.unheard}
    waited |= {
        (WriteStatus, own.status.status_number) for own in state.said.pending if own.offset is None
    }
    waited |= {(Proposal, need.proposal.number) for need in state.needs.open if not need.heard}
    return bool(waited - coming)


def _number(event: object, sequence: int) -> int:
    if isinstance(event, Proposal):
        return event.number
    return event.status_number if isinstance(event, WriteStatus) else sequence


def _membership(world: World, bounds: Bounds, index: int) -> Iterator[Step]:
    """What the group does to it: cooperatively, or abruptly, without asking for a release."""
    state, name = world.members[index].state, f"p{index}"
    given = {
        at for at, owner in zip(bounds.partitions, world.owners, strict=True) if owner == index
    }
    held_by_others = {
        at for k, m in enumerate(world.members) if k != index for at in m.state.work.owned
    }
    taken = state.work.owned.keys() - given
    gained = given - state.work.owned.keys()

    def fed(told: p.Input) -> Callable[[Appending], World]:
        return lambda fate: participant_fed(world, bounds, index, told, fate, NOW_MS)

    if bounds.abrupt and taken:
        now = frozenset(state.work.owned.keys() - taken)
        yield from _fated(f"{name} loses {_named(taken)}", world, fed(p.Assigned(now)))
    if taken - state.work.leaving:
        asked = p.ReleaseRequested(frozenset(taken))
        yield from _fated(f"{name} is asked to release {_named(taken)}", world, fed(asked))
    if state.work.leaving:
        expired = p.ReleaseTimedOut()
        if not bounds.clean:
            yield from _fated(f"{name}'s release expires", world, fed(expired))
        return
    free = gained if bounds.abrupt else gained - held_by_others
    if free:
        now = frozenset(state.work.owned.keys() | free)
        yield from _fated(f"{name} gains {_named(free)}", world, fed(p.Assigned(now)))


def _named(partitions: set[TopicPartition]) -> str:
    return ", ".join(sorted(map(str, partitions)))


# ------------------------------------------------------------------------------------------ faults


def _strokes_of_fate(world: World, bounds: Bounds) -> Iterator[Step]:
    if world.left("foreign commit"):
        snapshot = world.snapshots + 1
        table = replace(world.table, head=snapshot)
        after = replace(world.delivered("foreign commit"), table=table, snapshots=snapshot)
        yield Step("a foreign commit", True, after)
    if world.left("failover") and world.leader == 0 and world.seats[0] is not None:
        yield Step(
            "c1 leads, c0 does not know", True, replace(world.delivered("failover"), leader=1)
        )
    if world.left("log lost"):
        yield Step("the log is re-created", True, _recreated(world.delivered("log lost")))
    if world.left("event doubled") and world.log:
        said = world.log[-1].envelope
        after = world.delivered("event doubled").appended(said)
        yield Step(f"{_brief(said.event)} is in the log again", True, after)
    for index, member in enumerate(world.members):
        if world.left("participant dies"):
            fresh = new_member(bounds, index, int(member.state.sender.incarnation) + 1, world.end)
            after = world.delivered("participant dies").with_member(index, fresh).trimmed()
            yield Step(f"p{index} dies and comes back", True, after)
    if world.left("move"):
        for number, owner in enumerate(world.owners):
            to = (owner + 1) % len(world.members)
            owners = (*world.owners[:number], to, *world.owners[number + 1 :])
            after = replace(world.delivered("move"), owners=owners)
            yield Step(f"the group moves {number} to p{to}", True, after)


def _recreated(world: World) -> World:
    return replace(
        world,
        log=(),
        end=0,
        seats=tuple(seat and replace(seat, broken=True) for seat in world.seats),
        members=tuple(replace(member, broken=True) for member in world.members),
    )


def _fated(name: str, world: World, fed: Callable[[Appending], World]) -> Iterator[Step]:
    """The step as it is, and once per fault that may strike what it appends."""
    yield Step(name, False, fed(Appending()))
    for fate, fault in FATES.items():
        if world.left(fault):
            appending = Appending(fate)
            after = fed(appending)
            if appending.struck:
                yield Step(f"{name}, {fault}", True, after.delivered(fault))


def _brief(event: object) -> str:
    brief = type(event).__name__
    if isinstance(event, StartCommit | Settlement):
        offsets = ",".join(str(offset) for _, offset in sorted(event.offsets.items()))
        brief += f" C={offsets} L={event.settled_to}"
    if isinstance(event, WriteStatus):
        claims = {f"{at.partition}:{claim.range}" for at, claim in event.written.items()}
        unknown = sorted(at.partition for at in event.unknown)
        brief += f" #{event.status_number} {' '.join(sorted(claims))} unknown={unknown}"
    return brief
