"""Measures a table commit as commits pile up: headgate's committer, and pyiceberg's append.

    python benchmarks/commit_cost.py [--commits 1000] [--partitions 16] [--keep 50]

SQLite catalog and warehouse in a temporary folder. Each commit adds one data file; printed are
median milliseconds over the ten commits before each mark. Once every snapshot is kept, once the
table asks for ``--keep`` of them; there the mean of the hundred commits before the mark stands
beside, for it contains the expiry that every 25th commit delivers for the others.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog

from headgate.control_protocol.commit_record import CommitRecord
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
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

MARKS = (1, 100, 300, 1000, 2000, 5000)
APPENDS_MAX = 300  # beyond that it takes minutes
SINK = SinkName("benchmark")


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds of each commit, in order."""

    taken_ms: list[float]

    def median(self, mark: int) -> str:
        return self._text(mark, statistics.median, 10)

    def mean(self, mark: int) -> str:
        return self._text(mark, statistics.mean, 100)

    def _text(self, mark: int, of: Callable[[list[float]], float], commits: int) -> str:
        reached = mark <= len(self.taken_ms)
        return f"{of(self.taken_ms[max(0, mark - commits) : mark]):.1f}" if reached else "-"


def measured(commit: Callable[[int], object], commits: int) -> Measured:
    taken_ms: list[float] = []
    for number in range(1, commits + 1):
        begin = time.perf_counter()
        commit(number)
        taken_ms.append((time.perf_counter() - begin) * 1000)
    return Measured(taken_ms)


def headgate(catalog: Catalog, partitions: int, keep: int | None) -> Callable[[int], object]:
    identifier = f"db.keep_{keep or 'all'}"
    asked = {"history.expire.max-snapshot-age-ms": "1"} if keep else {}
    asked["history.expire.min-snapshots-to-keep"] = str(keep or 2**31 - 1)
    create_table_if_missing(catalog, identifier, TableDeclaration({"id": "long"}, properties=asked))
    table = IcebergTable(catalog, identifier, SINK)
    view = table.read()

    def commit(number: int) -> None:
        nonlocal view
        record = CommitRecord(
            sink=SINK,
            group_id="benchmark",
            transaction=TransactionId(Epoch(1), TransactionNumber(number)),
            coordinator=Sender("benchmark", "1"),
            offsets=Offsets({TopicPartition("topic", p): number for p in range(partitions)}),
        )
        # Commits never open data files: a path and counts are enough.
        file = FileDetail(view.spec_id).to_written_file(
            f"{view.location}/data/{number}.parquet", 1, 1000
        )
        outcome = table.commit(CommitAttempt(view, record, (file,)))
        assert isinstance(outcome, Landed), outcome
        view = outcome.view

    return commit


def append(catalog: Catalog) -> Callable[[int], object]:
    create_table_if_missing(catalog, "db.append", TableDeclaration({"id": "long"}))
    table = catalog.load_table("db.append")
    rows = pa.table({"id": pa.array([1], pa.int64())})
    return lambda _: table.append(rows)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--commits", type=int, default=1000)
    arguments.add_argument("--partitions", type=int, default=16, help="of the commit record")
    arguments.add_argument("--keep", type=int, default=50, help="snapshots that a table asks for")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": Path(folder, "warehouse").as_uri(),
        }
        with load_catalog("benchmark", properties) as catalog:
            few = measured(headgate(catalog, given.partitions, given.keep), given.commits)
            every = measured(headgate(catalog, given.partitions, None), given.commits)
            theirs = measured(append(catalog), min(given.commits, APPENDS_MAX))
    print(
        f"{'commits':>7} {'all kept':>10} {f'{given.keep} kept':>10} {'(mean)':>8} {'append':>10}"
    )
    for mark in (mark for mark in MARKS if mark <= given.commits):
        cells = every.median(mark), few.median(mark), few.mean(mark), theirs.median(mark)
        print(f"{mark:7} {cells[0]:>10} {cells[1]:>10} {cells[2]:>8} {cells[3]:>10}")


if __name__ == "__main__":
    main()
