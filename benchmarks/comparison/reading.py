"""Measures what readers need for a table: Spark with Iceberg, and DuckDB, each in a process.

``python -m comparison.reading READER TABLE EASY`` reads the table EASY to warm up, then the other
one, and prints what was found and what that cost. Tables are DATABASE:NAME.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.schema import Schema

from comparison.process_tree import ProcessTree
from comparison.target import CATALOG, NAMESPACE, Target, metadata_location

COMPACTED = "compacted"
READ_SECONDS_MAX = 600.0
_WANTED = "count(*), sum(id), sum(n), sum(fare)"
_TESTS = Path(__file__).parents[2] / "tests"


@dataclass(frozen=True, slots=True)
class Read:
    """CPU-seconds of all its processes; ``found`` are rows and the sums of ``id`` and ``n``."""

    cpu_s: float
    wall_s: float
    found: tuple[int, int, int]


def read(reader: str, table: str, easy: str) -> Read | None:
    """Return ``None`` if it did not end in time, or failed."""
    command = [sys.executable, "-m", "comparison.reading", reader, table, easy]
    folders = [str(_TESTS), *(path for path in sys.path if path.endswith("benchmarks"))]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folders),
        "SPARK_DRIVER_MEMORY": "6g",
    }
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env=environment, start_new_session=True, text=True
    ) as child:
        try:
            said, _ = child.communicate(timeout=READ_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return None
    if child.returncode:
        return None
    cpu_s, wall_s, found = json.loads(said.splitlines()[-1])
    return Read(cpu_s, wall_s, tuple(found))


def compact(target: Target) -> str:
    """Write the table's live rows to a table without dead ones."""
    with target.table() as table:
        schema = Schema(*table.schema().fields)
        made = table.catalog.create_table(
            f"{NAMESPACE}.{COMPACTED}",
            schema,
            properties={"write.parquet.compression-codec": "zstd"},
        )
        made.append(table.scan().to_arrow())
    return f"{target.lake.database}:{COMPACTED}"


Ask = Callable[[str], tuple[object, ...]]


@contextmanager
def _duckdb() -> Iterator[Ask]:
    from integration.readers import read_with_duckdb_query

    def ask(table: str) -> tuple[object, ...]:
        database, _, name = table.rpartition(":")
        return read_with_duckdb_query(metadata_location(Path(database), name), _WANTED)

    yield ask


@contextmanager
def _spark() -> Iterator[Ask]:
    from integration.readers import IcebergSpark

    with IcebergSpark() as spark:

        def ask(table: str) -> tuple[object, ...]:
            database, _, name = table.rpartition(":")
            statement = f"SELECT {_WANTED} FROM {CATALOG}.{NAMESPACE}.{name}"
            (row,) = spark.sql(CATALOG, Path(database), statement).to_pylist()
            return tuple(row.values())

        yield ask


READERS = {"spark": _spark, "duckdb": _duckdb}


def main() -> None:
    reader, table, easy = sys.argv[1:]
    tree = ProcessTree(os.getpid())
    with READERS[reader]() as ask:
        ask(easy)
        ask(easy)
        began, before = time.monotonic(), tree.usage(memory=False).cpu_s
        found = ask(table)
        cpu_s = tree.usage(memory=False).cpu_s - before
        wall_s = time.monotonic() - began
    print(json.dumps([cpu_s, wall_s, [int(str(value)) for value in found[:3]]]), flush=True)


if __name__ == "__main__":
    main()
