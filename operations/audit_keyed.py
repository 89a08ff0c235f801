"""A keyed table, judged: its commits, its files, its keys, and that it is the fold of its source.

The fold needs the source's records. What they cannot tell, since the source no longer holds them
all, or somebody moved offsets, is said to be unproven.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyroaring import BitMap64

from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    MissingRights,
    RetryLater,
)
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.record import CommitRecord
from headgate.kafka.cluster import Cluster
from headgate.operations.audit import Inquiry
from headgate.operations.audit_deaths import examine_deaths
from headgate.operations.audit_fold import FoldEvidence, SourceRanges, fold_and_compare
from headgate.operations.audit_records import SeenOffsets, TableRecords, count_keys
from headgate.operations.audit_report import Finding, PartitionAudit
from headgate.operations.audit_source import (
    SourceEvidence,
    Witness,
    examine_commit_counts,
    passed_over,
)
from headgate.operations.audit_whole import set_aside
from headgate.operations.fold.comparison import Fault
from headgate.operations.kafka_access import source_topics
from headgate.operations.table_access import iceberg_of
from headgate.sink.kinds import other_kind

NOT_FOLDED = (
    "a keyed table holds the last record of each key: that none of them is missing, and none "
    "outdated, was not compared with the source"
)


class KeyedInquiry(Inquiry):
    """As an audit of a table that is appended to, but for what replaced and deleted rows."""

    _fold: FoldEvidence | None = None
    _compacted: Mapping[str, bool | None] = {}

    def examine_table(self) -> None:
        super().examine_table()
        if other_kind(self._settings):
            self._unproven.append(
                "which rows each commit made die is not told by this kind of table"
            )
            return
        deaths = examine_deaths(iceberg_of(self._reader), self._history, self._on_progress)
        self._findings += deaths.findings
        if deaths.right:
            self._proven.append(
                f"{deaths.right} commits made as many rows die as they updated, deleted and "
                "superseded"
            )
        if deaths.puzzling:
            self._expired.append(
                f"{deaths.puzzling} commits made other rows die than they count, and others "
                "changed the table"
            )

    def _examine_row_count(self) -> None:
        history = self._history
        counts = [commit.record.keys for commit in history.commits if commit.record.keys]
        expected = sum(each.inserted - each.deleted for each in counts)
        if any(not found.upkeep for found in history.foreign) or not history.complete:
            self._expired.append(
                "live rows are not counted: others changed the table, or older commits have expired"
            )
        elif expected != self._live_rows:
            self._findings.append(
                Finding(
                    "row-count",
                    f"{self._live_rows} rows are live, the commits inserted {expected} more than "
                    "they deleted",
                )
            )
        else:
            self._proven.append(
                f"{expected} rows are live: as many as the commits inserted and did not delete"
            )

    def _coordinates(self) -> tuple[tuple[str, str, str] | None, str]:
        places = self._settings.table.record_columns
        return (places.topic, places.partition, places.offset), self._settings.source.topics[0]

    def _scan_table(self) -> TableRecords | None:
        if self._damaged:  # nobody can read the rows, or tell which of them are dead
            self._unproven.append("files are missing or damaged: keys and rows were not read")
            return None
        self._examine_keys()
        return super()._scan_table()

    def _examine_keys(self) -> None:
        """U1: no key has two live rows."""
        key = self._settings.table.key
        absent = [name for name in key if name not in self._reader.columns()]
        if absent or self._history.head is None:
            self._unproven.append(f"the table has no column {', '.join(absent) or 'filled yet'}")
            return
        rows_max = sum(file.records for file in self._files if not file.deletes)
        memory_bytes = self._settings.changes.index_memory_bytes
        try:
            rows, different = count_keys(self._reader, key, rows_max, memory_bytes)
        except (ValueError, NotImplementedError) as error:  # pyiceberg reads no equality deletes
            self._unproven.append(f"the keys cannot be read here: {error}")
            return
        if rows != different:
            self._findings.append(
                Finding("key-twice", f"{rows} live rows have {different} different keys")
            )
        else:
            self._proven.append(f"each of {rows} live rows has a key of its own")

    # ---------------------------------------------------------------------------------- the source

    def _ask_source(
        self,
        record: CommitRecord,
        spans: Mapping[TopicPartition, tuple[int | None, int]],
        seen: TableRecords | None,
    ) -> SourceEvidence:
        """Where the source's logs end, and the fold of its records."""
        try:
            with source_topics(self._settings) as topics:
                source = SourceEvidence(topics.describe())
            self._compacted = _compacted(self._settings.kafka, source.topics)
        except (RetryLater, ConfigurationError) as error:
            self._unproven.append(f"the source was not asked: {error.message}")
            return SourceEvidence()
        ranges = self._comparable(source, record, spans, seen)
        for at in spans:
            topic = source.topics.get(at.topic)
            if topic is not None and at.partition in topic.partitions:
                source.witnesses[at] = Witness(topic.partitions[at.partition], None)
        known = {at: span for at, span in ranges.items() if span is not None}
        if seen is not None and self._may_fold(record):
            self._compare_fold(record, known)
        return source

    def _may_fold(self, record: CommitRecord) -> bool:
        """Whether the table shows what the records up to the stored offsets came to."""
        if self._renewed or other_kind(self._settings):
            return False
        for move in self._allowed:
            if record.offsets.get(move.partition, 0) < move.begin:
                self._unproven.append(
                    f"{move.partition}: offsets were set back from {move.begin}, and the sink is "
                    "not there again: rows may be newer than the stored offsets"
                )
                return False
        return True

    def _compare_fold(
        self, record: CommitRecord, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> None:
        left_out = passed_over(self._history, self._allowed)
        if self._aside:
            for at, span in ranges.items():
                left_out[at] = left_out.get(at, BitMap64()) | self._aside.upto(at, span.end)
        source = SourceRanges(ranges, record.topic_ids, left_out)
        try:
            self._fold = fold_and_compare(
                self._settings,
                iceberg_of(self._reader),
                source,
                lambda records: self._on_progress("source records", records, 0),
            )
        except (ValueError, NotImplementedError) as error:
            self._unproven.append(f"the rows cannot be compared here: {error}")
        except HeadgateError as error:
            self._unproven.append(f"the source was not folded: {error.message}")

    def _judge(
        self,
        at: TopicPartition,
        span: tuple[int | None, int],
        witness: Witness | None,
        seen: SeenOffsets | None,
        *,
        aside: BitMap64 | None,
    ) -> tuple[PartitionAudit, list[Finding]]:
        partition, findings = super()._judge(at, span, witness, seen, aside=aside)
        if self._fold is not None and at in self._fold.read.offsets:
            partition = replace(
                partition,
                produced=len(self._fold.read.offsets[at]),
                lost=self._fold.of(at, Fault.LOST),
                invented=self._fold.of(at, Fault.INVENTED),
            )
        return partition, findings

    def _weigh_lost(self, lost: list[Finding]) -> None:
        """As of any table: which rows others deleted, or the sink skipped, nothing tells."""
        assert not lost, "offsets of a keyed table are not compared one by one"
        if self._fold is None:
            return
        faults = self._fold.faults
        removed = sum(snapshot.removed_rows for snapshot in self._history.foreign)
        missing = faults.count(Fault.LOST)
        behind = missing + faults.count(Fault.OUTDATED)
        besides: set[Fault] = set()
        if missing and missing <= removed:
            besides.add(Fault.LOST)
            self._unproven.append(
                f"{missing} keys have no row, and others deleted {removed} rows of the table"
            )
        elif behind and behind <= self._unexplained:
            besides |= {Fault.LOST, Fault.OUTDATED}
            self._unproven.append(
                f"{behind} keys lack the row of their last record, and the sink skipped "
                f"{self._unexplained} records that can be read now"
            )
        self._findings += self._fold.findings(frozenset(besides))
        self._unproven += self._fold.unproven(self._compacted)

    @property
    def _unexplained(self) -> int:
        """How many records the sink skipped beyond those that change nothing as they are."""
        read = self._fold.read if self._fold else None
        return self._skipped_records - (read.passed_over + read.bad if read else 0)

    def _weigh_skipped(self) -> None:
        findings, unproven = set_aside(self._history, self._settings)
        self._findings += findings
        if self._fold is not None and self._history.complete and self._unexplained <= 0:
            self._remarks += unproven
        else:
            self._unproven += unproven

    def _compare_counts(self, source: SourceEvidence) -> None:
        """Where nothing was compacted away the source holds as many records as a commit read."""
        if self._fold is None:
            return
        witnesses = {
            at: Witness(source.witnesses[at].log, offsets)
            for at, offsets in self._fold.read.offsets.items()
            if self._compacted.get(at.topic) is False
        }
        ids = {name: topic.topic_id for name, topic in source.topics.items()}
        findings, compared = examine_commit_counts(self._history, witnesses, ids)
        self._findings += findings
        if compared:
            self._proven.append(f"{compared} commits count each record that the source has of them")

    def _conclude_source(self) -> bool:
        if self._fold is None:
            self._unproven.append(NOT_FOLDED)
            return False
        faults = self._fold.faults
        compared = f"{faults.rows:,} rows are the last records of their keys, value by value"
        self._proven.append(f"{compared}: of {faults.records:,} changes that the source holds")
        return not self._findings and not any(self._fold.unproven(self._compacted))


def _compacted(kafka: Mapping[str, str], topics: Mapping[str, object]) -> dict[str, bool | None]:
    """Whether Kafka removes records of these topics that are not the last ones of their keys."""
    cluster = Cluster(kafka)
    found: dict[str, bool | None] = {}
    for name in topics:
        try:
            found[name] = cluster.compacts(name)
        except MissingRights:  # who reads a topic need not see its settings
            found[name] = None
    return found
