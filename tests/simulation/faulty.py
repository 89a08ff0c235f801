"""Wraps the ports as nodes see them: faults may strike before and after every call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simulation.climate import Handover

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.errors import (
    AppendUnconfirmed,
    PoisonRecord,
    TooManyBadRecords,
    Unreachable,
)
from headgate.control_protocol.events import (
    Envelope,
    FileKind,
    LogRecord,
    StartCommit,
    WriteStatus,
)
from headgate.control_protocol.identifiers import ControlOffset, Epoch, TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    Batch,
    BatchFailed,
    BatchNeeds,
    BatchOutcome,
    BatchWritten,
    CommitAttempt,
    CommitOutcome,
    EvolvedTable,
    Landed,
    Lineage,
    SecondaryTable,
    Staging,
    TableView,
    TopicState,
    Unknown,
)
from headgate.control_protocol.testing import (
    CommitFault,
    FakeBatchWriter,
    FakeLog,
    FakeMember,
    FakeTopics,
)

if TYPE_CHECKING:
    from simulation.node import Node
    from simulation.world import World


class Struck:
    """A port of one life of one node: after that life's end every call of it ends in the kill."""

    _world: World
    _node: Node
    _life: int

    def _of(self, world: World, node: Node) -> None:
        self._world, self._node, self._life = world, node, node.life

    def _strike(self, where: str) -> None:
        self._world.strike(self._node, self._life, where)


class FaultyLog(Struck):
    def __init__(self, world: World, node: Node, role: str) -> None:
        self._of(world, node)
        self._role = role
        self._log = FakeLog(world.log, world.forger.wire)
        self._held: list[LogRecord] = []

    @property
    def held(self) -> bool:
        """Something is there that was not heard yet."""
        return bool(self._held)

    @property
    def position(self) -> int:
        """The next control offset that this reader has not got yet."""
        return self._log.position

    def append(self, envelopes: Sequence[Envelope]) -> None:
        self._strike("append")
        for envelope in envelopes:
            self._world.note_said(self._node, envelope)
        arriving = self._world.torn(envelopes)
        self._append(envelopes[:arriving])
        self._strike("appended")
        if arriving is not None:
            raise AppendUnconfirmed("the connection broke in the middle")

    def _append(self, envelopes: Sequence[Envelope]) -> None:
        self._world.log_fault()
        begin = self._world.log.end
        try:
            self._log.append(envelopes)
        finally:
            self._world.appended(envelopes, begin)

    def read(self, timeout_ms: int) -> list[LogRecord]:
        """Readers lag: only some of what is there is heard now."""
        self._strike("read")
        try:
            self._held += self._log.read(0)
        except Unreachable:
            self._world.clock.advance(timeout_ms)
            raise
        if not self._held:
            self._world.clock.advance(timeout_ms)
            return []
        heard = self._world.some_of(len(self._held), self._role)
        records, self._held = self._held[:heard], self._held[heard:]
        return records

    def seek(self, offset: ControlOffset) -> None:
        self._strike("seek")
        self._held.clear()
        self._log.seek(offset)

    def end_offset(self) -> ControlOffset:
        return self._log.end_offset()

    def close(self) -> None:
        self._log.close()


class FaultyTable(Struck):
    """``called`` is "" for the primary table, and tells the secondary tables' calls from its."""

    def __init__(
        self, world: World, node: Node, table: SecondaryTable, catalog: Any, *, called: str = ""
    ) -> None:
        self._of(world, node)
        self._catalog = catalog
        self._table, self._called = table, called

    @property
    def bare(self) -> SecondaryTable:
        """The table itself."""
        return self._table

    def _refuse_if_cut_off(self) -> None:
        if self._world.wedge.cuts(self._node):
            raise Unreachable("no catalog answers this node")

    def read(self) -> TableView:
        self._strike(f"{self._called}table read")
        self._world.catalog_is_slow()
        self._refuse_if_cut_off()
        view = self._table.read()
        self._strike(f"{self._called}table was read")
        return view

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        self._strike(f"{self._called}commit")
        self._world.catalog_is_slow()
        if self._world.wedge.cuts(self._node):
            return Unknown("no catalog answers this node")
        if self._world.catalog_lies():
            return self._lie(attempt)
        self._world.commit_fault(self._catalog, self._called)
        self._world.somebody_compacts(self._catalog)
        outcome = self._table.commit(attempt)
        self._world.note(
            "{} commits {}{}: {}",
            self._node.name,
            self._called,
            attempt.record.transaction,
            type(outcome).__name__,
        )
        self._world.catalog_is_slow()
        self._strike(f"{self._called}committed")
        if not self._called and attempt.record.pending_commits:
            self._world.strike_between(self._node)
        return outcome

    def evolve(self, base: TableView, columns: Struct) -> EvolvedTable:
        world = self._world
        self._strike("evolve")
        self._refuse_if_cut_off()
        world.catalog_is_slow()
        if world.columns is not None and world.columns.somebody_else_adds(columns):
            world.struck["somebody else adds a column"] += 1
        if world.chance(world.rates.commit):
            fault = world.random.choice(list(CommitFault))
            world.struck[f"evolve {fault.name}"] += 1
            self._catalog.schema_faults.append(fault)
        world.struck["records with new fields"] += 1
        evolved = self._table.evolve(base, columns)
        world.note("{} evolves: {}", self._node.name, evolved.changes)
        world.catalog_is_slow()
        self._strike("evolved")
        return evolved

    def stage(self, staging: Staging) -> tuple[PendingCommit, ...]:
        self._strike(f"{self._called}draft")
        self._refuse_if_cut_off()
        quarantine = self._world.quarantine
        assert quarantine is not None
        pending_commits = self._table.stage(staging)
        for pending_commit in pending_commits:
            kind = FileKind.KEYS if pending_commit.deletes else FileKind.ROWS
            quarantine.was_drafted(
                pending_commit, [file for file in staging.files if file.kind is kind]
            )
        self._strike(f"{self._called}drafted")
        return pending_commits

    def delete_undecided_manifests(
        self, before_epoch: Epoch, pending_manifests: frozenset[str]
    ) -> None:
        self._table.delete_undecided_manifests(before_epoch, pending_manifests)

    def delete_delivered_key_files(self, delivered_commits: Sequence[PendingCommit]) -> None:
        self._table.delete_delivered_key_files(delivered_commits)

    def _lie(self, attempt: CommitAttempt) -> CommitOutcome:
        """Said to have landed; the table never hears of it."""
        never = self._catalog.new_snapshot("main", (), {}).snapshot_id
        self._world.note(
            "{} is told that {} landed, a lie", self._node.name, attempt.record.transaction
        )
        view = replace(
            attempt.base,
            head=never,
            tag=never,
            record=attempt.record,
            branch_record=attempt.record,
            lineage=Lineage.CONTAINS_TAG,
        )
        return Landed(never, view)

    def close(self) -> None:
        self._table.close()


class Dated:
    """The primary table: what is decided must not be too old then, and bear its transaction's
    stamp."""

    def __init__(self, world: World, table: FaultyTable) -> None:
        self._world, self._table = world, table
        self.read, self.close, self.evolve = table.read, table.close, table.evolve

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        stamps = self._world.stamps
        self._world.checks_age(attempt)
        if stamps:
            stamps.checks(attempt)
        refusal = stamps.refusal(attempt) if stamps else None
        return refusal or self._table.commit(attempt)


class FaultyTopics(Struck):
    def __init__(self, world: World, node: Node) -> None:
        self._of(world, node)
        self._topics = FakeTopics(world.source, world.topics)

    def describe(self) -> Mapping[str, TopicState]:
        self._strike("describe")
        described = self._topics.describe()
        self._strike("described")
        return described

    def offsets_at(self, timestamp_ms: int) -> Offsets:
        return self._topics.offsets_at(timestamp_ms)

    def committed_offset_metadata(self) -> str | None:
        return self._topics.committed_offset_metadata()

    def close(self) -> None:
        self._topics.close()


class FaultyMember(FakeMember, Struck):
    def __init__(self, world: World, node: Node) -> None:
        self._of(world, node)
        self._assignments = world.assignments
        super().__init__(world.group, node.member, node.release)

    def poll(self, timeout_ms: int) -> None:
        self._strike("poll")
        match self._world.climate.handover:
            case Handover.EAGER if self._assignments != self._world.assignments:
                self._assignments = self._world.assignments
                self._give_up_everything()
            case Handover.LATE:
                self._told_late()
        if self._cut_off():
            return
        before = self._owned
        self._world.struck["callback lost"] += bool(
            before - self._group.partitions_owned_by(self._name)
        )
        super().poll(timeout_ms)
        self._world.group_changes += self._owned != before
        self._strike("polled")

    def _cut_off(self) -> bool:
        """It hears nothing of the group any more, which gives its seat away."""
        if not self._node.cut_off:
            return False
        if self._group.wanted.get(self._name) or self._group.partitions_owned_by(self._name):
            self._world.struck["cut off from the group"] += 1
            self._world.expel(self._name)
            self._world.events.rebalance()
        return True

    def _give_up_everything(self) -> None:
        self._owned &= self._group.partitions_owned_by(self._name)
        if self._owned:
            leaving = self._owned
            self._world.struck["all given up in a rebalance"] += 1
            try:
                self._on_revoke(leaving)
            finally:
                self._release(leaving)

    def _told_late(self) -> None:
        """The callback comes when others work on the partitions already."""
        lost = self._owned - self._group.partitions_owned_by(self._name)
        if lost:
            self._world.struck["callback late"] += 1
            self._on_revoke(lost)

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._strike("ends")
        return self._world.silence.over(super().end_offsets(partitions))

    def copy_offsets_to_group(self, offsets: Offsets, metadata: str) -> None:
        self._strike("copy to the group")
        super().copy_offsets_to_group(offsets, metadata)
        self._world.group_offsets_copied()


class FaultyWriter(FakeBatchWriter, Struck):
    def __init__(self, world: World, node: Node) -> None:
        super().__init__(world.source, world.catalog.storage, world.clock)
        self._of(world, node)
        if world.quarantine is not None:
            self.bad, self.held = world.quarantine.bad, world.quarantine.held
            self.route = world.quarantine.router((node.number, node.life))
            self.takes = world.quarantine.takes((node.number, node.life))
        if world.columns is not None:
            self.wants, self.has = world.columns.wants, world.columns.has
        if world.keys is not None:
            self.deletes = world.keys.removes

    @property
    def due_ms(self) -> int | None:
        return self._due_ms

    def submit(self, batch: Batch) -> None:
        self._strike("submit")
        world = self._world
        self._failure = None  # one that was meant for an abandoned batch
        self.work_ms = world.work_ms(self._node)
        world.calm.reads(batch)
        world.checks_prefix(batch)
        world.checks_pause(self._node)
        if world.batch_fails():
            self.fail_next_outcome("disk full")
        if elsewhere := world.wedge.elsewhere((self._node.number, self._node.life), batch):
            self.fail_next_outcome(elsewhere)
        poison = world.poison
        if poison and poison[0] in batch.ranges and not world.mended:
            (at, offset), offsets = poison, batch.ranges[poison[0]]
            if offsets.begin <= offset < offsets.end:
                error = PoisonRecord(f"{at} offset {offset}: no JSON", "", Offsets({at: offset}))
                self.fail_next_outcome("poison", error)
        super().submit(batch)
        world.struck["bad records are there already"] += bool(self._known)

    def wait_for_outcome(self, timeout_ms: int) -> BatchOutcome | None:
        batch, outcome = self.batch, super().wait_for_outcome(timeout_ms)
        if isinstance(outcome, BatchNeeds):
            assert batch is not None
            self._world.calm.gives_back(batch)
        if isinstance(outcome, BatchWritten):
            now_ms = self._world.clock.now_ms
            secondary = (file for files in outcome.secondary_files.values() for file in files)
            files = (*outcome.files, *outcome.quarantined, *secondary)
            self._world.written_ms.update((file.path, now_ms) for file in files)
            outcome = self._limited(self._world.wedge.spoilt(self._node, outcome))
        if outcome is not None:
            self._strike("batch done")
        return outcome

    def _limited(self, written: BatchWritten) -> BatchOutcome:
        """QUARANTINE-5."""
        quarantine = self._world.quarantine
        bad = sum(result.bad for result in written.partitions.values())
        objection = quarantine.limits.reason_if_too_many(bad) if quarantine else None
        if objection is None:
            return written
        return BatchFailed(written.number, objection, TooManyBadRecords(objection))


def brief(envelope: Envelope) -> str:
    event = envelope.event
    text = f"{type(event).__name__} {envelope.epoch}.{envelope.transaction}"
    if isinstance(event, WriteStatus):
        claims = {str(p): str(c.range) for p, c in event.written.items()}
        text += f" #{event.status_number} {claims} unknown={sorted(map(str, event.unknown))}"
        text += f" part {event.part}/{event.parts}" if event.parts > 1 else ""
    if isinstance(event, StartCommit) and event.paused:
        text += " paused"
    for name in ("settled_to", "offsets", "concerns", "reason"):
        if getattr(event, name, None):
            text += f" {name}={getattr(event, name)}"
    return text
