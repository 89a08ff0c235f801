"""``headgate status`` says why a first start was refused, without a control topic."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from unit.operations.filled_table import FilledTable

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.message_encoding import SkipReason
from headgate.operations.cli.main import main
from headgate.operations.status import status as module
from headgate.operations.status.status import read_status

READ_EVENTS = module._read_control_tail_or_note_failure
COLUMN = '[[table.columns]]\nname = "{name}"\ntype = "{type}"\nfrom_record = true\n'


@pytest.fixture
def made(filled: FilledTable) -> None:
    """A table that somebody made, and no sink has claimed."""
    filled.table.transaction().remove_properties("headgate.trips.claimed").commit_transaction()


@pytest.fixture(autouse=True)
def brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They answer, and there is no control topic, and no note of a table."""
    monkeypatch.setattr(module, "_read_source_logs_or_note_failure", lambda *_, **__: {})
    monkeypatch.setattr(module, "_read_control_tail_or_note_failure", lambda *_: [])
    monkeypatch.setattr(module, "_count_and_note_silent_members", lambda *_: 0)
    monkeypatch.setattr(
        "headgate.operations.access.tables.require_table_never_filled_before", lambda *_: None
    )


def test_a_first_start_that_the_tables_columns_refuse(made: None, sink_file: Path) -> None:
    sink_file.write_text(sink_file.read_text() + COLUMN.format(name="offset", type="string"))
    result = CliRunner().invoke(main, ["status", str(sink_file), "--json"])
    said = json.loads(result.stdout)
    assert (said["condition"], result.exit_code) == ("failed", 1)
    assert said["last_error"]["code"] == "HG-208"
    assert "column 'offset'" in said["last_error"]["text"]


@pytest.mark.parametrize("warehouse", ["file:///proc/lake", "s4://bucket/lake"])
def test_a_first_start_that_the_warehouse_refuses(settings: SinkSettings, warehouse: str) -> None:
    table = replace(settings.table, create=True, location=warehouse)
    report = read_status(replace(settings, table=table))
    assert report.last_error is not None
    assert (report.condition, report.exit_code) == ("failed", 1)
    assert report.last_error.code == "HG-100"


def test_a_start_that_a_table_which_was_rolled_back_refuses(
    filled: FilledTable, sink_file: Path
) -> None:
    filled.good_start()
    before = filled.table.metadata.snapshots[-2].snapshot_id
    filled.table.manage_snapshots().rollback_to_snapshot(before).commit()
    result = CliRunner().invoke(main, ["status", str(sink_file), "--json"])
    said = json.loads(result.stdout)
    assert (said["condition"], result.exit_code) == ("failed", 1)
    assert said["last_error"]["code"] == "HG-201"


def test_one_that_nothing_refuses_never_started(
    made: None, settings: SinkSettings, tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    for each in (
        settings,
        replace(settings, table=replace(settings.table, create=True, identifier="db.new")),
    ):
        report = read_status(each)
        assert (report.condition, report.exit_code) == ("never started", 0)
    assert sorted(tmp_path.rglob("*")) == before


def test_events_that_nobody_believes_hide_nothing_that_was_asked(
    filled: FilledTable, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write to the control topic cannot make the brokers look unreachable."""

    def read(_settings: SinkSettings, _count: int, refused: Counter[SkipReason]) -> list[object]:
        refused[SkipReason.UNSIGNED] += 1
        return []

    monkeypatch.setattr(module, "_read_control_tail_or_note_failure", READ_EVENTS)
    monkeypatch.setattr(module, "read_control_tail", read)
    monkeypatch.setattr(module, "_count_and_note_silent_members", lambda *_: 2)
    filled.good_start()
    report = read_status(settings)
    assert report.participants_known
    assert report.exit_code == 1
    assert "1 unsigned events of this sink were ignored" in " ".join(report.notes)
    assert report.condition != "unknown"
