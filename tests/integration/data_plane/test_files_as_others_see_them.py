"""Compares our files with those of Iceberg's Spark writer, through other readers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from integration.data_plane.every_type import SCHEMA, TIME, append, arrow_rows, rows, table_of
from integration.readers import IcebergSpark, read_with_duckdb, read_with_pyiceberg
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import (
    UNSORTED_SORT_ORDER,
    NullOrder,
    SortDirection,
    SortField,
    SortOrder,
)
from pyiceberg.transforms import IdentityTransform, TruncateTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StructType
from support.local_catalog import LocalCatalog

pytestmark = [pytest.mark.integration, pytest.mark.spark]

METRICS = "write.metadata.metrics."
PROPERTIES: dict[str, dict[str, str]] = {
    "plain": {},
    "none": {f"{METRICS}default": "none"},
    "counts": {f"{METRICS}default": "counts", f"{METRICS}column.struct.y": "truncate(3)"},
    "full": {f"{METRICS}default": "full", f"{METRICS}column.struct.in.d": "none"},
    "short": {f"{METRICS}default": "truncate(1)", f"{METRICS}column.double": "counts"},
    "few": {
        f"{METRICS}max-inferred-column-defaults": "23",
        f"{METRICS}column.list.element": "full",
    },
    "wrong": {f"{METRICS}default": "most", f"{METRICS}column.string": "truncate(0)"},
}
NAMES = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


def file_of(catalog: Catalog, table: str) -> DataFile:
    (task,) = catalog.load_table(table).scan().plan_files()
    return task.file


def statistics(file: DataFile) -> dict[str, Any]:
    found: dict[str, Any] = {name: dict(getattr(file, name) or {}) for name in NAMES}
    return {
        **found,
        "columns with sizes": sorted(dict(file.column_sizes)),
        "row groups": len(file.split_offsets or ()),
        "first row group": (file.split_offsets or [None])[0],
        "sort order": file.sort_order_id,
        "records": file.record_count,
    }


def side_by_side(
    local: LocalCatalog,
    spark: IcebergSpark,
    some: list[dict[str, Any]],
    properties: Mapping[str, str] | None = None,
    **table: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The statistics of our file, and of that which Spark writes with the same rows."""
    ours = table_of(local.catalog, "db.ours", properties, **table)
    table_of(local.catalog, "db.theirs", properties, **table)
    append(local.catalog, ours, some)
    name = local.name
    copy = f"INSERT INTO {name}.db.theirs SELECT * FROM {name}.db.ours"
    spark.sql(name, local.database, copy)
    found = tuple(statistics(file_of(local.catalog, f"db.{of}")) for of in ("ours", "theirs"))
    return found[0], found[1]


@pytest.mark.wide
@pytest.mark.parametrize("properties", PROPERTIES)
def test_statistics_are_those_that_spark_records(
    sqlite_catalog: LocalCatalog, iceberg_spark: IcebergSpark, properties: str
) -> None:
    some = [row for row in rows() if "struct" in row] + [rows()[0] | {"id": 9, "int": None}]
    ours, theirs = side_by_side(sqlite_catalog, iceberg_spark, some, PROPERTIES[properties])
    assert ours == theirs


ORDERS = {
    "one": [SortField(2, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_LAST)],
    "floats": [SortField(4, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST)],
    "several": [
        SortField(12, TruncateTransform(1), SortDirection.DESC, NullOrder.NULLS_FIRST),
        SortField(17, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_LAST),
    ],
}


@pytest.mark.wide
@pytest.mark.parametrize("fields", ORDERS)
def test_rows_are_in_sparks_order_and_the_file_says_so(
    sqlite_catalog: LocalCatalog, iceberg_spark: IcebergSpark, fields: str
) -> None:
    order = SortOrder(*ORDERS[fields])
    counts = {f"{METRICS}default": "counts"}
    some = rows()[:3]
    ours, theirs = side_by_side(sqlite_catalog, iceberg_spark, some, counts, order=order)
    assert ours == theirs
    assert ours["sort order"] == 1
    ids = [
        read_with_pyiceberg(sqlite_catalog.catalog.load_table(name).metadata_location)["id"]
        for name in ("db.ours", "db.theirs")
    ]
    assert ids[0].to_pylist() == ids[1].to_pylist()


def test_nulls_of_a_number_in_a_null_struct_are_counted(
    sqlite_catalog: LocalCatalog, iceberg_spark: IcebergSpark
) -> None:
    """Spark leaves them out of floating-point columns, so that its counts fall short of the rows;
    ours are those of every other column."""
    inner = StructType(NestedField(3, "d", DoubleType()), NestedField(4, "n", LongType()))
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "s", inner))
    some = [{"id": 1, "s": {"d": 1.0, "n": 1}}, {"id": 2, "s": None}]
    ours, theirs = side_by_side(sqlite_catalog, iceberg_spark, some, schema=schema)
    assert theirs["value_counts"] == {1: 2, 3: 1, 4: 2}
    assert ours["value_counts"] == {1: 2, 3: 2, 4: 2}
    assert ours["null_value_counts"] == {1: 0, 3: 1, 4: 1}


@pytest.mark.parametrize(
    "codec",
    [
        "zstd",
        *(
            pytest.param(codec, marks=pytest.mark.wide)
            for codec in ("snappy", "gzip", "brotli", "lz4", "uncompressed")
        ),
    ],
)
def test_every_reader_sees_every_value(
    sqlite_catalog: LocalCatalog, iceberg_spark: IcebergSpark, codec: str
) -> None:
    wanted = {"write.parquet.compression-codec": codec}
    table = table_of(sqlite_catalog.catalog, "db.t", wanted, order=UNSORTED_SORT_ORDER)
    append(sqlite_catalog.catalog, table, rows())
    expected = comparable(arrow_rows(table, rows()))
    assert len(expected) == 4
    location = sqlite_catalog.catalog.load_table("db.t").metadata_location
    assert comparable(read_with_pyiceberg(location)) == as_pyiceberg_has_it(expected)
    assert comparable(read_with_duckdb(location)) == expected
    assert expected[3]["deep"] is None
    if codec != "brotli":  # a library that Spark does not bring
        spark = iceberg_spark.read(sqlite_catalog.name, sqlite_catalog.database, "db.t")
        assert comparable(spark) == expected


def test_times_are_seen_by_those_that_know_them(sqlite_catalog: LocalCatalog) -> None:
    schema = Schema(*SCHEMA.fields, TIME)
    table = table_of(sqlite_catalog.catalog, "db.t", schema=schema)
    append(sqlite_catalog.catalog, table, rows())
    expected = comparable(arrow_rows(table, rows()))
    location = sqlite_catalog.catalog.load_table("db.t").metadata_location
    assert comparable(read_with_pyiceberg(location)) == as_pyiceberg_has_it(expected)
    assert comparable(read_with_duckdb(location)) == expected
    assert expected[0]["time"] == "23:59:59.999999"


def as_pyiceberg_has_it(expected: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """It reads a null list of structs as an empty one (0.12); Parquet's own reader does not."""
    return [row | {"deep": row["deep"] or []} for row in expected]


def comparable(table: pa.Table) -> list[dict[str, Any]]:
    """Rows by their id, with what readers spell differently spelt in one way."""
    return [_plain(row) for row in table.sort_by("id").to_pylist()]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else str(value)  # so that -0.0 is not 0.0
    if isinstance(value, bytes | bytearray):
        return value.hex()
    return value if value is None or isinstance(value, int) else str(value)
