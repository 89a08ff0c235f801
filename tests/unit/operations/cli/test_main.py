"""The command line: what people and scripts rely on."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from support.entry_point import register
from unit.operations.filled_table import TOPIC, FilledTable

from headgate.config.load import load
from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    StopSink,
    Unreachable,
)
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.testing import FakeSource, FakeTopics
from headgate.operations.cli.main import GROUPS, main
from headgate.operations.control import pause
from headgate.operations.status import status
from headgate.runtime.console_log import Redacting


def headgate(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


def test_every_command_stands_in_one_group_with_a_sentence_that_fits_a_line() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == main.list_commands(click.Context(main))
    listed = [line for line in headgate("--help").output.splitlines() if line.startswith("  ")]
    described = [line for line in listed if line.split()[0] in grouped]
    assert len(described) == len(grouped)
    assert all(line.endswith((".", ")")) for line in described)


def test_another_package_s_command_is_listed_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "greeting.py").write_text(
        "import click\n\n\n@click.command('greet')\ndef greet() -> None:\n"
        "    'Say hello.'\n    click.echo('hello')\n"
    )
    register(tmp_path, monkeypatch, "headgate.commands", {"greet": "greeting:greet"})

    assert "Of other packages:\n  greet  Say hello.\n" in headgate("--help").output
    assert headgate("greet").output == "hello\n"
    assert headgate("gret").exit_code == 2


def test_a_command_that_cannot_be_loaded_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(tmp_path, monkeypatch, "headgate.commands", {"greet": "is_not_there:greet"})

    listed = headgate("--help")
    assert listed.exit_code == 0
    assert "greet  Cannot be loaded; run it to see why." in listed.output
    said = headgate("greet", "--loud", "you")
    assert said.exit_code == 2
    (line,) = lines(said.stderr)
    assert line.startswith(
        "headgate: HG-100 command greet cannot be loaded from is_not_there:greet"
    )
    assert line.endswith(
        "No module named 'is_not_there' (install again the package that offers it)"
    )


@pytest.mark.parametrize("command", [name for names in GROUPS.values() for name in names])
def test_every_command_has_help(command: str) -> None:
    assert headgate(command, "--help").exit_code == 0


def test_the_version() -> None:
    assert headgate("--version").output.startswith("headgate, version ")


def test_sinks_that_cannot_share_a_process_are_one_line_and_two(sink_file: Path) -> None:
    other = sink_file.with_name("other.toml")
    other.write_text(sink_file.read_text())
    for sinks in ((sink_file, other), (sink_file, sink_file)):
        result = headgate("run", *sinks)
        assert (result.exit_code, lines(result.stderr)[-1][:16]) == (2, "headgate: HG-128")
    assert headgate("run", sink_file, other, "--dry-run", "5").exit_code == 2
    assert headgate("run").exit_code == 2


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ({}, 0),
        ({"trips": ConfigurationError("no")}, 2),
        ({"trips": ConfigurationError("no"), "zones": StopSink("no")}, 1),
        ({"trips": Unreachable("no"), "zones": ConfigurationError("no")}, 3),
    ],
)
def test_of_several_sinks_the_worst_is_the_exit_code(
    errors: dict[str, HeadgateError],
    code: int,
    sink_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headgate.operations.cli.run.run_several", lambda *_, **__: errors)
    other = sink_file.with_name("other.toml")
    other.write_text(sink_file.read_text())
    result = headgate("run", sink_file, other)
    assert result.exit_code == code
    assert lines(result.stderr) == [f"headgate: sink {who}: {e}" for who, e in errors.items()]


def test_bad_usage_is_two() -> None:
    assert headgate("check").exit_code == 2
    assert headgate("nonsense").exit_code == 2


@pytest.mark.parametrize("command", [("offsets", "set"), ("tables", "resume")])
def test_what_answers_in_text_takes_no_json(sink_file: Path, command: tuple[str, str]) -> None:
    result = headgate(command[0], sink_file, command[1], "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"--json goes with show, not with {command[1]}" in result.stderr


@pytest.mark.parametrize("command", ["check", "status", "audit", "offsets", "run", "pause"])
def test_a_broken_file_is_one_line_and_two(command: str, sink_file: Path) -> None:
    sink_file.write_text(sink_file.read_text() + "[coordinator]\ncomit_interval_ms = 5\n")
    result = headgate(command, sink_file)
    assert result.exit_code == 2
    assert lines(result.stderr) == [
        (
            f"headgate: HG-100 {sink_file}:23:1: coordinator.comit_interval_ms is not a known key "
            "(did you mean commit_interval_ms?)"
        )
    ]
    assert result.stdout == ""


def test_verbose_shows_where_it_arose(tmp_path: Path) -> None:
    result = headgate("--verbose", "check", tmp_path / "absent.toml")
    assert "Traceback" in result.stderr
    assert "HG-100" in lines(result.stderr)[-1]
    assert result.exit_code == 2  # as without it: scripts go by it


def test_an_unreachable_broker_is_three(filled: FilledTable, sink_file: Path) -> None:
    filled.good_start()
    result = headgate("check", sink_file)
    assert result.exit_code == 3
    wrong = [line for line in lines(result.stdout) if line.startswith("wrong")]
    assert len(wrong) == 1
    assert "no broker answers at 127.0.0.1:1" in wrong[0]
    assert "[HG-401]" in wrong[0]


def test_a_cluster_that_does_not_answer_is_three(sink_file: Path) -> None:
    result = headgate("check", sink_file, "--kafka")
    assert result.exit_code == 3
    assert "a sink cannot run here: broker [HG-401]" in result.stdout


def test_a_missing_table_is_two(filled: FilledTable, sink_file: Path) -> None:
    sink_file.write_text(sink_file.read_text().replace("db.trips", "db.other"))
    result = headgate("check", sink_file)
    assert result.exit_code == 2
    assert any("[HG-102]" in line for line in lines(result.stdout))


def test_the_name_under_another_group_is_two(filled: FilledTable, sink_file: Path) -> None:
    filled.good_start()
    text = sink_file.read_text().replace('"headgate-trips"', '"other"')
    sink_file.write_text(text)
    result = headgate("check", sink_file, "--json")
    assert result.exit_code == 2
    answers = {answer["what"]: answer for answer in json.loads(result.stdout)}
    assert answers["sink state"]["code"] == "HG-101"
    assert answers["table"]["state"] == "ok"


def test_a_catalog_that_is_none_is_two(sink_file: Path, tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"this is no database at all" * 100)
    result = headgate("check", sink_file)
    assert result.exit_code == 2
    for command in ("status", "audit", "offsets"):
        result = headgate(command, sink_file)
        assert result.exit_code == 2
        assert len(lines(result.stderr)) == 1


def test_an_audit_that_proves_nothing_is_zero_only_where_that_is_accepted(
    filled: FilledTable, sink_file: Path
) -> None:
    filled.good_start()
    result = headgate("audit", sink_file, "--no-source")
    assert result.exit_code == 1
    assert lines(result.stdout)[-1] == "trips into db.trips: 20 rows committed: not proven"
    assert headgate("audit", sink_file, "--no-source", "--accept-unproven").exit_code == 0
    document = json.loads(headgate("audit", sink_file, "--no-source", "--json").stdout)
    assert (document["verdict"], document["well"]) == ("not proven", False)
    assert document["findings"] == []
    assert [p["in_table"] for p in document["partitions"]] == [10, 10]


def test_an_audit_that_finds_something_is_one(filled: FilledTable, sink_file: Path) -> None:
    filled.good_start()
    filled.write(1, 3, {0: 11, 1: 10}, [(0, 10), (0, 4)])
    result = headgate("audit", sink_file, "--no-source")
    assert result.exit_code == 1
    assert "record-twice: trips/0: 1 row too many: offset 4 again in file://" in result.stdout
    assert lines(result.stdout)[-1].endswith("1 found wrong")
    document = json.loads(headgate("audit", sink_file, "--no-source", "--json").stdout)
    assert [finding["what"] for finding in document["findings"]] == ["record-twice"]


def test_status_from_the_table_alone(filled: FilledTable, sink_file: Path) -> None:
    filled.good_start()
    result = headgate("status", sink_file, "--json")
    assert result.exit_code == 3  # the table answers, the brokers do not
    document = json.loads(result.stdout)
    assert (document["epoch"], document["transaction"]) == (1, "1.2")
    assert [p["next_offset"] for p in document["partitions"]] == [10, 10]
    assert [t["transaction"] for t in document["transactions"]] == ["1.2", "1.1", "1.0"]
    assert [note.partition(":")[0] for note in document["notes"]] == [
        "lag and participants are not known",
    ]
    shown = headgate("status", sink_file)
    assert shown.exit_code == 3
    assert "coordinator" in shown.stdout


def test_offsets(filled: FilledTable, sink_file: Path) -> None:
    filled.good_start()
    result = headgate("offsets", sink_file, "show", "--json")
    assert [(p["partition"], p["next_offset"], p["lag"]) for p in json.loads(result.stdout)] == [
        (0, 10, None),
        (1, 10, None),
    ]
    assert result.exit_code == 3
    assert "HG-401 no broker answers at 127.0.0.1:1" in result.stderr


def test_no_lag_is_told_where_the_log_ends_before_the_stored_offset(
    filled: FilledTable, sink_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic was re-created, as HG-206 says: what the other log held is no lag below zero."""
    filled.good_start()
    source = FakeSource()
    source.create_or_replace(TOPIC, 2)
    source.produce(TopicPartition(TOPIC, 0), 4)
    source.produce(TopicPartition(TOPIC, 1), 12)
    topics = FakeTopics(source, [TOPIC])
    monkeypatch.setattr(status, "open_reachable_source_topics", lambda _: nullcontext(topics))
    shown = json.loads(headgate("offsets", sink_file, "show", "--json").stdout)
    assert [(p["log_end"], p["lag"]) for p in shown] == [(4, None), (12, 2)]


def test_no_secret_is_shown(
    filled: FilledTable, sink_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_TEST_WAREHOUSE", "hidden-place")
    text = sink_file.read_text().replace(
        "[table]", 'token = "${env:HEADGATE_TEST_WAREHOUSE}"\n[table]'
    )
    sink_file.write_text(text.replace('type = "sql"', 'type = "hidden-place"'))
    result = headgate("check", sink_file)
    assert result.exit_code == 2
    assert "hidden-place" not in result.output


def test_init_writes_a_file_that_loads_and_never_overwrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert headgate("init", "clicks").exit_code == 0
    written = tmp_path / "clicks.toml"
    text = written.read_text().replace("127.0.0.1:9092", "127.0.0.1:1")  # where nobody listens
    assert text != written.read_text()
    written.write_text(text)
    assert headgate("check", written).exit_code == 3  # nothing is wrong but the broker
    result = headgate("init", "clicks")
    assert result.exit_code == 2
    assert "exists already" in result.stderr
    assert written.read_text() == text


@pytest.mark.parametrize("name", ["a b", "../up", "", 'a"b'])
def test_init_refuses_a_name_that_no_sink_can_have(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert headgate("init", name).exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_the_log_of_a_run_shows_no_secret(sink_file: Path) -> None:
    text = sink_file.read_text()
    sink_file.write_text(text.replace("[kafka]\n", '[kafka]\n"sasl.password" = "hunter22"\n'))
    shown = Redacting([load(sink_file)])
    try:
        int("hunter22")
    except ValueError:
        record = logging.LogRecord("x", 30, "", 1, "with %s", ("hunter22",), sys.exc_info())
    assert "with ***" in shown.format(record)
    assert "hunter22" not in shown.format(record)


def test_status_does_not_call_a_sink_well_that_nobody_runs(
    filled: FilledTable, sink_file: Path
) -> None:
    filled.good_start()
    assert lines(headgate("status", sink_file).stdout)[0].endswith(": not known")  # no broker


@pytest.mark.parametrize(
    "state",
    [
        "{}",
        "[]",
        '{"time_ms": 1, "sinks": [7]}',
        '{"time_ms": 1, "sinks": [{"sink": "trips", "state": "of another release"}]}',
    ],
)
def test_what_is_no_worker_s_state_is_told_in_a_line(tmp_path: Path, state: str) -> None:
    (tmp_path / "state.json").write_text(state)
    result = headgate("worker", "--folder", tmp_path, "--list", "--state", tmp_path / "state.json")
    (line,) = lines(result.stderr)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "state.json is no worker's state, or one of another release" in line


@pytest.mark.parametrize("option", ["--kafka", "--catalog", "--offline"])
def test_a_check_with_a_role_is_of_the_rights(sink_file: Path, option: str) -> None:
    result = headgate("check", sink_file, "--role", "viewer", option)
    assert (result.exit_code, "--role is for the rights" in result.stderr) == (2, True)


@pytest.mark.parametrize("given", [("check", "--offline"), ("--help",), ("--version",)])
def test_a_full_disk_is_told_in_a_line(sink_file: Path, given: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        command = (sys.executable, "-c", "from headgate.operations.cli.entry import main; main()")
        ended = subprocess.run([*command, *given, sink_file], stdout=full, stderr=-1, text=True)
    (line,) = lines(ended.stderr)
    assert ended.returncode == 3
    assert line.startswith("headgate: HG-400 the output cannot be written: No space left on device")


@pytest.mark.parametrize(
    ("paused", "stopped", "said"),
    [
        (True, False, "resumed"),
        (False, False, "it was not paused: headgate status SINK says what it does"),
        (False, True, "not paused, but stopped by a person: headgate start SINK ends that"),
    ],
)
def test_a_resume_says_what_it_changed(
    filled: FilledTable,
    sink_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    paused: bool,
    stopped: bool,
    said: str,
) -> None:
    filled.commit(filled.record(1, 0, {0: 7}, paused=paused, stopped=stopped))
    after = filled.record(1, 1, {0: 7}, stopped=stopped)
    monkeypatch.setattr(pause, "resume_sink", lambda _: after)
    result = headgate("resume", sink_file)
    assert (result.exit_code, lines(result.stdout)) == (0, [said, "trips/0: next offset 7"])
    assert result.stderr == ""


def test_a_start_says_whether_it_changed_anything(filled: FilledTable, sink_file: Path) -> None:
    filled.commit(filled.record(1, 0, {0: 7}, stopped=True))
    said = [lines(headgate("start", sink_file).stdout)[0] for _ in range(2)]
    assert said == [
        "started: waiting processes continue within seconds",
        "no person had stopped it: headgate status SINK says what it does",
    ]
