"""A keyed table, judged: its commits, its files, and that no key has two rows.

Which records are the last ones of their keys only a fold of the source tells, and the source may
have been compacted since: whether a row is missing is not proven here, and the report says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from headgate.control_protocol.errors import ConfigurationError, RetryLater
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.record import CommitRecord
from headgate.operations.audit import Inquiry
from headgate.operations.audit_records import TableRecords, count_keys
from headgate.operations.audit_report import Finding
from headgate.operations.audit_source import SourceEvidence, Witness
from headgate.operations.kafka_access import source_topics


class KeyedInquiry(Inquiry):
    """As an audit of a table that is appended to, but for what replaced and deleted rows."""

    def examine_table(self) -> None:
        super().examine_table()
        self._unproven.append(
            "a keyed table holds the last record of each key: that none of them is missing, and "
            "none outdated, was not compared with the source"
        )

    def _examine_row_count(self) -> None:
        history = self._history
        counts = [commit.record.keys for commit in history.commits if commit.record.keys]
        expected = sum(each.inserted - each.deleted for each in counts)
        if any(not found.upkeep for found in history.foreign) or not history.complete:
            self._unproven.append(
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

    def _ask_source(
        self,
        record: CommitRecord,
        spans: Mapping[TopicPartition, tuple[int | None, int]],
        seen: TableRecords | None,
    ) -> SourceEvidence:
        """Where the source's logs end; its records say nothing of rows one by one."""
        del record, seen
        try:
            with source_topics(self._settings) as topics:
                described = topics.describe()
        except (RetryLater, ConfigurationError) as error:
            self._unproven.append(f"the source was not asked: {error.message}")
            return SourceEvidence()
        source = SourceEvidence(described)
        for at in spans:
            topic = described.get(at.topic)
            if topic is not None and at.partition in topic.partitions:
                source.witnesses[at] = Witness(topic.partitions[at.partition], None)
        return source
