"""Compares a Spark query that headgate writes with Iceberg's own streaming sink and an append.

    PYTHONPATH=tests python benchmarks/query_sinks.py [--records 2000000] [--per-batch 200000]
        [--rounds 3] [--sinks noop iceberg append headgate keyed] [--kills 0]

One query (JSON of 200 bytes, ``from_json``, four partitions, two cores), in a process for each sink
and round, one after the other: ``noop`` is the query alone, ``iceberg`` Iceberg's own sink,
``append`` what most people write (``foreachBatch`` with pyiceberg's append), ``headgate`` one that
``headgate.spark.write`` starts, ``keyed`` the same into a table with a key. Printed, for the best
of the rounds: rows per CPU-second of the whole process tree, without the first batch; beside
Iceberg's sink; what a batch costs on the driver that the table has already; the machine's load.

``--kills 20``: instead, each query is killed so often at random moments (``--seed``), and its
checkpoint deleted once; printed is what is in its table then.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from integration.readers import iceberg_jars, read_with_duckdb_query
from spark_query.spark_programs import kafka_source_jars

from headgate.operations.demo.producer import create_topic
from headgate.operations.local_kafka.broker import EmbeddedKafka, fetch_broker_jars

PARTITIONS, TOPIC = 4, "orders"
SINKS = ("noop", "iceberg", "append", "headgate", "keyed")
FIELDS = "id long, at timestamp, amount double, city string, note string"
SINK_FILE = """\
name = "orders"
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
_BATCH, _RESULT = "a batch is done", "RESULT "


def produce(bootstrap: str, records: int) -> None:
    """Fill the topic."""
    create_topic(bootstrap, TOPIC, partitions=PARTITIONS)
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
                producer.produce(TOPIC, value, partition=number % PARTITIONS)
                break
            producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


# ------------------------------------------------------------------- one sink, in its own process


def open_session(home: Path) -> Any:
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
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:{home}/catalog.db",
        f"{catalog}.warehouse": f"file://{home}/warehouse",
        f"{catalog}.jdbc.schema-version": "V1",
    }
    return SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()


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
    if sink in ("headgate", "keyed"):
        file = home / "orders.toml"
        key = _KEY if sink == "keyed" else ""
        file.write_text(SINK_FILE.format(home=home, bootstrap=bootstrap, key=key))
        return headgate.spark.write(rows, file, checkpoint).trigger(availableNow=True).start()
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


def tree_cpu_s() -> float:
    """Return the CPU-seconds of this process and all below it."""
    me, total = psutil.Process(), 0.0
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def run_one(sink: str, home: Path, bootstrap: str, per_batch: int) -> None:
    """Run the query of one sink, and print what it took."""
    spark = open_session(home)
    query = start_query(sink, home, spark, bootstrap=bootstrap, per_batch=per_batch)
    first_cpu_s, first_s = 0.0, 0.0
    while query.isActive:
        query.awaitTermination(0.05)
        if not first_s and query.lastProgress and query.lastProgress["numInputRows"]:
            first_cpu_s, first_s = tree_cpu_s(), time.monotonic()
            print(_BATCH, flush=True)
    query.awaitTermination()
    cpu_s, wall_s = tree_cpu_s() - first_cpu_s, time.monotonic() - first_s
    batches = [each for each in query.recentProgress if each["numInputRows"]]
    rows = sum(each["numInputRows"] for each in batches[1:])
    found = {"sink": sink, "per_cpu_s": rows / cpu_s, "per_s": rows / wall_s}
    if sink == "headgate":
        found["done_ms"] = done_batch_ms(home, spark, len(query.recentProgress) - 1)
    print(_RESULT + json.dumps(found), flush=True)


def done_batch_ms(home: Path, spark: Any, last: int) -> float:
    """Return how long the driver takes to see that the table has a batch."""
    import headgate.spark

    again = headgate.spark.Batches(home / "orders.toml", str(home / "checkpoint"))
    columns = "id bigint, kafka_partition int, kafka_offset bigint"
    frame = spark.createDataFrame([], columns)
    again(frame, last)
    begun_s = time.monotonic()
    for _ in range(10):
        again(frame, last)
    took_ms = (time.monotonic() - begun_s) * 100
    again.close()
    return took_ms


# --------------------------------------------------------------------------- all of them, in turns


def command_of(sink: str, home: Path, bootstrap: str, per_batch: int) -> list[str]:
    given = [sink, str(home), bootstrap, str(per_batch)]
    return [sys.executable, "-u", __file__, "--one", *given]


def rows_in_table(home: Path) -> tuple[Any, ...]:
    """Return rows and different records, by a reader that is none of the writers."""
    import sqlite3

    with sqlite3.connect(home / "catalog.db") as catalog:
        ((location,),) = catalog.execute("select metadata_location from iceberg_tables")
    counted = "count(*), count(DISTINCT (kafka_partition, kafka_offset))"
    return read_with_duckdb_query(str(location), counted)


def measure(asked: argparse.Namespace, folder: Path, bootstrap: str) -> None:
    """Run each sink in each round, and print the best."""
    best: dict[str, dict[str, Any]] = {}
    for number in range(asked.rounds):
        for sink in asked.sinks:
            home = folder / f"{sink}-{number}"
            home.mkdir()
            command = command_of(sink, home, bootstrap, asked.per_batch)
            output = subprocess.run(command, check=False, capture_output=True, text=True)
            lines = [each for each in output.stdout.splitlines() if each.startswith(_RESULT)]
            if not lines:
                print(f"{sink} failed: {output.stdout[-2000:]}{output.stderr[-2000:]}")
                continue
            found = json.loads(lines[0].removeprefix(_RESULT))
            table = rows_in_table(home) if sink != "noop" else (asked.records, asked.records)
            found["exact"] = table == (asked.records, asked.records)
            print(f"round {number + 1}: {found}; load {os.getloadavg()[0]:.0f}", flush=True)
            if found["per_cpu_s"] > best.get(sink, {"per_cpu_s": 0})["per_cpu_s"]:
                best[sink] = found
            shutil.rmtree(home)
    beside = best.get("iceberg", {}).get("per_cpu_s")
    for sink, found in best.items():
        ratio = f"{found['per_cpu_s'] / beside:.2f}" if beside else "-"
        done = f"; a done batch {found['done_ms']:.0f} ms" if "done_ms" in found else ""
        rows = f"{found['per_cpu_s']:,.0f} rows/CPU-s, {found['per_s']:,.0f} rows/s"
        print(f"{sink}: {rows}, beside Iceberg's {ratio}, exact {found['exact']}{done}")


def kill(asked: argparse.Namespace, folder: Path, bootstrap: str) -> None:
    """Kill each query so often, delete its checkpoint once, and print what is in its table."""
    for sink in asked.sinks:
        moments = random.Random(asked.seed)
        home, killed, deleted = folder / sink, 0, False
        home.mkdir()
        for _ in range(3 * asked.kills + 10):
            command = command_of(sink, home, bootstrap, asked.per_batch)
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, start_new_session=True
            ) as process:
                said = iter(process.stdout or ())
                ended = not any(_BATCH in line or _RESULT in line for line in said)
                if killed < asked.kills and not ended:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(moments.uniform(0, 5))
                    killed += 1
                else:
                    ended = any(_RESULT in line for line in said)
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            if killed == asked.kills // 2 and not deleted:
                shutil.rmtree(home / "checkpoint")
                deleted = True
            if killed == asked.kills and ended:
                break
        rows, different = rows_in_table(home)
        print(
            f"{sink}: after {killed} kills and a deleted checkpoint {rows:,} rows, of "
            f"{different:,} of {asked.records:,} records; load {os.getloadavg()[0]:.0f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--per-batch", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sinks", nargs="+", default=SINKS, choices=SINKS)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        kafka = stack.enter_context(EmbeddedKafka(folder / "kafka", fetch_broker_jars()))
        produce(kafka.bootstrap, asked.records)
        (kill if asked.kills else measure)(asked, folder, kafka.bootstrap)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        run_one(sys.argv[2], Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
    else:
        main()
