"""Audits a keyed table: its commits, files and keys, and whether it is the fold of its source.

The fold needs the source's records. What they cannot show is reported as unproven: the source may
no longer hold them all, or a person may have moved offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyroaring import BitMap64

from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    RetryLater,
)
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.record import CommitRecord
from headgate.operations.audit import Inquiry
from headgate.operations.audit_fold import FoldEvidence, SourceRanges, fold_and_compare
from headgate.operations.audit_keys import (
    DEATHS_UNTOLD,
    NOT_FOLDED,
    Told,
    offsets_behind,
    told_of_deaths,
    told_of_fold,
    told_of_keys,
    told_of_rows,
)
from headgate.operations.audit_records import SeenOffsets, TableRecords
from headgate.operations.audit_report import Finding, PartitionAudit
from headgate.operations.audit_source import (
    SourceEvidence,
    Witness,
    examine_commit_counts,
    passed_over,
)
from headgate.operations.audit_whole import set_aside
from headgate.operations.fold.comparison import Fault
from headgate.operations.kafka_access import compacted, source_topics
from headgate.operations.table_access import iceberg_of
from headgate.sink.kinds import other_kind


class KeyedInquiry(Inquiry):
    """Audits like an append-only table, but allows for replaced and deleted rows."""

    _fold: FoldEvidence | None = None
    _compacted: Mapping[str, bool | None] = {}
    _folded: Sequence[str] = ()

    def examine_table(self) -> None:
        super().examine_table()
        if other_kind(self._settings):
            self._unproven.append(DEATHS_UNTOLD)
            return
        self._take(told_of_deaths(iceberg_of(self._reader), self._history, self._on_progress))

    def _take(self, told: Told) -> None:
        self._findings += told.findings
        self._proven += told.proven
        self._unproven += told.unproven
        self._expired += told.expired

    def _examine_row_count(self) -> None:
        self._take(told_of_rows(self._history, self._live_rows))

    def _coordinates(self) -> tuple[tuple[str, str, str] | None, str]:
        places = self._settings.table.record_columns
        return (places.topic, places.partition, places.offset), self._settings.source.topics[0]

    def _scan_table(self) -> TableRecords | None:
        if self._damaged:  # nobody can read the rows, or tell which of them are dead
            self._unproven.append("files are missing or damaged: keys and rows were not read")
            return None
        key, memory = self._settings.table.key, self._settings.changes.index_memory_bytes
        self._take(
            told_of_keys(self._reader, self._history, self._files, key=key, memory_bytes=memory)
        )
        return super()._scan_table()

    # ---------------------------------------------------------------------------------- the source

    def _ask_source(
        self,
        record: CommitRecord,
        spans: Mapping[TopicPartition, tuple[int | None, int]],
        seen: TableRecords | None,
    ) -> SourceEvidence:
        """Return where the source's logs end, and the fold of its records."""
        try:
            with source_topics(self._settings) as topics:
                source = SourceEvidence(topics.describe())
            self._compacted = compacted(self._settings.kafka, source.topics)
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
        """Return whether the table shows what the records up to the stored offsets amount to."""
        if self._renewed or other_kind(self._settings):
            return False
        behind = offsets_behind(record, self._allowed)
        self._unproven += behind[:1]
        return not behind

    def _compare_fold(
        self, record: CommitRecord, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> None:
        left_out = passed_over(self._history, self._allowed)
        if self._aside:
            for at, span in ranges.items():
                aside = self._aside.upto(at, span.end) | self._deleted.get(at, BitMap64())
                left_out[at] = left_out.get(at, BitMap64()) | aside
        source = SourceRanges(ranges, record.topic_ids, left_out, record.generations)
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
        """As for any table: nothing tells which rows others deleted or the sink skipped."""
        assert not lost, "offsets of a keyed table are not compared one by one"
        if self._fold is None:
            return
        told = told_of_fold(self._fold, self._history, self._compacted, self._unexplained)
        self._findings += told.findings
        self._unproven += told.unproven
        self._folded = told.proven

    @property
    def _unexplained(self) -> int:
        """Return how many records the sink skipped beyond those that change nothing anyway."""
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
        """Compare counts: an uncompacted source holds as many records as a commit read."""
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
        self._proven += self._folded
        return not self._findings and not any(self._fold.unproven(self._compacted))
