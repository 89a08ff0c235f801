"""Audits the keyed tables of a sink: each by itself, and against the fold of its topics.

Of one table, all topics lead there. Of many, topics that lead to the same tables are read once: the
sink's own routes sort their records by table, and each is compared with the fold of its own. What
the source cannot show is reported as unproven: it may no longer hold all records, or a person may
have moved offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import cast

from pyroaring import BitMap64

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.table_history import History, LiveFile, TableReader
from headgate.data_plane.routing.keyed_routes import may_have_key, may_name
from headgate.operations.audit.changelog_replay import FoldEvidence, SourceRanges, folding
from headgate.operations.audit.files import OnProgress
from headgate.operations.audit.keyed_table import (
    DEATHS_UNTOLD,
    NOT_FOLDED,
    Told,
    told_of_deaths,
    told_of_fold,
    told_of_keys,
    told_of_rows,
)
from headgate.operations.audit.replay_compare import Fault
from headgate.operations.audit.replay_routing import Others, RoutedShares
from headgate.operations.audit.report import PartitionAudit
from headgate.operations.audit.source import Witness
from headgate.tables.iceberg.reader import IcebergReader


@dataclass(slots=True)
class KeyedTable:
    """One keyed table. ``offsets``: how far it was delivered to.

    ``fold``: its comparison, for an Iceberg ``reader``.
    """

    name: str
    reader: IcebergReader | None
    history: History
    offsets: Offsets
    whole: bool = True
    fold: FoldEvidence | None = None


@dataclass(slots=True)
class KeyedTables:
    """The keyed tables of one sink; findings about them go to ``told``."""

    settings: SinkSettings
    on_progress: OnProgress
    told: Told = field(default_factory=Told)
    tables: dict[str, KeyedTable] = field(default_factory=dict)
    moved_past: Mapping[TopicPartition, BitMap64] = field(default_factory=dict)
    earlier: dict[str, Offsets] = field(default_factory=dict)
    """By table that was made anew, how far the one before was filled."""
    others: dict[str, Others] = field(default_factory=dict)
    """By topic, which was compared whole, the records that are of no keyed table."""

    @property
    def one(self) -> bool:
        """Return whether the sink has one table, and that has a key: all records go there."""
        return bool(self.settings.table.key)

    def key_of(self, table: str) -> tuple[str, ...]:
        if table == self.settings.table.identifier:
            return self.settings.table.key
        return self.settings.tables.routing.key_of(table)

    def has(self, table: str) -> bool:
        return bool(self.key_of(table))

    def changed_by(self, topic: str) -> bool:
        """Return whether records of the topic may go to a keyed table."""
        if not self.settings.keyed:
            return False
        return self.one or may_have_key(self.settings.tables.routing, topic)

    def takes(self, topic: str) -> set[str]:
        """Return the existing keyed tables that records of a topic may go to."""
        if self.one or not self.tables:
            return set(self.tables)
        routing = self.settings.tables.routing
        return {name for name in self.tables if may_name(routing, topic, name)}

    def alone(self, topic: str) -> bool:
        """Return whether all records of the topic go to one keyed table."""
        if self.one or not self.settings.keyed:
            return self.one
        target = self.settings.tables.routing.table_of_topic(topic)
        return target is not None and self.has(target.table)

    def of_an_earlier_table(self, pending_commit: PendingCommit) -> bool:
        """Return whether it was pending for a keyed table of that name that was made anew since."""
        known = self.tables.get(pending_commit.table)
        return known is not None and pending_commit.secondary != known.history.uuid

    def examine(
        self, reader: TableReader, history: History, files: list[LiveFile], *, damaged: bool
    ) -> None:
        """Examine the table's commits and rows; only Iceberg shows which rows died."""
        name = history.table
        known = reader if isinstance(reader, IcebergReader) else None
        whole = known is not None and not damaged
        self.tables[name] = KeyedTable(name, known, history, _delivered_upto(history), whole)
        if known is not None:
            self._say(name, told_of_deaths(known, history, self.on_progress))
        else:
            self._say(name, Told(unproven=[DEATHS_UNTOLD]))
        live_rows = sum(-file.records if file.deletes else file.records for file in files)
        self._say(name, told_of_rows(history, live_rows))

    def examine_keys(
        self, reader: TableReader, history: History, files: list[LiveFile], *, damaged: bool
    ) -> None:
        """Read the keys of a table's live rows, unless files of it are ``damaged``."""
        name = history.table
        if damaged:  # nobody can read the rows, or tell which of them are dead
            text = "files are missing or damaged: keys and rows were not read"
            self._say(name, Told(unproven=[text]))
            return
        key, memory_bytes = self.key_of(name), self.settings.changes.index_memory_bytes
        self._say(name, told_of_keys(reader, history, files, key=key, memory_bytes=memory_bytes))

    def fold(
        self,
        record: CommitRecord,
        primary: str,
        ranges: Mapping[TopicPartition, OffsetRange],
        left_out: Mapping[TopicPartition, BitMap64],
    ) -> None:
        """Compare each table with its topics, as far as it was delivered to.

        ``ranges``: of the source, up to the offsets of the ``record`` of the ``primary``, a table's
        UUID; ``left_out``: records that never were changes.
        """
        late = {d.table for d in record.expired if not self.of_an_earlier_table(d)}
        for name in sorted(self.tables.keys() & late):
            self.told.unproven.append(
                f"{name}: changes that were pending for too long never came: {NOT_FOLDED}"
            )
        for topics in self._groups({at.topic for at in ranges}):
            own = {at: span for at, span in ranges.items() if at.topic in topics}
            names = sorted(set[str]().union(*map(self.takes, topics)))
            if not names:
                self.told.unproven.append(
                    f"{', '.join(sorted(topics))}: no keyed table is there that its records go to"
                )
            upto = {
                name: self._upto(record, primary, name)
                for name in names
                if name not in late and self.tables[name].whole
            }
            source = SourceRanges(own, record.topic_ids, left_out, record.generations)
            self._compare(upto, source)

    def _groups(self, topics: set[str]) -> list[set[str]]:
        """Topics, those together whose records go to one table."""
        groups: list[tuple[set[str], set[str]]] = []
        for topic in sorted(topics):
            some, names = {topic}, self.takes(topic)
            for other in [each for each in groups if each[1] & names]:
                groups.remove(other)
                some, names = some | other[0], names | other[1]
            groups.append((some, names))
        return [some for some, _ in groups]

    def _upto(self, record: CommitRecord, primary: str, name: str) -> Offsets:
        table = self.tables[name]
        return table.offsets if _pending(record, primary, table) else record.offsets

    def _compare(self, upto: Mapping[str, Offsets], source: SourceRanges) -> None:
        if not upto:
            return
        others = Others()
        with folding(self.settings, source) as folded:
            numbers = {}
            for name in upto:
                with self._unproven(name):
                    numbers[name] = folded.add(cast("IcebergReader", self.tables[name].reader))
            ends = [(name, upto[name]) for name in numbers]
            if not numbers:
                return
            with self._unproven(*numbers):
                folded.read(
                    lambda records: self.on_progress("source records", records, 0),
                    shares=None
                    if self.one
                    else lambda plan, batch: RoutedShares(plan, batch, ends, others),
                )
                for name, number in numbers.items():
                    with self._unproven(name):
                        earlier = self.earlier.get(name, Offsets())
                        self.tables[name].fold = folded.compared(number, earlier)
                self.others.update(dict.fromkeys({at.topic for at in source.ranges}, others))

    @contextmanager
    def _unproven(self, *names: str) -> Iterator[None]:
        """What stands in the way of a comparison is said of these tables."""
        try:
            yield
        except (ValueError, NotImplementedError) as error:
            text = f"the rows cannot be compared here: {error}"
        except HeadgateError as error:
            text = f"the source was not folded: {error.message}"
        else:
            return
        for name in names:
            self._say(name, Told(unproven=[text]))

    def appended(self, at: TopicPartition) -> BitMap64 | None:
        """Offsets of the source's records that are rows of tables without a key, or set aside.

        ``None`` where nobody knows which they are.
        """
        others = self.others.get(at.topic)
        folds = [fold for name in self.takes(at.topic) if (fold := self.tables[name].fold)]
        if others is None or not folds or at not in folds[0].read.offsets:
            return None
        found = folds[0].read.offsets[at].copy()
        told = (others.let_go, others.absent, self.moved_past)
        for known in (*told, *(fold.read.own for fold in folds)):
            found -= known.get(at, BitMap64())
        return found

    @property
    def harmless(self) -> int:
        """How many records the sink passed over as they are."""
        folds = [table.fold for table in self.tables.values() if table.fold]
        groups = {id(others): others for others in self.others.values()}
        let_go = sum(len(some) for others in groups.values() for some in others.let_go.values())
        return let_go + sum(fold.read.passed_over + fold.read.bad for fold in folds)

    def weigh(self, compacted: Mapping[str, bool | None], skipped: int) -> None:
        """Report the results of the comparisons. ``skipped``: records that the sink skipped."""
        unexplained = skipped - self.harmless
        for name, table in sorted(self.tables.items()):
            if table.fold is None:
                self._say(name, Told(unproven=[NOT_FOLDED]))
            else:
                weighed = told_of_fold(table.fold, table.history, compacted, unexplained)
                self._say(name, weighed)

    def counted(
        self, witnesses: Mapping[TopicPartition, Witness], compacted: Mapping[str, bool | None]
    ) -> Mapping[TopicPartition, Witness]:
        """Return the source's records as the one table's fold read them, where none is gone."""
        folds = [table.fold for table in self.tables.values() if table.fold]
        return {
            at: Witness(witnesses[at].log, offsets)
            for fold in folds
            for at, offsets in fold.read.offsets.items()
            if compacted.get(at.topic) is False
        }

    def proves(self, compacted: Mapping[str, bool | None]) -> bool:
        """Return whether the one table was compared with all that the source holds."""
        folds = [table.fold for table in self.tables.values()]
        return all(fold is not None and not any(fold.unproven(compacted)) for fold in folds)

    def judged(self, partition: PartitionAudit) -> PartitionAudit:
        """Return the partition with the findings of its tables' comparisons."""
        at = TopicPartition(partition.topic, partition.partition)
        folds = [fold for name in self.takes(at.topic) if (fold := self.tables[name].fold)]
        folds = [fold for fold in folds if at in fold.read.offsets]
        if not folds:
            return partition
        return replace(
            partition,
            produced=len(folds[0].read.offsets[at]),
            lost=(partition.lost or 0) + sum(fold.of(at, Fault.LOST, Fault.ANEW) for fold in folds),
            invented=(partition.invented or 0) + sum(fold.of(at, Fault.INVENTED) for fold in folds),
        )

    def taken(self) -> Told:
        """Return what was told since this was last asked."""
        told, self.told = self.told, Told()
        return told

    def _say(self, name: str, said: Told) -> None:
        told, prefix = self.told, "" if self.one else f"{name}: "  # nobody asks which one
        told.findings += [replace(f, evidence=f"{prefix}{f.evidence}") for f in said.findings]
        told.proven += [f"{prefix}{text}" for text in said.proven]
        told.unproven += [f"{prefix}{text}" for text in said.unproven]
        told.expired += [f"{prefix}{text}" for text in said.expired]


def filled_before(ledger: History, table: str, uuid: str) -> Offsets:
    """Return how far an earlier table of that name was filled, as the ledger's commits tell."""
    for record in (commit.record for commit in reversed(ledger.commits)):
        own = (
            pending_commit
            for pending_commit in record.pending_commits
            if pending_commit.transaction == record.transaction
        )
        if any(
            pending_commit.table == table and pending_commit.secondary != uuid
            for pending_commit in own
        ):
            return record.offsets
    return Offsets()


def _pending(record: CommitRecord, primary: str, table: KeyedTable) -> bool:
    """Return whether the table lacks something that was decided (D6)."""
    delivered = table.history.record
    pending = [
        pending_commit
        for pending_commit in record.pending_commits
        if pending_commit.table == table.name and pending_commit.manifest
    ]
    return any(
        delivered is None or not delivered.delivers(pending_commit, primary)
        for pending_commit in pending
    )


def _delivered_upto(history: History) -> Offsets:
    return history.record.offsets if history.record else Offsets()
