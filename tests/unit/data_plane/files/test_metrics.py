"""Which columns have which statistics: Iceberg's properties, by the rules of its own writers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform, YearTransform
from pyiceberg.types import (
    DateType,
    DoubleType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from headgate.data_plane.files.metrics import (
    COUNTS,
    FULL,
    NONE,
    TRUNCATE_16,
    MetricsMode,
    metrics_modes,
)

POINT = StructType(NestedField(10, "x", DoubleType()), NestedField(11, "y", DoubleType()))
SIZE = StructType(NestedField(23, "width", DoubleType()))
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "place", POINT),
    NestedField(3, "name", StringType()),
    NestedField(4, "tags", ListType(20, StringType())),
    NestedField(5, "more", MapType(21, StringType(), 22, SIZE)),
    NestedField(6, "day", DateType()),
)
DEFAULT = "write.metadata.metrics.default"
INFERRED = "write.metadata.metrics.max-inferred-column-defaults"


def modes(
    properties: Mapping[str, str], order: SortOrder = UNSORTED_SORT_ORDER
) -> dict[int, MetricsMode]:
    return metrics_modes(SCHEMA, properties, order)


def test_without_properties_every_column_has_short_bounds() -> None:
    assert set(modes({}).values()) == {TRUNCATE_16}
    assert set(modes({})) == {1, 3, 6, 10, 11, 20, 21, 23}


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("none", NONE),
        ("counts", COUNTS),
        ("full", FULL),
        ("Truncate(7)", MetricsMode(length=7)),
        ("truncate(0)", TRUNCATE_16),
        ("everything", TRUNCATE_16),
    ],
)
def test_a_default_holds_for_all_and_a_wrong_one_for_none(text: str, mode: MetricsMode) -> None:
    assert set(modes({DEFAULT: text}).values()) == {mode}


@pytest.mark.parametrize(
    ("limit", "counted"),
    [
        ("0", set()),
        ("2", {1, 3}),
        ("3", {1, 3, 6}),
        ("4", {1, 3, 6, 10}),
        ("6", {1, 3, 6, 10, 11, 20}),
    ],
)
def test_only_the_first_columns_have_statistics_outer_ones_first(
    limit: str, counted: set[int]
) -> None:
    found = modes({INFERRED: limit})
    assert {field_id for field_id, mode in found.items() if mode.counts} == counted


def test_a_default_of_the_tables_own_lifts_the_limit() -> None:
    assert set(modes({INFERRED: "1", DEFAULT: "counts"}).values()) == {COUNTS}


def test_a_column_may_differ_nested_or_not() -> None:
    prefix = "write.metadata.metrics.column."
    found = modes({DEFAULT: "none", f"{prefix}place.x": "full", f"{prefix}name": "truncate(2)"})
    assert (found[10], found[3], found[11]) == (FULL, MetricsMode(length=2), NONE)


def test_columns_of_the_sort_order_have_bounds_unless_told_otherwise() -> None:
    order = SortOrder(
        SortField(3, IdentityTransform()),
        SortField(6, YearTransform()),
        SortField(1, BucketTransform(4)),
    )
    found = modes({DEFAULT: "counts"}, order)
    assert (found[3], found[6], found[1]) == (TRUNCATE_16, TRUNCATE_16, COUNTS)
    assert modes({DEFAULT: "full"}, order)[3] == FULL
    assert modes({"write.metadata.metrics.column.name": "none"}, order)[3] == NONE
