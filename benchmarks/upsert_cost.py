"""Measures upserts for the coordinator and the readers of a keyed table; it needs no broker.

    python benchmarks/upsert_cost.py [--rows 5000000] [--changes 100000] [--commits 20] [--key text]

A table of so many rows in fifty files is made, of format version 3, in a SQLite catalog in a
temporary folder. Its key is a number, a text (UUIDs), or both. Then commits of so many changes: 80
in a hundred update a random row, 2 delete one, the others insert. Printed are

- seconds until a cold coordinator has resolved its first commit, and CPU-seconds of it;
- the median of seconds that a warm one needs, beside those of a table without a key;
- bytes of the index for each row, and of all that a cold coordinator holds at most while it reads;
- CPU-seconds of DuckDB to read two columns of the table, and of the same rows in compacted files.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import CommitAttempt, Landed
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.data_file import FileDetail
from headgate.tables.iceberg.maintenance.compaction_plan import sink_data_folder
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import (
    TableDeclaration,
    create_table_if_missing,
    require_key_field_ids,
)
from headgate.tables.iceberg.upsert.key_files import (
    OFFSET,
    PARTITION,
    key_file_schema,
    write_key_file,
)
from headgate.tables.iceberg.upsert.upsert_commit import KeyedBy, KeyedRows

SINK = SinkName("benchmark")
KEYS = {
    "long": {"id": "long not null"},
    "text": {"id": "string not null"},
    "both": {"tenant": "string not null", "id": "long not null"},
}
COLUMNS = {
    "amount": "double",
    "name": "string",
    "partition": "int",
    "offset": "long",
}
FILES = 50
_POOLS: list[pa.MemoryPool] = []
"""They outlive what was allocated from them, which is given back at the end of the process."""
_SCATTER = 0x9E3779B97F4A7C15F39CC0605CEDC835
_READ = """
import sys, time
from integration.readers import read_with_duckdb_query as read
began = time.process_time()
print(*read(sys.argv[1], "count(*), count(distinct id), sum(amount)"))
print(time.process_time() - began)
"""


@dataclass
class Source:
    """Records with ascending offsets of one partition; ``keys`` are numbers that count upwards."""

    kind: str
    dice: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    offset: int = 0
    keys: int = 0

    def rows(self, ids: np.ndarray) -> pa.Table:
        count = len(ids)
        self.offset += count
        return pa.table(
            {
                **self.key(ids),
                "amount": self.dice.random(count),
                "name": pa.array([f"n{number % 9973}" for number in ids]),
                "partition": np.zeros(count, np.int32),
                "offset": np.arange(self.offset - count, self.offset),
            }
        )

    def key(self, ids: np.ndarray) -> dict[str, Any]:
        if self.kind == "long":
            return {"id": ids}
        if self.kind == "both":
            return {"tenant": pa.array([f"tenant-{number % 997}" for number in ids]), "id": ids}
        scattered = (f"{number * _SCATTER % 2**128:032x}" for number in ids.tolist())
        texts = [f"{t[:8]}-{t[8:12]}-{t[12:16]}-{t[16:20]}-{t[20:]}" for t in scattered]
        return {"id": pa.array(texts)}

    def inserted(self, count: int) -> pa.Table:
        self.keys += count
        return self.rows(np.arange(self.keys - count, self.keys))

    def changed(self, count: int) -> tuple[pa.Table, dict[str, Any]]:
        """Return rows, and keys to delete."""
        updates, deletes = count * 80 // 100, count * 2 // 100
        known = self.keys
        fresh = self.inserted(count - updates - deletes)
        old = self.rows(self.dice.integers(0, known, updates))
        return pa.concat_tables([fresh, old]), self.key(self.dice.integers(0, known, deletes))


@dataclass
class Table:
    """A table of one coordinator."""

    catalog: Catalog
    name: str
    columns: dict[str, str]
    key: tuple[str, ...] = ()
    number: int = 0

    def __post_init__(self) -> None:
        asked = {"format-version": "3", "write.parquet.compression-codec": "zstd"}
        create_table_if_missing(
            self.catalog, self.name, TableDeclaration(self.columns, properties=asked, key=self.key)
        )
        self.started()

    def started(self) -> None:
        """Act as a coordinator that has just started: it knows no keys."""
        by = KeyedBy(self.key, "partition", "offset") if self.key else None
        self.keyed = KeyedRows(by) if by else None
        self.sink = IcebergTable(self.catalog, self.name, SINK, threads=False, keyed=self.keyed)

    def write_files(
        self, rows: pa.Table, gone: dict[str, Any] | None = None
    ) -> tuple[WrittenFile, ...]:
        table = self.catalog.load_table(self.name)
        folder = sink_data_folder(table, SINK)
        path = f"{folder}/{self.number}-{rows.num_rows}-{time.time_ns()}.parquet"
        local = path.removeprefix("file://")
        Path(local).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows.cast(schema_to_pyarrow(table.schema())), local, compression="zstd")
        size = Path(local).stat().st_size
        files = (FileDetail(table.spec().spec_id).to_written_file(path, rows.num_rows, size),)
        if not gone:
            return files
        columns = key_file_schema(
            table.schema(), require_key_field_ids(table.schema(), self.key), with_topic=False
        )
        count = len(gone["id"])
        keys = pa.table(
            {**gone, PARTITION: np.zeros(count, np.int32), OFFSET: np.arange(2**40, 2**40 + count)}
        )
        keys = keys.select(columns.names).cast(columns)
        return (*files, write_key_file(table.io, path + ".keys", keys))

    def commit(self, files: tuple[WrittenFile, ...]) -> None:
        self.number += 1
        record = CommitRecord(
            sink=SINK,
            group_id="benchmark",
            transaction=TransactionId(Epoch(1), TransactionNumber(self.number)),
            coordinator=Sender("benchmark", "1"),
            offsets=Offsets({TopicPartition("topic", 0): self.number}),
            records=sum(file.records for file in files if not file.path.endswith(".keys")),
        )
        outcome = self.sink.commit(CommitAttempt(self.sink.read(), record, files))
        assert isinstance(outcome, Landed), outcome

    @property
    def location(self) -> str:
        return self.catalog.load_table(self.name).metadata_location


@contextmanager
def timed(into: list[tuple[float, float]]) -> Iterator[None]:
    """Take seconds by the clock and of this process's CPU."""
    began, cpu = time.perf_counter(), time.process_time()
    yield
    into.append((time.perf_counter() - began, time.process_time() - cpu))


def read_cpu_s(location: str) -> tuple[float, str]:
    """Return the CPU-seconds of DuckDB in a process of its own, and what it found."""
    tests = str(Path(__file__).parents[1] / "tests")
    read = [sys.executable, "-c", _READ, location]
    said = subprocess.run(
        read, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": tests}
    )
    *_, found, cpu_s = said.stdout.splitlines()
    return float(cpu_s), found


@contextmanager
def held(into: list[int]) -> Iterator[None]:
    """Take the maximum of bytes that numpy and Arrow held."""
    before, own = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    _POOLS.append(own)
    pa.set_memory_pool(own)
    tracemalloc.start()
    yield
    into.append(tracemalloc.get_traced_memory()[1] + own.max_memory())
    tracemalloc.stop()
    pa.set_memory_pool(before)


def run(catalog: Catalog, given: argparse.Namespace) -> None:
    say: Callable[..., None] = print
    kind, rows, changes, commits = given.key, given.rows, given.changes, given.commits
    source, columns = Source(kind), KEYS[kind] | COLUMNS
    keyed = Table(catalog, "db.keyed", columns, tuple(KEYS[kind]))
    plain = Table(catalog, "db.plain", columns)
    first = [keyed.write_files(source.inserted(rows // FILES))[0] for _ in range(FILES)]
    keyed.commit(tuple(first))
    plain.commit(tuple(first))
    keyed.started()
    cold: list[tuple[float, float]] = []
    warm: list[tuple[float, float]] = []
    beside: list[tuple[float, float]] = []
    for number in range(commits):
        fresh, gone = source.changed(changes)
        files = keyed.write_files(fresh, gone)
        with timed(warm if number else cold):
            keyed.commit(files)
        with timed(beside):
            plain.commit(files[:1])
    median = [statistics.median(each) for each in zip(*warm, strict=True)]
    without = statistics.median(each for each, _ in beside)
    assert keyed.keyed is not None
    say(f"cold coordinator of {rows:,} rows: {cold[0][0]:.2f} s, {cold[0][1]:.2f} CPU-s")
    say(f"commit of {changes:,} changes: {median[0]:.3f} s, {median[1]:.3f} CPU-s")
    say(f"the same rows without a key: {without:.3f} s; so a key adds {median[0] - without:.3f} s")
    peak: list[int] = []
    keyed.started()
    files = keyed.write_files(*source.changed(changes))
    with held(peak):
        keyed.commit(files)
    index = keyed.keyed.index_bytes / rows
    say(f"index: {index:.1f} bytes a row; with all beside it {peak[0] / rows:.1f} at most")
    if given.no_reading:
        return
    compacted = Table(catalog, "db.compacted", columns)
    live = catalog.load_table("db.keyed").scan().to_arrow()
    bounds = [len(live) * n // FILES for n in range(FILES + 1)]
    parts = [live.slice(a, b - a) for a, b in pairwise(bounds)]
    compacted.commit(tuple(compacted.write_files(part)[0] for part in parts if len(part)))
    for name, table in (("as it is", keyed), ("compacted", compacted)):
        taken = [read_cpu_s(table.location) for _ in range(3)]
        cpu_s = statistics.median(each for each, _ in taken)
        say(f"DuckDB reads it {name}: {cpu_s:.2f} CPU-s, {taken[0][1]}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--rows", type=int, default=5_000_000)
    arguments.add_argument("--changes", type=int, default=100_000)
    arguments.add_argument("--commits", type=int, default=20)
    arguments.add_argument("--key", choices=KEYS, default="long")
    arguments.add_argument("--no-reading", action="store_true", help="of the table, by DuckDB")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": Path(folder, "warehouse").as_uri(),
        }
        with load_catalog("benchmark", properties) as catalog:
            catalog.create_namespace_if_not_exists("db")
            run(catalog, given)


if __name__ == "__main__":
    main()
