"""Compares headgate with Flink's dynamic Iceberg sink: one topic into many tables.

    python benchmarks/fifty_tables.py [--tables 50] [--rows 2000000] [--drop]

Both find the tables made, and send each record where its field ``kind`` says. With ``--drop``
records come at a pace, one table is dropped halfway, and what the others hold in the end is shown.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from comparison.job import PipedProcess
from comparison.lake import jdbc_catalog
from comparison.process_tree import Watch
from comparison.target import CATALOG, NAMESPACE
from comparison.topic import Topic
from comparison.workloads import TAXI, Workload, taxi
from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing
from rivals.flink import flink_command, flink_settings, lines, source_table

SYSTEMS = ("headgate", "flink")
_SETTLE_S, _POLL_S = 2.0, 1.0
_SILENT_S = 60.0
"""After a table was dropped, this much silence ends the wait."""


def kinds(tables: int) -> Workload:
    """Taxi trips whose ``kind`` goes round the tables."""

    def records(count: int, seed: int) -> Iterator[bytes]:
        for number, record in enumerate(taxi(count, seed)):
            yield b'{"kind":"k%02d",' % (number % tables) + record[1:]

    return Workload("kinds", {"kind": "string", **TAXI}, records)


@dataclass(slots=True)
class Lake:
    """The tables of one run, and what they hold."""

    home: Path
    tables: int
    gone: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True)
        columns = kinds(self.tables).columns
        with closing(load_catalog(CATALOG, self.properties)) as catalog:
            for name in self.names:
                create_table_if_missing(catalog, f"{NAMESPACE}.{name}", TableDeclaration(columns))

    @property
    def names(self) -> list[str]:
        return [f"k{number:02}" for number in range(self.tables)]

    @property
    def database(self) -> Path:
        return self.home / "catalog.sqlite"

    @property
    def warehouse(self) -> Path:
        return self.home / "warehouse"

    @property
    def properties(self) -> dict[str, str]:
        uri = f"sqlite:///{self.database}"
        return {"type": "sql", "uri": uri, "warehouse": self.warehouse.as_uri()}

    def drop(self, name: str) -> None:
        with closing(load_catalog(CATALOG, self.properties)) as catalog:
            catalog.drop_table(f"{NAMESPACE}.{name}")
        self.gone.add(name)

    def rows(self) -> int:
        """Return the rows that the tables' newest snapshots add up to."""
        held = 0
        with closing(load_catalog(CATALOG, self.properties)) as catalog:
            for name in self.names:
                if name not in self.gone:
                    newest = catalog.load_table(f"{NAMESPACE}.{name}").current_snapshot()
                    held += int(newest.summary["total-records"] or 0) if newest else 0  # type: ignore[index]
        return held

    def distinct(self) -> int:
        """Return how many ids a reader finds in all of them."""
        found: set[int] = set()
        with closing(load_catalog(CATALOG, self.properties)) as catalog:
            for name in self.names:
                if name not in self.gone:
                    scan = catalog.load_table(f"{NAMESPACE}.{name}").scan(selected_fields=("id",))
                    found.update(scan.to_arrow()["id"].to_pylist())
        return len(found)


def headgate(lake: Lake, topic: str, bootstrap: str, given: argparse.Namespace) -> PipedProcess:
    run = lake.home.name
    sink = lake.home / "sink.toml"
    sections: dict[str, dict[str, object]] = {
        "source": {"topics": [topic]},
        "kafka": {"bootstrap.servers": bootstrap},
        "control": {"topic": f"{run}-control"},
        "catalog": {"name": CATALOG},
        "catalog.properties": dict(lake.properties),
        "tables": {"ledger": f"{NAMESPACE}.ledger"},
        "format": {"type": "json"},
        "coordinator": {"commit_interval_ms": given.interval_ms},
        "quarantine": {"policy": "quarantine", "table": f"{NAMESPACE}.rejected"},
        "spark": {"writer": "in-process"},
    }
    text = [f'name = "{run}"']
    for name, section in sections.items():
        text.append(f"[{name}]")
        text += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in section.items()]
    to = {"topic": topic, "field": "kind", "to": f"{NAMESPACE}.{{field}}"}
    text += ["[[tables.route]]", *(f"{key} = {json.dumps(value)}" for key, value in to.items())]
    sink.write_text("\n".join(text) + "\n")
    folders = [path for path in sys.path if path.endswith("benchmarks")]
    environment = {
        "ARROW_DEFAULT_MEMORY_POOL": "system",  # like the command line
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folders),
    }
    command = [sys.executable, "-m", "comparison.headgate_sink", str(sink)]
    return PipedProcess(command, lake.home / "headgate.log", environment)


def flink(lake: Lake, topic: str, bootstrap: str, given: argparse.Namespace) -> PipedProcess:
    names = ("flink.settings", "flink.source", "flink.catalog")
    settings, source, catalog = (lake.home / name for name in names)
    settings.write_text(lines(flink_settings(2, given.interval_ms, lake.home)))
    columns = kinds(given.tables).columns
    source.write_text(source_table(columns, topic, bootstrap, lake.home.name))
    catalog.write_text(lines(jdbc_catalog(lake.database, lake.warehouse.as_uri())))
    command = flink_command("FlinkTables", settings, source, catalog, classes=lake.home)
    return PipedProcess(command, lake.home / "flink.log", os.environ)


def measure(system: str, given: argparse.Namespace, home: Path, bootstrap: str) -> None:
    """Run once; print what it made of the CPU time, and what the tables hold."""
    lake = Lake(home / f"{system}-{uuid.uuid4().hex[:6]}", given.tables)
    topic = Topic(bootstrap, lake.home.name, kinds(given.tables), 4)
    if not given.drop:
        topic.fill(given.rows)
    load = os.getloadavg()[0]
    start = headgate if system == "headgate" else flink
    running = start(lake, topic.name, bootstrap, given)
    try:
        time.sleep(_SETTLE_S)
        processes = Watch(running.pid)
        began_s = time.time()
        running.go()
        if given.drop:
            pace = threading.Thread(target=topic.pace, args=(given.rows, given.rate))
            pace.start()
            time.sleep(given.rows / given.rate / 2)
            while not lake.rows():  # a late starter would find it gone, and create it again
                time.sleep(_POLL_S)
            lake.drop(lake.names[7])
            pace.join()
        ended_s = _await(lake, running, given)
        processes.close()
        cpu_s = processes.cpu_at(ended_s) - processes.cpu_at(began_s)
        peak, lean = processes.peak_bytes()
        held, alive = lake.rows(), running.process.poll() is None
    finally:
        running.stop()
    print(
        f"{system}, load before {load:.1f}: {held:,} of {given.rows:,} rows in "
        f"{given.tables - len(lake.gone)} tables, {lake.distinct():,} distinct; "
        f"{held / cpu_s:,.0f} rows/CPU-s, {ended_s - began_s:.1f} s, peak {peak / 1e6:,.0f} MB "
        f"({lean / 1e6:,.0f} without JVM), {'runs on' if alive else 'has ended'}",
        flush=True,
    )


def _await(lake: Lake, running: PipedProcess, given: argparse.Namespace) -> float:
    """Return when the last rows were seen to come."""
    rows, since_s, deadline = -1, time.time(), time.monotonic() + given.timeout_s
    wanted = given.rows * (given.tables - len(lake.gone)) // given.tables
    while time.monotonic() < deadline:
        held = lake.rows()
        if held > rows:
            rows, since_s = held, time.time()
        silent = time.time() - since_s > _SILENT_S or running.process.poll() is not None
        if rows >= wanted or (lake.gone and silent):
            break
        if not lake.gone:
            running.check()
        time.sleep(_POLL_S)
    return since_s


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = arguments.add_argument
    add("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    add("--tables", type=int, default=50)
    add("--rows", type=int, default=2_000_000)
    add("--interval-ms", type=int, default=3_000, help="commit interval")
    add("--drop", action="store_true", help="drop one table halfway")
    add("--rate", type=int, default=5_000, help="records per second, with --drop")
    add("--home", type=Path, help="folder for everything, kept; else a temporary one")
    add("--timeout-s", type=float, default=900, help="bound on one run")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = given.home or Path(folder)
        with EmbeddedKafka(home / "kafka", ensure_broker_jars(), heap="1g") as kafka:
            for system in given.systems:
                measure(system, given, home, kafka.bootstrap)


if __name__ == "__main__":
    main()
