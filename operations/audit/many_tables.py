"""Audits a sink of many tables: the ledger's commits, and every table that they filled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from pyroaring import BitMap64

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.identifiers import TopicPartition, TransactionId
from headgate.control_protocol.record import REPLAY, REREAD, CommitRecord, Debt
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
from headgate.tables.iceberg.pending_manifests import drafted_files
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
        self._came: frozenset[Debt] = frozenset()

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
        self._tell_parked(record)
        rows, complete = 0, self._history.complete
        for name, table in tables.items():
            brought, whole = self._examined(name, table, columns, seen)
            rows, complete = rows + brought, complete and whole
        tables = {name: table for name, table in tables.items() if name not in self._unread}
        decided_for = decided_tables(self._settings, self._history)
        absent = sorted({*decided_for, *self._unread} - tables.keys())
        self._unproven += [str(error) for error in self._unread.values()]
        complete = complete and not self._still_lapsed(record)
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
                    f"the ledger decided {decided} rows, its tables received or are owed {rows}",
                )
            )

    def _still_lapsed(self, record: CommitRecord) -> Sequence[Debt]:
        """I6: leave out lapsed debts that a table's record says were written again.

        A late payment may have brought others after all.
        """
        done = self._reread
        return [
            debt
            for debt in super()._still_lapsed(record)
            if debt not in self._came
            and not self._keyed.of_an_earlier_table(debt)
            and (debt.follower not in done or debt.transaction > done[debt.follower])
        ]

    def _tell_parked(self, record: CommitRecord) -> None:
        """I1: report parked tables; that a table takes nothing is not a fault of the sink."""
        for parked in record.parked:
            self._remarks.append(f"{parked.table} is parked: {parked.why}")

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
        """Return what ``_examine_follower`` does, or nothing for a table that does not answer."""
        try:
            return self._examine_follower(table, columns, seen)
        except Exception as error:
            if isinstance(error, FileNotFoundError) and table.reader.moved():
                raise  # it was expired or compacted away meanwhile: the audit looks again
            failure = catalog_failure(error, f"table {name} cannot be read")
            self._unread = {**self._unread, name: failure}
            return 0, False

    def report(self) -> AuditReport:
        return replace(super().report(), unread=tuple(sorted(self._unread)))

    def _examine_follower(
        self, follower: TableAtRest, columns: Columns | None, seen: TableRecords
    ) -> tuple[int, bool]:
        """Return the rows it received or is owed, and whether those are all there ever were."""
        reader = follower.reader
        history, files = reader.history(), reader.live_files()
        live, damaged = examine_live(reader, files, self._on_progress)
        self._files += files
        self._take_deleted(history)
        self._followers.add(history.uuid)
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
        came = self._came_after_all(follower)
        self._came |= came
        owed, missing = self._examine_debts(follower, history, columns, seen, keyed=keyed)
        found = [
            *examine_chain(history, follows=True),
            *examine_commits(reader, history, self._on_progress),
            *live,
            *missing,
        ]
        self._findings += [Finding(f.what, f"{history.table}: {f.evidence}") for f in found]
        lead = self._history.uuid
        paid = [commit.record for commit in history.commits if commit.record.lead == lead]
        if again := sum(record.records for record in paid if record.command == REPLAY):
            told = f"{history.table}: {again} records of the quarantine were replayed"
            self._remarks.append(told)
        if lapsed := sum(record.records for record in paid if record.command == REREAD):
            self._remarks.append(
                f"{history.table}: {lapsed} rows that had lapsed were written again"
            )
        if history.record and history.record.replayed and history.record.replayed.lapsed:
            self._reread[history.uuid] = history.record.replayed.lapsed
        return sum(record.records for record in paid) - again + owed, history.complete

    def _came_after_all(self, follower: TableAtRest) -> frozenset[Debt]:
        record = self._history.record
        columns = self._settings.tables.record_columns.coordinates
        present = columns and all(name in follower.reader.columns() for name in columns)
        debts, lead = record.lapsed if record else (), self._history.uuid
        came = came_after_all(follower, debts, lead, columns if present else None)
        if rows := sum(debt.rows for debt in came):
            name = follower.reader.view().table
            self._remarks.append(f"{name}: {rows} rows lapsed, and came after all")
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

    def _examine_debts(
        self,
        reader: TableAtRest,
        history: History,
        columns: Columns | None,
        seen: TableRecords,
        *,
        keyed: bool,
    ) -> tuple[int, list[Finding]]:
        """Return how many rows the table is owed (D7).

        Those of a keyed one may be replaced again.
        """
        record, lead = self._history.record, self._history.uuid
        rows, findings = 0, list[Finding]()
        for debt in record.debts if record else ():
            paid = history.record is not None and history.record.pays(debt, lead)
            if debt.follower != history.uuid or not debt.manifest or paid:
                continue
            rows += debt.rows
            self._remarks.append(
                f"{debt.said} of transaction {debt.transaction} are owed to {history.table}"
            )
            if keyed and isinstance(reader.reader, IcebergReader):
                findings += examine_owed(reader.reader, debt, lead)
            else:
                findings += _examine_debt(reader, debt.manifest, columns, seen)
        return rows, findings


def examine_owed(reader: IcebergReader, debt: Debt, lead: str) -> list[Finding]:
    """Check that the files of a debt exist, unless it was paid since ``reader`` read its table.

    A running sink removes key files as soon as they are paid (D7).
    """
    missing = _examine_files(reader, debt)
    if not missing:
        return []
    now = reader.afresh().view().settled
    return [] if now is not None and now.pays(debt, lead) else missing


def _examine_files(reader: IcebergReader, debt: Debt) -> list[Finding]:
    """Check that the files of a debt exist, with rows or with keys."""
    io = reader.table.io
    try:
        paths = [file.file_path for file in drafted_files(io, debt.manifest)]
    except FileNotFoundError as error:
        return [Finding("debt-missing", f"{debt.manifest} cannot be paid: {error}")]
    gone = [path for path in paths if not io.new_input(path).exists()]
    return [Finding("debt-missing", f"{path} is gone, and owed") for path in gone]


def _examine_debt(
    reader: TableAtRest, manifest: str, columns: Columns | None, seen: TableRecords
) -> list[Finding]:
    """Read the rows that are owed; without columns, check only that the debt can be read."""
    try:
        files = reader.drafted(manifest, columns or ())
        if columns:
            scan_draft(files, columns, seen)
    except FileNotFoundError as error:
        return [Finding("debt-missing", f"{manifest} cannot be paid: {error}")]
    return []
