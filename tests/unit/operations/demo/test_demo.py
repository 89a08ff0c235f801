"""``headgate demo`` before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate.control_protocol.errors import ConfigurationError
from headgate.operations.cli.main import main
from headgate.operations.demo import s3_server
from headgate.operations.demo.final_report import next_commands


def test_a_missing_java_is_one_line_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    result = CliRunner().invoke(main, ["demo", "--folder", str(tmp_path / "demo")])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [result.stderr.rstrip("\n")]
    assert "need Java 17 or 21" in result.stderr
    assert not (tmp_path / "demo").exists()


def test_its_options_have_help_and_bounds() -> None:
    assert "--records" in CliRunner().invoke(main, ["demo", "--help"]).stdout
    result = CliRunner().invoke(main, ["demo", "--records", "10"])
    assert result.exit_code == 2
    assert "10 is not in the range" in result.stderr


@pytest.mark.parametrize("kafka_runs", [True, False])
def test_what_to_type_next_is_typed_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, kafka_runs: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    sink = tmp_path / "my demo" / "sink.toml"
    commands = next_commands(sink, sink.with_name("participant-1.log"), kafka_runs=kafka_runs)
    texts = [command for _, command in commands]
    assert texts[0] == "less 'my demo/sink.toml'"
    alone = "" if kafka_runs else " --accept-unproven"
    assert any(text.endswith(f"headgate audit 'my demo/sink.toml'{alone}") for text in texts)
    assert any("headgate run" in text for text in texts) == kafka_runs


@pytest.mark.parametrize("kafka_runs", [True, False])
def test_nothing_is_told_about_a_table_that_is_gone_with_its_store(
    tmp_path: Path, *, kafka_runs: bool
) -> None:
    sink = tmp_path / "sink.toml"
    told = next_commands(sink, tmp_path / "1.log", kafka_runs=kafka_runs, is_store_local=False)
    assert ("the audit again" in dict(told)) == kafka_runs
    assert "another reader" not in dict(told)
    assert kafka_runs or told[-1][1].endswith("headgate demo --store s3 --keep")


def test_without_moto_the_demo_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_server, "find_spec", lambda _: None)
    with (
        pytest.raises(ConfigurationError, match=r"headgate\[demo\]"),
        s3_server.EmbeddedS3(tmp_path),
    ):
        pass
