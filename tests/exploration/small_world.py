"""A whole small deployment as one immutable value: the real machines, and all that is around them.

Time is abstract: every step happens at ``NOW_MS``, except that a timer may fire at any moment, by a
tick at ``LATE_MS``, when every timer that runs is over. After it the machines' times are moved
back, so that the same situation is the same value however long it took.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from verdicts import Kind, Violation

from headgate.control_protocol.events import Envelope, LogRecord
from headgate.control_protocol.identifiers import (
    ControlOffset,
    Sender,
    SinkName,
    TopicId,
    TopicPartition,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import CommitAttempt, Lineage, TableView, TopicState
from headgate.control_protocol.record import CommitRecord
from headgate.coordinator.settings import CoordinatorSettings, TimeoutPolicy
from headgate.coordinator.state import Identity
from headgate.coordinator.state import State as CoordinatorState
from headgate.participant.settings import ParticipantSettings
from headgate.participant.state import State as ParticipantState

SINK = SinkName("small")
TOPIC = "t"
TABLE = "lake.t"
UUID = "uuid"
LOCATION = "w"
NOW_MS = 0
LATE_MS = 10
NEVER_MS = 10**12


@dataclass(frozen=True, slots=True)
class Bounds:
    """How small the world is. ``faults`` says how often each kind may strike in one history.

    ``slow`` participants end their batches in steps of their own, others at once. ``time_outs``
    says whether COLLECTING may end by its time-out. ``clean`` demands that nothing is ever refused
    and no second epoch begins. ``lag_max`` bounds how far readers fall behind before the next END.
    ``joined``: it begins with every partition gained and the first claim in the table.
    """

    records: tuple[int, ...] = (1, 1)
    owners: tuple[int, ...] = (0, 1)
    participants: int = 2
    faults: Mapping[str, int] = field(default_factory=dict)
    policy: TimeoutPolicy = TimeoutPolicy.COMMIT_ADMISSIBLE
    slow: frozenset[int] = frozenset()
    batch_records_max: int = 1
    time_outs: bool = True
    abrupt: bool = False
    clean: bool = False
    lag_max: int = 1
    joined: bool = False

    @property
    def coordinator_settings(self) -> CoordinatorSettings:
        return CoordinatorSettings(
            commit_interval_ms=5,
            commit_timeout_ms=1,
            timeout_policy=self.policy,
            rebalance_delay_ms=5,
            election_timeout_ms=1,
            idleness_ms=NEVER_MS,
            tag_refresh_interval_ms=NEVER_MS,
            retry_backoff_ms=1,
            retry_backoff_max_ms=1,
        )

    @property
    def participant_settings(self) -> ParticipantSettings:
        return ParticipantSettings(
            batch_records_max=self.batch_records_max,
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
class Table:
    """``rows``: how often each record of each partition is in it. Ids are fresh per snapshot."""

    rows: tuple[tuple[int, ...], ...]
    tag: int | None = None
    head: int | None = None
    record: CommitRecord | None = None

    def view(self) -> TableView:
        lineage = Lineage.FRESH if self.tag is None else Lineage.CONTAINS_TAG
        return TableView(
            TABLE, UUID, LOCATION, 0, 0, self.head, self.tag, self.record, lineage, self.record
        )

    def takes(self, attempt: CommitAttempt) -> bool:
        return (attempt.base.tag, attempt.base.head) == (self.tag, self.head)

    def with_(self, attempt: CommitAttempt, snapshot_id: int) -> Table:
        """The table after the attempt, which the oracle has looked at."""
        rows = [list(counts) for counts in self.rows]
        for file in attempt.files:
            for partition, offset in written_in(file.path):
                rows[partition][offset] += 1
        after = Table(tuple(map(tuple, rows)), snapshot_id, snapshot_id, attempt.record)
        _rows_are_the_source(after)
        _nothing_falls(self.record, attempt.record)
        return after


def _rows_are_the_source(table: Table) -> None:
    assert table.record is not None
    for at, following in table.record.offsets.items():
        for offset, times in enumerate(table.rows[at.partition]):
            if times != (1 if offset < following else 0):
                kind = Kind.DOUBLE if times > (offset < following) else Kind.LOSS
                raise Violation(
                    kind, f"{at}: offset {offset} is {times} times there, {following} is next"
                )


def _nothing_falls(before: CommitRecord | None, after: CommitRecord) -> None:
    if before is not None and after.transaction <= before.transaction:
        raise Violation(
            Kind.DISORDER, f"transaction {after.transaction} landed after {before.transaction}"
        )
    if before is not None and after.offsets.behind(before.offsets):
        raise Violation(Kind.DOUBLE, f"offsets went back from {before.offsets} to {after.offsets}")


def file_path(prefix: str, member: str, ranges: Mapping[TopicPartition, OffsetRange]) -> str:
    """A file is named for what it holds, so that no registry of files is needed."""
    held = ".".join(f"{p.partition}-{r.begin}-{r.end}" for p, r in sorted(ranges.items()))
    return f"{prefix}/{member}.{held}"


def written_in(path: str) -> list[tuple[int, int]]:
    """Partition and offset of every record in the file."""
    held = [map(int, part.split("-")) for part in path.rsplit("/", 1)[1].split(".")[1:]]
    return [(p, offset) for p, begin, end in held for offset in range(begin, end)]


@dataclass(frozen=True, slots=True)
class Seat:
    """A coordinator: its machine, where it reads the log, and the commit call on its way."""

    state: CoordinatorState
    position: int
    call: CommitAttempt | None = None
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Member:
    """A participant: its machine and where it reads the log."""

    state: ParticipantState
    position: int
    broken: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """``log`` holds what some reader has still to hear, ``end`` is the next control offset.

    ``air``: commit calls that may still arrive. ``owners``: whom the group gives each partition,
    ``leader``: which coordinator it lets lead. ``faults``: how many of each kind are left.
    """

    table: Table
    seats: tuple[Seat | None, ...]
    members: tuple[Member, ...]
    owners: tuple[int, ...]
    faults: tuple[tuple[str, int], ...]
    log: tuple[LogRecord, ...] = ()
    end: int = 0
    leader: int = 0
    air: tuple[CommitAttempt, ...] = ()
    lives: int = 0
    snapshots: int = 0

    def left(self, fault: str) -> bool:
        return any(kind == fault and count > 0 for kind, count in self.faults)

    def paid(self, fault: str) -> World:
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


def first_world(bounds: Bounds) -> World:
    return World(
        table=Table(tuple((0,) * count for count in bounds.records)),
        seats=(None, None),
        members=tuple(new_member(bounds, k, 0, 0) for k in range(bounds.participants)),
        owners=bounds.owners,
        faults=tuple(sorted(bounds.faults.items())),
    )


def new_member(bounds: Bounds, index: int, life: int, position: int) -> Member:
    sender = Sender(f"p{index}", str(life))
    state = ParticipantState(SINK, sender, bounds.participant_settings, alive_due_ms=NEVER_MS)
    return Member(state, position)


def new_seat(bounds: Bounds, index: int, life: int, position: int) -> Seat:
    identity = Identity(SINK, "group", Sender(f"c{index}", str(life)))
    return Seat(CoordinatorState(identity, bounds.coordinator_settings), position)
