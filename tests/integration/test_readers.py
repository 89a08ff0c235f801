"""Each reader sees what pyiceberg wrote, all of it and nothing else."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from integration.readers import IcebergSpark, read_with_duckdb, read_with_pyiceberg
from pyiceberg.table import Table
from support.local_catalog import LocalCatalog

pytestmark = pytest.mark.integration

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "name": ["a", None, "ü"],
        "fare": [1.5, -2.0, None],
        "day": [date(2026, 1, 1), None, date(1969, 12, 31)],
        "at": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 3, pa.timestamp("us", "UTC")),
    }
)


@pytest.fixture
def table(sqlite_catalog: LocalCatalog) -> Table:
    """Two appends and a delete, so that one file's rows are no longer live."""
    table = sqlite_catalog.catalog.create_table("db.t", schema=ROWS.schema)
    table.append(ROWS)
    table.append(pa.Table.from_pylist([{"id": 9}], schema=ROWS.schema))
    table.delete("id = 9")
    return table


def in_order(rows: pa.Table) -> list[dict[str, object]]:
    return rows.sort_by("id").to_pylist()


@pytest.mark.parametrize("read", [read_with_pyiceberg, read_with_duckdb])
def test_a_reader_without_catalog(table: Table, read: object) -> None:
    assert callable(read)
    assert in_order(read(table.metadata_location)) == ROWS.to_pylist()


@pytest.mark.spark
def test_the_reference_reader(
    table: Table, sqlite_catalog: LocalCatalog, iceberg_spark: IcebergSpark
) -> None:
    rows = iceberg_spark.read(sqlite_catalog.name, sqlite_catalog.database, "db.t")
    assert in_order(rows) == ROWS.to_pylist()


@pytest.mark.spark
def test_the_reference_compacts(
    table: Table, sqlite_catalog: LocalCatalog, iceberg_spark: IcebergSpark
) -> None:
    name = sqlite_catalog.name
    table.append(ROWS.slice(0, 1))
    rewritten = iceberg_spark.sql(
        name,
        sqlite_catalog.database,
        f"CALL {name}.system.rewrite_data_files("
        "table => 'db.t', options => map('rewrite-all', 'true'))",
    )
    assert rewritten["rewritten_data_files_count"].to_pylist() == [2]
    assert table.refresh().scan().to_arrow().num_rows == 4
