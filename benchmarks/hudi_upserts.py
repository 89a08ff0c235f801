"""Measures a staged upsert of a Hudi table, next to Hudi's own Spark write of the same rows.

    PYTHONPATH=tests build/hudi/bin/python benchmarks/hudi_upserts.py [--rows 200000] [--rounds 3]

Rows of eight columns lie in a Parquet file. They are upserted into an empty table, and then a
tenth of their keys once more, and again (a table that is merged on read has logs then): by a sink's
commit (its fold, its look at the live rows, Hudi's upsert), and by Hudi's data source from the same
file, under the same lock and settings. Printed are CPU-seconds of this process and its JVM. Both
ways have run once before, of a thousand rows, and take turns; what Java still compiles weighs in
the first round, so that each is printed, and what the last one says. No broker takes part.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hudi_tables.bundle import fetched
from hudi_tables.world import HudiWorld, session
from hudi_tables.zookeeper import zookeeper

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.table_format import RowKey
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)

TYPES = {
    "id": "long",
    "state": "string",
    "fare": "double",
    "seats": "int",
    "city": "string",
    "driver": "long",
    "at_partition": "int",
    "at_offset": "long",
}
COLUMNS = Struct(tuple(Column(name, kind, name == "id") for name, kind in TYPES.items()))


def rows(count: int, begin: int) -> pa.Table:
    dice = np.random.default_rng(begin)
    return pa.table(
        {
            "id": np.arange(count),
            "state": dice.choice(["open", "closed", "paid"], count),
            "fare": dice.random(count),
            "seats": dice.integers(1, 7, count, np.int32),
            "city": dice.choice([f"city {n}" for n in range(400)], count),
            "driver": dice.integers(0, 10**9, count),
            "at_partition": np.zeros(count, np.int32),
            "at_offset": np.arange(begin, begin + count),
        }
    )


class Bench:
    """Tables of one kind and index, in one JVM."""

    def __init__(
        self, home: str, spark: Any, lock: Mapping[str, str], kind: str, index: str
    ) -> None:
        self._home, self._spark, self._lock = home, spark, dict(lock)
        self._properties = {"hoodie.table.type": kind, "hoodie.index.type": index}

    def table(self) -> HudiWorld:
        return HudiWorld(
            Path(tempfile.mkdtemp(dir=self._home)),
            self._spark,
            self._lock,
            columns=COLUMNS,
            key=RowKey(("id",), "at_partition", "at_offset"),
            properties=self._properties,
        )

    def staged(self, *parts: pa.Table) -> list[float]:
        world = self.table()
        table, took = world.open(), []
        view = claim_table(table)
        for number, part in enumerate(parts, 1):
            file, held = world.stage(part), view

            def upsert(number: int = number, file: Any = file, held: Any = held) -> Any:
                return require_landed(commit(table, held, record(1, number, number), file))

            view, cost = timed(upsert)
            took.append(cost)
        return took

    def own(self, *parts: pa.Table) -> list[float]:
        world = self.table()
        claim_table(world.open())
        options = {
            **world.place.settings,
            "hoodie.table.name": "trips",
            "hoodie.datasource.write.operation": "upsert",
            "hoodie.datasource.write.recordkey.field": "id",
        }
        took = []
        for part in parts:
            frame = self._spark.read.parquet(world.stage(part).path)
            writer = frame.write.format("hudi").options(**options).mode("append")
            took.append(timed(lambda writer=writer: writer.save(str(world.folder)))[1])
        return took


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    begun = cpu_s()
    found = call()
    return found, cpu_s() - begun


def cpu_s() -> float:
    """Return the CPU time of this process, and of the JVMs that it has started."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    total = used.ru_utime + used.ru_stime
    for pid in subprocess.check_output(["pgrep", "-P", str(os.getpid()), "java"]).split():
        numbers = Path(f"/proc/{int(pid)}/stat").read_text().rpartition(") ")[2].split()
        total += (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")
    return total


STEPS = ("into an empty table", "then a tenth, known keys", "and again")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rows", type=int, default=200_000)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--kinds", nargs="+", default=["COPY_ON_WRITE", "MERGE_ON_READ"])
    asked.add_argument("--index", default="SIMPLE")
    given = asked.parse_args()
    count = given.rows
    parts = [rows(count, 0), rows(count // 10, count), rows(count // 10, 2 * count)]
    with tempfile.TemporaryDirectory() as home, zookeeper(Path(home)) as server:
        spark = session(str(fetched()))
        lock = server.lock(60_000)
        benches = {kind: Bench(home, spark, lock, kind, given.index) for kind in given.kinds}
        for bench in benches.values():
            for way in (bench.staged, bench.own):
                way(rows(1_000, 0), rows(100, 1_000), rows(100, 2_000))
        for turn in range(1, given.rounds + 1):
            for kind, bench in benches.items():
                staged, own = bench.staged(*parts), bench.own(*parts)
                for what, ours, theirs in zip(STEPS, staged, own, strict=True):
                    print(
                        f"{turn} {kind} {count} rows {what}: {ours:.1f} CPU-s staged, "
                        f"{theirs:.1f} by Hudi's own write ({ours / theirs:.2f})",
                        flush=True,
                    )
        spark.stop()


if __name__ == "__main__":
    main()
