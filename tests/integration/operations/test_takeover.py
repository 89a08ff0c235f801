"""Iceberg's real Kafka Connect sink, ended where it hurts, and a sink that goes on there.

Each record has its own partition and number in it; in the end DuckDB counts each of them once.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import confluent_kafka as kafka
import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient
from integration.readers import read_with_duckdb
from support.connect_worker import RELEASES, ConnectWorker, connector_config

from headgate.config.load import load
from headgate.operations.audit.audit import audit
from headgate.operations.cli.main import main

pytestmark = [pytest.mark.integration, pytest.mark.wide]

PARTITIONS = 3
NEWEST = pytest.mark.parametrize("scene", RELEASES[-1:], indirect=True)


class Scene:
    """A connector that fills a table, and the sink that is made of its own settings."""

    def __init__(
        self,
        home: Path,
        bootstrap: str,
        topic: str,
        control: str,
        release: str,
        **more: str,
    ) -> None:
        self.home, self.bootstrap, self.topic = home, bootstrap, topic
        self.catalog = home / "catalog.db"
        (home / "warehouse").mkdir()
        # The folder's name is another test's, too, in another process on the same broker.
        name = f"connector-{topic[-10:]}"
        self.worker = ConnectWorker(home / "worker", bootstrap, name, release)
        self.config = {**connector_config(topic, control, self.catalog), **more}
        self.sent = [0] * PARTITIONS
        self.connector_file = home / "connector.json"
        named = {"name": self.worker.name, "config": self.config}
        self.connector_file.write_text(json.dumps(named))

    def produce(self, records: int) -> None:
        producer = kafka.Producer({"bootstrap.servers": self.bootstrap})
        for number in range(records):
            partition = number % PARTITIONS
            value = {"p": partition, "n": self.sent[partition], "zone": "ab"[number % 2]}
            producer.produce(self.topic, json.dumps(value).encode(), partition=partition)
            self.sent[partition] += 1
        producer.flush()

    def fill(self) -> None:
        """Start the connector, and let it commit twice."""
        self.worker.start()
        self.worker.create(self.config)
        for rows in (300, 600):
            self.produce(300)
            self.wait_until(lambda rows=rows: self.rows() == rows, "its rows")

    def rows(self) -> int:
        at = self.metadata()
        return 0 if at is None else read_with_duckdb(at).num_rows

    def metadata(self) -> str | None:
        """The newest metadata, without the catalog's library."""
        if not self.catalog.exists():
            return None
        with closing(sqlite3.connect(f"file:{self.catalog}?mode=ro", uri=True)) as database:
            try:
                found = database.execute("select metadata_location from iceberg_tables").fetchone()
            except sqlite3.OperationalError:  # the connector has not made its tables yet
                return None
        return str(found[0]).replace("file:", "", 1) if found else None

    @contextmanager
    def catalog_held(self) -> Iterator[None]:
        """The catalog can be read, and nothing can be committed."""
        with closing(sqlite3.connect(self.catalog, timeout=60, isolation_level=None)) as database:
            database.execute("begin immediate")
            yield
            database.execute("rollback")

    def stop_in_a_commit(self, end: Callable[[], None]) -> None:
        """Let the connector announce files, and end it while it waits for the catalog."""
        folder = self.home / "warehouse/lake/trips/metadata"
        with self.catalog_held():
            before = set(folder.glob("*.metadata.json"))
            self.produce(300)
            # The connector's library writes the new metadata before it asks for the swap.
            self.wait_until(
                lambda: set(folder.glob("*.metadata.json")) - before != set(), "a commit under way"
            )
            end()

    def wait_until(self, done: Callable[[], bool], what: str, timeout_s: float = 180) -> None:
        until = time.monotonic() + timeout_s
        while not done():
            assert time.monotonic() < until, f"{what}: {self.worker.said()[-3000:]}"
            time.sleep(0.2)

    def take_over(self, *options: str) -> Result:
        """Make a sink of the connector, and take over as soon as its members are forgotten."""
        self.sink = self.home / f"{self.worker.name}.toml".lower()
        if not self.sink.exists():
            command = ["import", str(self.connector_file), "--worker", str(self.worker.properties)]
            made = subprocess.run(
                [_headgate(), *command],
                cwd=self.home,
                capture_output=True,
                text=True,
                check=False,
            )
            assert made.returncode == 0, made.stdout + made.stderr
        command = ["takeover", str(self.sink), "--from", str(self.connector_file), *options]
        until = time.monotonic() + 120
        while True:
            result = CliRunner().invoke(main, command)
            if "HG-286" not in result.output or time.monotonic() > until:
                return result
            time.sleep(1)

    def run_to_the_end(self) -> None:
        ran = subprocess.run(
            [_headgate(), "run", str(self.sink), "--until-latest"],
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def require_each_once(self) -> None:
        at = self.metadata()
        assert at is not None
        table = read_with_duckdb(at)
        found = sorted(zip(table["p"].to_pylist(), table["n"].to_pylist(), strict=True))
        assert found == [(p, n) for p, sent in enumerate(self.sent) for n in range(sent)]


def _headgate() -> str:
    return str(Path(sys.executable).with_name("headgate"))


@pytest.fixture(params=RELEASES)
def scene(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    bootstrap: str,
    admin: AdminClient,
    topic_factory: Callable[..., str],
) -> Iterator[Scene]:
    made = Scene(
        tmp_path, bootstrap, topic_factory(PARTITIONS), topic_factory(2), str(request.param)
    )
    yield made
    made.worker.kill()


@pytest.mark.parametrize(
    ("scene", "way"),
    [*((release, "reread") for release in RELEASES), (RELEASES[-1], "adopt")],
    indirect=["scene"],
)
def test_a_connector_that_is_killed_in_a_commit_leaves_each_record_once(
    scene: Scene, way: str
) -> None:
    """TAKEOVER-1, TAKEOVER-8 and TAKEOVER-10."""
    scene.fill()
    scene.stop_in_a_commit(scene.worker.kill)
    before = scene.metadata()
    options = ["--adopt"] if way == "adopt" else []
    shown = scene.take_over(*options)
    assert shown.exit_code == 0, shown.output
    assert "nothing was changed" in shown.output
    assert scene.metadata() == before
    done = scene.take_over(*options, "--yes")
    assert done.exit_code == 0, done.output
    scene.produce(90)
    scene.run_to_the_end()
    scene.require_each_once()
    assert audit(load(scene.sink)).findings == ()


def test_a_connector_that_wakes_in_a_commit_is_fenced_by_its_own_mark(scene: Scene) -> None:
    """TAKEOVER-11."""
    scene.fill()
    scene.stop_in_a_commit(scene.worker.pause_process)
    done = scene.take_over("--yes")
    assert done.exit_code == 0, done.output
    before = len(scene.worker.said())
    scene.worker.wake_process()
    scene.wait_until(lambda: "stale offsets" in scene.worker.said()[before:], "its refusal")
    scene.worker.kill()
    scene.run_to_the_end()
    scene.require_each_once()


@NEWEST
def test_the_connector_goes_on_where_the_sink_stopped(scene: Scene) -> None:
    """TAKEOVER-13."""
    scene.fill()
    scene.stop_in_a_commit(scene.worker.kill)
    assert scene.take_over("--yes").exit_code == 0
    scene.produce(90)
    scene.run_to_the_end()
    back = scene.take_over("--back", "--yes")
    assert back.exit_code == 0, back.output
    scene.produce(90)
    scene.worker.start()
    scene.wait_until(lambda: scene.rows() >= sum(scene.sent), "its rows")
    scene.worker.kill()
    scene.require_each_once()


@NEWEST
def test_a_connector_that_was_stopped_in_order_leaves_nothing_to_do(scene: Scene) -> None:
    scene.fill()
    scene.worker.stop_connector()
    done = scene.take_over("--yes")
    assert done.exit_code == 0, done.output
    assert "outstanding: 0 rows" in done.output
    again = scene.take_over("--yes")
    assert "HG-289" in again.output
    scene.produce(90)
    scene.run_to_the_end()
    scene.require_each_once()


@NEWEST
def test_a_connector_at_work_is_refused(scene: Scene) -> None:
    """TAKEOVER-2."""
    scene.fill()
    command = ["import", str(scene.connector_file), "--worker", str(scene.worker.properties)]
    subprocess.run([_headgate(), *command], cwd=scene.home, check=True, capture_output=True)
    sink = scene.home / f"{scene.worker.name}.toml".lower()
    result = CliRunner().invoke(
        main, ["takeover", str(sink), "--from", str(scene.connector_file), "--yes"]
    )
    assert result.exit_code == 2
    assert "HG-286" in result.output
