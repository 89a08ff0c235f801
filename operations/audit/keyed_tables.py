"""Audits the keyed tables of a sink: each by itself, and against the fold of its topics.

Of one table, all topics lead there. Of many, topics that lead to the same tables are read once: the
sink's own routes sort their records by table, and each is compared with the fold of its own. What
the source cannot show is reported as unproven: it may no longer hold all records, or a person may
have moved offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import cast

from pyroaring import BitMap64

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord, KeyCounts, PendingCommit
from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.table_history import History, LiveFile, TableReader
from headgate.data_plane.routing.keyed_routes import may_key, may_name
from headgate.operations.audit.audited_table import AuditedTable
from headgate.operations.audit.changelog_replay import FoldEvidence, SourceRanges, folding
from headgate.operations.audit.commit_chain import Move
from headgate.operations.audit.files import OnProgress
from headgate.operations.audit.records import count_keys
from headgate.operations.audit.replay_compare import Fault
from headgate.operations.audit.replay_routing import Others, RoutedShares
from headgate.operations.audit.report import Finding, PartitionAudit
from headgate.operations.audit.source import Witness
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.storage.read_ahead import in_turn

# Compares each commit's record of a keyed table with its manifests alone.


@dataclass(slots=True)
class Deaths:
    """The result. ``puzzling`` commits do not add up, and others changed the table as well."""

    findings: list[Finding] = field(default_factory=list)
    right: int = 0
    puzzling: int = 0


def examine_deaths(reader: IcebergReader, history: History, on_progress: OnProgress) -> Deaths:
    """Compare the rows that each commit added and removed with the counts in its record (U10)."""
    deaths = Deaths()
    by_others = not history.complete or any(each.operation != "replace" for each in history.foreign)
    commits = [commit for commit in history.commits if commit.record.keys is not None]
    for done, (commit, died) in enumerate(zip(commits, in_turn(reader.died, commits), strict=True)):
        on_progress("commits", done, len(commits))
        counts = commit.record.keys
        if died is None or counts is None:
            continue
        if _adds_up(counts, commit.record.records, died):
            deaths.right += 1
        elif by_others:  # their rows of a key die too, and so do those that their deletes name
            deaths.puzzling += 1
        else:
            deaths.findings.append(
                Finding(
                    "change-count",
                    f"{commit.where}: {commit.record.records} rows came and {died} died; its "
                    f"record counts {counts.inserted} inserted, {counts.updated} updated, "
                    f"{counts.deleted} deleted and {counts.superseded} superseded",
                )
            )
    return deaths


def _adds_up(counts: KeyCounts, rows: int, died: int) -> bool:
    """Superseded records are rows that were written and died, or deletes, which leave no trace."""
    superseded = rows - counts.inserted - counts.updated
    return (
        0 <= superseded <= counts.superseded
        and died == counts.updated + counts.deleted + superseded
    )


DEATHS_UNTOLD = "this kind of table does not tell which rows each commit removed"
NOT_FOLDED = (
    "a keyed table holds the last record of each key: they were not compared with the "
    "source, so some may be missing or outdated"
)


@dataclass(slots=True)
class Told:
    """Findings, and what is proven or not; ``expired``: unproven only without the source."""

    findings: list[Finding] = field(default_factory=list)
    proven: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)


def offsets_behind(record: CommitRecord, moves: Sequence[Move]) -> list[str]:
    """Return why the table does not show the records up to the stored offsets, if it does not."""
    return [
        f"{move.partition}: offsets were set back from {move.begin}, and the sink has not "
        "reached that point again: rows may be newer than the stored offsets"
        for move in moves
        if record.offsets.get(move.partition, 0) < move.begin
    ]


def told_of_deaths(reader: IcebergReader, history: History, on_progress: OnProgress) -> Told:
    """Check that each commit removed as many rows as its record counts (U10)."""
    told, deaths = Told(), examine_deaths(reader, history, on_progress)
    told.findings += deaths.findings
    if deaths.right:
        told.proven.append(
            f"{deaths.right} commits made as many rows die as they updated, deleted and superseded"
        )
    if deaths.puzzling:
        told.expired.append(
            f"{deaths.puzzling} commits made other rows die than they count, and others changed "
            "the table"
        )
    return told


def told_of_rows(history: History, live_rows: int) -> Told:
    """Check that as many rows are live as the commits inserted and did not delete (U10)."""
    told = Told()
    counts = [commit.record.keys for commit in history.commits if commit.record.keys]
    expected = sum(each.inserted - each.deleted for each in counts)
    if any(not found.upkeep for found in history.foreign) or not history.complete:
        told.expired.append(
            "live rows are not counted: others changed the table, or older commits have expired"
        )
    elif expected != live_rows:
        told.findings.append(
            Finding(
                "row-count",
                f"{live_rows} rows are live, the commits inserted {expected} more than they "
                "deleted",
            )
        )
    else:
        told.proven.append(
            f"{expected} rows are live: as many as the commits inserted and did not delete"
        )
    return told


def told_of_keys(
    reader: TableReader,
    history: History,
    files: Sequence[LiveFile],
    *,
    key: tuple[str, ...],
    memory_bytes: int,
) -> Told:
    """Check that no key has two live rows (U1)."""
    told = Told()
    absent = [name for name in key if name not in reader.columns()]
    if absent or history.head is None:
        told.unproven.append(f"the table has no column {', '.join(absent) or 'filled yet'}")
        return told
    rows_max = sum(file.records for file in files if not file.deletes)
    try:
        rows, different = count_keys(reader, key, rows_max, memory_bytes)
    except (ValueError, NotImplementedError) as error:  # pyiceberg cannot read equality deletes
        told.unproven.append(f"the keys cannot be read here: {error}")
        return told
    if rows != different:
        text = f"{rows} live rows have {different} different keys"
        told.findings.append(Finding("key-twice", text))
    else:
        told.proven.append(f"each of {rows} live rows has a key of its own")
    return told


def told_of_fold(
    fold: FoldEvidence,
    history: History,
    compacted: Mapping[str, bool | None],
    unexplained: int,
) -> Told:
    """Report the comparison. Nothing tells which rows others deleted or the sink skipped.

    ``unexplained``: how many records the sink skipped beyond those that change nothing.
    """
    told, faults = Told(), fold.faults
    removed = sum(snapshot.removed_rows for snapshot in history.foreign)
    missing = faults.count(Fault.LOST)
    behind = missing + faults.count(Fault.OUTDATED)
    besides: Collection[Fault] = ()
    if missing and missing - faults.old <= removed:
        besides = (Fault.LOST,)
        why = [f"others deleted {removed} rows of the table"] if removed else []
        if faults.old:
            why.append(
                f"of {faults.old} of them the records lie below the oldest commit that is left: "
                "whether somebody deleted them has expired"
            )
        told.unproven.append(f"{missing} keys have no row, and {', '.join(why)}")
    elif behind and behind <= unexplained:
        besides = (Fault.LOST, Fault.OUTDATED)
        told.unproven.append(
            f"{behind} keys lack the row of their last record, and the sink skipped "
            f"{unexplained} records that can be read now"
        )
    told.findings += fold.findings(frozenset(besides))
    told.unproven += fold.unproven(compacted)
    compared = f"{faults.rows:,} rows are the last records of their keys, value by value"
    told.proven.append(f"{compared}: of {faults.records:,} changes that the source holds")
    return told


# Compares keyed tables with the source, one or many.


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
        return self.one or may_key(self.settings.tables.routing, topic)

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
        target = self.settings.tables.routing.named_by(topic)
        return target is not None and self.has(target.table)

    def of_an_earlier_table(self, pending_commit: PendingCommit) -> bool:
        """Return whether it was pending for a keyed table of that name that was made anew since."""
        known = self.tables.get(pending_commit.table)
        return known is not None and pending_commit.secondary != known.history.uuid

    def examine(self, table: AuditedTable) -> None:
        """Examine the table's commits and rows; only Iceberg shows which rows were deleted."""
        reader, history, files = table.reader, table.history, table.files
        name, damaged = history.table, bool(table.damaged)
        known = reader if isinstance(reader, IcebergReader) else None
        whole = known is not None and not damaged
        self.tables[name] = KeyedTable(name, known, history, _delivered_upto(history), whole)
        if known is not None:
            self._say(name, told_of_deaths(known, history, self.on_progress))
        else:
            self._say(name, Told(unproven=[DEATHS_UNTOLD]))
        live_rows = sum(-file.records if file.deletes else file.records for file in files)
        self._say(name, told_of_rows(history, live_rows))

    def examine_keys(self, table: AuditedTable) -> None:
        """Read the keys of a table's live rows, unless files of it are damaged."""
        reader, history, files = table.reader, table.history, table.files
        name = history.table
        if table.damaged:  # nobody can read the rows, or tell which of them are dead
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
