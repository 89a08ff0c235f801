"""Measures the fixed cost of a batch: few records into one data file, in this process.

    python benchmarks/small_batches.py [--records 100] [--batches 300] [--workload taxi]
        [--bootstrap HOST:PORT]

From the records in memory until their file is closed and described; with ``--bootstrap`` they are
fetched from a topic, too. A folder of this machine takes the files. Printed is the CPU that this
process spends on a batch, of all its threads: median, and mean.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from bad_records import chunk_of, topics
from confluent_kafka import Producer

from comparison.workloads import WORKLOADS, Workload
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch, BatchWritten
from headgate.data_plane.batch.writer_task_plan import Plans, SourcePlan
from headgate.data_plane.write.write_batch import write_chunks, write_ranges
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

SEED = 7
RECORD_COLUMNS = {"topic": "kafka_topic", "partition": "kafka_partition", "offset": "kafka_offset"}
TYPES = {"kafka_topic": "string", "kafka_partition": "int", "kafka_offset": "long"}
WARMING = 20
"""Batches before those that count."""


def measured_ms(write: Callable[[int], object], batches: int) -> list[float]:
    """Return the milliseconds of CPU that each batch took."""
    taken_ms = []
    for number in range(-WARMING, batches):
        before_s = time.process_time()
        outcome = write(number + WARMING)
        taken_ms.append((time.process_time() - before_s) * 1000)
        assert isinstance(outcome, BatchWritten), outcome
    return taken_ms[WARMING:]


def measure(folder: Path, workload: Workload, given: argparse.Namespace, topic: str) -> list[float]:
    warehouse = {"uri": f"sqlite:///{folder}/catalog.sqlite", "warehouse": (folder / "w").as_uri()}
    catalog = load_catalog("bench", {"type": "sql", **warehouse})
    create_table_if_missing(catalog, "db.rows", TableDeclaration({**workload.columns, **TYPES}))
    table = catalog.load_table("db.rows")
    start = TableStart(
        "db.rows",
        str(table.metadata.table_uuid),
        table.schema().schema_id,
        table.spec().spec_id,
        f"{table.location()}/data/{uuid.uuid4()}",
    )
    source = SourcePlan(
        {"bootstrap.servers": given.bootstrap},
        format_name=workload.format,
        format_options=workload.options,
        record_columns=RECORD_COLUMNS,
        sink="bench",
    )
    plans, count = Plans(catalog), given.records
    values = list(workload.records(count, SEED))

    def write(number: int) -> object:
        ranges = {TopicPartition(topic, 0): OffsetRange(number * count, (number + 1) * count)}
        transaction = TransactionId(Epoch(1), TransactionNumber(number))
        batch = Batch(number, transaction, start, ranges, 1 << 27)
        plan = plans.load_plan(batch, source)
        if given.bootstrap:
            return write_ranges(plan, batch)
        return write_chunks(plan, batch, [chunk_of(values, number * count)])

    with topics(given.bootstrap, [topic]):
        if given.bootstrap:
            producer = Producer({"bootstrap.servers": given.bootstrap})
            for _ in range(given.batches + WARMING):
                for value in values:
                    producer.produce(topic, value)
                producer.flush(60)
        return measured_ms(write, given.batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=100)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--workload", choices=WORKLOADS, default="taxi")
    parser.add_argument("--bootstrap", default="", help="of a broker to fetch from")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        topic = f"small-batches-{uuid.uuid4().hex[:8]}"
        taken_ms = measure(Path(folder), WORKLOADS[given.workload], given, topic)
    print(
        f"{given.records} records of {given.workload}: {statistics.median(taken_ms):.2f} ms of CPU "
        f"a batch (mean {statistics.mean(taken_ms):.2f})"
    )


if __name__ == "__main__":
    main()
