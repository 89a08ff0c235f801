"""Keeps data files in memory: a writer takes as long as a test says; its files are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.commit_tokens import ANY
from headgate.control_protocol.errors import HeadgateError, Unreachable
from headgate.control_protocol.events import Destination, FileKind, TableStart, WrittenFile
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import (
    Batch,
    BatchFailed,
    BatchNeeds,
    BatchOutcome,
    BatchWritten,
    PartitionResult,
)
from headgate.control_protocol.testing.clock import FakeClock
from headgate.control_protocol.testing.source import FakeSource, SourceRecord

_RECORD_BYTES = 100


@dataclass(slots=True)
class FakeStorage:
    """Keeps every data file that was ever written: its path and its records, orphans included.

    ``manifests``: those that were drafted for secondary tables, with the files that each one names.
    ``columns``: those of the schema that a file of rows was written under.
    """

    files: dict[str, list[SourceRecord]] = field(default_factory=dict)
    manifests: dict[str, tuple[WrittenFile, ...]] = field(default_factory=dict)
    columns: dict[str, frozenset[str]] = field(default_factory=dict)

    def write(self, prefix: str, records: list[SourceRecord]) -> WrittenFile:
        """Write a file whose path begins so; or, with a stamp for a prefix, bears it (rule
        TOKEN-2)."""
        number = f"{len(self.files):05}"
        path = prefix.replace(ANY, number) if ANY in prefix else f"{prefix}{number}.parquet"
        self.files[path] = records
        size_bytes = _RECORD_BYTES * len(records)
        return WrittenFile(path, len(records), size_bytes)

    def write_keys(self, prefix: str, records: list[SourceRecord]) -> WrittenFile:
        """Write a key file (rule KEY-2)."""
        return replace(self.write(prefix, records), kind=FileKind.KEYS)


class FakeBatchWriter:
    """Implements ``BatchWriter``: done ``work_ms`` after ``submit``, or when
    ``make_batch_due`` says so (``None``).

    ``fail_next_outcome`` makes the running batch, or else the next one, end in failure when it is
    due. ``bad`` are records that go into the quarantine, ``held`` what is in it, asked where START
    says that it is ahead (rule QUARANTINE-3); the storage is one for all tables. ``route`` says
    which of START's secondary tables takes a bad record, ``takes`` which table that it does not
    name any other one.
    ``wants`` are the columns that a record needs, ``has`` those of the schema that START names.
    ``deletes``: whether a record deletes its key's row (rule KEY-2).
    """

    def __init__(
        self,
        source: FakeSource,
        storage: FakeStorage,
        clock: FakeClock,
        work_ms: int | None = 0,
    ) -> None:
        self._source = source
        self._storage = storage
        self._clock = clock
        self._failure: tuple[str, HeadgateError | None] | None = None
        self._due_ms: int | None = None
        self.work_ms = work_ms
        self.batch: Batch | None = None
        self.bad: Callable[[SourceRecord], bool] = lambda _record: False
        self.held: Callable[[], Iterable[SourceRecord]] = lambda: ()
        self.route: Callable[[SourceRecord], int] = lambda _record: 0
        self.wants: Callable[[SourceRecord], frozenset[str]] = lambda _record: frozenset()
        self.has: Callable[[TableStart], frozenset[str]] = lambda _table: frozenset()
        self.takes: Callable[[SourceRecord], tuple[Destination, str]] | None = None
        self.deletes: Callable[[SourceRecord], bool] = lambda _record: False
        self._known: frozenset[SourceRecord] = frozenset()

    def submit(self, batch: Batch) -> None:
        self.batch = batch
        try:
            self._known = self._records_already_in_secondaries(batch)
        except Unreachable as error:
            self.fail_next_outcome(str(error))
        self._due_ms = None if self.work_ms is None else self._clock.now_ms + self.work_ms

    def make_batch_due(self) -> None:
        """End the running batch now."""
        self._due_ms = self._clock.now_ms

    def fail_next_outcome(self, reason: str, fatal: HeadgateError | None = None) -> None:
        self._failure = (reason, fatal)

    def wait_for_outcome(self, timeout_ms: int) -> BatchOutcome | None:
        now_ms = self._clock.now_ms
        if self.batch is None or self._due_ms is None or self._due_ms > now_ms + timeout_ms:
            self._clock.advance(timeout_ms)
            return None
        self._clock.advance(max(0, self._due_ms - now_ms))
        batch, failure = self.batch, self._failure
        self.batch = self._failure = None
        if failure is None and (reason := self._reason_if_unreadable(batch)) is not None:
            failure = reason, None
        if failure is not None:
            return BatchFailed(batch.number, *failure)
        return self._find_missing_columns(batch) or self._write_batch(batch)

    def close(self) -> None:
        self.batch = None

    def _records_already_in_secondaries(self, batch: Batch) -> frozenset[SourceRecord]:
        """Return what the secondary tables hold of the partitions in which one is ahead of the
        batch."""
        ahead = [table.offsets for table in _secondary_starts(batch)]
        again = {
            at
            for at, span in batch.ranges.items()
            if any(span.begin < offsets.get(at, 0) for offsets in ahead)
        }
        if not again:
            return frozenset()
        return frozenset(r for r in self.held() if TopicPartition(r.topic, r.partition) in again)

    def _reason_if_unreadable(self, batch: Batch) -> str | None:
        if not self._source.reachable:
            return "the fake source cluster is not reachable"
        for at, offsets in batch.ranges.items():
            found = self._source.topic_ids[at.topic]
            if found != batch.topic_ids.get(at.topic, found):
                return f"{at.topic} has the id {found}: it was created again"
            log = self._source.partitions[at]
            if not log.begin <= offsets.begin <= offsets.end <= log.end:
                return f"{at}: {offsets} is outside of [{log.begin}, {log.end})"
        return None

    def _find_missing_columns(self, batch: Batch) -> BatchNeeds | None:
        """SCHEMA-2: return what the batch's rows need and the table lacks; not for tables of
        routes."""
        if self.takes is not None:
            return None
        there = self.has(batch.table) | {".".join(each.path) for each in batch.table.refused}
        wanted: set[str] = set()
        first: dict[TopicPartition, int] = {}
        for at, offsets in batch.ranges.items():
            for record in self._source.records(at, offsets):
                lacking = self.wants(record) - there
                bad = batch.quarantine is not None and self.bad(record)
                if lacking and not bad and record not in self._known:
                    wanted |= lacking
                    first.setdefault(at, record.offset)
        if not wanted:
            return None
        columns = Struct(tuple(Column(name, "long") for name in sorted(wanted)))
        return BatchNeeds(batch.number, columns, Offsets(first), len(first))

    def _write_batch(self, batch: Batch) -> BatchWritten:
        rows: list[SourceRecord] = []
        aside: list[SourceRecord] = []
        results = {}
        for at, offsets in batch.ranges.items():
            found = self._source.records(at, offsets)
            new = [record for record in found if record not in self._known]
            diverted = {record for record in new if self._is_diverted(batch, record)}
            bad = {r for r in new if batch.quarantine and self.bad(r)} | diverted
            good = [record for record in new if record not in bad]
            results[at] = self._partition_result(at, offsets, found, len(found) - len(good))
            if count := sum(record in diverted for record in found):
                results[at] = replace(results[at], bad=results[at].bad - count)
            if count := sum(map(self.deletes, good)):
                taken = results[at].records - count
                results[at] = replace(results[at], records=taken, deleted=count)
            rows += good
            aside += sorted(bad)
        if self.takes is not None:
            quarantined, _ = self._write_quarantine_and_secondaries(batch, aside)
            return BatchWritten(
                batch.number, results, (), quarantined, self._write_routed_rows(batch, rows)
            )
        prefix = batch.table.file_prefix
        files = self._write_rows_and_keys(prefix if ANY in prefix else f"{prefix}/", rows)
        self._storage.columns |= {file.path: self.has(batch.table) for file in files}
        return BatchWritten(
            batch.number, results, files, *self._write_quarantine_and_secondaries(batch, aside)
        )

    def _is_diverted(self, batch: Batch, record: SourceRecord) -> bool:
        """SUSPEND-1: return whether the record's table is suspended."""
        return self.takes is not None and self.takes(record)[0].table in batch.suspended

    def _write_routed_rows(
        self, batch: Batch, rows: list[SourceRecord]
    ) -> dict[Destination, tuple[WrittenFile, ...]]:
        """Return files of tables that no START names, below the folder that it gives (rule
        LEDGER-1)."""
        assert self.takes is not None, "asked only then"
        by_table: dict[tuple[Destination, str], list[SourceRecord]] = {}
        for record in rows:
            by_table.setdefault(self.takes(record), []).append(record)
        return {
            at: self._write_rows_and_keys(f"{location}/data/{batch.folder}/", share)
            for (at, location), share in sorted(by_table.items())
        }

    def _write_rows_and_keys(
        self, prefix: str, records: list[SourceRecord]
    ) -> tuple[WrittenFile, ...]:
        """Return a file of rows, and a key file of the records that delete (rule KEY-2)."""
        rows = [record for record in records if not self.deletes(record)]
        deleted = [record for record in records if self.deletes(record)]
        files = (self._storage.write(prefix, rows),) if rows else ()
        return (*files, self._storage.write_keys(prefix, deleted)) if deleted else files

    def _write_quarantine_and_secondaries(
        self, batch: Batch, records: list[SourceRecord]
    ) -> tuple[tuple[WrittenFile, ...], dict[Destination, tuple[WrittenFile, ...]]]:
        """Return the files of the quarantine, and those of the other secondary tables."""
        tables = _secondary_starts(batch)
        if not tables:
            return (), {}
        routed: list[list[SourceRecord]] = [[] for _ in tables]
        for record in records:
            routed[self.route(record) % len(tables)].append(record)
        first, *others = [
            self._write_table_files(table, share)
            for table, share in zip(tables, routed, strict=True)
        ]
        named = [Destination(table.table) for table in tables[1:]]
        return first, {at: files for at, files in zip(named, others, strict=True) if files}

    def _write_table_files(
        self, table: TableStart, records: list[SourceRecord]
    ) -> tuple[WrittenFile, ...]:
        if not records:
            return ()
        return (self._storage.write(f"{table.file_prefix}/", records),)

    def _partition_result(
        self, at: TopicPartition, offsets: OffsetRange, records: list[SourceRecord], bad_count: int
    ) -> PartitionResult:
        timestamps_ms = self._source.partitions[at].timestamps_ms
        return PartitionResult(
            offsets,
            records=len(records) - bad_count,
            quarantined=bad_count,
            bad=bad_count,
            bytes_read=_RECORD_BYTES * len(records),
            max_timestamp_ms=max(
                (timestamps_ms[record.offset] for record in records), default=None
            ),
        )


def _secondary_starts(batch: Batch) -> tuple[TableStart, ...]:
    return (batch.quarantine, *batch.secondaries) if batch.quarantine else ()
