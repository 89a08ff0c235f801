"""A run that ends, and a wait for a time: what a scheduler calls."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from pyiceberg.catalog import load_catalog

HEADGATE = (sys.executable, "-c", "from headgate.operations.cli.main import main; main()")
DAY_MS = 86_400_000


def headgate(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HEADGATE, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )


def produce(bootstrap: str, topic: str, count: int, first: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(first, first + count):
        producer.produce(topic, json.dumps({"id": number}), partition=0)
    assert producer.flush(30) == 0


@pytest.fixture
def sink(tmp_path: Path, bootstrap: str, topic: str, unique_name: str) -> Path:
    path = tmp_path / "trips.toml"
    path.write_text(
        f"""
name = "s-{uuid4().hex[:8]}"
[source]
topics = ["{topic}"]
[kafka]
"bootstrap.servers" = "{bootstrap}"
[control]
topic = "{unique_name}-control"
[coordinator]
commit_interval_ms = 500
[catalog]
name = "lake"
[catalog.properties]
type = "sql"
uri = "sqlite:///{tmp_path}/catalog.db"
warehouse = "file://{tmp_path}/warehouse"
[table]
identifier = "city.trips"
create = true
columns = [{{ name = "id", type = "long" }}]
[spark]
writer = "in-process"
"""
    )
    return path


def rows(sink: Path) -> list[int]:
    """The ids in the table, as another reader finds them."""
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{sink.parent}/catalog.db")
    found: list[int] = catalog.load_table("city.trips").scan().to_arrow()["id"].to_pylist()
    catalog.close()
    return sorted(found)


@pytest.mark.integration
def test_a_run_until_latest_ends_once_the_table_holds_what_was_there(
    sink: Path, bootstrap: str, topic: str
) -> None:
    produce(bootstrap, topic, 700)
    first = headgate("run", sink, "--until-latest")
    assert first.returncode == 0, first.stderr
    assert "the table holds all that was in the topics" in first.stdout
    assert rows(sink) == list(range(700))

    produce(bootstrap, topic, 300, first=700)
    assert headgate("run", sink, "--until-latest").returncode == 0
    assert rows(sink) == list(range(1_000))

    nothing_new = headgate("run", sink, "--until-latest")
    assert nothing_new.returncode == 0, nothing_new.stderr
    assert rows(sink) == list(range(1_000))


@pytest.mark.soak
@pytest.mark.integration
def test_a_run_until_latest_that_is_ended_before_says_what_is_missing(
    sink: Path, bootstrap: str, topic: str
) -> None:
    produce(bootstrap, topic, 10)
    assert headgate("run", sink, "--until-latest").returncode == 0
    assert headgate("stop", sink).returncode == 0
    produce(bootstrap, topic, 5, first=10)
    command = [*HEADGATE, "run", str(sink), "--until-latest"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        try:
            assert run.stderr is not None
            for line in run.stderr:
                if "stopped by a person" in line:
                    break
            run.send_signal(signal.SIGTERM)
            out, _ = run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == 1
    assert f"behind {topic}/0 by 5" in out
    assert rows(sink) == list(range(10))


@pytest.mark.wide
@pytest.mark.integration
def test_a_wait_ends_when_the_table_is_complete_up_to_the_time(
    sink: Path, bootstrap: str, topic: str
) -> None:
    produce(bootstrap, topic, 100)
    missing = headgate("wait", sink, "--through", "2026-01-01T00:00:00Z", "--timeout", "0")
    assert missing.returncode == 1
    with subprocess.Popen([*HEADGATE, "run", str(sink)], stderr=subprocess.DEVNULL) as running:
        try:
            past = headgate("wait", sink, "--through", "2026-01-01T00:00:00Z", "--timeout", "60")
            assert past.returncode == 0, past.stdout + past.stderr
            assert rows(sink) == list(range(100))
            future = str(int(time.time() * 1000) + DAY_MS)
            late = headgate("wait", sink, "--through", future, "--timeout", "1")
        finally:
            running.terminate()
    assert late.returncode == 1
    assert late.stdout.startswith("city.trips is ")
    wrong = headgate("wait", sink, "--through", "yesterday")
    assert (wrong.returncode, "--through cannot be 'yesterday'" in wrong.stderr) == (2, True)
