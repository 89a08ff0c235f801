"""Commands that take the file of a fleet's workers, some of them sink files instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from unit.config.test_load import MINIMAL

from headgate.control_protocol.redacting_loggers import redact_for_running_sinks
from headgate.operations.cli.main import main

WORKER = '[fleet]\nname = "city"\n[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n'


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    sink, worker = tmp_path / "trips.toml", tmp_path / "worker.toml"
    sink.write_text(MINIMAL)
    worker.write_text(WORKER)
    return str(sink), str(worker)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, result.output


@pytest.mark.parametrize("command", ["serve", "rights"])
def test_either_sink_files_or_a_fleet_are_named(command: str, files: tuple[str, str]) -> None:
    sink, worker = files
    for given in ((), (sink, "--fleet", worker)):
        code, said = run(command, *given)
        assert (code, "name sink files, or --fleet FILE" in said) == (2, True)


@pytest.mark.parametrize("command", ["serve", "rights"])
def test_a_wrong_workers_file_is_told_with_its_line(command: str, files: tuple[str, str]) -> None:
    _, worker = files
    Path(worker).write_text(WORKER + '[fleat]\nname = "x"\n')
    code, said = run(command, "--fleet", worker)
    assert (code, "worker.toml:5" in said) == (2, True), said


def test_a_fleet_is_not_shown_to_the_world_without_tokens(files: tuple[str, str]) -> None:
    _, worker = files
    code, said = run("serve", "--fleet", worker, "--listen", "0.0.0.0:0")
    assert (code, "reached from other machines" in said) == (2, True), said


def test_each_role_of_a_fleet_has_its_commands(files: tuple[str, str]) -> None:
    sink, worker = files
    code, said = run("rights", "--fleet", worker, "--principal", "ann")
    assert (code, "# worker of fleet city" in said) == (0, True)
    assert "--operation Write --operation Describe --transactional-id city" in said
    code, said = run("rights", "--fleet", worker, "--role", "viewer")
    assert (code, "Write" in said, said.count("--topic")) == (0, False, 2)
    for given in (("--fleet", worker, "--role", "sink"), (sink, "--role", "worker")):
        assert run("rights", *given)[0] == 2
    assert "# sink of sink trips" in run("rights", sink)[1]


def test_a_worker_s_log_holds_no_secret_of_its_file(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, worker = files
    Path(worker).write_text(WORKER + '"sasl.password" = "sesame-open"\n')
    said: list[str] = []
    monkeypatch.setattr(
        "headgate.runtime.fleet.worker.Worker.run",
        lambda _: said.append(redact_for_running_sinks("login sesame-open failed")),
    )
    monkeypatch.setattr(
        "headgate.runtime.console_log.send_redacted_logs_to_stderr", lambda *_, **__: None
    )
    assert run("worker", worker) == (0, "")
    assert said == ["login *** failed"]
