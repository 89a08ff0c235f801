"""A sink of many tables, judged: the ledger's commits, and every table that they filled."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pyiceberg.table import Table
from pyroaring import BitMap64

from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.record import CommitRecord
from headgate.control_protocol.table_history import History
from headgate.data.writers.diverted import DivertedRecords, given_back
from headgate.operations.audit import Inquiry
from headgate.operations.audit_chain import examine_chain
from headgate.operations.audit_files import examine_commits, examine_live
from headgate.operations.audit_records import SeenOffsets, TableRecords, scan_draft, scan_records
from headgate.operations.audit_report import Finding, PartitionAudit
from headgate.operations.audit_source import Witness, judge_partition, rewound
from headgate.operations.routed_tables import decided_tables, every_table
from headgate.operations.table_access import iceberg_of
from headgate.tables.iceberg.reader import IcebergReader

Columns = tuple[str, str, str]


class RoutedInquiry(Inquiry):
    """As an audit of one table, whose rows are those of all tables together."""

    _out_of_sight = 0
    """Rows that were decided for tables that are not there, or may not be read."""

    _put_again: Mapping[TopicPartition, BitMap64] = MappingProxyType({})
    """Offsets of the quarantine's records that their tables have been given back (I6)."""

    @property
    def _lead(self) -> Table:
        return iceberg_of(self._reader).table

    def _reader_of(self, table: Table) -> IcebergReader:
        return IcebergReader(table, self._settings.name, self._settings.table.branch)

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
                "tables.record_columns names no topic, partition and offset: single records cannot "
                "be told apart, only counts"
            )
        tables = every_table(self._settings, self._lead.catalog, self._history)
        self._tell_parked(record)
        absent = sorted(decided_tables(self._settings, self._history).keys() - tables.keys())
        rows, complete = 0, self._history.complete and not record.lapsed
        for table in tables.values():
            brought, whole = self._examine_follower(self._reader_of(table), columns, seen)
            rows, complete = rows + brought, complete and whole
        self._put_again = self._records_put_again(tables)
        self._proven.append(f"{len(self._files)} live files of {len(tables)} tables: each whole")
        decided = sum(commit.record.records for commit in self._history.commits)
        self._out_of_sight = max(0, decided - rows) if absent else 0
        if absent:
            self._unproven.append(
                f"{', '.join(absent)} cannot be examined: not there, or not to be read; "
                f"{self._out_of_sight} rows that the ledger decided are in none of the others"
            )
        elif complete and decided != rows:
            self._findings.append(
                Finding(
                    "row-count",
                    f"the ledger decided {decided} rows, its tables received or are owed {rows}",
                )
            )
        return seen if columns else None

    def _tell_parked(self, record: CommitRecord) -> None:
        """I1: that a table takes nothing is no fault of the sink's."""
        for parked in record.parked:
            self._remarks.append(f"{parked.table} is parked: {parked.why}")

    def _weigh_lost(self, lost: list[Finding]) -> None:
        """Which rows a table held that cannot be read, nobody can say; but how many they were."""
        missing = sum(partition.lost or 0 for partition in self._partitions)
        if missing and missing <= self._out_of_sight:
            self._unproven.append(f"{missing} records of the source are in no table that is there")
        else:
            super()._weigh_lost(lost)

    def _examine_follower(
        self, reader: IcebergReader, columns: Columns | None, seen: TableRecords
    ) -> tuple[int, bool]:
        """The rows that it received or is owed, and whether that is all that there ever was."""
        history, files = reader.history(), reader.live_files()
        live, damaged = examine_live(reader, files, self._on_progress)
        self._files += files
        self._deleted_rows += history.deleted_rows
        others = {other.snapshot_id for other in history.foreign if other.sink is not None}
        left_out = damaged | {file.path for file in files if file.added_by in others}
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
        owed, missing = self._examine_debts(reader, history, columns, seen)
        found = [
            *examine_chain(history, follows=True),
            *examine_commits(reader, history, self._on_progress),
            *live,
            *missing,
        ]
        self._findings += [Finding(f.what, f"{history.table}: {f.evidence}") for f in found]
        lead = str(self._lead.metadata.table_uuid)
        paid = [commit.record for commit in history.commits if commit.record.lead == lead]
        if again := sum(record.records for record in paid if record.replays):
            told = f"{history.table}: {again} records of the quarantine were put again"
            self._remarks.append(told)
        return sum(record.records for record in paid) - again + owed, history.complete

    def _judge(
        self,
        at: TopicPartition,
        span: tuple[int | None, int],
        witness: Witness | None,
        seen: SeenOffsets | None,
        *,
        aside: BitMap64 | None,
    ) -> tuple[PartitionAudit, list[Finding]]:
        again = self._put_again.get(at)
        return judge_partition(at, span, witness, seen, aside=aside, put_again=again)

    def _records_put_again(self, tables: Mapping[str, Table]) -> Mapping[TopicPartition, BitMap64]:
        found: dict[TopicPartition, BitMap64] = {}
        records = {name: self._reader_of(table).view().record for name, table in tables.items()}
        marks = {name: record.replayed for name, record in records.items() if record}
        if not any(marks.values()):
            return found
        name = self._settings.quarantine.table
        reader = self._reader_of(self._lead.catalog.load_table(name))
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
        self, reader: IcebergReader, history: History, columns: Columns | None, seen: TableRecords
    ) -> tuple[int, list[Finding]]:
        """How many rows the table is owed (D7)."""
        record, lead = self._history.record, str(self._lead.metadata.table_uuid)
        rows, findings = 0, list[Finding]()
        for debt in record.debts if record else ():
            paid = history.record is not None and history.record.pays(debt, lead)
            if debt.follower != history.uuid or not debt.manifest or paid:
                continue
            rows += debt.rows
            self._remarks.append(
                f"{debt.rows} rows of transaction {debt.transaction} are owed to {history.table}"
            )
            findings += _examine_debt(reader, debt.manifest, columns, seen) if columns else []
        return rows, findings


def _examine_debt(
    reader: IcebergReader, manifest: str, columns: Columns, seen: TableRecords
) -> list[Finding]:
    try:
        scan_draft(reader.drafted(manifest, columns), columns, seen)
    except FileNotFoundError as error:
        return [Finding("debt-missing", f"{manifest} cannot be paid: {error}")]
    return []
