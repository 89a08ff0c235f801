"""What a table has pending its quarantine is neither lost nor there: the audit and the status say
so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from support.iceberg_files import write_files
from unit.operations.filled_table import ARROW, SINK, TOPIC, FilledTable

from headgate.config.sink_settings import SinkSettings
from headgate.config.table_declaration import quarantine_declaration
from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.errors import TableMissing, TableRecreated
from headgate.control_protocol.identifiers import Epoch, Sender, TransactionId, TransactionNumber
from headgate.control_protocol.ports import CommitAttempt, Landed, Staging
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.control_protocol.table_history import FileRows, TableReader
from headgate.coordinator.secondary_pending_commits import build_deliveries
from headgate.operations.access.tables import open_tables_for_audit, open_tables_for_reading
from headgate.operations.audit import table_checks
from headgate.operations.audit.audit import audit
from headgate.operations.audit.report import AuditReport, Verdict
from headgate.operations.audit.table_records import TableRecords
from headgate.runtime.sink_tables import TableAtRest
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import create_table_if_missing

ASIDE = "db.trips_quarantine"


class Owing:
    """A table of a good start that has decided two rows for its quarantine besides."""

    def __init__(self, filled: FilledTable, catalog: Catalog, settings: SinkSettings) -> None:
        kept = replace(settings.quarantine, policy=Disposal.QUARANTINE, table=ASIDE)
        self.settings = replace(settings, quarantine=kept)
        self.catalog = catalog
        create_table_if_missing(catalog, ASIDE, quarantine_declaration())
        filled.good_start()
        self.aside = IcebergTable(catalog, ASIDE, SINK)
        self.pending_commit = self.drafted(10, 11)
        record = filled.record(
            1,
            3,
            {0: 12, 1: 10},
            quarantined=2,
            secondaries={ASIDE: self.pending_commit.secondary},
            pending_commits=(self.pending_commit,),
        )
        filled.commit(record)
        self.primary = IcebergTable(catalog, "db.trips", SINK)

    def drafted(self, *offsets: int) -> PendingCommit:
        rows = [{"topic": TOPIC, "partition": 0, "offset": offset} for offset in offsets]
        table: Table = self.catalog.load_table(ASIDE)
        files = write_files(table, pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
        transaction = TransactionId(Epoch(1), TransactionNumber(3))
        draft = Staging(self.aside.read(), transaction, Sender("member-1", "life-1"), tuple(files))
        (pending_commit,) = self.aside.stage(draft)
        return pending_commit

    def delivers(self) -> None:
        primary, secondary = self.primary.read(), self.aside.read()
        (delivery,) = build_deliveries(primary, (self.pending_commit,), {ASIDE: secondary}, ())
        assert isinstance(self.aside.commit(delivery), Landed)

    def audited(self) -> AuditReport:
        return audit(self.settings, with_source=False)

    def pending(self) -> int:
        with open_tables_for_reading(self.settings) as tables:
            return sum(
                pending_commit.rows
                for pending_commit in tables.read_undelivered_commits(self.primary.read().record)
            )


@pytest.fixture
def owing(filled: FilledTable, catalog: Catalog, settings: SinkSettings) -> Owing:
    return Owing(filled, catalog, settings)


def test_pending_7_rows_that_are_pending_are_named_and_not_lost(owing: Owing) -> None:
    report = owing.audited()
    assert report.findings == ()
    assert "2 rows of transaction 1.3 are pending for the quarantine" in report.remarks
    assert report.sum_over_partitions("in_quarantine") == 2
    assert report.quarantined_rows == 0
    assert owing.pending() == 2


def test_what_is_missing_beside_the_table_is_not_called_the_table(
    owing: Owing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quarantine was renamed by hand: a start stops with that, whatever the group notes."""

    def gone(*_: object) -> None:
        raise TableRecreated("there is no table db.trips, but this sink has filled it")

    monkeypatch.setattr("headgate.operations.access.tables.require_table_never_filled_before", gone)
    with (
        pytest.raises(TableMissing, match=ASIDE),
        open_tables_for_audit(owing.settings, asks_group=True) as reader,
    ):
        owing.catalog.drop_table(ASIDE)
        with reader.open_for_reading(ASIDE):
            pass
    owing.catalog.drop_table("db.trips")
    with (
        pytest.raises(TableRecreated),
        open_tables_for_audit(owing.settings, asks_group=True),
    ):
        pass


def test_pending_6_once_they_are_delivered_nothing_is_pending(owing: Owing) -> None:
    owing.delivers()
    report = owing.audited()
    assert report.findings == ()
    assert not any("pending" in text for text in report.remarks)
    assert (report.sum_over_partitions("in_quarantine"), report.quarantined_rows) == (2, 2)
    assert owing.pending() == 0


def test_a_manifest_that_is_gone_is_a_finding(owing: Owing) -> None:
    owing.catalog.load_table(ASIDE).io.delete(owing.pending_commit.manifest)
    report = owing.audited()
    assert {finding.what for finding in report.findings} == {"pending-commit-missing"}


def test_so_is_a_listed_file_that_is_gone_where_no_column_is_read() -> None:
    def read() -> Iterator[pa.RecordBatch]:
        raise FileNotFoundError("rows.parquet")
        yield

    reader = cast("TableReader", None)
    at_rest = TableAtRest(reader, lambda *_: iter([FileRows("", 0, read, read)]), lambda: 0)
    (finding,) = table_checks._check_pending_rows(at_rest, "list", None, TableRecords())
    assert finding.what == "pending-commit-missing"


def test_pending_8_what_has_expired_is_a_finding(owing: Owing) -> None:
    view = owing.primary.read()
    assert view.record
    number = TransactionNumber(4)
    expiring: CommitRecord = replace(
        view.record,
        transaction=replace(view.record.transaction, number=number),
        records=0,
        quarantined=0,
        pending_commits=(),
        expired=(owing.pending_commit,),
    )
    assert isinstance(owing.primary.commit(CommitAttempt(view, expiring)), Landed)
    report = owing.audited()
    assert report.verdict is Verdict.WRONG
    assert any(
        finding.what == "rows-expired" and "2 rows of transaction 1.3" in finding.evidence
        for finding in report.findings
    )


def test_rows_that_are_pending_and_there_are_seen_as_doubled(owing: Owing) -> None:
    """In the table, and in what its quarantine is pending."""
    filled = owing.catalog.load_table("db.trips")
    rows = pa.Table.from_pylist([{"topic": TOPIC, "partition": 0, "offset": 10}], schema=ARROW)
    filled.append(rows)
    report = owing.audited()
    assert "record-twice" in {finding.what for finding in report.findings}
