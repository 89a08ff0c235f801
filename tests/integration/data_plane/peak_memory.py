"""Writes one batch and reports the peak memory, in a process that a test runs.

``python -m integration.data_plane.peak_memory '{"folder": ..., "records": ..., ...}'``. With
``bootstrap`` and ``topic`` the records come from a broker, else they are made here, each for the
next of ``table_partitions``. ``sorted``: whether the table has a sort order.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)
from support.local_catalog import local_catalog

from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch, BatchWritten
from headgate.data_plane.batch.writer_task_plan import SourcePlan, load_table_and_plan
from headgate.data_plane.write.write_batch import write_chunks, write_ranges
from headgate.kafka.record_fetch import Chunk
from headgate.native.byte_arrays import Packed

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "zone", IntegerType()),
    NestedField(3, "at", TimestamptzType()),
    NestedField(4, "name", StringType()),
    NestedField(5, "city", StringType()),
    NestedField(6, "fare", DoubleType()),
    NestedField(7, "tip", DecimalType(10, 2)),
    NestedField(8, "flag", BooleanType()),
    NestedField(9, "note", StringType()),
    NestedField(10, "count", IntegerType()),
)
BY_ZONE = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "zone"))
BY_NOTE = SortOrder(SortField(9, IdentityTransform()))
CHUNK_RECORDS = 8192


def record(number: int, table_partitions: int) -> bytes:
    """About 400 bytes, of which the note is most and hard to compress."""
    values = {
        "id": number,
        "zone": number * 7919 % table_partitions,
        "at": 1_785_585_600_000 + number,
        "name": f"name {number % 1000}",
        "city": f"city {number % 77}",
        "fare": number / 7,
        "tip": "1.25",
        "flag": number % 2 == 0,
        "note": "".join(f"{number * factor % 2**32:08x}" for factor in range(1, 31)),
        "count": number % 100,
    }
    return json.dumps(values).encode()


def chunks(records: int, table_partitions: int) -> Iterator[Chunk]:
    for begin in range(0, records, CHUNK_RECORDS):
        offsets = np.arange(begin, min(records, begin + CHUNK_RECORDS))
        values = [record(number, table_partitions) for number in offsets.tolist()]
        lengths = np.array([len(value) for value in values])
        stamps = np.full(len(values), 1_785_585_600_000)
        yield Chunk(
            Packed.from_values(values), lengths, np.zeros(len(values), np.int64), offsets, stamps
        )


def written(task: Mapping[str, Any]) -> BatchWritten:
    local = local_catalog(Path(task["folder"]))
    spec = BY_ZONE if task["table_partitions"] > 1 else PartitionSpec()
    order = BY_NOTE if task.get("sorted") else UNSORTED_SORT_ORDER
    table = local.catalog.create_table("db.t", SCHEMA, partition_spec=spec, sort_order=order)
    start = TableStart(
        table="db.t",
        uuid=str(table.metadata.table_uuid),
        schema_id=table.schema().schema_id,
        spec_id=table.spec().spec_id,
        file_prefix=f"{table.location()}/data/nonce",
    )
    at = TopicPartition(task.get("topic", "topic"), 0)
    transaction = TransactionId(Epoch(1), TransactionNumber(1))
    batch = Batch(1, transaction, start, {at: OffsetRange(0, task["records"])}, 1 << 27)
    source = SourcePlan({"bootstrap.servers": task.get("bootstrap", "")})
    plan = load_table_and_plan(local.catalog, start, source)
    local.catalog.close()
    if "topic" in task:
        return write_ranges(plan, batch)
    return write_chunks(plan, batch, chunks(task["records"], task["table_partitions"]))


def peak_bytes() -> int:
    """Of this process since it began; ``getrusage`` would count what its parent was before it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def main() -> None:
    result = written(json.loads(sys.argv[1]))
    records = sum(file.records for file in result.files)
    print(json.dumps({"peak": peak_bytes(), "records": records, "files": len(result.files)}))


if __name__ == "__main__":
    main()
