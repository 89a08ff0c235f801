"""Packets: every type comes back bit by bit, and what must come together has one place."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortDirection, SortField, SortOrder
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import (
    DecimalType,
    FixedType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import Epoch, TransactionId, TransactionNumber
from headgate.control_protocol.ports import Batch
from headgate.data_plane.batch.transform_and_distribution import Shaping
from headgate.data_plane.batch.writer_task_plan import SourcePlan, TableShape, WriterPlan
from headgate.data_plane.spark.shuffle_rows import PACKET, PLACE, Packing
from headgate.data_plane.transform.result_routing import TableRows
from headgate.data_plane.transform.result_rows import Numbered
from headgate.participant.settings import Distribution

MAP = MapType(13, StringType(), 14, FixedType(16))
SCHEMA = Schema(
    NestedField(1, "zone", StringType()),
    NestedField(2, "id", LongType(), required=True),
    NestedField(3, "mark", UUIDType()),
    NestedField(4, "at", TimeType()),
    NestedField(5, "fine", TimestampNanoType()),
    NestedField(6, "code", FixedType(4)),
    NestedField(7, "price", DecimalType(38, 10)),
    NestedField(8, "seen", TimestamptzType()),
    NestedField(9, "tags", ListType(10, StringType())),
    NestedField(11, "more", StructType(NestedField(12, "m", MAP))),
)
SPEC = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "zone"))
ROWS = 6_000
START = TableStart("db.t", "u", 0, 0, "/t/data/7")
BATCH = Batch(1, TransactionId(Epoch(1), TransactionNumber(1)), START, {}, 1 << 27)


def plan(
    order: SortOrder = UNSORTED_SORT_ORDER, mode: Distribution = Distribution.HASH
) -> WriterPlan:
    return WriterPlan(
        source=SourcePlan({}),
        shape=TableShape(
            schema_json=SCHEMA.model_dump_json(),
            spec_json=SPEC.model_dump_json(),
            sort_order_json=order.model_dump_json(),
            table_properties={},
            location="",
        ),
        io_properties={},
        shaping=Shaping(None, mode),
    )


def row(number: int) -> dict[str, Any]:
    mixed = number * 7919 % ROWS
    day = dt.datetime(1969, 12, 1, 2, tzinfo=dt.UTC) + dt.timedelta(hours=mixed)
    mark = uuid.UUID(int=mixed)
    return {
        "zone": None if number % 5 == 0 else f"z/{number % 5}",
        "id": mixed,
        "mark": mark.bytes if number % 3 else None,
        "at": dt.time(number % 24, 5, 6, 7),
        "fine": number * 1_000_003 - 7,
        "code": mixed.to_bytes(4, "big"),
        "price": Decimal(mixed).scaleb(-7),
        "seen": day,
        "tags": ["a", None] * (number % 3),
        "more": {"m": [(str(number), mark.bytes)]} if number % 4 else None,
    }


@pytest.fixture(scope="module")
def rows() -> pa.RecordBatch:
    schema = plan().shape.arrow_schema()
    return pa.RecordBatch.from_pylist([row(number) for number in range(ROWS)], schema=schema)


def numbered(rows: pa.RecordBatch) -> Iterator[TableRows]:
    for begin in range(0, ROWS, 1_000):
        some = Numbered(rows.slice(begin, 1_000), np.arange(begin, begin + 1_000, dtype=np.int64))
        yield TableRows("db.t", some)


def test_every_type_comes_back_as_it_went(rows: pa.RecordBatch) -> None:
    packing = Packing(plan(), BATCH)
    back = [
        packing.unpack(0, packet).numbered
        for packets in packing.pack(numbered(rows))
        for packet in packets.column(PACKET)
    ]
    found = pa.Table.from_batches([part.rows for part in back])
    order = np.argsort(np.concatenate([part.numbers for part in back]))
    assert found.take(pa.array(order)).equals(pa.Table.from_batches([rows]))


def test_rows_of_a_table_partition_have_one_place_and_others_another(rows: pa.RecordBatch) -> None:
    packing = Packing(plan(), BATCH)
    zones: dict[int, set[str | None]] = {}
    for packet in packing.pack(numbered(rows)):
        held = set(
            packing.unpack(0, packet.column(PACKET)[0]).numbered.rows.column("zone").to_pylist()
        )
        zones.setdefault(packet.column(PLACE)[0].as_py(), set()).update(held)
    assert sorted(map(len, zones.values())) == [1] * 5


@pytest.mark.parametrize("column", range(1, 9))
def test_sorted_packets_are_short_runs_that_say_where_they_begin(
    rows: pa.RecordBatch, column: int
) -> None:
    field = SCHEMA.fields[column - 1]
    transform = DayTransform() if field.name == "seen" else IdentityTransform()
    order = SortOrder(
        SortField(source_id=column, transform=transform, direction=SortDirection.DESC), order_id=1
    )
    packing = Packing(plan(order, Distribution.RANGE), BATCH)
    packets = list(packing.pack(numbered(rows)))
    assert len(packets) == 10, "1,200 rows of each zone in runs of 1,024"
    begins: dict[int, list[Any]] = {}
    for packet in packets:
        (begin,) = packet.column(packing.schema.names[-1]).to_pylist()
        begins.setdefault(packet.column(PLACE)[0].as_py(), []).append(begin)
    for first, second in begins.values():
        assert second is None or first >= second


@pytest.mark.parametrize("column", ["seen", "fine"])
def test_rows_are_ranged_by_times_that_python_has_not(rows: pa.RecordBatch, column: str) -> None:
    place = rows.schema.get_field_index(column)
    years = pa.array(range(-(2**62), 2**62, 2**63 // ROWS + 1), pa.int64())[:ROWS]
    columns = [*rows.columns]
    columns[0] = pa.nulls(len(years), pa.large_string())
    columns[place] = years.cast(rows.schema.field(place).type)
    far = pa.RecordBatch.from_arrays([c[: len(years)] for c in columns], schema=rows.schema)
    order = SortOrder(SortField(source_id=place + 1, transform=IdentityTransform()), order_id=1)
    packing = Packing(plan(order, Distribution.RANGE), BATCH)
    numbers = np.arange(far.num_rows, dtype=np.int64)
    packets = list(packing.pack(iter([TableRows("db.t", Numbered(far, numbers))])))
    begins = [packet.column(packing.schema.names[-1])[0].as_py() for packet in packets]
    assert len(begins) > 2
    assert begins == sorted(begins)
