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
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField
from support.connect_worker import ConnectWorker, connector_config

from headgate.operations.cli.main import main

PARTITIONS = 3
_CONNECT = "org.apache.kafka.connect.data"
TYPED = {
    "p": {"type": "int32"},
    "n": {"type": "int64"},
    "zone": {"type": "string"},
    "day": {"type": "int32", "name": f"{_CONNECT}.Date"},
    "at": {"type": "int64", "name": f"{_CONNECT}.Timestamp"},
    "made": {"type": "int64", "name": f"{_CONNECT}.Timestamp"},
    "price": {"type": "bytes", "name": f"{_CONNECT}.Decimal", "parameters": {"scale": "2"}},
    "flag": {"type": "boolean"},
}
"""Columns of a type each, by Connect's own schema."""
TYPED_CONFIG = {
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "true",
    "iceberg.tables.default-partition-by": (
        "p,day,hour(at),made,month(made),price,flag,bucket(n, 2),truncate(zone, 1)"
    ),
}


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
        name = f"connector-{topic[-10:]}"
        self.worker = ConnectWorker(home / "worker", bootstrap, name, release)
        self.named = tables or ("trips",)
        named = [f"lake.{name}" for name in self.named]
        routes = {
            f"iceberg.table.{table}.route-regex": zone
            for table, zone in zip(named, "ab", strict=False)
        }
        if len(named) > 1:
            more = {"iceberg.tables.route-field": "zone", **routes, **more}
        self.dynamic = more.get("iceberg.tables.dynamic-enabled") == "true"
        self.config = {**connector_config(topic, control, self.catalog, ",".join(named)), **more}
        if self.dynamic:  # the field names them
            del self.config["iceberg.tables"]
        self.typed = self.config.get("value.converter.schemas.enable") == "true"
        self.sent = [0] * PARTITIONS
        self.connector_file = home / "connector.json"
        self.connector_file.write_text(
            json.dumps({"name": self.worker.name, "config": self.config})
        )

    def produce(self, records: int) -> None:
        producer = kafka.Producer({"bootstrap.servers": self.bootstrap})
        for number in range(records):
            partition = number % PARTITIONS
            zone = ("lake." if self.dynamic else "") + "ab"[number % 2]
            value = self.record(partition, self.sent[partition], zone)
            producer.produce(self.topic, json.dumps(value).encode(), partition=partition)
            self.sent[partition] += 1
        producer.flush()

    def record(self, partition: int, number: int, zone: str) -> dict[str, object]:
        value: dict[str, object] = {"p": partition, "n": number, "zone": zone}
        if not self.typed:
            return value
        value |= {"day": 20_000 + partition, "at": (20_000 + partition) * 86_400_000}
        value |= {"made": 1_700_000_000_000, "price": "AJY=", "flag": number % 2 == 0}
        fields = [{"field": name, **kind} for name, kind in TYPED.items()]
        return {"schema": {"type": "struct", "fields": fields}, "payload": value}

    def fill(self) -> None:
        """Start the connector, and let it commit twice."""
        self.worker.start()
        self.worker.create(self.config)
        for rows in (300, 600):
            self.produce(300)
            self.wait_until(lambda rows=rows: self.rows() == rows, "its rows")

    def rows(self) -> int:
        return sum(read_with_duckdb(at).num_rows for at in self.tables().values())

    def stranger(self) -> Table:
        """Return a table of somebody else's in the same namespace."""
        location = {"uri": f"sqlite:///{self.catalog}", "warehouse": f"file://{self.home}"}
        with closing(SqlCatalog("lake", **location)) as catalog:
            if catalog.table_exists("lake.stranger"):
                return catalog.load_table("lake.stranger")
            return catalog.create_table("lake.stranger", Schema(NestedField(1, "n", LongType())))

    def rows_of(self, table: str) -> int:
        at = self.tables().get(table)
        return 0 if at is None else read_with_duckdb(at).num_rows

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
    def catalog_held(self) -> Iterator[sqlite3.Connection]:
        """The catalog can be read, and nothing can be committed but by who is given it."""
        with closing(sqlite3.connect(self.catalog, timeout=60, isolation_level=None)) as database:
            database.execute("begin immediate")
            yield database
            if database.in_transaction:
                database.execute("rollback")

    def stop_between_tables(self) -> None:
        """Let the connector commit to one of its two tables and not to the other, and kill it."""
        for held in self.named:
            (other,) = set(self.named) - {held}
            before = self.rows_of(other)
            with closing(sqlite3.connect(self.catalog, timeout=60)) as database:
                database.execute(
                    "create trigger held before update on iceberg_tables "
                    f"when new.table_name = '{held}' begin select raise(abort, 'held'); end"
                )
            self.produce(300)
            try:  # it commits to its tables in an order of its own
                self.wait_until(
                    lambda table=other, rows=before: self.rows_of(table) > rows,
                    "its rows",
                    timeout_s=15,
                )
            except AssertionError:
                continue
            else:
                self.worker.kill()
                return
            finally:
                with closing(sqlite3.connect(self.catalog, timeout=60)) as database:
                    database.execute("drop trigger held")
        raise AssertionError(self.worker.read_log()[-3000:])

    def lose_a_commit(self) -> None:
        """Kill the connector in a commit, and take its table away until it is back: it passes over
        what it had announced, commits what comes later, and is killed again."""
        while True:
            with self.catalog_held() as catalog:
                self.announce(30)
                if self.announced() == self.sent:
                    self.worker.kill()
                    rename(catalog, "trips", "away")
                    catalog.execute("commit")
                    break
            # Some came too late for this commit. Without a table they would make a new one.
            self.wait_until(lambda: self.rows() == sum(self.sent), "its rows")
        before = len(self.worker.read_log())
        self.worker.start()
        skipped = "Table not found, skipping commit"
        self.wait_until(lambda: skipped in self.worker.read_log()[before:], "a loss")
        with closing(sqlite3.connect(self.catalog, timeout=60)) as catalog, catalog:
            rename(catalog, "away", "trips")
        rows = self.rows()
        self.produce(30)
        self.wait_until(lambda: self.rows() > rows, "its rows")
        self.worker.kill()

    def announced(self) -> list[int]:
        """Return the next offset of each partition as the connector announced it."""
        group = {"bootstrap.servers": self.bootstrap, "group.id": f"connect-{self.worker.name}"}
        partitions = [kafka.TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        with closing(kafka.Consumer(group)) as consumer:
            return [at.offset for at in consumer.committed(partitions, timeout=60)]

    def stop_in_a_commit(self, end: Callable[[], None]) -> None:
        """Let the connector announce files, and end it while it waits for the catalog."""
        with self.catalog_held():
            self.announce(300)
            end()

    def announce(self, records: int) -> None:
        """Produce, and wait until the connector has announced files and commits them."""
        folder = self.home / "warehouse/lake"
        before = set(folder.glob("*/metadata/*.metadata.json"))
        self.produce(records)
        # The connector's library writes the new metadata before it asks for the swap.
        self.wait_until(
            lambda: set(folder.glob("*/metadata/*.metadata.json")) - before != set(),
            "a commit under way",
        )

    def wait_until(self, done: Callable[[], bool], what: str, timeout_s: float = 180) -> None:
        until = time.monotonic() + timeout_s
        while not done():
            assert time.monotonic() < until, f"{what}: {self.worker.read_log()[-3000:]}"
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


def rename(catalog: sqlite3.Connection, old: str, new: str) -> None:
    catalog.execute("update iceberg_tables set table_name = ? where table_name = ?", (new, old))


def headgate() -> str:
    return str(Path(sys.executable).with_name("headgate"))
