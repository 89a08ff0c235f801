"""Measures appends to a Hudi table from a topic of JSON, next to Hudi's own Spark streaming write.

    PYTHONPATH=tests:benchmarks .venv/bin/python benchmarks/hudi_appends.py [--rows 2000000]

Both run in the environment of ``make hudi-env``, in turn, from the same topic (taxi trips, two
partitions) into an empty copy-on-write table of ten columns: a headgate process, and a structured
streaming query that parses the values and writes them by ``bulk_insert``, Hudi's cheapest way, in
``--batches`` batches. Printed are rows per CPU-second of the process with its JVM from the word to
begin until a commit has the last row, and between the first commit and the last; whether every id
is there once; and the CPU-seconds of start-up before.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PYTHON = "build/hudi/bin/python"
KAFKA = "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.7"
"""Spark's connector. The registries lack some 3.5 releases; any of them works with Spark 3.5."""


# ------------------------------------------------------- the children, in the environment of Hudi


def headgate(told: Mapping[str, Any]) -> None:
    from headgate.config.load import load
    from headgate.runtime.assembly import open_sink

    with open_sink(load(told["sink"])) as sink:
        ready()
        while True:
            sink.run_once(50)


def spark(told: Mapping[str, Any]) -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    from headgate.operations.java_installation import ensure_jars, user_cache_folder
    from headgate.tables.hudi.jvm import open_spark_context

    connector = ensure_jars(
        user_cache_folder() / f"spark-kafka-{KAFKA.rpartition(':')[2]}", [KAFKA]
    )
    jars = [told["bundle"], *map(str, connector.iterdir())]
    conf = {"spark.jars": ",".join(jars), "spark.master": "local[2]"}
    session = SparkSession(open_spark_context(conf, {}))
    types = {
        name: kind.replace("timestamptz", "timestamp") for name, kind in told["columns"].items()
    }
    schema = ", ".join(f"{name} {kind}" for name, kind in types.items())
    source = session.readStream.format("kafka").options(
        **{
            "kafka.bootstrap.servers": told["bootstrap"],
            "subscribe": told["topic"],
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(told["rows"] // told["batches"]),
        }
    )
    ready()
    rows = source.load().select(f.from_json(f.col("value").cast("string"), schema).alias("row"))
    query = (
        rows.select("row.*")
        .writeStream.format("hudi")
        .options(
            **{
                "hoodie.table.name": "trips",
                "hoodie.datasource.write.operation": "bulk_insert",
                "hoodie.bulkinsert.shuffle.parallelism": "2",
                "hoodie.parquet.compression.codec": "zstd",
                "hoodie.metadata.enable": "true",
                "checkpointLocation": told["checkpoint"],
            }
        )
        .trigger(availableNow=True)
        .start(told["table"])
    )
    query.awaitTermination()
    time.sleep(3600)  # until it is ended


def ready() -> None:
    print("READY", flush=True)
    sys.stdin.readline()


# ------------------------------------------------------------------------------------- the parent


def sink_file(told: Mapping[str, Any], lock: Mapping[str, str], interval_ms: int) -> str:
    sections: dict[str, Mapping[str, Any]] = {
        "source": {"topics": [told["topic"]]},
        "kafka": {"bootstrap.servers": told["bootstrap"]},
        "control": {"topic": f"{told['run']}-control"},
        "catalog.properties": {"spark.jars": told["bundle"]},
        "table": {
            "type": "hudi",
            "identifier": "db.trips",
            "location": told["table"],
            "create": True,
        },
        "table.properties": lock,
        "coordinator": {"commit_interval_ms": interval_ms},
        "spark": {"writer": "in-process"},
    }
    lines = [f'name = "{told["run"]}"']
    for name, section in sections.items():
        lines.append(f"[{name}]")
        lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in section.items()]
    for name, kind in told["columns"].items():
        lines += ["[[table.columns]]", f'name = "{name}"', f'type = "{kind}"']
    return "\n".join(lines) + "\n"


class Table:
    """A copy-on-write table without partitions, looked at from outside."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows_in_files: dict[str, int] = {}

    def rows(self) -> int:
        """Return the rows of completed commits."""
        import pyarrow.parquet as pq

        for path in self.files():
            if path.name not in self._rows_in_files:
                self._rows_in_files[path.name] = pq.read_metadata(path).num_rows
        return sum(self._rows_in_files.values())

    def files(self) -> list[Path]:
        timeline = self._folder / ".hoodie" / "timeline"
        done = {path.name.partition("_")[0] for path in timeline.glob("*_*.commit")}
        found = self._folder.glob("*.parquet")
        return [path for path in found if path.stem.rpartition("_")[2] in done]

    def exact(self, rows: int) -> bool:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        parts = [pq.read_table(path, columns=["id"])["id"] for path in self.files()]
        ids = pa.chunked_array([chunk for part in parts for chunk in part.chunks])
        return len(ids) == rows == pc.count_distinct(ids).as_py()


def measured(name: str, told: Mapping[str, Any], home: Path, *, patience_s: float) -> str:
    from comparison.job import PipedProcess
    from comparison.process_tree import ProcessTree

    command = [PYTHON, __file__, "--child", name, json.dumps(told)]
    command[0] = str(Path(PYTHON).absolute())
    environment = {"ARROW_DEFAULT_MEMORY_POOL": "system", **os.environ}
    process = PipedProcess(command, home / f"{name}.log", environment)
    try:
        tree, table, rows = ProcessTree(process.pid), Table(Path(told["table"])), told["rows"]
        begun = tree.usage(memory=False)
        process.go()
        seen = [(0, begun.cpu_s)]
        until = time.monotonic() + patience_s
        while seen[-1][0] < rows:
            time.sleep(0.05)
            process.check()
            if time.monotonic() > until:
                raise SystemExit(f"{name}: {seen[-1][0]} of {rows} rows are there")
            if (found := table.rows()) > seen[-1][0]:
                seen.append((found, tree.usage(memory=False).cpu_s))
    finally:
        process.stop()
    (first, first_s), (last, last_s) = seen[1], seen[-1]
    steady = f"{(last - first) / (last_s - first_s):9,.0f}" if len(seen) > 2 else "none"
    return (
        f"{name:9} {rows / (last_s - begun.cpu_s):9,.0f} rows/CPU-s, steady {steady}, "
        f"{len(seen) - 1} commits, {last_s - begun.cpu_s:.1f} CPU-s, start {begun.cpu_s:.1f}, "
        f"exact: {table.exact(rows)}"
    )


def main() -> None:
    from hudi_tables.bundle import fetched
    from hudi_tables.zookeeper import zookeeper

    from comparison.topic import Topic
    from comparison.workloads import WORKLOADS
    from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars

    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rows", type=int, default=2_000_000)
    asked.add_argument("--repeat", type=int, default=1)
    asked.add_argument("--interval-ms", type=int, default=3_000)
    asked.add_argument("--batches", type=int, default=4, help="of Spark")
    asked.add_argument("--patience-s", type=float, default=900)
    given = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        home = Path(folder)
        (home / "zookeeper").mkdir()
        with (
            zookeeper(home / "zookeeper") as server,
            EmbeddedKafka(home / "kafka", ensure_broker_jars()) as broker,
        ):
            topic = Topic(broker.bootstrap, "trips", WORKLOADS["taxi"], 2)
            topic.fill(given.rows)
            for number in range(given.repeat):
                for name in ("headgate", "spark"):
                    run = f"{name}-{number}"
                    told = {
                        "run": run,
                        "topic": topic.name,
                        "columns": WORKLOADS["taxi"].columns,
                        "bootstrap": broker.bootstrap,
                        "bundle": str(fetched()),
                        "rows": given.rows,
                        "batches": given.batches,
                        "table": str(home / run / "trips"),
                        "checkpoint": str(home / run / "checkpoint"),
                        "sink": str(home / f"{run}.toml"),
                    }
                    told_lock = server.lock(60_000)
                    text = sink_file(told, told_lock, given.interval_ms)
                    Path(told["sink"]).write_text(text)
                    print(measured(name, told, home, patience_s=given.patience_s), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        {"headgate": headgate, "spark": spark}[sys.argv[2]](json.loads(sys.argv[3]))
    else:
        main()
