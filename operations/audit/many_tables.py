"""Audits a sink of many tables: the ledger's commits, and every table that they filled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from pyroaring import BitMap64

from headgate.control_protocol.commit_record import REPLAY, REREAD, CommitRecord, PendingCommit
from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.identifiers import TopicPartition, TransactionId
from headgate.control_protocol.table_history import History
from headgate.data_plane.quarantine.diverted_records import DivertedRecords, given_back
from headgate.operations.access.routed_tables import decided_tables, every_table
from headgate.operations.access.table import iceberg_of
from headgate.operations.audit.audit import Inquiry
from headgate.operations.audit.commit_chain import examine_chain
from headgate.operations.audit.files import (
    OnProgress,
    examine_commits,
    examine_live,
    of_other_sinks,
)
from headgate.operations.audit.many_keyed_tables import filled_before
from headgate.operations.audit.quarantine import came_after_all
from headgate.operations.audit.records import TableRecords, scan_draft, scan_records
from headgate.operations.audit.report import AuditReport, Finding
from headgate.operations.audit.source import (
    rewound,
)
from headgate.runtime.sink_tables import SinkTables, TableAtRest
from headgate.tables.iceberg.catalog import catalog_failure
from headgate.tables.iceberg.pending_manifests import read_staged_files
from headgate.tables.iceberg.reader import IcebergReader

Columns = tuple[str, str, str]


class RoutedInquiry(Inquiry):
    """Audits like a single table whose rows are those of all tables together."""

    _out_of_sight = 0
    """Rows decided for tables that are gone or may not be read."""

    _unread: Mapping[str, HeadgateError] = MappingProxyType({})
    """Tables that did not answer; the others are examined all the same."""

    def __init__(self, tables: SinkTables, on_progress: OnProgress) -> None:
        super().__init__(tables, on_progress)
        self._reread: dict[str, TransactionId] = {}
        self._came: frozenset[PendingCommit] = frozenset()

    def examine_table(self) -> None:
        self._findings += examine_chain(self._history, ledger=True)
        self._examine_moves()
        self._weigh_history()

    def _scan_table(self) -> TableRecords | None:
        record = self._history.record
        assert record is not None, "asked only then"
        seen = TableRecords(rewound=rewound(self._allowed))
        columns = self._settings.tables.record_columns.coordinates
        if columns is None:
            self._unproven.append(
                "tables.record_columns does not name topic, partition and offset: only counts can "
                "be compared, not single records"
            )
        with every_table(self._tables, self._history) as tables:
            self._unread = dict(tables.unread)
            self._scan_tables(tables.tables, columns, seen, record)
        return seen if columns else None

    def _scan_tables(
        self,
        tables: Mapping[str, TableAtRest],
        columns: Columns | None,
        seen: TableRecords,
        record: CommitRecord,
    ) -> None:
        self._tell_suspended(record)
        rows, complete = 0, self._history.complete
        for name, table in tables.items():
            brought, whole = self._examined(name, table, columns, seen)
            rows, complete = rows + brought, complete and whole
        tables = {name: table for name, table in tables.items() if name not in self._unread}
        decided_for = decided_tables(self._settings, self._history)
        absent = sorted({*decided_for, *self._unread} - tables.keys())
        self._unproven += [str(error) for error in self._unread.values()]
        complete = complete and not self._still_expired(record)
        self._put_again = self._records_put_again(tables)
        self._proven.append(f"{len(self._files)} live files of {len(tables)} tables: each whole")
        decided = sum(commit.record.records for commit in self._history.commits)
        self._out_of_sight = max(0, decided - rows) if absent else 0
        if absent:
            self._unproven.append(
                f"{', '.join(absent)} cannot be examined: not there, or not to be read; "
                f"{self._out_of_sight} rows that the ledger decided are in none of the others"
            )
        elif anew := sorted(self._keyed.earlier):
            self._unproven.append(
                f"{', '.join(anew)}: re-created, and what had been decided for the table before is "
                "not there: rows are not counted"
            )
        elif complete and decided != rows:
            self._findings.append(
                Finding(
                    "row-count",
                    f"the ledger decided {decided} rows, its tables received or are pending {rows}",
                )
            )

    def _still_expired(self, record: CommitRecord) -> Sequence[PendingCommit]:
        """I6: leave out expired pending commits that a table's record says were written again.

        A late delivery may have brought others after all.
        """
        done = self._reread
        return [
            pending_commit
            for pending_commit in super()._still_expired(record)
            if pending_commit not in self._came
            and not self._keyed.of_an_earlier_table(pending_commit)
            and (
                pending_commit.secondary not in done
                or pending_commit.transaction > done[pending_commit.secondary]
            )
        ]

    def _tell_suspended(self, record: CommitRecord) -> None:
        """I1: report suspended tables; that a table takes nothing is not a fault of the sink."""
        for suspended in record.suspended:
            self._remarks.append(f"{suspended.table} is suspended: {suspended.why}")

    def _weigh_appended(self, lost: list[Finding]) -> None:
        """Allow for rows in unreadable tables: nobody can say which they are, only how many."""
        missing = sum(partition.lost or 0 for partition in self._partitions)
        if missing and missing <= self._out_of_sight:
            self._unproven.append(f"{missing} records of the source are in no table that is there")
        else:
            super()._weigh_appended(lost)
        self._tell_refused()

    def _examined(
        self, name: str, table: TableAtRest, columns: Columns | None, seen: TableRecords
    ) -> tuple[int, bool]:
        """Return what ``_examine_secondary`` does, or nothing for a table that does not answer."""
        try:
            return self._examine_secondary(table, columns, seen)
        except Exception as error:
            if isinstance(error, FileNotFoundError) and table.reader.moved():
                raise  # it was expired or compacted away meanwhile: the audit looks again
            failure = catalog_failure(error, f"table {name} cannot be read")
            self._unread = {**self._unread, name: failure}
            return 0, False

    def report(self) -> AuditReport:
        return replace(super().report(), unread=tuple(sorted(self._unread)))

    def _examine_secondary(
        self, secondary: TableAtRest, columns: Columns | None, seen: TableRecords
    ) -> tuple[int, bool]:
        """Return the rows it received or is pending, and whether those are all there ever were."""
        reader = secondary.reader
        history, files = reader.history(), reader.live_files()
        live, damaged = examine_live(reader, files, self._on_progress)
        self._files += files
        self._take_deleted(history)
        self._secondaries.add(history.uuid)
        if keyed := self._keyed.has(history.table):
            self._keyed.examine(reader, history, files, damaged=bool(damaged))
            self._keyed.examine_keys(reader, history, files, damaged=bool(damaged))
            columns = None
        if before := filled_before(self._history, history.table, history.uuid):
            self._keyed.earlier[history.table] = before
        left_out = damaged | of_other_sinks(files, history, self._settings.name).keys()
        absent = [n for n in columns or () if n not in reader.columns()]
        if absent:
            self._unproven.append(f"{history.table} has no column {', '.join(absent)}")
            columns = None
        if columns and history.head is not None:
            scan_records(
                reader,
                columns,
                left_out,
                rewound=seen.rewound,
                on_progress=self._on_progress,
                into=seen,
            )
        came = self._came_after_all(secondary)
        self._came |= came
        pending, missing = self._examine_pending_commits(
            secondary, history, columns, seen, keyed=keyed
        )
        found = [
            *examine_chain(history, follows=True),
            *examine_commits(reader, history, self._on_progress),
            *live,
            *missing,
        ]
        self._findings += [Finding(f.what, f"{history.table}: {f.evidence}") for f in found]
        primary = self._history.uuid
        delivered = [
            commit.record for commit in history.commits if commit.record.primary == primary
        ]
        if again := sum(record.records for record in delivered if record.command == REPLAY):
            told = f"{history.table}: {again} records of the quarantine were replayed"
            self._remarks.append(told)
        if expired := sum(record.records for record in delivered if record.command == REREAD):
            self._remarks.append(
                f"{history.table}: {expired} rows that had expired were written again"
            )
        if history.record and history.record.replayed and history.record.replayed.expired:
            self._reread[history.uuid] = history.record.replayed.expired
        return sum(record.records for record in delivered) - again + pending, history.complete

    def _came_after_all(self, secondary: TableAtRest) -> frozenset[PendingCommit]:
        record = self._history.record
        columns = self._settings.tables.record_columns.coordinates
        present = columns and all(name in secondary.reader.columns() for name in columns)
        pending_commits, primary = record.expired if record else (), self._history.uuid
        came = came_after_all(secondary, pending_commits, primary, columns if present else None)
        if rows := sum(pending_commit.rows for pending_commit in came):
            name = secondary.reader.view().table
            self._remarks.append(f"{name}: {rows} rows expired, and came after all")
        return came

    def _tell_refused(self) -> None:
        """Tell of records that a table did not take: a keyed one may have wrong rows for it."""
        for table, records in sorted(self._aside.refused.items() if self._aside else ()):
            left = {at: some - self._put_again.get(at, BitMap64()) for at, some in records.items()}
            changes = sum(
                len(some)
                for at, some in left.items()
                if (self._keyed.has(table) if table else self._keyed.changed_by(at.topic))
            )
            others = sum(map(len, left.values())) - changes
            name = table or "the tables that routes name for them"
            if changes:
                self._unproven.append(
                    f"{changes} records, changes of keys, are in the quarantine, since {name} did "
                    "not take them: rows may be missing, or be older than their last change"
                )
            if others:
                self._remarks.append(
                    f"{others} records are in the quarantine, since {name} did not take them"
                )

    def _records_put_again(
        self, tables: Mapping[str, TableAtRest]
    ) -> Mapping[TopicPartition, BitMap64]:
        found: dict[TopicPartition, BitMap64] = {}
        records = {name: table.reader.view().record for name, table in tables.items()}
        marks = {name: record.replayed for name, record in records.items() if record}
        if not any(marks.values()):
            return found
        name = self._settings.quarantine.table
        catalog = iceberg_of(self._reader).table.catalog
        reader = IcebergReader(
            catalog.load_table(name), self._settings.name, self._settings.table.branch
        )
        record = reader.view().record
        if record is None:
            return found
        aside = DivertedRecords(
            reader.table, self._settings.name, self._settings.table.branch, record
        )
        for name, mark in marks.items():
            for place in aside.places(name) if mark else ():
                if given_back(place, mark):
                    found.setdefault(place.at, BitMap64()).add(place.offset)
        return found

    def _examine_pending_commits(
        self,
        reader: TableAtRest,
        history: History,
        columns: Columns | None,
        seen: TableRecords,
        *,
        keyed: bool,
    ) -> tuple[int, list[Finding]]:
        """Return how many rows the table is pending (D7).

        Those of a keyed one may be replaced again.
        """
        record, primary = self._history.record, self._history.uuid
        rows, findings = 0, list[Finding]()
        for pending_commit in record.pending_commits if record else ():
            delivered = history.record is not None and history.record.delivers(
                pending_commit, primary
            )
            if pending_commit.secondary != history.uuid or not pending_commit.manifest or delivered:
                continue
            rows += pending_commit.rows
            self._remarks.append(
                f"{pending_commit.said} of transaction {pending_commit.transaction} are "
                f"pending for {history.table}"
            )
            if keyed and isinstance(reader.reader, IcebergReader):
                findings += examine_pending(reader.reader, pending_commit, primary)
            else:
                findings += _examine_pending_commit(reader, pending_commit.manifest, columns, seen)
        return rows, findings


def examine_pending(
    reader: IcebergReader, pending_commit: PendingCommit, primary: str
) -> list[Finding]:
    """Check that the files of a pending commit exist, unless it was delivered to since ``reader``
    read its table.

    A running sink removes key files as soon as they are delivered (D7).
    """
    missing = _examine_files(reader, pending_commit)
    if not missing:
        return []
    now = reader.afresh().view().settled
    return [] if now is not None and now.delivers(pending_commit, primary) else missing


def _examine_files(reader: IcebergReader, pending_commit: PendingCommit) -> list[Finding]:
    """Check that the files of a pending commit exist, with rows or with keys."""
    io = reader.table.io
    try:
        paths = [file.file_path for file in read_staged_files(io, pending_commit.manifest)]
    except FileNotFoundError as error:
        return [
            Finding(
                "pending-commit-missing", f"{pending_commit.manifest} cannot be delivered: {error}"
            )
        ]
    gone = [path for path in paths if not io.new_input(path).exists()]
    return [Finding("pending-commit-missing", f"{path} is gone, and pending") for path in gone]


def _examine_pending_commit(
    reader: TableAtRest, manifest: str, columns: Columns | None, seen: TableRecords
) -> list[Finding]:
    """Read the rows that are pending; without columns, check only that the pending commit can be
    read."""
    try:
        files = reader.drafted(manifest, columns or ())
        if columns:
            scan_draft(files, columns, seen)
    except FileNotFoundError as error:
        return [Finding("pending-commit-missing", f"{manifest} cannot be delivered: {error}")]
    return []
