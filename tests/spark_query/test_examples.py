"""The example jobs on a real broker: killed after a commit, their tables against the source.

Each runs in a driver of its own, and as a client of a Spark Connect server, whose Python process
for the query is what is killed there (QUERY-27).
"""

from __future__ import annotations

import datetime as dt
import json
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from integration.readers import read_with_duckdb
from spark_query.connect_server import Server, connect_server, in_worker, with_patient_start
from spark_query.spark_programs import ROOT, Programs, dies

from headgate.config.load import load
from headgate.operations.audit.audit import audit

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.wide,
    pytest.mark.timeout(600),
]

RECORDS, PARTITIONS = 1_200, 2
BEGAN = dt.datetime(2026, 11, 29, 8, tzinfo=dt.UTC)


class Example(Programs):
    """One of the jobs, with topics of the test's own."""

    def __init__(
        self,
        name: str,
        folder: Path,
        bootstrap: str,
        topics: dict[str, str],
        server: Server | None,
    ) -> None:
        super().__init__(folder, bootstrap, topics["trips"])
        self.remote = server.address if server else ""
        for theirs, ours in topics.items():
            self._changes |= {
                f'"subscribe", "{theirs}"': f'"subscribe", "{ours}"',
                f'stream("{theirs}"': f'stream("{ours}"',
            }
        named = ", ".join(f'"{topic}"' for topic in topics.values())
        self._changes |= {
            'topics = ["trips"]': f"topics = [{named}]",
            'topics = ["trips", "fares"]': f"topics = [{named}]",
            f'"{name}.toml"': f'"{folder / name}.toml"',
        }
        self._changes |= {"200_000": "300", f'"checkpoints/{name}"': f'"{folder / "checkpoint"}"'}
        source = ROOT / "examples/spark-query"
        self.sink_file = folder / f"{name}.toml"
        self.sink_file.write_text(self._here((source / f"{name}.toml").read_text()))
        self.query = self._here((source / f"{name}.py").read_text())
        if server:
            self.query = with_patient_start(self.query)

    def rows(self) -> list[dict[str, object]]:
        settings = load(self.sink_file)
        with sqlite3.connect(self.folder / "catalog.db") as catalog:
            ((location,),) = catalog.execute(
                "select metadata_location from iceberg_tables where table_name = ?",
                (settings.table.identifier.partition(".")[2],),
            )
        rows: list[dict[str, object]] = read_with_duckdb(str(location)).to_pylist()
        return rows

    def run_through_a_kill(self) -> None:
        dying = dies("after the commit", 1)
        killed = self.run(in_worker(dying) if self.remote else dying)
        # A client outlives the server's Python process, and ends with an error.
        expected = 1 if self.remote else -signal.SIGKILL
        assert killed.returncode == expected, killed.stdout[-4000:]
        for _ in range(3):
            ended = self.run()
            if ended.returncode == 0:
                return
            assert "KafkaMicroBatchStream.metrics" in ended.stdout, ended.stdout[-4000:]
        raise AssertionError(ended.stdout[-4000:])


@pytest.fixture(params=["driver", pytest.param("connect", marks=pytest.mark.soak)])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server | None]:
    """The server of Spark Connect whose client the job is; nothing where it has its own driver."""
    if request.param == "driver":
        yield None
        return
    with connect_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def topics(bootstrap: str, topic_factory: Callable[..., str]) -> dict[str, str]:
    """Trips, and fares of most of them, some paid too late."""
    made = {"trips": topic_factory(PARTITIONS), "fares": topic_factory(PARTITIONS)}
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        trip = {"id": number, "city": city_of(number), "at": at(number).isoformat()}
        producer.produce(made["trips"], json.dumps(trip), partition=number % PARTITIONS)
        if number % 3:
            paid = at(number) + dt.timedelta(minutes=90 if number % 10 == 0 else 5)
            fare = {"trip": number, "fare": number / 4, "paid": paid.isoformat()}
            producer.produce(made["fares"], json.dumps(fare), partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    return made


def at(number: int) -> dt.datetime:
    return BEGAN + dt.timedelta(seconds=3 * number)


def city_of(number: int) -> str:
    return f"c{number % 7}"


@pytest.mark.soak
def test_query_23_the_window_s_rows_are_those_of_all_records_after_a_kill(
    bootstrap: str, topics: dict[str, str], tmp_path: Path, server: Server | None
) -> None:
    example = Example("per_window", tmp_path, bootstrap, {"trips": topics["trips"]}, server)
    example.run_through_a_kill()
    wanted = Counter(
        (at(n).replace(minute=at(n).minute // 5 * 5, second=0), city_of(n)) for n in range(RECORDS)
    )
    assert {(row["began"], row["city"]): row["trips"] for row in example.rows()} == wanted
    assert len(example.rows()) == len(wanted)
    report = audit(load(example.sink_file))
    assert report.findings == (), report


def test_query_9_each_pair_of_two_streams_is_there_once_after_a_kill(
    bootstrap: str, topics: dict[str, str], tmp_path: Path, server: Server | None
) -> None:
    example = Example("joined", tmp_path, bootstrap, topics, server)
    example.run_through_a_kill()
    wanted = [n for n in range(RECORDS) if n % 3 and n % 10]
    rows = sorted((row["id"], row["city"], row["fare"]) for row in example.rows())
    assert rows == [(n, city_of(n), n / 4) for n in wanted]
    report = audit(load(example.sink_file))
    assert report.findings == (), report
