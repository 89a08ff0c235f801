"""A sink of any kind in one process: real machines, writers and tables, and no Kafka.

The control log, the group and the source are in memory; what a record says is up to the test.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing

from headgate.config.shared_configuration import agreed_settings
from headgate.config.sink_settings import SinkSettings
from headgate.config.table_declaration import declaration
from headgate.config.table_formats import plugin_format, table_spec
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.events import Envelope, Resume
from headgate.control_protocol.identifiers import Sender, TopicPartition
from headgate.control_protocol.ports import Batch, BatchOutcome
from headgate.control_protocol.table_format import TableFormat
from headgate.control_protocol.testing import (
    FakeClock,
    FakeGroup,
    FakeLog,
    FakeLogServer,
    FakeMember,
    FakeSource,
    FakeTopics,
)
from headgate.coordinator.driver import CoordinatorDriver, StartAt
from headgate.coordinator.driver import World as CoordinatorWorld
from headgate.data_plane.write.in_process_writer import chunk_of
from headgate.data_plane.write.write_batch import write_put_records
from headgate.kafka.embedded_source import Record
from headgate.participant.driver import ParticipantDriver
from headgate.participant.driver import World as ParticipantWorld
from headgate.participant.state import State, Timer
from headgate.runtime.assembly import build_identity
from headgate.runtime.catalogs import open_catalog
from headgate.runtime.maintenance.scheduler import begin_maintenance
from headgate.runtime.sink_tables import SinkTables
from headgate.tables.iceberg.table_creation import ensure_table

TURN_MS = 10
_PATIENCE_S = 120.0

Value = Callable[[TopicPartition, int], bytes | None]


class SinkInProcess:
    """One life of a participant with its coordinator after the other, on tables that stay."""

    def __init__(
        self, settings: SinkSettings, value: Value, key: Value = lambda _, __: None
    ) -> None:
        self.settings = settings
        self.value = value
        self.key = key
        self.clock = FakeClock()
        self.server = FakeLogServer(self.clock)
        self.source = FakeSource()
        self.group = FakeGroup(self.source, self.clock)
        self.lives = 0
        self.produced = 0
        for topic in settings.source.topics:
            self.source.create(topic, 1)
        self._dying = ExitStack()

    def produce(self, count: int) -> None:
        """So many records more for each topic."""
        for topic in self.settings.source.topics:
            self.source.produce(TopicPartition(topic, 0), count, 1_000)
            self.produced += count

    def begin(self) -> None:
        """A new life, whose predecessor may have died in the middle of anything."""
        self.die()
        self.lives += 1
        tables = self._ready()
        topics = FakeTopics(self.source, self.settings.source.topics)
        found = tables.open_coordinator_ports(self.settings, topics, self._dying)
        begin_maintenance(found.tables, self._dying, None)
        self.table = found.table
        member = f"member-{self.lives}"
        self.coordinator = CoordinatorDriver(
            build_identity(self.settings, Sender(member, "c")),
            self.settings.coordinator,
            CoordinatorWorld(
                FakeLog(self.server),
                found.table,
                found.sources,
                self.clock,
                secondaries=found.secondaries,
            ),
            StartAt("earliest"),
            limits=self.settings.limits,
        )
        self.group.assign({member: frozenset(self.source.partitions)})
        self.participant = ParticipantDriver(
            State(
                self.settings.name,
                Sender(member, "p"),
                self.settings.participant,
                table=self.settings.table.identifier,
                configuration=agreed_settings(self.settings),
                deadlines={Timer.ALIVE: 10**9},
            ),
            ParticipantWorld(
                FakeMember(self.group, member),
                FakeLog(self.server),
                _Writer(self, tables),
                _Leading(self.coordinator),
                self.clock,
            ),
        )

    @property
    def kind(self) -> TableFormat:
        kind = plugin_format(self.settings)
        assert kind is not None
        return kind

    def _ready(self) -> SinkTables:
        if kind := plugin_format(self.settings):
            kind.create(table_spec(self.settings))
        else:
            with closing(open_catalog(self.settings)) as catalog:
                name = self.settings.table.identifier
                ensure_table(catalog, name, declaration(self.settings.table))
        tables = SinkTables(self.settings, self._dying)
        if self.settings.quarantine.keeps_rejected:
            tables.prepare_quarantine()
        return tables

    def die(self) -> None:
        self._dying.close()
        self.group.expel(f"member-{self.lives}")

    def until(self, done: Callable[[], bool]) -> None:
        """Turns, until that is so."""
        until_s = time.monotonic() + _PATIENCE_S
        while not done():
            assert time.monotonic() < until_s, f"for ever: {self.pending()}, {self.lag()} behind"
            self.clock.advance(TURN_MS)
            self.participant.run_once(0)
            self.coordinator.run_once(0)

    def until_settled(self, *but: str) -> None:
        """Everything is read, decided, and delivered, but to these tables."""
        self.until(lambda: self.lag() == 0 and self.pending() <= set(but))

    @property
    def record(self) -> CommitRecord | None:
        return self.table.read().record

    def lag(self) -> int:
        stored = self.record.offsets if self.record else {}
        ends = {at: log.end for at, log in self.source.partitions.items()}
        return sum(end - stored.get(at, 0) for at, end in ends.items())

    def pending(self) -> set[str]:
        """The tables that are pending something, as the coordinator knows it."""
        term = self.coordinator.state.term
        return {pending_commit.table for pending_commit in term.delivery.pending} if term else set()

    def suspended(self) -> dict[str, str]:
        """Why those tables take nothing that are suspended."""
        suspended = self.record.suspended if self.record else ()
        return {each.table: each.why for each in suspended if not each.resuming}

    def resume(self, *tables: str) -> None:
        """As ``headgate tables resume`` says it."""
        record = self.record
        assert record is not None
        newest, sender = record.transaction, Sender("operator", "1")
        event = Resume(tables)
        name = self.settings.name
        said = Envelope(name, newest.epoch, newest.number, sender, 1, 0, event)
        FakeLog(self.server).append([said])


class _Writer:
    """``BatchWriter`` that has written when it is asked."""

    def __init__(self, sink: SinkInProcess, tables: SinkTables) -> None:
        self._sink = sink
        self._planning = tables.planning()
        self._batch: Batch | None = None

    def submit(self, batch: Batch) -> None:
        self._batch = batch

    def outcome(self, timeout_ms: int) -> BatchOutcome | None:
        del timeout_ms
        batch, self._batch = self._batch, None
        if batch is None:
            return None
        source, value, key = self._sink.source, self._sink.value, self._sink.key
        records = [
            [
                Record(at.topic, at.partition, n, 1_000, value(at, n), key(at, n), [])
                for n in (record.offset for record in source.records(at, span))
            ]
            for at, span in batch.ranges.items()
        ]
        chunk = chunk_of(records)
        return self._planning.write_planned(
            batch, lambda plan: write_put_records(plan, batch, chunk)
        )

    def close(self) -> None:
        """Nothing is held."""


class _Leading:
    """``Leadership`` of who is alone."""

    def __init__(self, coordinator: CoordinatorDriver) -> None:
        self._coordinator = coordinator

    def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        if partitions:
            self._coordinator.primary()

    def failure(self) -> BaseException | None:
        return None

    def close(self) -> None:
        """The test ends it."""
