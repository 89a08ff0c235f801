"""One line for each sink of a folder."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console
from unit.operations.filled_table import FilledTable, sink_file_text
from unit.operations.http.conftest import report

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import Unreachable
from headgate.operations.cli import status_views as module
from headgate.operations.cli.main import main
from headgate.operations.render_command_results import show_statuses
from headgate.operations.status.report import FileStatus, StatusReport
from headgate.runtime.health import LastError
from headgate.runtime.wall_clock import format_utc


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that runs, one whose table is away, one that is no sink file, and something else."""
    for name in ("away", "trips"):
        text = sink_file_text(tmp_path).replace('name = "trips"', f'name = "{name}"')
        (tmp_path / f"{name}.toml").write_text(text)
    (tmp_path / "notes.txt").write_text("no sink")

    def status(settings: SinkSettings) -> StatusReport:
        if settings.name == "away":
            raise Unreachable("the catalog does not answer")
        return report()

    monkeypatch.setattr(module, "read_status", status)
    return tmp_path


def asked(folder: Path, *more: str) -> Result:
    return CliRunner().invoke(main, ["status", "--all", str(folder), *more])


def test_a_line_for_each_sink_and_the_worst_exit_code(folder: Path) -> None:
    done = asked(folder)
    away, trips = done.output.splitlines()[1:3]
    assert "not known" in away
    assert "HG-401" in done.output
    assert report().condition in trips
    assert done.exit_code == 3
    (folder / "broken.toml").write_text("name = ")
    done = asked(folder)
    assert "broken.toml" in done.output
    assert done.exit_code == 3


def test_last_rows_are_those_before_a_claim(filled: FilledTable, sink_file: Path) -> None:
    filled.good_start()
    filled.commit(filled.record(2, 0, {0: 10, 1: 10}, stopped=True))
    rows_ms = filled.table.metadata.snapshots[-2].timestamp_ms
    line = asked(sink_file.parent).output.splitlines()[1]
    assert format_utc(rows_ms, "%Y-%m-%d %H:%M:%S UTC") in line


@pytest.mark.parametrize(
    ("report_", "told"),
    [
        (report(exit_code=3, notes=("brokers: no answer",)), "brokers: no answer"),
        (report(exit_code=0, notes=("clocks differ",)), "-"),
        (
            report(exit_code=1, notes=("n",), last_error=LastError("HG-207", "t", "m", 1)),
            "HG-207 t",
        ),
    ],
)
def test_why_it_is_not_known_stands_where_no_error_does(report_: StatusReport, told: str) -> None:
    shown = io.StringIO()
    show_statuses(Console(file=shown, width=200), [FileStatus("trips.toml", report_)])
    assert shown.getvalue().rstrip().endswith(f" {told}")


def test_as_json_each_is_a_whole_report(folder: Path) -> None:
    away, trips = json.loads(asked(folder, "--json").output)
    assert (away["file"], away["exit_code"]) == ("away.toml", 3)
    assert (trips["file"], trips["condition"]) == ("trips.toml", report().condition)


def test_an_empty_folder_is_well_and_a_sink_file_is_not_named_beside_it(
    tmp_path: Path,
) -> None:
    assert asked(tmp_path).exit_code == 0
    assert CliRunner().invoke(main, ["status", "x.toml", "--all", str(tmp_path)]).exit_code == 2
    assert CliRunner().invoke(main, ["status"]).exit_code == 2
