"""Rows in a table's sort order: direction, place of nulls, transforms, the order of floats."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestamptzType,
    UUIDType,
)

from headgate.data_plane.files.sorting import Sorter

ASC, DESC = SortDirection.ASC, SortDirection.DESC
FIRST, LAST = NullOrder.NULLS_FIRST, NullOrder.NULLS_LAST
INFINITY, NAN = math.inf, math.nan


def by_one(kind: PrimitiveType, values: list[Any], *order: Any) -> list[Any]:
    """The values in the order of their only column; rows are named by their old place."""
    schema = Schema(NestedField(1, "v", kind), NestedField(2, "row", LongType()))
    table = pa.table({"v": values, "row": range(len(values))}, schema=schema_to_pyarrow(schema))
    sorter = Sorter(SortOrder(SortField(1, *order)), schema)
    return list(sorter.sort(table)["row"].to_pylist())


@pytest.mark.parametrize(
    ("direction", "nulls", "rows"),
    [
        (ASC, FIRST, [1, 4, 2, 0, 3]),
        (ASC, LAST, [2, 0, 3, 1, 4]),
        (DESC, FIRST, [1, 4, 3, 0, 2]),
        (DESC, LAST, [3, 0, 2, 1, 4]),
    ],
)
def test_nulls_have_their_place_whatever_the_direction(
    direction: SortDirection, nulls: NullOrder, rows: list[int]
) -> None:
    values = [2, None, 1, 3, None]
    assert by_one(LongType(), values, IdentityTransform(), direction, nulls) == rows


@pytest.mark.parametrize("kind", [FloatType(), DoubleType()])
def test_floats_are_in_their_total_order(kind: PrimitiveType) -> None:
    values = [NAN, 0.0, -1.5, None, INFINITY, -0.0, -INFINITY, 2.5, -NAN]
    rows = [8, 6, 2, 5, 1, 7, 4, 0, 3]
    assert by_one(kind, values, IdentityTransform(), ASC, LAST) == rows
    assert by_one(kind, values, IdentityTransform(), DESC, FIRST) == rows[::-1]


@pytest.mark.parametrize(
    ("kind", "values", "rows"),
    [
        (StringType(), ["b", "a", "", "ä", "z"], [2, 1, 0, 4, 3]),
        (BinaryType(), [b"\xff", b"\x00", b""], [2, 1, 0]),
        (FixedType(1), [b"\xff", b"\x00"], [1, 0]),
        (UUIDType(), [b"\xff" * 16, b"\x00" * 16], [1, 0]),
        (BooleanType(), [True, False], [1, 0]),
        (DecimalType(9, 2), [10, -11], [1, 0]),
        (TimestamptzType(), [1, -1], [1, 0]),
    ],
)
def test_every_type_sorts(kind: PrimitiveType, values: list[Any], rows: list[int]) -> None:
    assert by_one(kind, values, IdentityTransform(), ASC, FIRST) == rows


def test_a_transform_sorts_by_what_it_makes_and_keeps_the_rest_as_it_comes() -> None:
    hour = 3_600_000_000
    values = [25 * hour, 3 * hour, 2 * hour, 49 * hour]
    assert by_one(TimestamptzType(), values, DayTransform(), ASC, FIRST) == [1, 2, 0, 3]
    assert by_one(StringType(), ["ab", "aa", "b"], TruncateTransform(1), DESC, LAST) == [2, 0, 1]
    buckets = by_one(LongType(), list(range(50)), BucketTransform(4), ASC, FIRST)
    of = BucketTransform(4).transform(LongType())
    assert [of(row) for row in buckets] == sorted(of(row) for row in range(50))


def test_several_fields_and_one_within_a_struct() -> None:
    inner = StructType(NestedField(3, "x", LongType()))
    schema = Schema(NestedField(1, "s", StringType()), NestedField(2, "in", inner))
    rows = [("b", {"x": 1}), ("a", {"x": 1}), ("b", None), ("a", {"x": 2}), (None, {"x": 9})]
    table = pa.Table.from_pylist(
        [{"s": s, "in": value} for s, value in rows], schema_to_pyarrow(schema)
    )
    order = SortOrder(
        SortField(1, IdentityTransform(), ASC, LAST), SortField(3, IdentityTransform(), DESC, FIRST)
    )
    found = Sorter(order, schema).sort(table).to_pylist()
    assert [(row["s"], row["in"]) for row in found] == [rows[3], rows[1], rows[2], rows[0], rows[4]]
