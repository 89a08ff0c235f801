"""Our ORC and Avro files, read by Spark, Java, pyiceberg and DuckDB."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from integration.data_plane.every_type import SCHEMA, append, arrow_rows, rows, table_of
from integration.data_plane.test_files_as_others_see_them import as_pyiceberg_has_it, comparable
from integration.iceberg import test_partitions as partitioned
from integration.readers import IcebergSpark, read_with_duckdb, read_with_pyiceberg
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    DateType,
    DecimalType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)
from support.local_catalog import LocalCatalog

from headgate.control_protocol.events import WrittenFile
from headgate.tables.iceberg.data_file import FileDetail
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing

pytestmark = [pytest.mark.integration, pytest.mark.spark]

FORMAT = "write.format.default"
CODECS = {
    "orc": ("write.orc.compression-codec", ["zlib", "snappy", "lz4", "zstd", "none"]),
    "avro": ("write.avro.compression-codec", ["gzip", "snappy", "zstd", "uncompressed"]),
}
ALL_CODECS = [
    pytest.param(kind, codec, marks=pytest.mark.wide if place else ())
    for kind, (_, codecs) in CODECS.items()
    for place, codec in enumerate(codecs)
]
MICROSECONDS = 315_537_897_599_999_999
"""From the first day of year 1 to the last one of year 9999."""


@pytest.mark.parametrize(("kind", "codec"), ALL_CODECS)
def test_spark_sees_every_value_of_other_formats(
    sqlite_catalog: LocalCatalog, iceberg_spark: IcebergSpark, kind: str, codec: str
) -> None:
    wanted = {FORMAT: kind, CODECS[kind][0]: codec}
    table_of(sqlite_catalog.catalog, "db.t", wanted)
    table = as_pyiceberg_packs(sqlite_catalog)
    written = append(sqlite_catalog.catalog, table, rows()[1:])
    (file,) = written
    assert FileDetail.decode(file.detail).file_format == file.path.rpartition(".")[2] == kind
    append(sqlite_catalog.catalog, as_pyiceberg_packs(sqlite_catalog), rows()[:1])
    expected = comparable(arrow_rows(table, rows()))
    seen = iceberg_spark.read(sqlite_catalog.name, sqlite_catalog.database, "db.t")
    assert comparable(seen) == expected


def as_pyiceberg_packs(local: LocalCatalog) -> Table:
    """The table without the codec of Avro files, which pyiceberg's own commits take for theirs."""
    table = local.catalog.load_table("db.t")
    table.metadata.properties.pop(CODECS["avro"][0], None)
    return table


@pytest.mark.wide
@pytest.mark.parametrize("kind", CODECS)
def test_spark_finds_any_moment_and_number_by_its_bounds(
    sqlite_catalog: LocalCatalog, iceberg_spark: IcebergSpark, kind: str
) -> None:
    """Calendars, negative fractions of seconds and signs are where ORC's writers went wrong."""
    dice = random.Random(6)
    begin = datetime(1, 1, 1, tzinfo=UTC)
    near = [-(10**6), -1, 0, 1, 999, 10**6 - 1, 10**6]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    moments = [epoch + timedelta(microseconds=of) for of in near]
    moments += [begin + timedelta(microseconds=dice.randint(0, MICROSECONDS)) for _ in range(400)]
    # whole seconds: before 1970 all others go into Parquet files
    moments += [moment.replace(microsecond=0) for moment in moments]
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "local", TimestampType()),
        NestedField(3, "moment", TimestamptzType()),
        NestedField(4, "day", DateType()),
        NestedField(5, "amount", DecimalType(38, 9)),
        NestedField(6, "word", StringType()),
    )
    some: list[dict[str, Any]] = [
        {
            "id": number,
            "local": moment.replace(tzinfo=None),
            "moment": moment,
            "day": moment.date(),
            "amount": Decimal(dice.randint(-(10**37), 10**37)).scaleb(-9),
            "word": chr(dice.randint(0x20, 0xD7FF)) * dice.randint(0, 40),
        }
        for number, moment in enumerate(moments)
    ]
    table = table_of(sqlite_catalog.catalog, "db.t", {FORMAT: kind}, schema=schema)
    for begin_at in range(0, len(some), 100):
        append(
            sqlite_catalog.catalog,
            sqlite_catalog.catalog.load_table("db.t"),
            some[begin_at : begin_at + 100],
        )
    expected = comparable(arrow_rows(table, some))
    name, database = sqlite_catalog.name, sqlite_catalog.database
    assert comparable(iceberg_spark.read(name, database, "db.t")) == expected
    wanted = some[400]
    moment = f"TIMESTAMP '{wanted['moment']:%Y-%m-%d %H:%M:%S.%f}'"
    query = f"SELECT id FROM {name}.db.t WHERE moment = {moment} AND amount = {wanted['amount']}BD"
    found = iceberg_spark.sql(name, database, query)
    assert found["id"].to_pylist() == [wanted["id"]]


def test_pyiceberg_reads_orc(sqlite_catalog: LocalCatalog) -> None:
    """But for UUIDs and fixed binary: it takes ORC's binary for neither (0.12)."""
    schema = Schema(*(field for field in SCHEMA.fields if field.name not in ("uuid", "fixed")))
    table = table_of(sqlite_catalog.catalog, "db.t", {FORMAT: "orc"}, schema=schema)
    append(sqlite_catalog.catalog, table, rows()[1:3])
    location = sqlite_catalog.catalog.load_table("db.t").metadata_location
    expected = comparable(arrow_rows(table, rows()[1:3]))
    assert comparable(read_with_pyiceberg(location)) == as_pyiceberg_has_it(expected)


@pytest.mark.parametrize("kind", CODECS)
def test_duckdb_names_the_format_that_it_does_not_read(
    sqlite_catalog: LocalCatalog, kind: str
) -> None:
    """When this fails, a newer DuckDB may read it: see the limits in docs/guides/data-files.md."""
    table = table_of(sqlite_catalog.catalog, "db.t", {FORMAT: kind})
    append(sqlite_catalog.catalog, table, rows()[1:3])
    location = sqlite_catalog.catalog.load_table("db.t").metadata_location
    with pytest.raises(duckdb.NotImplementedException, match=f"'{kind.upper()}' not supported"):
        read_with_duckdb(location)


@pytest.mark.parametrize("transform", partitioned.TRANSFORMS)
def test_pyiceberg_reads_a_partitioned_table_of_orc_files(
    sqlite_catalog: LocalCatalog, transform: str
) -> None:
    written = fill_partitions(sqlite_catalog, "db.t", transform, "orc")
    location = sqlite_catalog.catalog.load_table("db.t").metadata_location
    seen = partitioned.in_order(read_with_pyiceberg(location))
    assert seen == partitioned.rows(18).to_pylist()
    assert {FileDetail.decode(file.detail).file_format for file in written} == {"orc"}


@pytest.mark.parametrize("kind", ["orc", "avro"])
def test_spark_reads_partitioned_tables_of_other_formats_and_prunes_them(
    sqlite_catalog: LocalCatalog, iceberg_spark: IcebergSpark, kind: str
) -> None:
    name, database = sqlite_catalog.name, sqlite_catalog.database
    for number, (transform, predicate, matching) in enumerate(partitioned.PRUNED):
        identifier = f"db.t{number}"
        written = fill_partitions(sqlite_catalog, identifier, transform, kind, commits=1)
        assert {FileDetail.decode(file.detail).file_format for file in written} == {kind}
        seen = iceberg_spark.read(name, database, identifier)
        assert partitioned.in_order(seen) == partitioned.rows(12).to_pylist()
        query = f"SELECT id FROM {name}.{identifier} WHERE {predicate} ORDER BY id"
        assert iceberg_spark.sql(name, database, query)["id"].to_pylist() == matching


def fill_partitions(
    local: LocalCatalog, name: str, transform: str, kind: str, *, commits: int = 2
) -> list[WrittenFile]:
    """Twelve rows, and six more, by our writers into a table of this partition."""
    declared = TableDeclaration(partitioned.COLUMNS, (transform,), {FORMAT: kind})
    create_table_if_missing(local.catalog, name, declared)
    written: list[WrittenFile] = []
    for some in (partitioned.rows(12), partitioned.rows(6, 12))[:commits]:
        written += append(local.catalog, local.catalog.load_table(name), some.to_pylist())
    return written
