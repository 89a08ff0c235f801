"""Splitting by partition spec, held against the library's transforms of single values."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    UnknownTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from headgate.control_protocol.errors import TableChanged
from headgate.data_plane.files.partitioning import Partitioner, PartitionKey

HOUR_US = 3_600_000_000
DAYS = [-719_162, -366, -365, -1, 0, 1, 20_666, None]
MOMENTS = [
    -(10**15),
    -24 * HOUR_US,
    -24 * HOUR_US + 1,
    -HOUR_US - 1,
    -1,
    0,
    1,
    1_785_585_600 * 10**6,
]
NANOS = [None, -(2**63), -1, 0, 1, 2**63 - 1, *(moment * 1000 - 7 for moment in MOMENTS)]
NUMBERS = [-(2**31), -11, -10, -1, 0, 1, 9, 10, 2**31 - 1, None]
TEXTS = ["", "a", "iceberg", "a/b=c d", "ü" * 5, "😀" * 5, None]
OCTETS = [b"", b"\x00", b"abcdef", None]
DECIMALS = [Decimal(t) for t in ("-10.65", "-0.05", "0.00", "14.20", "99999999.99")] + [None]
UUIDS = [UUID(int=number) for number in (0, 1, 2**128 - 1)] + [None]

TIME_SOURCES: list[tuple[IcebergType, list[Any]]] = [
    (DateType(), DAYS),
    (TimestampType(), [*MOMENTS, None]),
    (TimestamptzType(), [*MOMENTS, None]),
    (TimestampNanoType(), NANOS),
    (TimestamptzNanoType(), NANOS),
]
HASHED: list[tuple[IcebergType, list[Any]]] = [
    *TIME_SOURCES,
    (IntegerType(), NUMBERS),
    (LongType(), [*NUMBERS, -(2**63), 2**63 - 1]),
    (TimeType(), [0, 1, 86_399_999_999, None]),
    (StringType(), TEXTS),
    (BinaryType(), OCTETS),
    (FixedType(2), [b"ab", b"\x00\xff", None]),
    (UUIDType(), UUIDS),
    (DecimalType(10, 2), DECIMALS),
]
# At the very least integers the library's truncation by hand leaves the type; no case here.
SMALL = [number for number in NUMBERS if number is None or abs(number) < 2**31]
CUT: list[tuple[IcebergType, list[Any]]] = [
    (IntegerType(), SMALL),
    (LongType(), SMALL),
    (StringType(), TEXTS),
    (BinaryType(), OCTETS),
    (DecimalType(10, 2), DECIMALS),
]
KEPT = [*HASHED, (BooleanType(), [True, False, None])]

CASES: list[tuple[Transform[Any, Any], IcebergType, list[Any]]] = [
    *(
        (transform, *case)
        for transform in (YearTransform(), MonthTransform(), DayTransform())
        for case in TIME_SOURCES
    ),
    *((HourTransform(), *case) for case in TIME_SOURCES[1:]),
    *((BucketTransform(16), *case) for case in HASHED),
    *((TruncateTransform(3), *case) for case in CUT),
    *((IdentityTransform(), *case) for case in KEPT),
    *((VoidTransform(), *case) for case in KEPT),
]


@pytest.mark.parametrize(("transform", "kind", "values"), CASES, ids=lambda value: str(value)[:40])
def test_every_row_gets_the_partition_of_its_value(
    transform: Transform[Any, Any], kind: PrimitiveType, values: list[Any]
) -> None:
    schema = Schema(NestedField(1, "v", kind), NestedField(2, "row", IntegerType()))
    spec = PartitionSpec(PartitionField(1, 1000, transform, "p"))
    result = spec.partition_type(schema).fields[0].field_type
    expected = [transform.transform(kind)(value) for value in values]
    found: dict[int, Any] = {}
    for key, rows in Partitioner(spec, schema).split(_table(schema, kind, values)):
        value = None if key.values[0] is None else from_bytes(result, key.values[0])
        found |= dict.fromkeys(rows["row"].to_pylist(), value)
    assert [_comparable(found[row]) for row in range(len(values))] == [
        _comparable(value) for value in expected
    ]


def _table(schema: Schema, kind: PrimitiveType, values: list[Any]) -> pa.Table:
    target = schema_to_pyarrow(schema)
    column = target.field("v").type
    stored = [value.bytes if isinstance(value, UUID) else value for value in values]
    if pa.types.is_temporal(column):
        width = pa.int32() if pa.types.is_date32(column) else pa.int64()
        array = pa.array(stored, width).cast(column)
    else:
        array = pa.array(stored, column)
    return pa.table([array, pa.array(range(len(values)), pa.int32())], schema=target)


def _comparable(value: Any) -> Any:
    return value.bytes if isinstance(value, UUID) else value


def test_fields_combine_and_rows_keep_their_order() -> None:
    schema = Schema(
        NestedField(1, "city", StringType()),
        NestedField(2, "at", TimestamptzType()),
        NestedField(3, "in", StructType(NestedField(4, "n", LongType()))),
    )
    spec = PartitionSpec(
        PartitionField(1, 1000, IdentityTransform(), "city"),
        PartitionField(2, 1001, DayTransform(), "at_day"),
        PartitionField(4, 1002, TruncateTransform(10), "n_ten"),
    )
    rows = [
        {"city": "a/b", "at": 0, "in": {"n": 5}},
        {"city": None, "at": None, "in": None},
        {"city": "a/b", "at": 1, "in": {"n": 9}},
        {"city": "a/b", "at": -1, "in": {"n": 5}},
        {"city": None, "at": None, "in": {"n": None}},
    ]
    table = pa.Table.from_pylist(rows, schema_to_pyarrow(schema))
    parts = {
        key.folder: part["in"].to_pylist() for key, part in Partitioner(spec, schema).split(table)
    }
    assert parts == {
        "city=a%2Fb/at_day=1970-01-01/n_ten=0": [{"n": 5}, {"n": 9}],
        "city=a%2Fb/at_day=1969-12-31/n_ten=0": [{"n": 5}],
        "city=null/at_day=null/n_ten=null": [None, {"n": None}],
    }


@pytest.mark.parametrize(
    ("transform", "hours"),
    [(DayTransform(), 24), (HourTransform(), 1), (IdentityTransform(), None)],
    ids=str,
)
def test_times_beyond_the_years_that_python_has_are_no_fault_of_their_records(
    transform: Transform[Any, Any], hours: int | None
) -> None:
    """As of producers that give microseconds for milliseconds: the table holds them."""
    schema = Schema(NestedField(1, "v", TimestamptzType()), NestedField(2, "row", IntegerType()))
    spec = PartitionSpec(PartitionField(1, 1000, transform, "p/q"))
    kind = spec.partition_type(schema).fields[0].field_type
    moments = [10**18, -(10**17), 0]
    keys = [key for key, _ in Partitioner(spec, schema).split(_table(schema, kind, moments))]
    found = {from_bytes(kind, key.values[0]) for key in keys if key.values[0] is not None}
    assert found == {moment // (hours * HOUR_US) if hours else moment for moment in moments}
    assert len({key.folder for key in keys}) == len(moments)
    assert all(key.folder.startswith("p%2Fq=") for key in keys)


def test_a_partition_may_be_of_a_field_with_dots_in_its_name() -> None:
    inside = StructType(NestedField(2, "a.b", LongType()), NestedField(3, "a", LongType()))
    schema = Schema(NestedField(1, "s", inside), NestedField(4, "x.y", LongType()))
    spec = PartitionSpec(
        PartitionField(2, 1000, IdentityTransform(), "inner"),
        PartitionField(4, 1001, IdentityTransform(), "outer"),
    )
    rows = [{"s": {"a.b": 1, "a": 5}, "x.y": 2}, {"s": None, "x.y": 3}]
    table = pa.Table.from_pylist(rows, schema_to_pyarrow(schema))
    keys = [key for key, _ in Partitioner(spec, schema).split(table)]
    assert {key.folder for key in keys} == {"inner=1/outer=2", "inner=null/outer=3"}


def test_without_fields_everything_is_one_partition() -> None:
    schema = Schema(NestedField(1, "v", LongType()))
    table = pa.table([pa.array([1, 2])], schema=schema_to_pyarrow(schema))
    assert list(Partitioner(PartitionSpec(), schema).split(table)) == [(PartitionKey(), table)]


def test_a_transform_of_the_future_is_refused() -> None:
    schema = Schema(NestedField(1, "v", LongType()))
    spec = PartitionSpec(PartitionField(1, 1000, UnknownTransform("zorder"), "z"))
    with pytest.raises(TableChanged, match="z"):
        Partitioner(spec, schema)
