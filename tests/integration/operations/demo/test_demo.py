"""``headgate demo`` as a newcomer starts it, without a terminal."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import psutil
import pytest
from integration.readers import read_with_duckdb, read_with_pyiceberg

from headgate.config.load import load
from headgate.operations.demo.final_report import read_history_and_first_rows
from headgate.operations.demo.trips import generate_trips
from headgate.operations.demo.workspace import PARTITIONS
from headgate.runtime.sink_tables import open_tables_creating_nothing

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(900)]

HEADGATE = (sys.executable, "-c", "from headgate.operations.cli.main import main; main()")
RECORDS = 40_000
WRITERS = ["in-process", "spark"]


def processes_in(folder: Path) -> Iterator[psutil.Process]:
    """What the demo started works in its folder."""
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and folder in (
                Path(process.cwd()),
                *Path(process.cwd()).parents,
            ):
                yield process
        except (psutil.Error, OSError):
            continue


def assert_nothing_runs_in(folder: Path) -> None:
    deadline = time.monotonic() + 60
    while left := [process.cmdline() for process in processes_in(folder)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


@pytest.mark.wide
@pytest.mark.parametrize("writer", [WRITERS[0], pytest.param(WRITERS[1], marks=pytest.mark.soak)])
def test_a_killed_coordinator_loses_and_doubles_nothing(tmp_path: Path, writer: str) -> None:
    folder = tmp_path / "demo"
    done = subprocess.run(
        [*HEADGATE, "demo", "--records", str(RECORDS), "--folder", folder, "--writer", writer],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=840,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert_nothing_runs_in(folder)
    assert_the_coordinator_was_killed(done.stdout, folder)
    assert "40,000 produced, 40,000 in the table, none lost, none twice: well" in done.stdout
    assert_each_trip_is_there_once(folder)
    assert_what_to_type_next_works(done.stdout, tmp_path)


@pytest.mark.soak
def test_the_same_story_on_an_object_store(tmp_path: Path) -> None:
    """No Spark here, which is the same on S3; its files are gone with the store."""
    folder = tmp_path / "demo"
    asked = ["--records", str(RECORDS), "--folder", folder, "--writer", "in-process"]
    done = subprocess.run(
        [*HEADGATE, "demo", *asked, "--store", "s3"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=840,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert_nothing_runs_in(folder)
    assert re.search(r"kill -9 +pid \d+, the coordinator, in the middle of", done.stdout)
    assert "40,000 produced, 40,000 in the table, none lost, none twice: well" in done.stdout
    assert "s3.endpoint" in (folder / "sink.toml").read_text()
    assert not list(folder.rglob("*.parquet"))


def assert_the_coordinator_was_killed(output: str, folder: Path) -> None:
    killed = re.search(
        r"kill -9 +pid (\d+), the coordinator, in the middle of transaction (\d+)\.(\d+): "
        r"dead by SIGKILL",
        output,
    )
    heir = re.search(r"takeover +pid (\d+) coordinates epoch (\d+)", output)
    assert killed and heir
    pid, epoch, number = map(int, killed.groups())
    assert int(heir[1]) != pid
    assert int(heir[2]) > epoch
    commits = read_history_and_first_rows(load(folder / "sink.toml")).history.commits
    of_the_killed = [
        commit.record for commit in commits if commit.record.transaction.epoch == epoch
    ]
    assert {record.coordinator.member.rpartition("-")[2] for record in of_the_killed} == {str(pid)}
    assert max(record.transaction.number for record in of_the_killed) == number - 1
    assert commits[-1].record.transaction.epoch == int(heir[2])


def assert_each_trip_is_there_once(folder: Path) -> None:
    with open_tables_creating_nothing(load(folder / "sink.toml")) as tables:
        where = tables.require_catalog_format().load_table(tables.name).metadata_location
    duck = read_with_duckdb(where).select(["kafka_partition", "kafka_offset", "trip_id", "fare"])
    rows = sorted(zip(*(column.to_pylist() for column in duck.columns), strict=True))
    places = [(p, offset) for p, offset, _, _ in rows]
    each = RECORDS // PARTITIONS
    assert places == [(p, offset) for p in range(PARTITIONS) for offset in range(each)]
    sent = [json.loads(trip) for trip in islice(generate_trips(seed=1), RECORDS)]
    assert {(number, fare) for _, _, number, fare in rows} == {
        (trip["trip_id"], trip["fare"]) for trip in sent
    }
    assert read_with_pyiceberg(where).num_rows == RECORDS


def assert_what_to_type_next_works(output: str, cwd: Path) -> None:
    told = output.partition("What to type next")[2].splitlines()[1:]
    commands = [shlex.split(line[23:]) for line in told]
    assert len(commands) == 7
    for command in commands:
        if command[0] == "less":
            assert (cwd / command[1]).read_text()
        elif command[1] in ("init", "status", "audit", "--uri"):
            typed = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120)
            stopped = 3 if command[1] == "status" else 0  # Kafka is gone: it says so, and the rest
            assert typed.returncode == stopped, (command, typed.stdout + typed.stderr)


@pytest.mark.parametrize(
    ("writer", "ending"),
    [
        pytest.param(WRITERS[0], signal.SIGINT, marks=pytest.mark.wide),
        pytest.param(WRITERS[0], signal.SIGTERM, marks=pytest.mark.soak),
        *(
            pytest.param(WRITERS[1], ending, marks=pytest.mark.soak)
            for ending in (signal.SIGINT, signal.SIGTERM)
        ),
    ],
)
def test_an_interrupted_demo_leaves_nothing_running(
    tmp_path: Path, writer: str, ending: signal.Signals
) -> None:
    folder = tmp_path / "demo"
    demo = subprocess.Popen(
        [*HEADGATE, "demo", "--folder", folder, "--writer", writer],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
    )
    with demo:
        assert demo.stdout
        assert any("headgate run sink.toml" in line for line in demo.stdout)
        assert list(processes_in(folder))
        demo.send_signal(ending)
        rest = demo.stdout.read()
    assert demo.returncode == 128 + ending, rest
    assert "Traceback" not in rest
    assert_nothing_runs_in(folder)
