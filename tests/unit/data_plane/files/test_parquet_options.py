"""Properties of a table as options of its files, and word of those that are not followed."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import BooleanType, ListType, LongType, NestedField, StringType

from headgate.control_protocol.errors import ConfigurationError
from headgate.data_plane.files import parquet
from headgate.data_plane.files.format_choice import (
    require_usable_write_properties,
    target_file_size_bytes,
)
from headgate.data_plane.files.metrics import leaves_of, metrics_modes
from headgate.data_plane.files.parquet import ParquetOptions, describe_ignored_properties

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "flag", BooleanType()),
    NestedField(3, "tags", ListType(4, StringType())),
)
LEAVES = leaves_of(SCHEMA, metrics_modes(SCHEMA, {}, UNSORTED_SORT_ORDER))
BLOOM = "write.parquet.bloom-filter-enabled.column."
NEEDS_BLOOM = pytest.mark.skipif(not parquet._BLOOM_POSSIBLE, reason="needs pyarrow 26")


def test_what_a_table_does_not_say_is_as_icebergs_documentation_has_it() -> None:
    options = ParquetOptions({}, LEAVES)
    assert options.writer_options(10) == {
        "compression": "zstd",
        "data_page_size": 1 << 20,
        "max_rows_per_page": 20_000,
        "dictionary_pagesize_limit": 2 << 20,
        "store_decimal_as_integer": True,
    }
    assert target_file_size_bytes({}) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("write.parquet.compression-codec", "lzo"),
        ("write.parquet.compression-level", "99"),
        ("write.parquet.compression-level", "high"),
        ("write.parquet.page-size-bytes", "1MB"),
        ("write.parquet.row-group-size-bytes", "0"),
        ("write.target-file-size-bytes", "-1"),
        pytest.param("write.parquet.bloom-filter-fpp.column.id", "1", marks=NEEDS_BLOOM),
    ],
)
def test_impossible_values_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        properties = {f"{BLOOM}id": "true", name: value}
        require_usable_write_properties(SCHEMA, properties, UNSORTED_SORT_ORDER)
        ParquetOptions(properties, LEAVES).writer_options(1)


@NEEDS_BLOOM
def test_a_filter_is_for_the_rows_of_a_row_group_within_the_tables_size() -> None:
    properties = {f"{BLOOM}id": "true", f"{BLOOM}tags.element": "true", f"{BLOOM}flag": "true"}
    wanted = ParquetOptions(properties, LEAVES).writer_options(1000)["bloom_filter_options"]
    assert wanted == {
        "id": {"ndv": 1000, "fpp": 0.01},
        "tags.list.element": {"ndv": 1000, "fpp": 0.01},
    }
    properties |= {"write.parquet.bloom-filter-max-bytes": "1024"}
    properties |= {"write.parquet.bloom-filter-ndv.column.id": "5"}
    properties |= {"write.parquet.bloom-filter-fpp.column.id": "0.1"}
    wanted = ParquetOptions(properties, LEAVES).writer_options(10**6)["bloom_filter_options"]
    assert wanted["id"] == {"ndv": 5, "fpp": 0.1}
    assert 500 < wanted["tags.list.element"]["ndv"] < 1000


def test_what_an_older_pyarrow_cannot_write_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_BLOOM_POSSIBLE", False)
    properties = {f"{BLOOM}id": "true"}
    options = ParquetOptions(properties, LEAVES).writer_options(10)
    assert "bloom_filter_options" not in options
    (told,) = describe_ignored_properties(properties, LEAVES)
    assert told.startswith(f"{BLOOM}id: this pyarrow")


@NEEDS_BLOOM
def test_what_is_not_followed_is_told() -> None:
    properties = {
        "write.parquet.page-version": "v2",
        "write.parquet.stats-enabled.column.id": "false",
        f"{BLOOM}id": "true",
        f"{BLOOM}nowhere": "true",
        f"{BLOOM}flag": "true",
    }
    told = describe_ignored_properties(properties, LEAVES)
    assert [text.split(" = ")[0].split(":")[0] for text in told] == [
        "write.parquet.page-version",
        "write.parquet.stats-enabled.column.id",
        f"{BLOOM}nowhere",
        f"{BLOOM}flag",
    ]
