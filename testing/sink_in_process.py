"""Runs a sink of any format in one process: real machines, writers and tables, and no Kafka.

The control log, the group and the source are in memory; what a record says is up to the test.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from headgate.config.sink_settings import SinkSettings
from headgate.config.table_format_registry import plugin_format
from headgate.control_protocol.columns import Struct
from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.errors import HeadgateError, TableMissing
from headgate.control_protocol.identifiers import Epoch, Sender, TopicPartition
from headgate.control_protocol.ports import (
    AllSecondaryTables,
    Batch,
    BatchOutcome,
    Changed,
    CommitAttempt,
    CommitOutcome,
    EvolvedTable,
    PrimaryTable,
    Staging,
    TableView,
    Unknown,
    Want,
)
from headgate.control_protocol.table_format import TableFormat
from headgate.control_protocol.testing import FakeTopics
from headgate.coordinator.driver import CoordinatorDriver
from headgate.coordinator.driver import World as CoordinatorPorts
from headgate.data_plane.write.in_process_writer import chunk_of
from headgate.data_plane.write.write_batch import write_chunk_around_poison
from headgate.kafka.push_source import Record
from headgate.participant.driver import ParticipantDriver
from headgate.participant.state import Timer
from headgate.runtime.assembly import build_coordinator_driver, build_participant_state
from headgate.runtime.maintenance.scheduler import begin_maintenance_if_wanted
from headgate.runtime.sink_tables import SinkTables
from headgate.testing.in_memory_deployment import Deployment
from headgate.testing.node import Killed, Node, NodeLog

TURN_MS = 10
_PATIENCE_S = 120.0

Value = Callable[[TopicPartition, int], bytes | None]

LateCommit = Callable[[], CommitOutcome]
"""Makes a commit arrive after the process that sent it is gone."""


class SinkInProcess(Deployment):
    """One life of a participant with its coordinator after the other, on tables that stay.

    ``lost_answers`` hit the next commits of rows to the sink's table, in order, one each: whether
    it lands although nobody learns of it. ``lost_deliveries``: so, of deliveries.
    """

    def __init__(
        self, settings: SinkSettings, value: Value, key: Value = lambda _, __: None
    ) -> None:
        super().__init__(dict.fromkeys(settings.source.topics, 1))
        self.settings = settings
        self.value = value
        self.key = key
        self.lives = 0
        self.produced = 0
        self.lost_answers = deque[bool]()
        self.lost_deliveries = deque[bool]()
        self.life: Life | None = None
        self._paused = ExitStack()

    def produce(self, count_per_topic: int) -> None:
        """Produce so many more records to partition 0 of each topic."""
        for topic in self.settings.source.topics:
            self.source.produce(TopicPartition(topic, 0), count_per_topic, 1_000)
            self.produced += count_per_topic

    def begin_life(self) -> None:
        """A new life, whose predecessor may have died in the middle of anything."""
        self._end_current_life()
        self.lives += 1
        self.life = Life(self)
        self.life.start()

    def end_lives(self) -> None:
        """End this life, and all that were paused."""
        self._end_current_life()
        self._paused.close()

    def freeze_life(self) -> None:
        """Let this life stand still for good: it does not learn that another one begins."""
        if self.life is not None:
            self._paused.push(self.life.opened.pop_all())
        self._end_current_life()

    def _end_current_life(self) -> None:
        if self.life is not None:
            self.life.end()

    @property
    def table(self) -> PrimaryTable:
        return self._current_life.table

    @property
    def tables(self) -> SinkTables:
        return self._current_life.tables

    @property
    def coordinator(self) -> CoordinatorDriver:
        coordinator = self._current_life.coordinator
        assert coordinator is not None
        return coordinator

    @property
    def participant(self) -> ParticipantDriver:
        return self._current_life.participant

    @property
    def _current_life(self) -> Life:
        assert self.life is not None, "begin_life() starts a life"
        return self.life

    @property
    def table_format(self) -> TableFormat:
        kind = plugin_format(self.settings)
        assert kind is not None
        return kind

    def run_until(self, done: Callable[[], bool]) -> None:
        """Turns, until that is so."""
        until_s = time.monotonic() + _PATIENCE_S
        while not done():
            assert time.monotonic() < until_s, (
                f"for ever: {self.tables_with_pending_commits()}, {self.lag()} behind"
            )
            self.turn()

    def turn(self) -> None:
        self.clock.advance(TURN_MS)
        self.participant.run_once(0)
        self.coordinator.run_once(0)

    def run_until_settled(self, *except_tables: str) -> None:
        """Run until all is read, decided and delivered, but to these tables."""
        self.run_until(
            lambda: self.lag() == 0 and self.tables_with_pending_commits() <= set(except_tables)
        )

    def run_until_killed(self, step: str) -> LateCommit:
        """Turns, until the process is about to take this step, or has taken it: it is gone then.

        Return the commit that it was about to make, or had made, as it would still arrive.
        """
        life = self._current_life
        life.dies_at = step
        try:
            self.run_until(lambda: False)
        except Killed:
            life.gone = True
            return life.under_way
        raise AssertionError("unreachable")  # pragma: no cover - ``run_until`` does not return

    @property
    def record(self) -> CommitRecord | None:
        return self.table.read().record

    def lag(self) -> int:
        stored = self.record.offsets if self.record else {}
        return sum(end - stored.get(at, 0) for at, end in self.source_ends().items())

    def tables_with_pending_commits(self) -> set[str]:
        """The tables for which commits are pending, as the coordinator knows it."""
        term = self.coordinator.state.term
        return {pending_commit.table for pending_commit in term.delivery.pending} if term else set()

    def reasons_of_suspended_tables(self) -> dict[str, str]:
        """Why those tables take nothing that are suspended."""
        suspended = self.record.suspended if self.record else ()
        return {each.table: each.why for each in suspended if not each.resuming}

    def resume_tables(self, *tables: str) -> None:
        """Ask to resume suspended tables, as ``headgate tables resume`` does."""
        self.request_resume(self.record, *tables)


class Life(Node):
    """One life of the process, on tables that it opens itself."""

    def __init__(self, sink: SinkInProcess) -> None:
        super().__init__(sink, "member", sink.lives)
        self.sink = sink
        self.member = f"{self.name}-{self.life}"
        self.opened = ExitStack()
        self.under_way: LateCommit = lambda: Unknown("no commit was made")

    def start(self) -> None:
        sink = self.sink
        self.tables = self._prepare_tables()
        self.on_assignment(frozenset(sink.source.partitions))
        sink.group.set_target_assignment({self.member: frozenset(sink.source.partitions)})
        initial = build_participant_state(sink.settings, Sender(self.member, "p"))
        self.start_participant(
            replace(initial, deadlines={Timer.ALIVE: 10**9}), _Writer(sink, self.tables)
        )

    def _prepare_tables(self) -> SinkTables:
        """Do as ``SinkTables.prepare_tables``, which asks brokers whether a table was filled."""
        tables = SinkTables(self.sink.settings, self.opened)
        tables.primary_format.create(tables.table_spec_of(tables.name))
        tables.require_fit_table()
        if self.sink.settings.quarantine.keeps_rejected_records:
            tables.prepare_quarantine()
        return tables

    def end(self) -> None:
        self.opened.close()
        self.sink.group.expel(self.member)

    def new_coordinator(self) -> CoordinatorDriver:
        sink, settings = self.sink, self.sink.settings
        topics = FakeTopics(sink.source, settings.source.topics)
        found = self.tables.open_coordinator_ports(settings, topics, self.opened)
        begin_maintenance_if_wanted(found.tables, self.opened, None)
        self.table = found.table
        ports = CoordinatorPorts(
            NodeLog(self),
            _Primary(self, found.table),
            found.sources,
            sink.clock,
            secondaries=_Secondaries(self, found.secondaries),
            stamp=found.new_token,
        )
        return build_coordinator_driver(settings, Sender(self.member, "c"), ports)


class _Primary:
    """``PrimaryTable`` of a life, which may die at each call, and not get an answer."""

    def __init__(self, life: Life, table: PrimaryTable) -> None:
        self._life, self._table = life, table

    def read(self) -> TableView:
        return self._table.read()

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        life, lost = self._life, self._life.sink.lost_answers
        life.under_way = lambda: self._table.commit(attempt)
        before, after = ("claim", "claimed") if attempt.record.is_claim else ("commit", "committed")
        life.die_if_due_at(before)
        fate = lost.popleft() if lost and not attempt.record.is_claim else None
        outcome = Unknown("it was lost") if fate is False else self._table.commit(attempt)
        life.die_if_due_at(after)
        return outcome if fate is None else Unknown("the answer was lost")

    def evolve(self, base: TableView, columns: Struct) -> EvolvedTable:
        self._life.die_if_due_at("evolve")
        evolved = self._table.evolve(base, columns)
        self._life.die_if_due_at("evolved")
        return evolved

    def close(self) -> None:
        """The life closes what it has opened."""


class _Secondaries:
    """``AllSecondaryTables`` of a life, as ``_Primary``."""

    def __init__(self, life: Life, tables: AllSecondaryTables) -> None:
        self._life, self._tables = life, tables

    def try_read_views(self, tables: Collection[str]) -> Mapping[str, TableView | HeadgateError]:
        return self._tables.try_read_views(tables)

    def find_missing_tables(self, tables: Collection[str]) -> Mapping[str, TableMissing]:
        return self._tables.find_missing_tables(tables)

    def stage(
        self, drafts: Sequence[Staging]
    ) -> Mapping[str, tuple[PendingCommit, ...] | HeadgateError]:
        self._life.die_if_due_at("stage")
        staged = self._tables.stage(drafts)
        self._life.die_if_due_at("staged")
        return staged

    def create_or_change_tables(self, wants: Sequence[Want]) -> tuple[Changed, ...]:
        self._life.die_if_due_at("change")
        changed = self._tables.create_or_change_tables(wants)
        self._life.die_if_due_at("changed")
        return changed

    def deliver(
        self, deliveries: Sequence[CommitAttempt], timeout_ms: int
    ) -> Mapping[str, CommitOutcome | HeadgateError]:
        life, lost = self._life, self._life.sink.lost_deliveries

        def let_arrive() -> CommitOutcome:
            outcome, *_ = self._tables.deliver(deliveries, timeout_ms).values()
            assert not isinstance(outcome, HeadgateError), outcome
            return outcome

        life.under_way = let_arrive
        life.die_if_due_at("deliver")
        fate = lost.popleft() if lost else None
        unknown = dict.fromkeys((each.base.table for each in deliveries), Unknown("it was lost"))
        outcomes = unknown if fate is False else self._tables.deliver(deliveries, timeout_ms)
        life.die_if_due_at("delivered")
        return outcomes if fate is None else unknown

    def delete_undecided_manifests(
        self, before_epoch: Epoch, pending_manifests: frozenset[str]
    ) -> None:
        self._tables.delete_undecided_manifests(before_epoch, pending_manifests)

    def delete_delivered_key_files(self, delivered_commits: Sequence[PendingCommit]) -> None:
        self._tables.delete_delivered_key_files(delivered_commits)

    def close(self) -> None:
        """The life closes what it has opened."""


class _Writer:
    """``BatchWriter`` that has written when it is asked."""

    def __init__(self, sink: SinkInProcess, tables: SinkTables) -> None:
        self._sink = sink
        self._planning = tables.build_planning()
        self._batch: Batch | None = None

    def submit(self, batch: Batch) -> None:
        self._batch = batch

    def wait_for_outcome(self, timeout_ms: int) -> BatchOutcome | None:
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
            batch, lambda plan: write_chunk_around_poison(plan, batch, chunk)
        )

    def close(self) -> None:
        """Nothing is held."""
