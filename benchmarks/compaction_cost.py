"""Compares ``headgate maintain --only compact`` with Spark's ``rewrite_data_files``.

    PYTHONPATH=tests:benchmarks python benchmarks/compaction_cost.py [--rounds 1]
        [--files 1800] [--largest-kb 1000] [--rows 4000000] [--commits 40]

Two tables, each made twice from the same seed, in SQLite catalogs in a temporary folder:

- ``small files``: as many files of each of three sizes, a hundredth, a tenth and the whole of the
  largest, Parquet with zstd; every one is to be rewritten;
- ``dead rows``: rows by key in fifty files, of which so many commits of 50,000 changes have
  replaced and deleted some, by deletion vectors; every file with a dead row is to be rewritten,
  and all small ones.

Both make files of 128 MB and may use two cores (headgate works on one), one system after the other,
in turned order each second round. CPU-seconds and peak memory are those of the process tree.
headgate's are of its whole process, start included; Spark's begin when its session is open and has
read the table's count. Whether each left the rows that were there is asked of DuckDB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from integration.readers import iceberg_jars, read_with_duckdb_query
from upsert_cost import COLUMNS, FILES, KEYS, SINK, Source, Table

from comparison.job import PipedProcess
from comparison.lake import local_lake
from comparison.process_tree import Watch
from headgate.operations.local_kafka.broker import find_free_port
from headgate.tables.iceberg.catalog import load_catalog

ICEBERG = "1.12.0"
TARGET_BYTES = 128 * 1024 * 1024
CHANGES = 50_000
_BLOCK_ROWS = 25_000
_SINK_FILE = """\
name = "{sink}"
[source]
topics = ["topic"]
[kafka]
"bootstrap.servers" = "127.0.0.1:{port}"
[catalog]
name = "lake"
[catalog.properties]
{catalog}
[table]
identifier = "db.rows"
{keyed}
[maintenance]
compact = true
files_min = 2
dead_per_thousand = 1
target_file_bytes = {target}
"""
_KEYED = """\
key = ["id"]
[table.record_columns]
partition = "partition"
offset = "offset"
"""
_CALL = (
    "CALL lake.system.rewrite_data_files(table => 'db.rows', options => map("
    f"'target-file-size-bytes', '{TARGET_BYTES}', 'min-input-files', '2', "
    "'delete-file-threshold', '1', 'max-concurrent-file-group-rewrites', '2', "
    "'partial-progress.enabled', 'false'))"
)
_FOUND = 'count(*), count(distinct id), sum(amount), sum("offset")'


# ------------------------------------------------------------------------------------ the tables


def make_small_files(home: Path, given: argparse.Namespace) -> None:
    """Make the table whose files are all small."""
    with _opened(home) as catalog:
        table = Table(catalog, "db.rows", KEYS["long"] | COLUMNS)
        source = Source("long")
        block = source.inserted(_BLOCK_ROWS)
        size = table.write_files(block)[0].size_bytes
        for _ in range(given.files // 3 // 10):
            files = []
            for share in (100, 10, 1) * 10:
                rows = max(1, given.largest_kb * 1000 * _BLOCK_ROWS // share // size)
                files += table.write_files(source.inserted(rows))
            table.commit(tuple(files))


def make_dead_rows(home: Path, given: argparse.Namespace) -> None:
    """Make the table by key, and change it."""
    with _opened(home) as catalog:
        table = Table(catalog, "db.rows", KEYS["long"] | COLUMNS, ("id",))
        source = Source("long")
        filled = [table.write_files(source.inserted(given.rows // FILES))[0] for _ in range(FILES)]
        table.commit(tuple(filled))
        for _ in range(given.commits):
            table.commit(table.write_files(*source.changed(CHANGES)))


@contextmanager
def _opened(home: Path) -> Iterator[object]:
    home.mkdir()
    with closing(load_catalog("lake", local_lake(home).properties)) as catalog:
        catalog.create_namespace("db")
        yield catalog


@dataclass(frozen=True, slots=True)
class State:
    """The newest snapshot's data files, delete files and bytes, and what a reader finds."""

    files: tuple[int, int, int]
    found: tuple[object, ...]


def _state(home: Path) -> State:
    with closing(load_catalog("lake", local_lake(home).properties)) as catalog:
        table = catalog.load_table("db.rows")
        snapshot = table.current_snapshot()
        assert snapshot is not None and snapshot.summary is not None
        totals = ("total-data-files", "total-delete-files", "total-files-size")
        files = tuple(int(snapshot.summary[name] or 0) for name in totals)
        found = read_with_duckdb_query(table.metadata_location, _FOUND)
    return State((files[0], files[1], files[2]), tuple(found))


# ----------------------------------------------------------------------------------- the systems


def by_headgate(home: Path, *, keyed: bool) -> tuple[float, float, int]:
    """Return CPU-seconds, seconds by the clock and the peak memory."""
    sink = home / "sink.toml"
    sink.write_text(
        _SINK_FILE.format(
            sink=SINK,
            catalog="\n".join(
                f'{key} = "{value}"' for key, value in local_lake(home).properties.items()
            ),
            port=find_free_port(),  # nobody is there: maintenance asks only the table
            keyed=_KEYED if keyed else "",
            target=TARGET_BYTES,
        )
    )
    command = [str(Path(sys.executable).with_name("headgate")), "maintain", str(sink)]
    began_s = time.time()
    with (home / "headgate.log").open("wb") as log:
        process = subprocess.Popen([*command, "--only", "compact"], stdout=log, stderr=log)
        with closing(Watch(process.pid, 0.05)) as watch:
            code = _await(process)
            cpu_s = watch.cpu_at(time.time())
    if code:
        raise SystemExit(f"{home}/headgate.log: exit code {code}")
    return cpu_s, time.time() - began_s, watch.peak_bytes()[0]


def _await(process: subprocess.Popen[bytes]) -> int:
    # Not reaped before the watch has seen its last CPU time.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    time.sleep(0.1)
    return process.wait()


def by_spark(home: Path, *, keyed: bool) -> tuple[float, float, int]:
    """Return CPU-seconds, seconds by the clock and the peak memory."""
    del keyed  # the table says it
    command = [sys.executable, str(Path(__file__).resolve()), "--spark", str(home)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    running = PipedProcess(command, home / "spark.log", environment)
    try:
        with closing(Watch(running.pid)) as watch:
            began_s = time.time()
            began_cpu_s = watch.cpu_at(began_s)
            running.go()
            while not (home / "done").exists():
                running.check()
                time.sleep(0.02)
            ended_s = time.time()
            time.sleep(0.5)
            cpu_s = watch.cpu_at(ended_s) - began_cpu_s
    finally:
        running.stop()
    return cpu_s, ended_s - began_s, watch.peak_bytes()[0]


def _spark(home: Path) -> None:
    """Run the child: a session, a line of input, the call."""
    from pyspark.sql import SparkSession

    catalog = "spark.sql.catalog.lake"
    conf = {
        "spark.jars": iceberg_jars(ICEBERG),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{catalog}.{key}": value for key, value in local_lake(home).java.items()},
    }
    session = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    session.sql("SELECT count(*) FROM lake.db.rows").collect()
    print("READY", flush=True)
    sys.stdin.readline()
    session.sql(_CALL).collect()
    (home / "done").touch()
    time.sleep(60)  # until it is ended: its last CPU time is looked at first


SYSTEMS = {"headgate": by_headgate, "Spark": by_spark}


def compare(case: str, home: Path, given: argparse.Namespace, *, turned: bool) -> None:
    """Make the table for each system, let it compact, and print a line."""
    keyed = case == "dead rows"
    make: Callable[[Path, argparse.Namespace], None] = make_dead_rows if keyed else make_small_files
    cost: dict[str, float] = {}
    for system in sorted(SYSTEMS, reverse=turned):
        folder = home / f"{case}-{system}".replace(" ", "-")
        make(folder, given)
        before = _state(folder)
        load = os.getloadavg()[0]
        cpu_s, wall_s, memory = SYSTEMS[system](folder, keyed=keyed)
        cost[system] = cpu_s
        after = _state(folder)
        exact = after.found[:2] == before.found[:2] and after.found[3] == before.found[3]
        rows = int(str(before.found[0]))
        megabytes = before.files[2] / 1e6
        print(
            f"{case}: {system}: {megabytes:,.0f} MB, {rows:,} rows, "
            f"{before.files[0]} + {before.files[1]} files to "
            f"{after.files[0]} + {after.files[1]}: "
            f"{cpu_s:.1f} CPU-s, {wall_s:.1f} s, {megabytes / cpu_s:.1f} MB/CPU-s, "
            f"{rows / cpu_s:,.0f} rows/CPU-s, {memory / 1e6:,.0f} MB of memory, "
            f"load before {load:.1f}, {'exact' if exact else 'NOT EXACT'}",
            flush=True,
        )
    print(f"{case}: Spark's CPU-seconds by headgate's: {cost['Spark'] / cost['headgate']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--files", type=int, default=1800, help="small ones")
    add("--largest-kb", type=int, default=1000, help="size of the largest third of them")
    add("--rows", type=int, default=4_000_000, help="of the table with dead rows, at first")
    add("--commits", type=int, default=40, help="of 50,000 changes to it")
    add("--rounds", type=int, default=1)
    add("--spark", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.spark:
        _spark(given.spark)
        return
    for number in range(given.rounds):
        for case in ("small files", "dead rows"):
            with tempfile.TemporaryDirectory() as folder:
                compare(case, Path(folder), given, turned=bool(number % 2))


if __name__ == "__main__":
    main()
