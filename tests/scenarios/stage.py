"""A small stage: real machines and drivers on in-memory ports, and somebody who writes it all down.

Turns come in a fixed order and time only when a turn takes some, so that a conversation is the
same each time. The transcript has what is said on the control log (with its place there), every
table commit and what became of it, the state of the group's offsets, and the stage directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from scenarios.script import brief, brief_offsets

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.events import Destination, Envelope
from headgate.control_protocol.identifiers import Sender, SinkName, TopicPartition, tag_name
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Landed,
    Refused,
)
from headgate.control_protocol.testing import (
    FakeBatchWriter,
    FakeCatalog,
    FakeTable,
    FakeTopics,
    SourceRecord,
)
from headgate.coordinator.driver import CoordinatorDriver, StartAt
from headgate.coordinator.driver import World as CoordinatorPorts
from headgate.coordinator.settings import CoordinatorSettings
from headgate.coordinator.state import Identity
from headgate.participant.settings import ParticipantSettings
from headgate.participant.state import State, Timer
from headgate.tables.concurrent_secondary_tables import SecondaryTables
from headgate.testing.in_memory_deployment import Deployment
from headgate.testing.node import Node, NodeLog

SINK = SinkName("rides")
TURN_MS = 10
TURNS_MAX = 2_000
COORDINATORS = CoordinatorSettings(
    commit_interval_ms=1_000,
    commit_timeout_ms=500,
    rebalance_delay_ms=50,
    election_timeout_ms=2_000,
    retry_backoff_ms=20,
    retry_backoff_max_ms=100,
)
PARTICIPANTS = ParticipantSettings(
    batch_records_max=100,
    presence_interval_ms=60_000,
    end_offset_interval_ms=50,
    release_timeout_ms=200,
    retry_backoff_ms=50,
)


class Stage(Deployment):
    """``alice`` owns partition 0, and so leads; ``bob``, once he is there, owns the others."""

    def __init__(self, partitions: int = 2, settings: CoordinatorSettings = COORDINATORS) -> None:
        super().__init__({"trips": partitions})
        self.settings = settings
        self.catalog = FakeCatalog(table="lake.trips")
        self.quarantine: FakeCatalog | None = None
        self.others: dict[str, FakeCatalog] = {}
        self.routed: tuple[str, ...] = ()
        self.nodes: dict[str, Player] = {}
        self.lines: list[str] = []
        self.committed: Mapping[TopicPartition, int] = {}

    def keep_bad_records(self) -> None:
        """Every third record is bad, and goes into a quarantine."""
        self.quarantine = FakeCatalog(
            storage=self.catalog.storage, table="lake.trips_quarantine", uuid="uuid-q"
        )

    @property
    def secondaries(self) -> dict[str, FakeCatalog]:
        kept = {self.quarantine.table: self.quarantine} if self.quarantine else {}
        return {**kept, **self.others}

    @property
    def named(self) -> tuple[str, ...]:
        """The secondary tables that START names."""
        return tuple(name for name in self.secondaries if name not in self.routed)

    def called(self, name: str) -> str:
        return "quarantine" if self.quarantine and name == self.quarantine.table else name

    def spread_bad_records(self, secondaries: int) -> None:
        """As ``keep_bad_records``, in turn into so many tables."""
        self.others = {
            name: FakeCatalog(storage=self.catalog.storage, table=name, uuid=f"uuid-{name}")
            for name in (f"lake.f{number:02}" for number in range(1, secondaries + 1))
        }

    def route(self, *tables: str) -> None:
        """The table is a ledger; a record's offset says which of these tables it goes to."""
        self.keep_bad_records()
        self.routed = tables
        self.others = {
            name: FakeCatalog(storage=self.catalog.storage, table=name, uuid=f"uuid-{name}")
            for name in tables
        }

    def place(self, record: SourceRecord) -> tuple[Destination, str]:
        """Where a record goes, as its writer finds it."""
        name = self.routed[record.offset % len(self.routed)]
        return Destination(name, self.others[name].uuid), f"memory://{name}"

    # --------------------------------------------------------------------------- directions

    def direct(self, text: str) -> None:
        self.lines += ["", f"-- {text}"]

    def enter(self, *names: str) -> None:
        for name in names:
            life = self.nodes[name].life + 1 if name in self.nodes else 1
            self.nodes[name] = Player(self, name, life)
        self.share(*[name for name, node in self.nodes.items() if not node.gone])

    def share(self, *names: str) -> None:
        """The first gets partition 0, the rest goes round the others; a rebalance."""
        others = names[1:] or names
        wanted: dict[str, list[TopicPartition]] = {name: [] for name in names}
        wanted[names[0]].append(TopicPartition("trips", 0))
        for number in range(1, len(self.source.partitions)):
            wanted[others[(number - 1) % len(others)]].append(TopicPartition("trips", number))
        self.group.set_target_assignment(
            {self.nodes[name].member: own for name, own in wanted.items()}
        )

    def kill(self, name: str) -> None:
        self.nodes[name].gone = True
        self.lines.append(f"        {name} is killed")

    def session_expires(self, name: str, *heirs: str) -> None:
        self.group.expel(self.nodes[name].member)
        self.share(*heirs)

    def produce(self, *counts: int) -> None:
        for number, count in enumerate(counts):
            at = TopicPartition("trips", number)
            if count:
                self.source.produce(at, count, timestamp_ms=1_000)

    def operator_resumes(self, table: str) -> None:
        """As ``headgate tables resume`` says it."""
        said = self.request_resume(FakeTable(self.catalog, SINK).read().record, table)
        self.lines.append(f"        operator: {brief(said)}")

    # -------------------------------------------------------------------------------- turns

    def until(self, heard: str, times: int = 1) -> None:
        """Turns, until the transcript has so many more lines with this in them."""
        begin = len(self.lines)
        for _ in range(TURNS_MAX):
            if sum(heard in line for line in self.lines[begin:]) >= times:
                return
            self.turn()
        raise AssertionError(f"{heard!r} never came:\n" + "\n".join(self.lines[begin:]))

    def settles(self) -> None:
        """Turns, until the table holds all that the source does and the group knows."""
        for _ in range(TURNS_MAX):
            if self.lag() == 0 and self.committed == self.source_ends():
                return
            self.turn()
        raise AssertionError("it does not settle:\n" + "\n".join(self.lines))

    def passes(self, ms: int) -> None:
        for _ in range(ms // TURN_MS):
            self.turn()

    def turn(self) -> None:
        self.clock.advance(TURN_MS)
        for node in list(self.nodes.values()):
            node.turn()
        committed = {at: offset for at, (offset, _) in self.source.committed.items()}
        if committed != self.committed:
            self.committed = committed
            self.lines.append(f"        group: {brief_offsets(Offsets(committed))}")

    # ------------------------------------------------------------------------------- what is

    def lag(self) -> int:
        there = {(row.topic_id, row.partition, row.offset) for row in self.rows()}
        wanted = {
            (self.source.topic_ids[at.topic], at.partition, offset)
            for at, log in self.source.partitions.items()
            for offset in log.timestamps_ms
        }
        return len(wanted - there)

    def rows(self) -> list[SourceRecord]:
        """Of the table and of its secondary tables."""
        return [r for c in (self.catalog, *self.secondaries.values()) for r in c.visible_rows()]

    def doubles(self) -> int:
        rows = self.rows()
        return len(rows) - len(set(rows))

    def head(self) -> int:
        head = self.catalog.head()
        assert head is not None
        return head.snapshot_id

    def tag(self) -> str:
        return tag_name(SINK)


class Player(Node):
    """A process on the stage."""

    def __init__(self, stage: Stage, name: str, life: int) -> None:
        super().__init__(stage, name, life)
        self.stage = stage
        self.member = f"{name}.{life}"
        self.asleep = False
        writer = FakeBatchWriter(stage.source, stage.catalog.storage, stage.clock, 0)
        if stage.secondaries:
            writer.bad = lambda record: record.offset % 3 == 2
            writer.route = lambda record: record.offset // 3
            if stage.routed:
                writer.bad = lambda _record: False
                writer.takes = stage.place
            writer.held = lambda: [
                row for catalog in stage.secondaries.values() for row in catalog.visible_rows()
            ]
        self.writer = writer
        initial = State(SINK, Sender(name, str(life)), PARTICIPANTS)
        self.start_participant(
            replace(initial, deadlines={Timer.ALIVE: 10**9}), writer, log=Scribe(self)
        )

    def turn(self) -> None:
        self._guarded(lambda: self.participant.run_once(0))
        self.coordinator_turn()

    def coordinator_turn(self) -> None:
        coordinator = self.coordinator
        if coordinator is not None:
            self._guarded(lambda: coordinator.run_once(0))

    def _guarded(self, turn: Callable[[], object]) -> None:
        if not (self.gone or self.asleep):
            self.run_turn_and_note_death(turn)

    def on_killed(self) -> None:
        self.stage.kill(self.name)

    def on_stopped(self, error: HeadgateError) -> None:
        self.gone = True
        self.stage.lines.append(f"        {self.name} stops: {error}")

    def new_coordinator(self) -> CoordinatorDriver:
        stage = self.stage
        ports = CoordinatorPorts(
            Scribe(self),
            Clerk(self, stage.catalog, "table"),
            FakeTopics(stage.source, stage.topics),
            stage.clock,
            secondaries=SecondaryTables(
                lambda name: Clerk(self, stage.secondaries[name], stage.called(name)),
                threads=False,
                required=stage.named if stage.routed else None,
            ),
        )
        identity = Identity(
            SINK,
            "rides-group",
            Sender(self.name, f"{self.life}c"),
            secondaries=stage.named,
            routed=bool(stage.routed),
        )
        return CoordinatorDriver(identity, stage.settings, ports, StartAt())


class Scribe(NodeLog):
    """A node's log, which writes down what is said."""

    def __init__(self, node: Player) -> None:
        super().__init__(node)
        self._stage = node.stage

    def append_without_death_points(self, envelopes: Sequence[Envelope]) -> None:
        at = self._stage.log.end
        try:
            super().append_without_death_points(envelopes)
            fate = ""
        except HeadgateError as error:
            fate = f"   <- {type(error).__name__}"
            raise
        finally:
            for k, envelope in enumerate(envelopes):
                place = f"{at + k:4}" if self._stage.log.end > at + k else "   ?"
                who = f"{self._node.name}:".ljust(7)
                self._stage.lines.append(f"{place}    {who} {brief(envelope)}{fate}".rstrip())


class Clerk(FakeTable):
    """A node's table, which writes down every commit call and its answer."""

    def __init__(self, node: Player, catalog: FakeCatalog, name: str) -> None:
        super().__init__(catalog, SINK)
        self._node, self._stage, self._name = node, node.stage, name

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        outcome = super().commit(attempt)
        record = attempt.record
        what = "claim" if record.is_claim else f"{record.records} rows"
        if attempt.pending_commits:
            what = f"delivered {record.records} rows"
        elif record.pending_commits:
            what += (
                ", has pending "
                f"{sum(pending_commit.rows for pending_commit in record.pending_commits)}"
            )
        match outcome:
            case Landed(snapshot):
                answer = f"snapshot {snapshot}"
            case Refused(reason):
                answer = f"refused: {reason}"
            case _:
                answer = "no answer"
        self._stage.lines.append(
            f"        {self._name}: {self._node.name} commits {record.transaction} ({what}), "
            f"{brief_offsets(record.offsets)} -> {answer}"
        )
        self._node.die_if_due_at("committed" if self._name == "table" else "delivered")
        self._node.die_if_due_at(f"delivered {self._name}")
        return outcome
