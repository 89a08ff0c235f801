"""Files of every partition transform, as three independent readers see them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from integration.iceberg.sink_commits import SinkOnTable
from integration.readers import (
    IcebergSpark,
    _duckdb_extension,
    read_with_duckdb,
    read_with_pyiceberg,
)
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.transforms import DayTransform
from support.local_catalog import LocalCatalog

from headgate.tables.iceberg.data_file import FileDetail

pytestmark = pytest.mark.integration

COLUMNS = {
    "id": "long",
    "number": "int",
    "zone": "string",
    "flag": "boolean",
    "day": "date",
    "at": "timestamptz",
    "local": "timestamp",
    "fare": "decimal(10, 2)",
    "raw": "binary",
    "weight": "double",
}
TRANSFORMS = [
    "id",
    "zone",
    "flag",
    "day",
    "at",
    "fare",
    "raw",
    "bucket(8, id)",
    "bucket(8, zone)",
    "bucket(8, at)",
    "bucket(8, fare)",
    "truncate(10, id)",
    "truncate(2, zone)",
    "truncate(50, fare)",
    "year(at)",
    "month(day)",
    "day(at)",
    "day(local)",
    "day(day)",
    "hour(at)",
]
AT = datetime(1969, 12, 31, 23, 59, tzinfo=UTC), datetime(2026, 7, 31, 12, 30, tzinfo=UTC)


def rows(count: int = 12, start: int = 0) -> pa.Table:
    numbers = range(start, start + count)
    some = lambda values: [None if n % 6 == 5 else values[n % len(values)] for n in numbers]  # noqa: E731
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "number": pa.array(numbers, pa.int32()),
            "zone": some(["north", "süd", "", "nowhere at all"]),
            "flag": some([True, False]),
            "day": pa.array(some([date(1969, 12, 30), date(2026, 2, 28)]), pa.date32()),
            "at": pa.array(some(AT), pa.timestamp("us", "UTC")),
            "local": pa.array(some([at.replace(tzinfo=None) for at in AT]), pa.timestamp("us")),
            "fare": pa.array(some([Decimal("-12.34"), Decimal("99.90")]), pa.decimal128(10, 2)),
            "raw": pa.array(some([b"\x00\xff", b"abc"]), pa.binary()),
            "weight": some([1.5, -0.0]),
        }
    )


def in_order(table: pa.Table) -> list[dict[str, object]]:
    return table.select(list(COLUMNS)).sort_by("id").to_pylist()


@pytest.fixture
def catalog(sqlite_catalog: LocalCatalog) -> Catalog:
    return sqlite_catalog.catalog


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_rows_are_read_back(catalog: Catalog, transform: str) -> None:
    sink = SinkOnTable.claimed(catalog, COLUMNS, [transform])
    sink.commit(rows())
    sink.commit(rows(6, 12))
    location = sink.load().metadata_location
    expected = rows(18).to_pylist()
    assert in_order(read_with_pyiceberg(location)) == expected
    assert in_order(read_with_duckdb(location)) == expected


@pytest.mark.spark
def test_the_reference_reads_rows_and_partitions(
    catalog: Catalog, sqlite_catalog: LocalCatalog, iceberg_spark: IcebergSpark
) -> None:
    for number, transform in enumerate(TRANSFORMS):
        sink = SinkOnTable.claimed(catalog, COLUMNS, [transform], identifier=f"db.t{number}")
        sink.commit(rows())
        name, database = sqlite_catalog.name, sqlite_catalog.database
        assert in_order(iceberg_spark.read(name, database, f"db.t{number}")) == rows().to_pylist()
        mine = sink.load().inspect.partitions()
        theirs = iceberg_spark.sql(name, database, f"SELECT * FROM {name}.db.t{number}.partitions")
        if not transform.startswith("day("):  # one says day 20088, the other the date
            assert counts(theirs) == counts(mine), transform
        assert sum(counts(theirs).values()) == 12


def counts(partitions: pa.Table) -> dict[str, int]:
    """Records per partition value."""
    return {
        str(list(row["partition"].values())): row["record_count"] for row in partitions.to_pylist()
    }


PRUNED = [
    ("day(at)", "`at` >= TIMESTAMP '2026-07-31 00:00:00+00:00'", [1, 3, 7, 9]),
    ("hour(at)", "`at` < TIMESTAMP '1970-01-01 00:00:00+00:00'", [0, 2, 4, 6, 8, 10]),
    ("day(day)", "day = DATE '1969-12-30'", [0, 2, 4, 6, 8, 10]),
    ("truncate(2, zone)", "zone = 'north'", [0, 4, 8]),
    ("bucket(8, zone)", "zone = 'nowhere at all'", [3, 7]),
    ("zone", "zone IS NULL", [5, 11]),
    ("year(day)", "day > DATE '2000-01-01'", [1, 3, 7, 9]),
    ("fare", "fare = -12.34", [0, 2, 4, 6, 8, 10]),
]


@pytest.mark.spark
@pytest.mark.parametrize(("partition_by", "predicate", "matching"), PRUNED)
def test_other_readers_open_only_the_files_they_need(
    sqlite_catalog: LocalCatalog,
    iceberg_spark: IcebergSpark,
    partition_by: str,
    predicate: str,
    matching: list[int],
) -> None:
    sink = SinkOnTable.claimed(sqlite_catalog.catalog, COLUMNS, [partition_by])
    sink.commit(rows())
    for task in sink.load().scan().plan_files():
        path = Path(task.file.file_path.removeprefix("file://"))
        if not set(pq.read_table(path, columns=["id"])["id"].to_pylist()) & set(matching):
            path.unlink()  # whoever opens it notices
    name, database = sqlite_catalog.name, sqlite_catalog.database
    sql = f"SELECT id FROM {name}.db.t WHERE {predicate} ORDER BY id"
    assert iceberg_spark.sql(name, database, sql)["id"].to_pylist() == matching
    location = sink.load().metadata_location
    assert query_duckdb(location, f"SELECT id FROM t WHERE {predicate} ORDER BY id") == matching


def query_duckdb(metadata_location: str, query: str) -> list[object]:
    with duckdb.connect() as connection:
        for extension in ("avro", "iceberg"):
            connection.execute(f"LOAD '{_duckdb_extension(extension)}'")
        connection.execute("SET TimeZone = 'UTC'")
        path = metadata_location.removeprefix("file://")
        source = f"(SELECT * FROM iceberg_scan('{path}')) AS t"
        sql = query.replace("`", '"').replace("FROM t", f"FROM {source}")
        return [row[0] for row in connection.execute(sql).fetchall()]


def test_a_reader_opens_only_the_partition_it_asks_for(catalog: Catalog) -> None:
    sink = SinkOnTable.claimed(catalog, COLUMNS, ["zone"])
    sink.commit(rows())
    planned = list(sink.load().scan(row_filter=EqualTo("zone", value="north")).plan_files())
    assert [task.file.record_count for task in planned] == [3]
    planned = list(sink.load().scan(row_filter=EqualTo("id", value=11)).plan_files())
    assert len(planned) == 1  # by the bounds of the columns


def test_files_of_two_specs_land_in_one_commit(catalog: Catalog) -> None:
    sink = SinkOnTable.claimed(catalog, COLUMNS, ["zone"])
    old = sink.attempt(rows(12))
    with sink.load().update_spec() as update:
        update.add_field("at", DayTransform(), "at_day")
    sink.view = sink.table.read()
    new = sink.attempt(rows(12, 12))
    assert {FileDetail.decode(file.detail).spec_id for file in (*old.files, *new.files)} == {0, 1}
    sink.land(sink.table.commit(replace(new, files=(*old.files, *new.files))))
    location = sink.load().metadata_location
    assert in_order(read_with_pyiceberg(location)) == rows(24).to_pylist()
    assert in_order(read_with_duckdb(location)) == rows(24).to_pylist()
