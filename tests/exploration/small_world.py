"""Models a small deployment as one immutable value: real machines, and everything around them.

Time is abstract: every step happens at ``NOW_MS``, except that a timer may fire at any moment, by a
tick at ``LATE_MS``, when every timer that runs is over. After it the machines' times are moved
back, so that the same situation is the same value however long it took.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from exploration.small_table import (
    Call,
    Place,
    Table,
    Update,
    nothing_falls,
    nothing_older_comes,
    rows_are_the_source,
)
from support.verdicts import Kind, Violation

from headgate.control_protocol.events import Envelope, LogRecord
from headgate.control_protocol.identifiers import (
    ControlOffset,
    Sender,
    SinkName,
    TopicId,
    TopicPartition,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import CommitOutcome, TableView, TopicState
from headgate.coordinator.settings import CoordinatorSettings, TimeoutPolicy
from headgate.coordinator.state import Identity
from headgate.coordinator.state import State as CoordinatorState
from headgate.participant.settings import ParticipantSettings
from headgate.participant.state import State as ParticipantState
from headgate.participant.state import Timer

SINK = SinkName("small")
TOPIC = "t"
NOW_MS = 0
LATE_MS = 10
NEVER_MS = 10**12

Held = tuple[Envelope, ...]
"""Parts of statuses that are not whole yet (LOG-2)."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How small the world is. ``faults`` says how often each kind may strike in one history.

    ``slow`` participants end their batches in steps of their own, others at once, and
    at most ``batches_max`` per transaction. ``time_outs``
    says whether COLLECTING may end by its time-out. ``clean`` demands that nothing is ever refused
    and no second epoch begins. ``lag_max`` bounds how far readers fall behind before the next END.
    ``joined``: it begins with every partition gained and the first claim in the table. ``bad``:
    partition and offset of the records that go into ``secondaries``, into another one in each
    epoch. ``new``: those that need a column which the primary table does not have in the beginning.
    ``deletes``: the table has a key, which all records of a partition share, and these delete its
    row.
    ``parts``: a status with files travels in two. ``timed``: records have timestamps, and what does
    not move for a while is idle.
    """

    records: tuple[int, ...] = (1, 1)
    owners: tuple[int, ...] = (0, 1)
    participants: int = 2
    faults: Mapping[str, int] = field(default_factory=dict)
    policy: TimeoutPolicy = TimeoutPolicy.COMMIT_ADMISSIBLE
    slow: frozenset[int] = frozenset()
    batch_records_max: int = 1
    batches_max: int = 20_000
    time_outs: bool = True
    abrupt: bool = False
    clean: bool = False
    lag_max: int = 1
    joined: bool = False
    bad: frozenset[Place] = frozenset()
    secondaries: tuple[str, ...] = ()
    parts: bool = False
    timed: bool = False
    new: frozenset[Place] = frozenset()
    deletes: frozenset[Place] = frozenset()

    @property
    def coordinator_settings(self) -> CoordinatorSettings:
        return CoordinatorSettings(
            commit_interval_ms=5,
            commit_timeout_ms=1,
            timeout_policy=self.policy,
            rebalance_delay_ms=5,
            election_timeout_ms=1,
            idleness_ms=1 if self.timed else NEVER_MS,
            tag_refresh_interval_ms=NEVER_MS,
            delivery_timeout_ms=1,
            retry_backoff_ms=1,
            retry_backoff_max_ms=1,
        )

    @property
    def participant_settings(self) -> ParticipantSettings:
        return ParticipantSettings(
            batch_records_max=self.batch_records_max,
            files_max=self.batches_max,
            presence_interval_ms=1,
            end_offset_interval_ms=1,
            release_timeout_ms=1,
            retry_backoff_ms=1,
        )

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(TopicPartition(TOPIC, k) for k in range(len(self.records)))

    @property
    def ends(self) -> Offsets:
        return Offsets(dict(zip(self.partitions, self.records, strict=True)))

    @property
    def topics(self) -> Mapping[str, TopicState]:
        ranges = {k: OffsetRange(0, count) for k, count in enumerate(self.records)}
        return {TOPIC: TopicState(TopicId("id"), ranges)}


@dataclass(frozen=True, slots=True)
class Seat:
    """A coordinator: its machine, where it reads the log, and the commit call on its way."""

    state: CoordinatorState
    position: int
    calls: tuple[Call, ...] = ()
    """The primary table's one call, or the deliveries that are still to be made, one after the
    other."""
    answers: tuple[tuple[str, CommitOutcome], ...] = ()
    """Of the deliveries that were made."""
    broken: bool = False
    held: Held = ()


@dataclass(frozen=True, slots=True)
class Member:
    """A participant: its machine and where it reads the log."""

    state: ParticipantState
    position: int
    broken: bool = False
    held: Held = ()


@dataclass(frozen=True, slots=True)
class World:
    """``log`` holds what some reader has still to hear, ``end`` is the next control offset.

    ``air``: commit calls that may still arrive. ``owners``: whom the group gives each partition,
    ``leader``: which coordinator it lets lead. ``faults``: how many of each kind are left.
    ``pause`` is what the operator said, ``pauses`` how often it worked.
    """

    table: Table
    seats: tuple[Seat | None, ...]
    members: tuple[Member, ...]
    owners: tuple[int, ...]
    faults: tuple[tuple[str, int], ...]
    log: tuple[LogRecord, ...] = ()
    end: int = 0
    leader: int = 0
    air: tuple[Call, ...] = ()
    lives: int = 0
    snapshots: int = 0
    secondaries: tuple[Table, ...] = ()
    pause: Envelope | None = None
    pauses: int = 0

    def view(self) -> TableView:
        """The primary table, as a coordinator reads it."""
        return self.table.view()

    def takes(self, call: Call) -> bool:
        return self.of(call).takes(call)

    def landed(self, call: Call) -> World:
        """Raises ``Violation`` when it must not have been taken."""
        if isinstance(call, Update):
            return replace(self, table=self.table.grown(call))
        before, number = self.of(call), self.snapshots + 1
        landed = before.with_(call, number)
        if before is self.table:
            return rightly(before, replace(self, table=landed, snapshots=number))
        assert landed.record is not None
        nothing_falls(before.record, landed.record)
        secondaries = tuple(landed if other is before else other for other in self.secondaries)
        after = replace(self, secondaries=secondaries, snapshots=number)
        rows_are_the_source(after.table, after.secondaries)
        return after

    def of(self, call: Call) -> Table:
        """Which of the tables it is sent to."""
        named = (f for f in self.secondaries if f.name == call.base.table)
        return next(named, self.table)

    def left(self, fault: str) -> bool:
        return any(kind == fault and count > 0 for kind, count in self.faults)

    def delivered(self, fault: str) -> World:
        faults = tuple((kind, count - (kind == fault)) for kind, count in self.faults)
        return replace(self, faults=faults)

    def seated(self, index: int, seat: Seat | None, **changes: Any) -> World:
        seats = (*self.seats[:index], seat, *self.seats[index + 1 :])
        return replace(self, seats=seats, **changes)

    def with_member(self, index: int, member: Member) -> World:
        return replace(self, members=(*self.members[:index], member, *self.members[index + 1 :]))

    def appended(self, *envelopes: Envelope) -> World:
        records = tuple(
            LogRecord(ControlOffset(self.end + k), said) for k, said in enumerate(envelopes)
        )
        return replace(self, log=(*self.log, *records), end=self.end + len(records))

    def next_for(self, position: int) -> LogRecord | None:
        unread = len(self.log) - (self.end - position)
        return self.log[unread] if position < self.end else None

    def trimmed(self) -> World:
        """Without the events that every reader has heard."""
        readers = [m.position for m in self.members if not m.broken]
        readers += [s.position for s in self.seats if s and not s.broken]
        unread = self.end - min(readers, default=self.end)
        return (
            replace(self, log=self.log[len(self.log) - unread :])
            if unread < len(self.log)
            else self
        )


def rightly(before: Table, after: World) -> World:
    """The world, where what the table holds now is as it must be. Raises ``Violation``."""
    rows_are_the_source(after.table, after.secondaries)
    assert after.table.record is not None
    nothing_falls(before.record, after.table.record)
    nothing_older_comes(after.table)
    began = after.table.record.paused and not (before.record and before.record.paused)
    pauses = after.pauses + began
    if pauses > (after.pause is not None):
        raise Violation(Kind.UNTRUTH, "an operator's word works twice: the sink pauses again")
    return replace(after, pauses=pauses)


def first_world(bounds: Bounds) -> World:
    nothing = tuple((0,) * count for count in bounds.records)
    return World(
        table=Table(nothing, bad=bounds.bad, timed=bounds.timed, deletes=bounds.deletes),
        secondaries=tuple(
            Table(nothing, name, f"uuid-{name}", name) for name in bounds.secondaries
        ),
        seats=(None, None),
        members=tuple(new_member(bounds, k, 0, 0) for k in range(bounds.participants)),
        owners=bounds.owners,
        faults=tuple(sorted(bounds.faults.items())),
    )


def new_member(bounds: Bounds, index: int, life: int, position: int) -> Member:
    sender = Sender(f"p{index}", str(life))
    state = ParticipantState(
        SINK, sender, bounds.participant_settings, deadlines={Timer.ALIVE: NEVER_MS}
    )
    return Member(state, position)


def new_seat(bounds: Bounds, index: int, life: int, position: int) -> Seat:
    identity = Identity(
        SINK,
        "group",
        Sender(f"c{index}", str(life)),
        secondaries=bounds.secondaries,
        keyed=bool(bounds.deletes),
    )
    return Seat(CoordinatorState(identity, bounds.coordinator_settings), position)
