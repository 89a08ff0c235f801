"""Compares a Spark query that headgate writes with Iceberg's own streaming sink and an append.

    PYTHONPATH=tests python benchmarks/query_sinks.py [--records 2000000]
        [--per-batch 20000 200000] [--rounds 3] [--sinks noop iceberg append headgate]
        [--executors 0] [--partitions 4]

One query (JSON of 200 bytes, a task for each partition), in a process for each sink, size of batch
and round, one after the other, in turned order each second round: ``noop`` is the query alone,
``iceberg`` Iceberg's own sink, ``append`` what most people write (``foreachBatch`` with
pyiceberg's append),
``headgate`` one that ``headgate.spark.write`` starts, ``keyed`` the same into a table with a key,
``records`` the same in records mode, where headgate decodes instead of ``from_json``. With
``--executors 1 2`` the query runs on a standalone cluster of so many executors with a core each,
with 0 within the driver, on two cores.

What CPU is counted is that of driver, its JVM, executors and Python workers, from when the first
quarter of the records is done. Printed are for each sink the medians of the rounds: rows per
CPU-second; the same beside Iceberg's of the same round; the fixed cost of a batch in CPU, by the
slope between the sizes, in all and on the driver; what the driver takes to see that the table has a
batch; the machine's load. Kills are in ``tests/spark_query/kills.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from integration.readers import iceberg_jars, read_with_duckdb_query
from integration.spark.cluster import standalone_cluster
from spark_query.spark_programs import kafka_source_jars

from headgate.operations.demo.producer import ensure_topic
from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars

TOPIC = "orders"
SINKS = ("noop", "iceberg", "append", "headgate", "keyed", "records")
_OURS = ("headgate", "keyed", "records")
FIELDS = "id long, at timestamp, amount double, city string, note string"
SINK_FILE = """\
name = "{name}"
[source]
topics = ["orders"]
[kafka]
"bootstrap.servers" = "{bootstrap}"
[catalog]
name = "lake"
[catalog.properties]
type = "sql"
uri = "sqlite:///{home}/catalog.db"
warehouse = "file://{home}/warehouse"
[table]
identifier = "s.orders"
create = true
{key}columns = [
  {{ name = "id", type = "long", required = true }},
  {{ name = "at", type = "timestamptz" }},
  {{ name = "amount", type = "double" }},
  {{ name = "city", type = "string" }},
  {{ name = "note", type = "string" }},
  {{ name = "kafka_partition", type = "int", from_record = true }},
  {{ name = "kafka_offset", type = "long", from_record = true }},
]
[table.record_columns]
partition = "kafka_partition"
offset = "kafka_offset"
"""
_KEY = 'key = ["id"]\nproperties = { format-version = "3" }\n'
_RESULT = "RESULT "


def produce(bootstrap: str, records: int, partitions: int) -> None:
    """Fill the topic."""
    ensure_topic(bootstrap, TOPIC, partitions=partitions)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    note = "n" * 70
    for number in range(records):
        at = f"2026-10-{1 + number // 3_000_000:02d}T12:{number // 60 % 60:02d}:{number % 60:02d}Z"
        value = (
            f'{{"id":{number},"at":"{at}","amount":{number % 97}.{number % 100:02d},'
            f'"city":"city-{number % 50}","note":"{note}","more":"{number % 1000:030d}"}}'
        )
        while True:
            with suppress(BufferError):
                producer.produce(TOPIC, value, partition=number % partitions)
                break
            producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


# ------------------------------------------------------------------- one sink, in its own process


def open_session(home: Path, master: str) -> Any:
    """Return a Spark session with Kafka's source and Iceberg's runtime."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    catalog = "spark.sql.catalog.lake"
    conf = {
        "spark.jars": f"{kafka_source_jars()},{iceberg_jars()}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "1500m",
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:{home}/catalog.db",
        f"{catalog}.warehouse": f"file://{home}/warehouse",
        f"{catalog}.jdbc.schema-version": "V1",
    }
    return SparkSession.builder.master(master).config(map=conf).getOrCreate()


def start_query(sink: str, home: Path, spark: Any, *, bootstrap: str, per_batch: int) -> Any:
    """Return the query, started, which ends when it has read the topic."""
    from pyspark.sql import functions

    import headgate.spark

    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(per_batch))
        .load()
    )
    value = functions.from_json(functions.col("value").cast("string"), FIELDS).alias("v")
    places = [functions.col(name).alias(f"kafka_{name}") for name in ("partition", "offset")]
    rows = records.select(value, *places).select("v.*", "kafka_partition", "kafka_offset")
    checkpoint = str(home / "checkpoint")
    if sink in _OURS:
        file = home / "orders.toml"
        key = _KEY if sink == "keyed" else ""
        text = SINK_FILE.format(name=home.name, home=home, bootstrap=bootstrap, key=key)
        file.write_text(text)
        handed = records if sink == "records" else rows
        writer = headgate.spark.write(handed, file, checkpoint, records=sink == "records")
        return writer.trigger(availableNow=True).start()
    writer = rows.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    if sink == "noop":
        return writer.format("noop").start()
    if sink == "append":
        return writer.foreachBatch(appending(home)).start()
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.s")
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS lake.s.orders ({FIELDS.replace(' long', ' bigint')}, "
        "kafka_partition int, kafka_offset bigint) USING iceberg"
    )
    return writer.toTable("lake.s.orders")


def appending(home: Path) -> Any:
    """Return the function that most people write: it appends each batch."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("lake", uri=f"sqlite:///{home}/catalog.db", warehouse=f"file://{home}/w")
    catalog.create_namespace_if_not_exists("s")

    def append(frame: Any, _: int) -> None:
        rows = frame.toArrow()
        catalog.create_table_if_not_exists("s.orders", schema=rows.schema).append(rows)

    return append


def run_one(sink: str, home: Path, bootstrap: str, per_batch: int, master: str) -> None:
    """Run the query of one sink, and stay until it was measured."""
    spark = open_session(home, master)
    query = start_query(sink, home, spark, bootstrap=bootstrap, per_batch=per_batch)
    query.awaitTermination()
    batches = {each["batchId"]: each["numInputRows"] for each in query.recentProgress}
    print(_RESULT + json.dumps({"batches": [rows for rows in batches.values() if rows]}))
    sys.stdout.flush()
    sys.stdin.readline()
    done = done_batch_ms(home, spark, len(batches) - 1) if sink == "headgate" else None
    print(_RESULT + json.dumps({"done_ms": done}), flush=True)


def done_batch_ms(home: Path, spark: Any, last: int) -> float:
    """Return how long the driver takes to see that the table has a batch."""
    import headgate.spark

    again = headgate.spark.Batches(home / "orders.toml", str(home / "checkpoint"))
    frame = spark.createDataFrame([], "id bigint, kafka_partition int, kafka_offset bigint")
    again(frame, last)
    took_ms = []
    for _ in range(21):
        begun_s = time.monotonic()
        again(frame, last)
        took_ms.append((time.monotonic() - begun_s) * 1000)
    again.close()
    return statistics.median(took_ms)


# --------------------------------------------------------------------------- all of them, in turns


@dataclass(frozen=True, slots=True)
class Case:
    """One way to run the query."""

    sink: str
    per_batch: int
    executors: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run took once it was warm: CPU-seconds by kind of process, for rows and batches."""

    cpu_s: Mapping[str, float]
    rows: int
    batches: int
    wall_s: float
    exact: bool
    done_ms: float | None = None

    @property
    def all_cpu_s(self) -> float:
        return sum(self.cpu_s.values())

    @property
    def driver_cpu_s(self) -> float:
        """The driver's, where executors are processes of their own."""
        return self.cpu_s.get("driver", 0) + self.cpu_s.get("jvm", 0)

    @property
    def rows_per_cpu_s(self) -> float:
        return self.rows / self.all_cpu_s


def read_cpu_s(driver: psutil.Process) -> Counter[str]:
    """Return CPU-seconds so far by kind: ``driver``, its ``jvm``, ``executors``, ``workers``."""
    found: Counter[str] = Counter()
    mine = {driver, *driver.children(recursive=True)}
    for process in {*mine, *psutil.Process().children(recursive=True)}:
        with suppress(psutil.Error):
            command, cpu_s = " ".join(process.cmdline()), sum(process.cpu_times()[:4])
            if process == driver:
                found["driver"] += cpu_s
            elif "pyspark.daemon" in command or "pyspark.worker" in command:
                found["workers"] += cpu_s
            elif "CoarseGrainedExecutorBackend" in command:
                found["executors"] += cpu_s
            elif process in mine:
                found["jvm"] += cpu_s
    return found


def measure_one(case: Case, home: Path, asked: argparse.Namespace, *, where: list[str]) -> Cost:
    """Run one query. ``where``: the broker and the master. Raises ``RuntimeError``."""
    command = [sys.executable, "-u", __file__, "--one", case.sink, str(home), where[0]]
    log = home / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [*command, str(case.per_batch), where[1]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdin and process.stdout
        driver = psutil.Process(process.pid)
        warm = home / "checkpoint/commits" / str(asked.records // 4 // case.per_batch)
        while process.poll() is None and not warm.exists():
            time.sleep(0.02)
        before, begun_s = read_cpu_s(driver), time.monotonic()
        ran = _read_result(process.stdout, log)
        wall_s, cpu_s = time.monotonic() - begun_s, read_cpu_s(driver)
        cpu_s.subtract(before)
        process.stdin.write("\n")
        process.stdin.flush()
        done_ms = _read_result(process.stdout, log)["done_ms"]
    later = ran["batches"][int(warm.name) + 1 :]
    table = rows_in_table(home) if case.sink != "noop" else (asked.records, asked.records)
    exact = table == (asked.records, asked.records)
    return Cost(dict(cpu_s), sum(later), len(later), wall_s, exact, done_ms)


def _read_result(output: Any, log: Path) -> Any:
    for line in output:
        if line.startswith(_RESULT):
            return json.loads(line.removeprefix(_RESULT))
    raise RuntimeError(log.read_text()[-4000:])


def rows_in_table(home: Path) -> tuple[Any, ...]:
    """Return rows and different records, by a reader that is none of the writers."""
    with sqlite3.connect(home / "catalog.db") as catalog:
        ((location,),) = catalog.execute("select metadata_location from iceberg_tables")
    counted = "count(*), count(DISTINCT (kafka_partition, kafka_offset))"
    return read_with_duckdb_query(str(location), counted)


def measure(asked: argparse.Namespace, folder: Path, bootstrap: str) -> dict[Case, list[Cost]]:
    """Run each case in each round."""
    costs: dict[Case, list[Cost]] = {}
    for number in range(asked.rounds):
        for executors in asked.executors:
            cases = [Case(s, n, executors) for n in asked.per_batch for s in asked.sinks]
            with ExitStack() as stack:
                master = "local[2]"
                if executors:
                    cluster = folder / f"cluster-{number}-{executors}"
                    cluster.mkdir()
                    master = stack.enter_context(standalone_cluster(cluster, executors))
                for case in cases[:: -1 if number % 2 else 1]:
                    home = folder / f"{case.sink}-{case.per_batch}-{executors}-{number}"
                    home.mkdir()
                    cost = measure_one(case, home, asked, where=[bootstrap, master])
                    costs.setdefault(case, []).append(cost)
                    each = {kind: f"{s / cost.rows * 1e6:.2f}" for kind, s in cost.cpu_s.items()}
                    print(
                        f"round {number + 1}: {case}: {cost.rows_per_cpu_s:,.0f} rows/CPU-s, "
                        f"us a row {each}, {cost.rows / cost.wall_s:,.0f} rows/s, exact "
                        f"{cost.exact}, done {cost.done_ms}; load {os.getloadavg()[0]:.0f}",
                        flush=True,
                    )
                    shutil.rmtree(home)
    return costs


def print_medians(costs: Mapping[Case, list[Cost]]) -> None:
    """Print what the rounds say of each case, and of each sink by its sizes of batch."""
    median = statistics.median
    for case, found in costs.items():
        beside = costs.get(Case("iceberg", case.per_batch, case.executors), [])
        ratios = [a.rows_per_cpu_s / b.rows_per_cpu_s for a, b in zip(found, beside, strict=False)]
        done = [each.done_ms for each in found if each.done_ms is not None]
        print(
            f"{case}: {median(each.rows_per_cpu_s for each in found):,.0f} rows/CPU-s"
            + (f", beside Iceberg's {median(ratios):.2f} {_short(ratios)}" if ratios else "")
            + (f", a batch that is done {median(done):.0f} ms" if done else "")
            + f", all exact {all(each.exact for each in found)}"
        )
    for small, large in [
        (a, b)
        for a in costs
        for b in costs
        if (a.sink, a.executors) == (b.sink, b.executors) and a.per_batch < b.per_batch
    ]:
        shares = {"in all": "all_cpu_s"} | ({"driver": "driver_cpu_s"} if small.executors else {})
        for name, share in shares.items():
            fixed, per_row = _slope(costs[small], costs[large], share)
            print(
                f"{small.sink}, {small.executors} executors, {name}: {fixed * 1000:.0f} CPU-ms a "
                f"batch and {per_row * 1e6:.2f} us a row"
            )


def _slope(small: list[Cost], large: list[Cost], share: str) -> tuple[float, float]:
    """Return CPU-seconds of a batch without rows, and of a row."""
    ((x0, y0), (x1, y1)) = (
        (
            statistics.median(each.rows / each.batches for each in found),
            statistics.median(getattr(each, share) / each.batches for each in found),
        )
        for found in (small, large)
    )
    per_row = (y1 - y0) / (x1 - x0)
    return y0 - per_row * x0, per_row


def _short(ratios: list[float]) -> str:
    return f"({', '.join(f'{each:.2f}' for each in ratios)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--per-batch", type=int, nargs="+", default=[20_000, 200_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sinks", nargs="+", default=SINKS[:4], choices=SINKS)
    parser.add_argument("--executors", type=int, nargs="+", default=[0])
    parser.add_argument("--partitions", type=int, default=4)
    asked = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        kafka = stack.enter_context(EmbeddedKafka(folder / "kafka", ensure_broker_jars()))
        produce(kafka.bootstrap, asked.records, asked.partitions)
        print_medians(measure(asked, folder, kafka.bootstrap))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        run_one(sys.argv[2], Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]), sys.argv[6])
    else:
        main()
