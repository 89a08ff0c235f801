"""Iceberg's real Kafka Connect sink, which fills tables until it is ended, and a sink made of it.

Each record has its own partition and number in it; DuckDB counts each of them once.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import confluent_kafka as kafka
from click.testing import CliRunner, Result
from integration.readers import read_with_duckdb
from support.connect_worker import ConnectWorker, connector_config

from headgate.operations.cli.main import main

PARTITIONS = 3


class Scene:
    """A connector that fills a table, and the sink that is made of its own settings."""

    def __init__(
        self,
        home: Path,
        bootstrap: str,
        topic: str,
        control: str,
        release: str,
        *tables: str,
        **more: str,
    ) -> None:
        """``tables``: more than one are filled by what stands in ``zone``: a, b."""
        self.home, self.bootstrap, self.topic = home, bootstrap, topic
        self.catalog = home / "catalog.db"
        (home / "warehouse").mkdir()
        # The folder's name is another test's, too, in another process on the same broker.
        name = f"connector-{topic}"
        self.worker = ConnectWorker(home / "worker", bootstrap, name, release)
        self.named = tables or ("trips",)
        named = [f"lake.{name}" for name in self.named]
        routes = {
            f"iceberg.table.{table}.route-regex": zone
            for table, zone in zip(named, "ab", strict=False)
        }
        if len(named) > 1:
            more |= {"iceberg.tables.route-field": "zone", **routes}
        self.config = {**connector_config(topic, control, self.catalog, ",".join(named)), **more}
        self.sent = [0] * PARTITIONS
        self.connector_file = home / "connector.json"
        self.connector_file.write_text(
            json.dumps({"name": self.worker.name, "config": self.config})
        )

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
        return sum(read_with_duckdb(at).num_rows for at in self.tables().values())

    def tables(self) -> dict[str, str]:
        """Return the newest metadata of each table, without the catalog's library."""
        if not self.catalog.exists():
            return {}
        with closing(sqlite3.connect(f"file:{self.catalog}?mode=ro", uri=True)) as database:
            try:
                found = database.execute(
                    "select table_name, metadata_location from iceberg_tables"
                ).fetchall()
            except sqlite3.OperationalError:  # the connector has not made its tables yet
                return {}
        return {name: str(at).replace("file:", "", 1) for name, at in found if name in self.named}

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

    def import_sink(self) -> Path:
        command = ["import", str(self.connector_file), "--worker", str(self.worker.properties)]
        made = subprocess.run(
            [headgate(), *command], cwd=self.home, capture_output=True, text=True, check=False
        )
        assert made.returncode == 0, made.stdout + made.stderr
        (sink,) = self.home.glob("*.toml")
        return sink

    def take_over(self, *options: str) -> Result:
        """Make a sink of the connector, and take over as soon as its members are forgotten."""
        if not hasattr(self, "sink"):
            self.sink = self.import_sink()
        command = ["takeover", str(self.sink), "--from", str(self.connector_file), *options]
        until = time.monotonic() + 120
        while True:
            result = CliRunner().invoke(main, command)
            if "HG-286" not in result.output or time.monotonic() > until:
                return result
            time.sleep(1)

    def run_to_the_end(self) -> None:
        ran = subprocess.run(
            [headgate(), "run", str(self.sink), "--until-latest"],
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def require_each_once(self) -> None:
        found = Counter[tuple[int, int]]()
        for at in self.tables().values():
            table = read_with_duckdb(at)
            found.update(zip(table["p"].to_pylist(), table["n"].to_pylist(), strict=True))
        sent = {(p, n) for p, count in enumerate(self.sent) for n in range(count)}
        lost = sorted(sent - found.keys())
        twice = sorted(each for each, times in found.items() if times > 1)
        assert not (lost or twice or found.keys() - sent), (
            f"lost: {len(lost)} {lost[:9]}, twice: {len(twice)} {twice[:9]}"
        )


def headgate() -> str:
    return str(Path(sys.executable).with_name("headgate"))
