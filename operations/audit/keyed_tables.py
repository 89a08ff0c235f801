"""Audits the keyed tables of a sink: each by itself, and against a replay of its topics.

Of one table, all topics lead there. Of many, topics that lead to the same tables are read once: the
sink's own routes sort their records by table, and each is compared with the replay of its own. What
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
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.table_format import SupportsKeyedAudit
from headgate.control_protocol.table_history import History, LiveFile, TableReader
from headgate.data_plane.routing.keyed_routes import may_lead_to_keyed_table, may_lead_to_table
from headgate.operations.audit.changelog_replay import (
    OtherRecords,
    ReplayResult,
    RoutedSplit,
    SourceRanges,
    open_replay,
)
from headgate.operations.audit.files import OnProgress, live_row_count
from headgate.operations.audit.replay_compare import Fault
from headgate.operations.audit.report import (
    Conclusions,
    Finding,
    PartitionAudit,
    conclude_unreadable,
)
from headgate.operations.audit.source_compare import SourceOffsets
from headgate.operations.audit.table_checks import AuditedTable, OffsetMove
from headgate.operations.audit.table_records import count_rows_and_distinct_keys
from headgate.tables.storage.read_ahead import read_ahead_in_order

# Compares each commit's record of a keyed table with its manifests alone.


@dataclass(slots=True)
class DeleteCounts:
    """The result. ``puzzling`` commits do not add up, and others changed the table as well."""

    findings: list[Finding] = field(default_factory=list)
    right: int = 0
    puzzling: int = 0


def compare_delete_counts(
    reader: SupportsKeyedAudit, history: History, on_progress: OnProgress
) -> DeleteCounts:
    """Compare the rows that each commit added and removed with the counts in its record
    (KEY-10)."""
    deaths = DeleteCounts()
    by_others = not history.complete or any(each.operation != "replace" for each in history.foreign)
    commits = [commit for commit in history.commits if commit.record.keys is not None]
    for done, (commit, died) in enumerate(
        zip(commits, read_ahead_in_order(reader.removed_row_count_of_commit, commits), strict=True)
    ):
        on_progress("commits", done, len(commits))
        counts = commit.record.keys
        if died is None or counts is None:
            continue
        if _do_counts_add_up(counts, commit.record.records, died):
            deaths.right += 1
        elif by_others:  # their rows of a key die too, and so do those that their deletes name
            deaths.puzzling += 1
        else:
            deaths.findings.append(
                Finding(
                    "change-count",
                    f"{commit.description}: {count_of(commit.record.records, 'row')} came and "
                    f"{died} died; its record counts {counts.inserted} inserted, {counts.updated} "
                    f"updated, {counts.deleted} deleted and {counts.superseded} superseded",
                )
            )
    return deaths


def _do_counts_add_up(counts: KeyCounts, rows: int, died: int) -> bool:
    """Superseded records are rows that were written and died, or deletes, which leave no trace."""
    superseded = rows - counts.inserted - counts.updated
    return (
        0 <= superseded <= counts.superseded
        and died == counts.updated + counts.deleted + superseded
    )


DELETES_UNKNOWN = "this table format does not tell which rows each commit removed"
NOT_COMPARED = (
    "a keyed table holds the last record of each key: they were not compared with the "
    "source, so some may be missing or outdated"
)
_VERSIONS_NOT_COMPARED = (
    "a history holds each change of a key: its versions were not compared with the source, so some "
    "may be missing or have other values"
)


def describe_unfinished_rewinds(record: CommitRecord, moves: Sequence[OffsetMove]) -> list[str]:
    """Return why the table does not show the records up to the stored offsets, if it does not."""
    return [
        f"{move.partition}: offsets were set back from {move.begin}, and the sink has not "
        "reached that point again: rows may be newer than the stored offsets"
        for move in moves
        if record.offsets.get(move.partition, 0) < move.begin
    ]


def check_deleted_rows(
    reader: SupportsKeyedAudit, history: History, on_progress: OnProgress
) -> Conclusions:
    """Check that each commit removed as many rows as its record counts (KEY-10)."""
    conclusions, deaths = Conclusions(), compare_delete_counts(reader, history, on_progress)
    conclusions.findings += deaths.findings
    if deaths.right:
        conclusions.proven.append(
            f"{count_of(deaths.right, 'commit')} made as many rows die as they updated, deleted "
            "and superseded"
        )
    if deaths.puzzling:
        conclusions.expired.append(
            f"{count_of(deaths.puzzling, 'commit')} made other rows die than they count, and "
            "others changed the table"
        )
    return conclusions


def check_live_row_count(history: History, live_rows: int) -> Conclusions:
    """Check that as many rows are live as the commits inserted and did not delete (KEY-10)."""
    conclusions = Conclusions()
    counts = [commit.record.keys for commit in history.commits if commit.record.keys]
    gone = sum(snapshot.expired_rows for snapshot in history.foreign)  # EXPIRY-3
    expected = sum(each.inserted - each.deleted for each in counts) - gone
    aged = f", less {gone} that expired" if gone else ""
    if any(not snapshot.upkeep for snapshot in history.foreign) or not history.complete:
        conclusions.expired.append(
            "live rows are not counted: others changed the table, or older commits have expired"
        )
    elif expected != live_rows:
        conclusions.findings.append(
            Finding(
                "row-count",
                f"{count_of(live_rows, 'row is', 'rows are')} live, the commits inserted "
                f"{expected} more than they deleted{aged}",
            )
        )
    else:
        conclusions.proven.append(
            f"{count_of(expected, 'row is', 'rows are')} live: as many as the commits inserted "
            f"and did not delete{aged}"
        )
    return conclusions


def check_keys(
    reader: TableReader,
    history: History,
    files: Sequence[LiveFile],
    *,
    key: tuple[str, ...],
    memory_bytes: int,
) -> Conclusions:
    """Check that no key has two live rows (KEY-1)."""
    conclusions = Conclusions()
    absent = [name for name in key if name not in reader.columns()]
    if absent or history.head is None:
        conclusions.unproven.append(f"the table has no column {', '.join(absent) or 'filled yet'}")
        return conclusions
    rows_max = sum(file.records for file in files if not file.deletes)
    try:
        rows, different = count_rows_and_distinct_keys(reader, key, rows_max, memory_bytes)
    except (ValueError, NotImplementedError) as error:  # pyiceberg cannot read equality deletes
        return conclude_unreadable(error, "the keys cannot be read here")
    if rows != different:
        text = (
            f"{count_of(rows, 'live row has', 'live rows have')} "
            f"{count_of(different, 'different key')}"
        )
        conclusions.findings.append(Finding("key-twice", text))
    else:
        conclusions.proven.append(f"each of {rows} live rows has a key of its own")
    return conclusions


def conclude_replay(
    result: ReplayResult,
    history: History,
    compacted: Mapping[str, bool | None],
    unexplained_skips: int,
) -> Conclusions:
    """Report the comparison. Nothing tells which rows others deleted or the sink skipped.

    ``unexplained_skips``: how many records the sink skipped beyond those that change nothing.
    """
    conclusions, faults = Conclusions(), result.faults
    removed = sum(snapshot.removed_row_count for snapshot in history.foreign)
    unlisted = history.deleted.unidentified_row_count
    missing = faults.count_of(Fault.LOST)
    behind = missing + faults.count_of(Fault.OUTDATED)
    besides: Collection[Fault] = ()
    if missing and missing - faults.old <= removed + unlisted:
        besides = (Fault.LOST,)
        why = [f"others deleted {count_of(removed, 'row')} of the table"] if removed else []
        why += [f"persons deleted {unlisted}"] if unlisted else []
        if faults.old:
            why.append(
                f"of {faults.old} of them the records lie below the oldest commit that is left: "
                "whether somebody deleted them has expired"
            )
        changes = ("change has no version", "changes have no version")
        keys = ("key has no row", "keys have no row")
        what = count_of(missing, *(changes if result.versions else keys))
        conclusions.unproven.append(f"{what}, and {', '.join(why)}")
    elif behind and behind <= unexplained_skips:
        besides = (Fault.LOST, Fault.OUTDATED)
        conclusions.unproven.append(
            f"{count_of(behind, 'key lacks the row of its', 'keys lack the row of their')} last "
            f"record, and the sink skipped {count_of(unexplained_skips, 'record')} that can be "
            "read now"
        )
    conclusions.findings += result.find_faults(frozenset(besides))
    conclusions.unproven += result.describe_unproven(compacted)
    compared = (
        f"{count_of(faults.rows, 'row is', 'rows are')} the last records of their keys, value by "
        "value"
    )
    if result.versions:
        compared = (
            f"{count_of(faults.rows, 'row is a version', 'rows are the versions')} of "
            f"{count_of(faults.keys, 'key')}, value by value"
        )
    marked = f", {faults.marked:,} of them marked as deleted" if faults.marked else ""
    of = f"of {count_of(faults.records, 'change')} that the source holds"
    conclusions.proven.append(f"{compared}{marked}: {of}")
    if expired := faults.count_of(Fault.EXPIRED):
        conclusions.proven.append(
            f"{count_of(expired, 'key has', 'keys have')} no row because that of their last "
            "record has expired"
        )
    return conclusions


# Compares keyed tables with the source, one or many.


@dataclass(slots=True)
class KeyedTable:
    """One keyed table. ``offsets``: up to where it has received the records.

    ``result``: of its replay, with a ``reader`` that shows which rows were deleted.
    """

    name: str
    reader: SupportsKeyedAudit | None
    history: History
    offsets: Offsets
    whole: bool = True
    result: ReplayResult | None = None


@dataclass(slots=True)
class KeyedTables:
    """The keyed tables of one sink; findings about them go to ``conclusions``."""

    settings: SinkSettings
    on_progress: OnProgress
    conclusions: Conclusions = field(default_factory=Conclusions)
    tables: dict[str, KeyedTable] = field(default_factory=dict)
    moved_past: Mapping[TopicPartition, BitMap64] = field(default_factory=dict)
    earlier: dict[str, Offsets] = field(default_factory=dict)
    """By table that was created again, how far the one before was filled."""
    others: dict[str, OtherRecords] = field(default_factory=dict)
    """By topic, which was compared whole, the records that are of no keyed table."""

    @property
    def unexamined_tables_with_records(self) -> set[str]:
        """Return keyed tables that the source has records of, and that could not be examined."""
        led = {name for others in self.others.values() for name in others.not_replayed}
        return led - self.tables.keys()

    @property
    def is_single_keyed_table(self) -> bool:
        """Return whether the sink has one table, and that has a key: all records go there."""
        return bool(self.settings.table.key)

    @property
    def unproven_if_not_replayed(self) -> str:
        """Say what is unproven of a table that no replay was compared with."""
        return _VERSIONS_NOT_COMPARED if self.settings.changes.history else NOT_COMPARED

    def key_of(self, table: str) -> tuple[str, ...]:
        if table == self.settings.table.identifier:
            return self.settings.table.key
        return self.settings.tables.routing.key_of(table)

    def is_keyed(self, table: str) -> bool:
        return bool(self.key_of(table))

    def may_take_topic(self, topic: str) -> bool:
        """Return whether records of the topic may go to a keyed table."""
        if not self.settings.has_keyed_table:
            return False
        return self.is_single_keyed_table or may_lead_to_keyed_table(
            self.settings.tables.routing, topic
        )

    def keyed_tables_of_topic(self, topic: str) -> set[str]:
        """Return the existing keyed tables that records of a topic may go to."""
        if self.is_single_keyed_table or not self.tables:
            return set(self.tables)
        routing = self.settings.tables.routing
        return {name for name in self.tables if may_lead_to_table(routing, topic, name)}

    def takes_all_of_topic(self, topic: str) -> bool:
        """Return whether all records of the topic go to one keyed table."""
        if self.is_single_keyed_table or not self.settings.has_keyed_table:
            return self.is_single_keyed_table
        target = self.settings.tables.routing.table_of_topic(topic)
        return target is not None and self.is_keyed(target.table)

    def is_of_earlier_table(self, pending_commit: PendingCommit) -> bool:
        """Return whether it was decided for a keyed table that was created again since."""
        known = self.tables.get(pending_commit.table)
        return known is not None and pending_commit.secondary != known.history.uuid

    def register_and_examine_table(self, table: AuditedTable) -> None:
        """Examine the table's commits and rows; not every format shows which rows were deleted."""
        reader, history, files = table.reader, table.history, table.files
        name, damaged = history.table, bool(table.damaged)
        known = reader if isinstance(reader, SupportsKeyedAudit) else None
        whole = known is not None and not damaged
        self.tables[name] = KeyedTable(name, known, history, _newest_offsets_of(history), whole)
        if known is not None:
            self._add_conclusions(name, check_deleted_rows(known, history, self.on_progress))
        else:
            self._add_conclusions(name, Conclusions(unproven=[DELETES_UNKNOWN]))
        if not self.settings.changes.history:  # whose rows are counted as appended ones are
            self._add_conclusions(name, check_live_row_count(history, live_row_count(files)))

    def examine_keys(self, table: AuditedTable) -> None:
        """Read the keys of a table's live rows, unless files of it are damaged.

        In a history a key has many (KEY-14).
        """
        reader, history, files = table.reader, table.history, table.files
        name = history.table
        if table.damaged:  # nobody can read the rows, or tell which of them are dead
            text = "files are missing or damaged: keys and rows were not read"
            self._add_conclusions(name, Conclusions(unproven=[text]))
            return
        if self.settings.changes.history:
            return
        key, memory_bytes = self.key_of(name), self.settings.changes.index_memory_bytes
        self._add_conclusions(
            name, check_keys(reader, history, files, key=key, memory_bytes=memory_bytes)
        )

    def compare_with_replay(
        self,
        record: CommitRecord,
        primary: str,
        ranges: Mapping[TopicPartition, OffsetRange],
        left_out: Mapping[TopicPartition, BitMap64],
    ) -> None:
        """Compare each table with its topics, as far as it has received their records.

        ``ranges``: of the source, up to the offsets of the ``record`` of the ``primary``, a table's
        UUID; ``left_out``: records that never were changes.
        """
        expired = {d.table for d in record.expired if not self.is_of_earlier_table(d)}
        for name in sorted(self.tables.keys() & expired):
            self.conclusions.unproven.append(
                f"{name}: changes that were pending for too long were never delivered: "
                f"{self.unproven_if_not_replayed}"
            )
        for topics in self._group_topics_sharing_tables({at.topic for at in ranges}):
            own = {at: span for at, span in ranges.items() if at.topic in topics}
            names = sorted(set[str]().union(*map(self.keyed_tables_of_topic, topics)))
            if not names:
                self.conclusions.unproven.append(
                    f"{', '.join(sorted(topics))}: no keyed table is there that its records go to"
                )
            until = {
                name: self._offsets_delivered_to(record, primary, name)
                for name in names
                if name not in expired and self.tables[name].whole
            }
            source = SourceRanges(own, record.topic_ids, left_out, record.cohorts)
            self._replay_and_compare(until, source)

    def _group_topics_sharing_tables(self, topics: set[str]) -> list[set[str]]:
        """Topics, those together whose records go to one table."""
        groups: list[tuple[set[str], set[str]]] = []
        for topic in sorted(topics):
            some, names = {topic}, self.keyed_tables_of_topic(topic)
            for other in [each for each in groups if each[1] & names]:
                groups.remove(other)
                some, names = some | other[0], names | other[1]
            groups.append((some, names))
        return [some for some, _ in groups]

    def _offsets_delivered_to(self, record: CommitRecord, primary: str, name: str) -> Offsets:
        table = self.tables[name]
        return table.offsets if _has_undelivered(record, primary, table) else record.offsets

    def _replay_and_compare(self, until: Mapping[str, Offsets], source: SourceRanges) -> None:
        if not until:
            return
        others = OtherRecords()
        with open_replay(self.settings, source) as source_replay:
            numbers = {}
            for name in until:
                with self._noting_unproven_on_error(name):
                    numbers[name] = source_replay.add_table_and_return_number(
                        cast("SupportsKeyedAudit", self.tables[name].reader)
                    )
            ends = [(name, until[name]) for name in numbers]
            if not numbers:
                return
            with self._noting_unproven_on_error(*numbers):
                source_replay.read_source(
                    lambda records: self.on_progress("source records", records, 0),
                    make_split=None
                    if self.is_single_keyed_table
                    else lambda plan, batch: RoutedSplit(plan, batch, ends, others),
                )
                for name, number in numbers.items():
                    with self._noting_unproven_on_error(name):
                        earlier = self.earlier.get(name, Offsets())
                        self.tables[name].result = source_replay.compare_table(number, earlier)
                self.others.update(dict.fromkeys({at.topic for at in source.ranges}, others))
                self.conclusions.unproven += [
                    f"{name}: {count_of(records, 'record leads', 'records lead')} to it, and it "
                    "cannot be compared"
                    for name, records in sorted(others.not_replayed.items())
                    if name not in self.tables
                ]

    @contextmanager
    def _noting_unproven_on_error(self, *names: str) -> Iterator[None]:
        """What stands in the way of a comparison is said of these tables."""
        try:
            yield
        except (ValueError, NotImplementedError) as error:
            found = conclude_unreadable(error, "the rows cannot be compared here")
        except HeadgateError as error:
            found = Conclusions(unproven=[f"the source was not replayed: {error.message}"])
        else:
            return
        for name in names:
            self._add_conclusions(name, found)

    def offsets_outside_keyed_tables(self, at: TopicPartition) -> BitMap64 | None:
        """Offsets of the source's records that are rows of tables without a key, or set aside.

        ``None`` where nobody knows which they are.
        """
        others = self.others.get(at.topic)
        results = [
            result
            for name in self.keyed_tables_of_topic(at.topic)
            if (result := self.tables[name].result)
        ]
        if others is None or not results or at not in results[0].read.offsets:
            return None
        offsets = results[0].read.offsets[at].copy()
        elsewhere = (others.let_go, others.absent, self.moved_past)
        for known in (*elsewhere, *(result.read.own for result in results)):
            offsets -= known.get(at, BitMap64())
        return offsets

    @property
    def explained_skip_count(self) -> int:
        """How many records the sink passed over as they are."""
        results = [table.result for table in self.tables.values() if table.result]
        groups = {id(others): others for others in self.others.values()}
        let_go = sum(len(some) for others in groups.values() for some in others.let_go.values())
        return let_go + sum(result.read.passed_over + result.read.bad for result in results)

    def conclude_replays(
        self, compacted: Mapping[str, bool | None], skipped_record_count: int
    ) -> None:
        """Report the results of the comparisons.

        ``skipped_record_count``: records that the sink skipped.
        """
        unexplained = skipped_record_count - self.explained_skip_count
        for name, table in sorted(self.tables.items()):
            if table.result is None:
                self._add_conclusions(name, Conclusions(unproven=[self.unproven_if_not_replayed]))
            else:
                weighed = conclude_replay(table.result, table.history, compacted, unexplained)
                self._add_conclusions(name, weighed)

    def source_offsets_of_replay(
        self,
        witnesses: Mapping[TopicPartition, SourceOffsets],
        compacted: Mapping[str, bool | None],
    ) -> Mapping[TopicPartition, SourceOffsets]:
        """Return the source's records as the one table's replay read them, where none is gone."""
        results = [table.result for table in self.tables.values() if table.result]
        return {
            at: replace(witnesses[at], offsets=offsets)
            for result in results
            for at, offsets in result.read.offsets.items()
            if compacted.get(at.topic) is False
        }

    def proves_completeness(self, compacted: Mapping[str, bool | None]) -> bool:
        """Return whether the one table was compared with all that the source holds."""
        results = [table.result for table in self.tables.values()]
        return all(
            result is not None and not any(result.describe_unproven(compacted))
            for result in results
        )

    def partition_with_replay_counts(self, partition: PartitionAudit) -> PartitionAudit:
        """Return the partition with the findings of its tables' comparisons."""
        at = TopicPartition(partition.topic, partition.partition)
        results = [
            result
            for name in self.keyed_tables_of_topic(at.topic)
            if (result := self.tables[name].result)
        ]
        results = [result for result in results if at in result.read.offsets]
        if not results:
            return partition
        return replace(
            partition,
            produced=len(results[0].read.offsets[at]),
            lost=(partition.lost or 0)
            + sum(result.faulty_row_count(at, Fault.LOST, Fault.RECREATED) for result in results),
            invented=(partition.invented or 0)
            + sum(result.faulty_row_count(at, Fault.INVENTED) for result in results),
        )

    def take_conclusions(self) -> Conclusions:
        """Return what was told since this was last asked."""
        conclusions, self.conclusions = self.conclusions, Conclusions()
        return conclusions

    def _add_conclusions(self, name: str, added: Conclusions) -> None:
        conclusions = self.conclusions
        prefix = "" if self.is_single_keyed_table else f"{name}: "  # nobody asks which one
        conclusions.findings += [
            replace(f, evidence=f"{prefix}{f.evidence}") for f in added.findings
        ]
        conclusions.proven += [f"{prefix}{text}" for text in added.proven]
        conclusions.unproven += [f"{prefix}{text}" for text in added.unproven]
        conclusions.expired += [f"{prefix}{text}" for text in added.expired]


def find_offsets_of_earlier_table(ledger: History, table: str, uuid: str) -> Offsets:
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


def _has_undelivered(record: CommitRecord, primary: str, table: KeyedTable) -> bool:
    """Return whether the table lacks something that was decided (PENDING-6)."""
    delivered = table.history.current_record
    pending = [
        pending_commit
        for pending_commit in record.pending_commits
        if pending_commit.table == table.name and pending_commit.manifest
    ]
    return any(
        delivered is None or not delivered.has_received(pending_commit, primary)
        for pending_commit in pending
    )


def _newest_offsets_of(history: History) -> Offsets:
    return history.current_record.offsets if history.current_record else Offsets()
