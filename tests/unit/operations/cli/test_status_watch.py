"""A status that is shown again and again, and a broker for those who try."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console
from unit.config.test_load import MINIMAL
from unit.operations.http.conftest import report

from headgate.config.load import parse
from headgate.control_protocol.errors import ConfigurationError, Unreachable
from headgate.operations.cli import status_views as module
from headgate.operations.cli.main import main
from headgate.operations.cli.status_views import render_repeatedly
from headgate.operations.local_kafka.broker import run_until_stopped
from headgate.operations.status.report import StatusReport


def test_watch_shows_what_changed_and_what_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = [report(), Unreachable("no catalog answers"), report(condition="idle")]

    def status(*_: object, **__: object) -> StatusReport:
        found = said.pop(0)
        if isinstance(found, Unreachable):
            raise found
        return found

    monkeypatch.setattr(module, "read_status", status)
    shown = io.StringIO()
    console = Console(file=shown, width=120)
    for picture in render_repeatedly(console, parse(MINIMAL), 0.0, looks_max=3):
        console.print(picture)
    text = shown.getvalue()
    assert text.index("running") < text.index("HG-401 no catalog answers") < text.index("idle")


def test_watch_is_not_for_scripts(tmp_path: Path) -> None:
    path = tmp_path / "sink.toml"
    path.write_text(MINIMAL)
    told = CliRunner().invoke(main, ["status", str(path), "--watch", "--json"])
    assert (told.exit_code, "--watch does not go with --json" in told.output) == (2, True)
    assert CliRunner().invoke(main, ["status", str(path), "--watch", "0"]).exit_code == 2


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("three years of work")
    with pytest.raises(ConfigurationError, match="holds something else"):
        run_until_stopped(tmp_path, 29_092, lambda _: None)
