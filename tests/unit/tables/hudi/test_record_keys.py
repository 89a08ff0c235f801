"""Which Hudi tables with a key can be filled: checked without a JVM."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.control_protocol.columns import Column, ListOf, Struct
from headgate.control_protocol.commit_tokens import SupportsCommitTokens
from headgate.control_protocol.errors import (
    ConfigurationError,
    HudiUnsafe,
    KeyChanged,
    TableUnfit,
    Unreachable,
)
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.table_format import RowKey, TableSpec
from headgate.tables.hudi.base_files import RECORD_KEY, HudiFileMarking
from headgate.tables.hudi.columns import avro_schema_of, spark_ddl_of
from headgate.tables.hudi.file_slices import Slice
from headgate.tables.hudi.lock_check import BASE_PATH, PROVIDER, URL
from headgate.tables.hudi.record_keys import SupportedTexts
from headgate.tables.hudi.secondary_table import HudiKeyedSecondary
from headgate.tables.hudi.table_format import HudiFormat
from headgate.tables.hudi.table_properties import HudiLocation, key_generator_for
from headgate.tables.hudi.upsert_table import HudiKeyedJava, HudiKeyedTable
from headgate.tables.hudi.write_configuration import KEY

COLUMNS = Struct(
    (
        Column("id", "long"),
        Column("city", "string"),
        Column("fare", "decimal(9, 2)"),
        Column("at", "timestamptz", required=False),
        Column("local", "timestamp", required=False),
        Column("p", "int", required=False),
        Column("o", "long", required=False),
    )
)
LOCK = {
    PROVIDER: "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider",
    URL: "zk1:2181",
    BASE_PATH: "/hudi",
}
INDEX, BUCKETS = "hoodie.index.type", "hoodie.bucket.index.num.buckets"


def key(*names: str) -> RowKey:
    return RowKey(names or ("id",), "p", "o")


def wanted(folder: Path, **more: object) -> TableSpec:
    given = {"create": True, "columns": COLUMNS, "properties": LOCK, "key": key(), **more}
    return TableSpec("db.trips", str(folder), **given)  # type: ignore[arg-type]


def table(folder: Path, columns: Struct = COLUMNS, **properties: str) -> None:
    (folder / ".hoodie").mkdir()
    escaped = avro_schema_of("trips", columns, {}).replace(":", "\\:").replace("=", "\\=")
    told = {
        "hoodie.table.name": "trips",
        "hoodie.table.version": "9",
        "hoodie.table.timeline.timezone": "UTC",
        "hoodie.table.create.schema": escaped,
        "hoodie.table.recordkey.fields": "id",
        "hoodie.record.merge.mode": "COMMIT_TIME_ORDERING",
    }
    told |= {name.replace("__", "."): value for name, value in properties.items()}
    text = "".join(f"{name}={value}\n" for name, value in told.items())
    (folder / ".hoodie" / "hoodie.properties").write_text(text)


def test_files_of_a_keyed_table_are_staged_out_of_readers_sight(tmp_path: Path) -> None:
    table(tmp_path)
    kind, asked = HudiFormat(), wanted(tmp_path)
    kind.create(asked)
    layout = kind.file_schema(asked)
    assert layout.location == f"file://{tmp_path}/.hoodie/.aux/headgate/staged"
    assert layout.marking is None
    assert layout.partition_by == ()
    assert isinstance(kind.open(replace(asked, key=None), "sink"), SupportsCommitTokens)  # type: ignore[arg-type]
    assert not isinstance(kind.open(asked, "sink"), SupportsCommitTokens)  # type: ignore[arg-type]


def test_a_table_with_a_key_has_no_nested_columns(tmp_path: Path) -> None:
    nested = Struct((*COLUMNS.fields, Column("stops", ListOf(Column("", "long")))))
    with pytest.raises(ConfigurationError, match="'stops'"):
        HudiFormat().require_supported(wanted(tmp_path, columns=nested))
    HudiFormat().require_supported(wanted(tmp_path, columns=nested, key=None))
    table(tmp_path, nested)
    with pytest.raises(TableUnfit, match="'stops'"):
        HudiFormat().create(wanted(tmp_path))


def test_an_empty_text_is_no_key_of_hudi_s() -> None:
    rows = pa.record_batch({"id": pa.array([1, 2, 3]), "city": pa.array(["a", "", "c"])})
    unpartitioned = HudiFileMarking("file:///lake")
    assert list(SupportedTexts(("id", "city"), unpartitioned).find_unsupported_rows(rows)) == [1]
    assert SupportedTexts(("id",), unpartitioned).find_unsupported_rows(rows) == {}


def test_texts_that_make_one_key_of_two_are_bad_records() -> None:
    """``a:x,b:y,b:z`` is of x,b:y and z, and of x and y,b:z."""
    rows = pa.record_batch({"a": ["x,b:y", "x", "x,y"], "b": ["z", "y,b:z", "b:z"]})
    unpartitioned = HudiFileMarking("file:///lake")
    assert sorted(SupportedTexts(("a", "b"), unpartitioned).find_unsupported_rows(rows)) == [0, 1]
    assert SupportedTexts(("a",), unpartitioned).find_unsupported_rows(rows) == {}


def test_texts_that_no_folder_gives_back_are_bad_records() -> None:
    city = ["a", None, "", "__HIVE_DEFAULT_PARTITION__", "x" * 300, "/" * 90]
    rows = pa.record_batch({"city": city})
    folders = HudiFileMarking("file:///lake", partition_by=("city",))
    assert sorted(SupportedTexts((), folders).find_unsupported_rows(rows)) == [3, 4, 5]


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"key": key("gone")}, ConfigurationError),
        ({"key": key("at")}, ConfigurationError),
        ({"key": key("id", "p")}, ConfigurationError),
        ({"partition_by": ("city",)}, ConfigurationError),
        ({"properties": {**LOCK, KEY: "id"}}, ConfigurationError),
        ({"properties": {**LOCK, INDEX: "GLOBAL_BLOOM"}}, HudiUnsafe),
        ({"properties": {**LOCK, INDEX: "INMEMORY"}}, HudiUnsafe),
        ({"properties": {**LOCK, INDEX: "BUCKET"}}, HudiUnsafe),
        ({"properties": {**LOCK, INDEX: "BUCKET", BUCKETS: "many"}}, HudiUnsafe),
        ({"key": None, "properties": {**LOCK, INDEX: "BUCKET", BUCKETS: "4"}}, HudiUnsafe),
        ({"properties": {**LOCK, "hoodie.table.ordering.fields": "at"}}, HudiUnsafe),
    ],
)
def test_a_keyed_sink_file_is_refused_before_anything_is_made(
    tmp_path: Path, more: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        HudiFormat().require_supported(wanted(tmp_path / "t", **more))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("index", ["SIMPLE", "bloom", "RECORD_INDEX", "GLOBAL_RECORD_LEVEL_INDEX"])
def test_keys_of_several_columns_partition_the_table(tmp_path: Path, index: str) -> None:
    more = {"key": key("id", "city"), "partition_by": ("city",)}
    HudiFormat().require_supported(wanted(tmp_path, **more, properties={**LOCK, INDEX: index}))


@pytest.mark.parametrize(
    ("properties", "error", "why"),
    [
        ({"hoodie__table__recordkey__fields": "city"}, KeyChanged, "record key city"),
        ({"hoodie__table__recordkey__fields": ""}, KeyChanged, r"record key \(none\)"),
        ({"hoodie__table__ordering__fields": "at"}, TableUnfit, "greatest by at"),
        ({"hoodie__record__merge__mode": "EVENT_TIME_ORDERING"}, TableUnfit, "EVENT_TIME"),
        ({"hoodie__table__partition__fields": "p"}, TableUnfit, "not partitioned by 'p'"),
        ({"hoodie__table__keygenerator__type": "COMPLEX"}, TableUnfit, "record keys in a way"),
    ],
)
def test_tables_of_another_key_or_order_are_refused(
    tmp_path: Path, properties: dict[str, str], error: type[Exception], why: str
) -> None:
    table(tmp_path, **properties)
    with pytest.raises(error, match=why):
        HudiFormat().create(wanted(tmp_path))


CUT = {**LOCK, INDEX: "BUCKET", BUCKETS: "4"}
UNCUT = "0b8f5a1c-aaaa-4bbb-8ccc-000000000001-0_0-0-0_20261124120000000.parquet"


class FewKeys(HudiKeyedJava):
    """Takes each key for one of bucket 0; its settings are those of the sink file."""

    @property
    def _hudi(self) -> Any:
        known = SimpleNamespace(getBucketId=lambda *_: 0)
        return SimpleNamespace(
            index=SimpleNamespace(bucket=SimpleNamespace(BucketIdentifier=known))
        )


def test_a_table_stays_cut_into_the_buckets_that_it_was_first_cut_into(
    tmp_path: Path,
) -> None:
    table(tmp_path)
    spec = wanted(tmp_path, properties=CUT)
    HudiFormat().create(spec)
    FewKeys(HudiLocation.from_spec(spec), "")._require_fitting_buckets_and_store_them([])
    HudiFormat().create(spec)
    for other in ({**CUT, BUCKETS: "8"}, LOCK):
        with pytest.raises(HudiUnsafe, match="4 buckets of the record key"):
            HudiFormat().create(wanted(tmp_path, properties=other))
        with pytest.raises(HudiUnsafe, match="4 buckets of the record key"):
            place = HudiLocation.from_spec(wanted(tmp_path, properties=other))
            FewKeys(place, "")._require_fitting_buckets_and_store_them([])


def test_buckets_that_a_start_declared_and_that_were_refused_are_not_kept(tmp_path: Path) -> None:
    """Else no index would do: each would be refused for the one before it."""
    no_java = Mock()
    no_java.load_meta_client.side_effect = OSError("no Java")
    table(tmp_path)
    pq.write_table(pa.table({RECORD_KEY: ["a"]}), tmp_path / UNCUT)
    for properties in (LOCK, CUT):
        spec = wanted(tmp_path, properties=properties)
        HudiFormat().create(spec)
        place = HudiLocation.from_spec(spec)
        with pytest.raises(Unreachable, match="no Java"):
            HudiKeyedTable(place, SinkName("sink"), java=lambda *_: no_java).read()
    with pytest.raises(HudiUnsafe, match="is not cut into 4 buckets"):
        FewKeys(place, "")._require_fitting_buckets_and_store_them(
            [Slice("0b8f5a1c", UNCUT, 1, logged=False)]
        )
    HudiFormat().create(wanted(tmp_path, properties={**CUT, BUCKETS: "8"}))


def test_who_opens_a_table_that_is_there_already_asks_into_what_it_is_cut(
    tmp_path: Path,
) -> None:
    """A start makes no table that is there."""

    def unasked(*_: object) -> Any:
        return object()

    table(tmp_path)
    HudiLocation.from_spec(wanted(tmp_path, properties=CUT)).store_or_require_same_buckets()
    for follows in ({}, {"primary": LOCK}):
        other = HudiLocation.from_spec(
            wanted(tmp_path, properties={**CUT, BUCKETS: "8"}, **follows)
        )
        kind = HudiKeyedSecondary if follows else HudiKeyedTable
        with pytest.raises(HudiUnsafe, match="4 buckets of the record key"):
            kind(other, SinkName("sink"), java=unasked).read()


def test_bloom_filters_are_hudi_s_to_write_with_a_key(tmp_path: Path) -> None:
    table(tmp_path, hoodie__table__metadata__partitions="files,bloom_filters")
    HudiFormat().create(wanted(tmp_path))
    with pytest.raises(TableUnfit, match="Bloom"):
        HudiLocation.from_spec(wanted(tmp_path, key=None)).read_config_ensuring_uuid()


def test_spark_reads_columns_by_their_types() -> None:
    told = spark_ddl_of(COLUMNS.fields)
    assert "`id` long, `city` string, `fare` decimal(9, 2), `at` timestamp," in told
    assert "`local` timestamp_ntz" in told
    assert spark_ddl_of([Column("a`b", "int")]) == "`a``b` int"


def test_a_new_table_s_keys_are_made_by_a_generator_that_holds_them() -> None:
    assert key_generator_for(["id"], []) == "NonpartitionedKeyGenerator"
    assert key_generator_for(["id"], ["id"]) == "SimpleKeyGenerator"
    assert key_generator_for(["id", "city"], ["city"]) == "ComplexKeyGenerator"
