"""Recent bad records are shown wherever people look, with place and reason."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyiceberg.types import StringType
from rich.console import Console
from support.local_catalog import LocalCatalog
from support.quarantine_rows import IDENTIFIER, QuarantineRows
from unit.operations.filled_table import FilledTable

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.identifiers import SinkName
from headgate.operations.http.status_page import sink_page
from headgate.operations.render_command_results import show_status
from headgate.operations.status import status as module
from headgate.operations.status.rejected_records import select_rows_of_newest_commit
from headgate.operations.status.report import RejectedRecord, StatusReport
from headgate.operations.status.status import read_status
from headgate.tables.iceberg import dead_letter_rows


@pytest.fixture
def settings(
    settings: SinkSettings, filled: FilledTable, monkeypatch: pytest.MonkeyPatch
) -> SinkSettings:
    """Of a sink whose last commit put seven records aside; there are no brokers."""
    monkeypatch.setattr(module, "_read_source_logs_or_note_failure", lambda *_, **__: {})
    monkeypatch.setattr(module, "_read_control_tail_or_note_failure", lambda *_: [])
    monkeypatch.setattr(module, "_count_and_note_silent_members", lambda *_: 0)
    filled.commit(filled.record(1, 0, {0: 0}))
    filled.commit(filled.record(1, 1, {0: 9}, quarantined=7))
    aside = replace(settings.quarantine, table=IDENTIFIER)
    return replace(settings, quarantine=aside)


@pytest.fixture
def rows(settings: SinkSettings, filled: FilledTable, tmp_path: Path) -> QuarantineRows:
    catalog = filled.table.catalog
    made = QuarantineRows(LocalCatalog("default", {}, catalog, tmp_path, tmp_path))
    made.claim(1, "trips")
    made.commit(1, 1, *range(7), sink="trips")
    made.claim(1, "other")
    made.commit(1, 9, 99, sink="other")
    return made


def looks(report: StatusReport) -> tuple[str, str]:
    shown = io.StringIO()
    show_status(Console(file=shown, width=300), report)
    return shown.getvalue(), sink_page(report, 0)


def test_the_last_bad_records_are_shown_with_place_and_reason(
    settings: SinkSettings, rows: QuarantineRows
) -> None:
    report = read_status(settings)
    assert report.rejected_records[0] == RejectedRecord("trips", 0, 6, "value: is no JSON", "1.1")
    assert [bad.offset for bad in report.rejected_records] == [6, 5, 4, 3, 2]
    screen, page = looks(report)
    assert "trips partition 0 offset 6, in transaction 1.1: value: is no JSON" in screen
    assert "Last rejected records" in page
    assert "value: is no JSON" in page
    assert report.as_json()["rejected_records"][0]["offset"] == 6


def test_columns_are_found_by_their_ids(
    settings: SinkSettings, rows: QuarantineRows, filled: FilledTable
) -> None:
    with filled.table.catalog.load_table(IDENTIFIER).update_schema() as change:
        change.rename_column("message", "said")
    with filled.table.catalog.load_table(IDENTIFIER).update_schema() as change:
        change.add_column("message", StringType())  # no file has it
    assert read_status(settings).rejected_records[0] == RejectedRecord(
        "trips", 0, 6, "value", "1.1"
    )
    with filled.table.catalog.load_table(IDENTIFIER).update_schema() as change:
        change.rename_column("offset", "at")
    assert "the last rejected records are not known" in str(read_status(settings).notes)


def test_what_is_no_parquet_file_is_scanned(
    settings: SinkSettings, rows: QuarantineRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_rows, "FileFormat", SimpleNamespace(PARQUET="another"))
    monkeypatch.delattr(dead_letter_rows, "read_column_batches")
    assert [bad.offset for bad in read_status(settings).rejected_records] == [6, 5, 4, 3, 2]


def test_without_excerpts_nothing_of_a_record_is_shown(
    settings: SinkSettings, rows: QuarantineRows
) -> None:
    discreet = replace(settings.quarantine, excerpts=False)
    report = read_status(replace(settings, quarantine=discreet))
    assert {bad.reason for bad in report.rejected_records} == {"value"}


def test_a_quarantine_that_cannot_be_read_is_a_note_and_no_more(
    settings: SinkSettings,
) -> None:
    report = read_status(settings)
    assert report.rejected_records == ()
    assert any("the last rejected records are not known: HG-102" in note for note in report.notes)
    assert report.exit_code == read_status(replace(settings)).exit_code


def test_a_hostile_reason_is_text(settings: SinkSettings) -> None:
    nasty = "<script>alert(1)</script>\x1b[2J\nok"
    report = replace(
        read_status(settings), rejected_records=(RejectedRecord("t<b>", 0, 1, nasty, "1.1"),)
    )
    screen, page = looks(report)
    assert "<script>" not in page
    assert "<b>" not in page.partition("Last rejected records")[2]
    assert "\x1b" not in screen
    assert not any(line.startswith("ok") for line in screen.splitlines())


def test_of_a_table_that_is_not_told_by_files_the_rows_say_which_are_the_newest() -> None:
    said = [("t", 1, 9), ("t", 2, 1), ("other", 3, 1), ("t", 1, 3), ("t", 2, 1), ("t", None, None)]
    rows = (
        {"sink": sink, "epoch": epoch, "transaction": number, "offset": offset}
        for offset, (sink, epoch, number) in enumerate(said)
    )
    assert [row["offset"] for row in select_rows_of_newest_commit(rows, SinkName("t"))] == [1, 4]
