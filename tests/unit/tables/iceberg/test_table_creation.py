"""A declared table is created once, whoever else tries; mistakes are named."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV3

from headgate.control_protocol.errors import ConfigurationError, TableMissing, Unreachable
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table_creation import (
    TableDeclaration,
    build_partition_spec,
    build_sort_order,
    create_table_if_missing,
)
from headgate.tables.iceberg.type_parser import parse_columns

COLUMNS = {"id": "long not null", "at": "timestamptz", "zone": "string", "fare": "double"}


def open_catalog(folder: Path) -> Catalog:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }
    return load_catalog("test", properties)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with open_catalog(tmp_path) as catalog:
        yield catalog


def test_a_table_is_created_as_declared(catalog: Catalog) -> None:
    declaration = TableDeclaration(
        COLUMNS, ["day(at)", "bucket(16, id)", "truncate(4, zone)", "zone"], comments={"id": "key"}
    )
    assert create_table_if_missing(catalog, "a.b.trips", declaration) is True
    table = catalog.load_table("a.b.trips")
    assert table.format_version == 2
    assert [(f.name, str(f.field_type), f.required) for f in table.schema().fields] == [
        ("id", "long", True),
        ("at", "timestamptz", False),
        ("zone", "string", False),
        ("fare", "double", False),
    ]
    assert table.schema().find_field("id").doc == "key"
    assert [(f.name, str(f.transform), f.source_id) for f in table.spec().fields] == [
        ("at_day", "day", 2),
        ("id_bucket", "bucket[16]", 1),
        ("zone_trunc", "truncate[4]", 3),
        ("zone", "identity", 3),
    ]
    assert table.properties["write.parquet.compression-codec"] == "zstd"
    assert table.properties["write.metadata.delete-after-commit.enabled"] == "true"
    assert table.properties["history.expire.max-snapshot-age-ms"] == "86400000"
    assert table.properties["history.expire.min-snapshots-to-keep"] == "100"


def test_declared_properties_and_location_win(catalog: Catalog, tmp_path: Path) -> None:
    declaration = TableDeclaration(
        COLUMNS,
        properties={"write.parquet.compression-codec": "snappy", "mine": "yes"},
        location=f"file://{tmp_path}/elsewhere",
    )
    create_table_if_missing(catalog, "ns.trips", declaration)
    table = catalog.load_table("ns.trips")
    assert table.properties["write.parquet.compression-codec"] == "snappy"
    assert table.properties["mine"] == "yes"
    assert table.location() == f"file://{tmp_path}/elsewhere"


def test_a_table_that_is_there_is_left_alone(catalog: Catalog) -> None:
    create_table_if_missing(catalog, "ns.trips", TableDeclaration(COLUMNS))
    before = catalog.load_table("ns.trips").metadata_location
    assert create_table_if_missing(catalog, "ns.trips", None) is False
    assert create_table_if_missing(catalog, "ns.trips", TableDeclaration({"other": "int"})) is False
    assert catalog.load_table("ns.trips").metadata_location == before


def test_no_table_and_no_declaration_is_named(catalog: Catalog) -> None:
    with pytest.raises(TableMissing, match=r"ns\.trips does not exist"):
        create_table_if_missing(catalog, "ns.trips", None)


def test_many_create_at_once_and_one_has_created(tmp_path: Path) -> None:
    def create(_: int) -> bool:
        with open_catalog(tmp_path) as catalog:
            return create_table_if_missing(catalog, "a.b.trips", TableDeclaration(COLUMNS))

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(create, range(4))) == [False, False, False, True]


@pytest.mark.parametrize("version", ["1", "4", "two"])
def test_another_format_version_is_refused(catalog: Catalog, version: str) -> None:
    declaration = TableDeclaration(COLUMNS, properties={"format-version": version})
    with pytest.raises(ConfigurationError, match="format versions 2 and 3 only"):
        create_table_if_missing(catalog, "ns.trips", declaration)


def test_a_table_of_version_3_may_have_nanoseconds(catalog: Catalog) -> None:
    columns = {"at": "timestamp_ns", "seen": "timestamptz_ns"}
    properties = {"format-version": "3"}
    create_table_if_missing(
        catalog, "ns.trips", TableDeclaration(columns, ["hour(at)"], properties)
    )
    table = catalog.load_table("ns.trips")
    assert isinstance(table.metadata, TableMetadataV3)
    assert table.metadata.next_row_id == 0
    assert [str(f.field_type) for f in table.schema().fields] == list(columns.values())


@pytest.mark.parametrize("kind", ["timestamp_ns", "list<struct<at: timestamptz_ns>>"])
def test_nanoseconds_need_version_3(catalog: Catalog, kind: str) -> None:
    with pytest.raises(ConfigurationError, match="set the table's property format-version to 3"):
        create_table_if_missing(catalog, "ns.trips", TableDeclaration({"at": kind}))


def test_a_table_is_not_partitioned_by_each_nanosecond() -> None:
    schema = Schema(*parse_columns({"at": "timestamp_ns"}))
    with pytest.raises(ConfigurationError, match=r"write day\(at\), hour\(at\) or bucket"):
        build_partition_spec(schema, ["at"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("day(aat)", "there is no column 'aat' (do you mean 'at'?)"),
        ("days(at)", "there is no transform 'days' (do you mean 'day'?)"),
        ("day(fare)", "day does not take a column of type double"),
        ("bucket(id)", "write bucket(16, id)"),
        ("bucket(0, id)", "write bucket(16, id)"),
        ("day(4, at)", "write day(at)"),
        ("bucket(16, fare)", "bucket does not take a column of type double"),
        ("day(at", "cannot be read"),
        ("", "cannot be read"),
        ("regionn", "known are"),
    ],
)
def test_partition_mistakes_say_what_instead(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        build_partition_spec(Schema(*parse_columns(COLUMNS)), [text])
    assert said in str(caught.value)


_NESTED = {
    "s": "struct<at: timestamptz>",
    "l": "list<struct<a: int>>",
    "m": "map<string, long>",
}


@pytest.mark.parametrize("column", ["l.element.a", "l.a", "m.key", "m.value"])
def test_what_lies_in_a_list_or_a_map_neither_partitions_nor_sorts(column: str) -> None:
    schema = Schema(*parse_columns(_NESTED))
    with pytest.raises(ConfigurationError, match=f"partition '{column}'"):
        build_partition_spec(schema, [column])
    with pytest.raises(ConfigurationError, match=f"sort '{column}'"):
        build_sort_order(schema, [column])


def test_a_field_of_a_struct_partitions_and_sorts() -> None:
    schema = Schema(*parse_columns(_NESTED))
    assert [each.name for each in build_partition_spec(schema, ["day(s.at)"]).fields] == [
        "s.at_day"
    ]
    assert len(build_sort_order(schema, ["s.at"]).fields) == 1


def test_a_partition_is_refused_whose_name_is_a_columns() -> None:
    schema = Schema(*parse_columns({"at": "timestamptz", "at_day": "date"}))
    with pytest.raises(ConfigurationError, match="there is a column 'at_day'"):
        build_partition_spec(schema, ["day(at)"])
    assert build_partition_spec(schema, ["at_day", "hour(at)"]).fields


def test_the_same_partition_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="named twice"):
        build_partition_spec(Schema(*parse_columns(COLUMNS)), ["day(at)", "DAY(at)"])


def test_a_catalog_that_is_away_is_unreachable(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(Unreachable, match=r"table ns\.trips cannot be created"):
        create_table_if_missing(catalog, "ns.trips", TableDeclaration(COLUMNS))


class AnswerLost:
    """A catalog that creates the table, and whose answer to that gets lost."""

    def __init__(self, real: Catalog) -> None:
        self._real = real

    def create_table(self, *arguments: Any, **more: Any) -> Table:
        self._real.create_table(*arguments, **more)
        raise ConnectionError("the answer was lost")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_f62_a_table_whose_creation_was_not_confirmed_is_found_by_the_next_start(
    catalog: Catalog,
) -> None:
    with pytest.raises(Unreachable, match="the answer was lost"):
        create_table_if_missing(
            cast("Catalog", AnswerLost(catalog)), "a.b", TableDeclaration(COLUMNS)
        )
    made = catalog.load_table("a.b").metadata_location
    assert create_table_if_missing(catalog, "a.b", TableDeclaration(COLUMNS)) is False
    assert catalog.load_table("a.b").metadata_location == made
