"""Data files: readable by the library, described as the library would, rolled, and removable."""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestamptzNanoType,
)
from unit.data_plane.formats.json_tables import EVERYTHING

from headgate.control_protocol.errors import ConfigurationError, TableChanged, WriteFailed
from headgate.control_protocol.events import TableStart, WrittenFile
from headgate.control_protocol.identifiers import Epoch, TransactionId, TransactionNumber
from headgate.control_protocol.ports import Batch
from headgate.data_plane.batch.writer_task_plan import Plans, SourcePlan, load_table_and_plan
from headgate.data_plane.files import parquet
from headgate.data_plane.files.data_files import DataFiles, file_shape_of
from headgate.data_plane.files.partitioning import PartitionKey
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.data_file import FileDetail

V3_ONLY = {"timestamp_ns", "timestamptz_ns"}
ALL_TYPES = pa.schema([field for field in EVERYTHING if field.name not in V3_ONLY])
WIDE = "a long text, longer than the sixteen characters of a bound: ü"


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    folder = tmp_path / "warehouse"
    folder.mkdir()
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/c.sqlite",
        "warehouse": folder.as_uri(),
    }
    catalog = load_catalog("files", properties)
    catalog.create_namespace("db")
    yield catalog
    catalog.close()


def start_of(table: Table) -> TableStart:
    return TableStart(
        table=".".join(table.name()),
        uuid=str(table.metadata.table_uuid),
        schema_id=table.schema().schema_id,
        spec_id=table.spec().spec_id,
        file_prefix=f"{table.location()}/data/nonce",
    )


def detail_of(file: WrittenFile) -> FileDetail:
    return FileDetail.decode(file.detail)


def files_of(catalog: Catalog, table: Table, target_bytes: int = 1 << 27, **more: Any) -> DataFiles:
    start = start_of(table)
    shape = file_shape_of(load_table_and_plan(catalog, start, SourcePlan({})))
    return DataFiles(shape, start.file_prefix, target_bytes, **more)


def rows_of_all_types(table: Table) -> pa.Table:
    row: dict[str, Any] = {
        "int": -1,
        "long": 2**62,
        "float": 1.5,
        "double": -0.25,
        "decimal": Decimal("123.45"),
        "wide_decimal": Decimal("-1234567890123456789012345678.0123456789"),
        "boolean": True,
        "string": WIDE,
        "date": -1,
        "time": 86_399_999_999,
        "timestamp": -1,
        "timestamptz": 1_785_585_600_123_456,
        "uuid": bytes(range(16)),
        "fixed": b"abcd",
        "binary": b"\xff" * 20,
        "struct": {"a": 1, "b": 0},
        "list": [1, None],
        "map": [("k", Decimal("1.00"))],
        "deep": [{"m": [("k", [0])]}],
    }
    other = dict.fromkeys(row) | {"int": 7, "string": "b"}
    return pa.Table.from_pylist([row, other], schema_to_pyarrow(table.schema()))


def test_files_are_described_as_the_library_describes_its_own(catalog: Catalog) -> None:
    table = catalog.create_table("db.types", ALL_TYPES)
    rows = rows_of_all_types(table)
    files = files_of(catalog, table)
    files.write(PartitionKey(), rows)
    (ours,) = files.finish()
    table.append(rows)
    (theirs,) = (task.file for task in table.scan().plan_files())
    for name in (
        "value_counts",
        "null_value_counts",
        "nan_value_counts",
        "lower_bounds",
        "upper_bounds",
    ):
        mine, others = dict(getattr(detail_of(ours), name)), dict(getattr(theirs, name))
        for field in table.schema().fields:  # nested ones, zeros and NaN: as Spark's, elsewhere
            assert mine.get(field.field_id) == others.get(field.field_id) or name[:3] == "nan"
    assert dict(detail_of(ours).column_sizes) == dict(theirs.column_sizes)
    assert ours.records == theirs.record_count == 2
    assert detail_of(ours).split_offsets == tuple(theirs.split_offsets or ())
    assert ours.size_bytes == Path(ours.path.removeprefix("file://")).stat().st_size
    assert pq.read_table(ours.path.removeprefix("file://")).to_pylist() == rows.to_pylist()


@pytest.mark.parametrize("kind", ["parquet", "orc", "avro"])
def test_a_field_in_a_struct_may_have_dots_in_its_name(catalog: Catalog, kind: str) -> None:
    """As those of Kubernetes' labels in a table that Spark has made."""
    inside = StructType(
        NestedField(2, "app.kubernetes.io/name", StringType()), NestedField(3, "a.b", DoubleType())
    )
    schema = Schema(NestedField(1, "labels", inside), NestedField(4, "x.y", StringType()))
    properties = {"write.format.default": kind}
    table = catalog.create_table("db.t", schema, properties=properties)
    name, number, outer = (
        table.schema().find_field(of).field_id
        for of in ("labels.app.kubernetes.io/name", "labels.a.b", "x.y")
    )
    files = files_of(catalog, table)
    row = {"labels": {"app.kubernetes.io/name": WIDE, "a.b": float("nan")}, "x.y": "z"}
    files.write(PartitionKey(), pa.Table.from_pylist([row, {}], schema_to_pyarrow(table.schema())))
    (file,) = files.finish()
    detail = detail_of(file)
    assert detail.null_value_counts == dict.fromkeys((name, number, outer), 1)
    assert detail.nan_value_counts == {number: 1}
    assert detail.lower_bounds == {name: WIDE[:16].encode(), outer: b"z"}


def test_nanoseconds_are_bounded_to_the_nanosecond(catalog: Catalog) -> None:
    schema = Schema(
        NestedField(1, "at", TimestampNanoType()), NestedField(2, "seen", TimestamptzNanoType())
    )
    table = catalog.create_table("db.t", schema, properties={"format-version": "3"})
    counts = pa.array([1, None, -(2**63), -1, 2**63 - 1], pa.int64())
    kinds = (pa.timestamp("ns"), pa.timestamp("ns", tz="UTC"))
    files = files_of(catalog, table)
    files.write(
        PartitionKey(),
        pa.table([counts.cast(kind) for kind in kinds], schema=schema_to_pyarrow(schema)),
    )
    (file,) = files.finish()
    least, most = ((-(2**63)).to_bytes(8, "little", signed=True), b"\xff" * 7 + b"\x7f")
    detail = detail_of(file)
    assert detail.lower_bounds == {1: least, 2: least}
    assert detail.upper_bounds == {1: most, 2: most}
    stored = pq.read_table(file.path.removeprefix("file://"))
    assert [column.cast(pa.int64()).to_pylist() for column in stored.columns] == [
        counts.to_pylist()
    ] * 2
    assert stored.schema.types == list(kinds)


@pytest.mark.parametrize("kind", [FloatType(), DoubleType()])
@pytest.mark.parametrize(
    ("values", "least", "most"),
    [
        ([0.0], 0.0, 0.0),
        ([-0.0], -0.0, -0.0),
        ([0.0, -0.0], -0.0, 0.0),
        ([1.0, -0.0, math.nan], -0.0, 1.0),
        ([-1.0, 0.0, None], -1.0, 0.0),
        ([-1.0, -0.0], -1.0, -0.0),
    ],
)
def test_bounds_have_the_sign_of_the_zero_that_is_there(
    catalog: Catalog, kind: PrimitiveType, values: list[float | None], least: float, most: float
) -> None:
    """Readers order -0.0 below 0.0: a bound of the wrong sign hides rows from them."""
    schema = Schema(NestedField(1, "n", kind))
    table = catalog.create_table("db.zeros", schema)
    files = files_of(catalog, table)
    files.write(PartitionKey(), pa.table({"n": values}, schema=schema_to_pyarrow(schema)))
    detail = detail_of(files.finish()[0])
    bounds = ({1: to_bytes(kind, least)}, {1: to_bytes(kind, most)})
    assert (detail.lower_bounds, detail.upper_bounds) == bounds


@pytest.mark.parametrize(
    ("kind", "value", "least"),
    [
        *((DecimalType(9, 0), Decimal(n), None) for n in (-129, -128, -1, 0, 127, 128, -32_768)),
        *((DecimalType(38, 2), Decimal(n), None) for n in ("-1.28", "327.68", "-327.68")),
        (StringType(), "\u00e9" * 20, "\u00e9" * 16),
        (StringType(), "\U0001f600" * 17, "\U0001f600" * 16),
    ],
)
def test_a_lower_bound_has_the_fewest_bytes_of_a_number_and_whole_characters_of_a_text(
    catalog: Catalog, kind: PrimitiveType, value: object, least: object
) -> None:
    """Readers compare the bytes of decimals, and read those of texts as UTF-8."""
    schema = Schema(NestedField(1, "n", kind))
    files = files_of(catalog, catalog.create_table("db.bounds", schema))
    files.write(PartitionKey(), pa.table({"n": [value]}, schema=schema_to_pyarrow(schema)))
    detail = detail_of(files.finish()[0])
    assert detail.lower_bounds == {1: to_bytes(kind, least or value)}


def test_columns_carry_their_field_ids(catalog: Catalog) -> None:
    table = catalog.create_table("db.ids", ALL_TYPES)
    rows = rows_of_all_types(table)
    files = files_of(catalog, table)
    files.write(PartitionKey(), rows)
    (ours,) = files.finish()
    schema = pq.read_schema(ours.path.removeprefix("file://"))
    ids = {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in schema}
    assert ids == {field.name: field.field_id for field in table.schema().fields}


def test_metrics_modes_of_the_table_are_kept(catalog: Catalog) -> None:
    table = catalog.create_table(
        "db.modes",
        pa.schema([("a", pa.large_string()), ("b", pa.int64()), ("c", pa.int64())]),
        properties={
            "write.metadata.metrics.default": "counts",
            "write.metadata.metrics.column.a": "truncate(3)",
            "write.metadata.metrics.column.c": "none",
        },
    )
    files = files_of(catalog, table)
    rows = {"a": ["abcdef"], "b": [1], "c": [1]}
    files.write(PartitionKey(), pa.table(rows, schema=schema_to_pyarrow(table.schema())))
    (ours,) = files.finish()
    assert detail_of(ours).lower_bounds == {1: b"abc"}
    assert detail_of(ours).upper_bounds == {1: b"abd"}
    assert set(detail_of(ours).value_counts) == {1, 2}


@pytest.mark.parametrize(
    ("properties", "codec"),
    [
        ({}, "ZSTD"),
        ({"write.parquet.compression-codec": "snappy"}, "SNAPPY"),
        ({"write.parquet.compression-codec": "uncompressed"}, "UNCOMPRESSED"),
        (
            {"write.parquet.compression-codec": "zstd", "write.parquet.compression-level": "9"},
            "ZSTD",
        ),
    ],
)
def test_compression_follows_the_table(
    catalog: Catalog, properties: dict[str, str], codec: str
) -> None:
    table = catalog.create_table("db.codec", numbers_schema(), properties=properties)
    files = files_of(catalog, table)
    files.write(PartitionKey(), numbers(table, 10))
    (ours,) = files.finish()
    footer = pq.read_metadata(ours.path.removeprefix("file://"))
    assert footer.row_group(0).column(0).compression == codec


def numbers_schema() -> Schema:
    return Schema(NestedField(1, "n", LongType()), NestedField(2, "t", StringType()))


def numbers(table: Table, count: int) -> pa.Table:
    texts = [f"{(row * 2_654_435_761) % 2**32:x}" for row in range(count)]
    schema = schema_to_pyarrow(table.schema())
    return pa.table({"n": range(count), "t": texts}, schema=schema)


def test_row_groups_are_no_longer_than_the_table_wants(catalog: Catalog) -> None:
    limits = {"write.parquet.row-group-limit": "3000"}
    table = catalog.create_table("db.groups", numbers_schema(), properties=limits)
    files = files_of(catalog, table)
    files.write(PartitionKey(), numbers(table, 10_000))
    (ours,) = files.finish()
    footer = pq.read_metadata(ours.path.removeprefix("file://"))
    lengths = [footer.row_group(at).num_rows for at in range(footer.num_row_groups)]
    assert lengths == [3000, 3000, 3000, 1000]
    assert len(detail_of(ours).split_offsets) == 4


def test_files_are_rolled_near_the_target_on_disk(catalog: Catalog) -> None:
    table = catalog.create_table("db.rolled", numbers_schema())
    files = files_of(catalog, table, target_bytes=200_000)
    for _ in range(10):
        files.write(PartitionKey(), numbers(table, 30_000))
    written = files.finish()
    assert sum(file.records for file in written) == 300_000
    assert len({file.path for file in written}) == len(written) > 5
    assert all(150_000 < file.size_bytes < 300_000 for file in written[:-1])


def test_no_more_files_are_open_than_allowed(catalog: Catalog) -> None:
    table = catalog.create_table("db.many", numbers_schema())
    files = files_of(catalog, table, open_max=2)
    keys = [PartitionKey((bytes([number]),), f"p={number}") for number in range(4)]
    for key in [*keys, *keys, keys[3]]:
        files.write(key, numbers(table, 10))
    written = files.finish()
    assert sorted(detail_of(file).partition for file in written) == sorted(
        2 * [key.values for key in keys]
    )
    assert sum(file.records for file in written) == 90


def test_partitions_have_folders_below_the_prefix(catalog: Catalog) -> None:
    table = catalog.create_table("db.folders", numbers_schema(), partition_spec=PartitionSpec())
    files = files_of(catalog, table)
    files.write(PartitionKey((b"x",), "p=x"), numbers(table, 1))
    (ours,) = files.finish()
    assert ours.path.startswith(f"{start_of(table).file_prefix}/p=x/")
    assert detail_of(ours).partition == (b"x",)


def test_discarded_files_are_gone_whether_open_or_closed(catalog: Catalog, tmp_path: Path) -> None:
    table = catalog.create_table("db.discarded", numbers_schema())
    files = files_of(catalog, table, open_max=1)
    for number in range(3):
        files.write(PartitionKey((bytes([number]),), f"p={number}"), numbers(table, 10))
    assert len(list(tmp_path.rglob("*.parquet"))) == 3
    files.discard()
    assert list(tmp_path.rglob("*.parquet")) == []


def test_a_plan_is_kept_until_it_is_old_or_asked_for_another_source(catalog: Catalog) -> None:
    table = catalog.create_table("db.plans", numbers_schema())
    now_s = [0.0]
    plans = Plans(catalog, age_ms_max=1000, monotonic_s=lambda: now_s[0])
    first = plans.plan_for_start(start_of(table), SourcePlan({}))
    assert plans.plan_for_start(start_of(table), SourcePlan({})) is first
    assert plans.plan_for_start(start_of(table), SourcePlan({"a": "b"})) is not first
    again = plans.plan_for_start(start_of(table), SourcePlan({}))
    now_s[0] = 1.5
    assert plans.plan_for_start(start_of(table), SourcePlan({})) is not again


def test_a_plan_that_is_old_is_dropped_when_another_is_kept(catalog: Catalog) -> None:
    """Else a process would keep one for each schema that each of its tables ever had."""
    starts = [start_of(catalog.create_table(f"db.{n}", numbers_schema())) for n in ("old", "new")]
    now_s = [0.0]
    plans = Plans(catalog, age_ms_max=1000, monotonic_s=lambda: now_s[0])
    old = plans.plan_for_start(starts[0], SourcePlan({}))
    now_s[0] = 1.5
    new = plans.plan_for_start(starts[1], SourcePlan({}))
    kept = [each for held in gc.get_referrers(old, new) if isinstance(held, tuple) for each in held]
    assert any(each is new for each in kept)
    assert not any(each is old for each in kept)


@pytest.mark.parametrize("place", ["/elsewhere/x", "{}", "{}/data", "{}x/data/7", "{}/data/../x"])
def test_a_start_whose_folder_is_not_the_tables_is_not_obeyed(catalog: Catalog, place: str) -> None:
    table = catalog.create_table("db.forged", numbers_schema())
    batch = Batch(
        number=1,
        transaction=TransactionId(Epoch(1), TransactionNumber(1)),
        table=replace(start_of(table), file_prefix=place.format(table.location())),
        ranges={},
        target_file_bytes=1,
    )
    plans = Plans(catalog)
    for _ in range(2):
        with pytest.raises(WriteFailed, match="which is not below"):
            plans.load_plan(batch, SourcePlan({}))
    plans.load_plan(replace(batch, table=start_of(table)), SourcePlan({}))


def test_another_table_under_the_same_name_is_refused(catalog: Catalog) -> None:
    start = start_of(catalog.create_table("db.again", numbers_schema()))
    catalog.drop_table("db.again")
    with pytest.raises(TableChanged, match=r"db\.again"):
        load_table_and_plan(catalog, start, SourcePlan({}))
    catalog.create_table("db.again", numbers_schema())
    with pytest.raises(TableChanged, match=start.uuid):
        load_table_and_plan(catalog, start, SourcePlan({}))


@pytest.mark.parametrize("columns", [{"offset": "missing"}, {"kay": "n"}])
def test_record_columns_that_cannot_be_are_refused(
    catalog: Catalog, columns: dict[str, str]
) -> None:
    start = start_of(catalog.create_table("db.columns", numbers_schema()))
    with pytest.raises(ConfigurationError):
        load_table_and_plan(catalog, start, SourcePlan({}, record_columns=columns))


def test_the_table_decides_how_large_files_become(catalog: Catalog) -> None:
    wanted = {"write.target-file-size-bytes": "200000"}
    table = catalog.create_table("db.target", numbers_schema(), properties=wanted)
    files = files_of(catalog, table)
    for _ in range(5):
        files.write(PartitionKey(), numbers(table, 30_000))
    written = files.finish()
    assert len(written) > 3
    assert all(150_000 < file.size_bytes < 300_000 for file in written[:-1])


def test_a_file_is_sorted_as_a_whole_and_says_so(catalog: Catalog) -> None:
    order = SortOrder(SortField(2, IdentityTransform()))
    table = catalog.create_table("db.sorted", numbers_schema(), sort_order=order)
    files = files_of(catalog, table, target_bytes=200_000)
    for _ in range(2):
        files.write(PartitionKey(), numbers(table, 50_000))
    written = files.finish()
    assert (
        {detail_of(file).sort_order_id for file in written} == {table.sort_order().order_id} == {1}
    )
    assert sum(file.records for file in written) == 100_000
    for file in written:
        texts = pq.read_table(file.path.removeprefix("file://"))["t"].to_pylist()
        assert texts == sorted(texts)


def test_a_file_of_an_unsorted_table_says_so(catalog: Catalog) -> None:
    table = catalog.create_table("db.unsorted", numbers_schema())
    files = files_of(catalog, table)
    files.write(PartitionKey(), numbers(table, 1))
    assert [detail_of(file).sort_order_id for file in files.finish()] == [0]


@pytest.mark.skipif(not parquet._BLOOM_POSSIBLE, reason="needs pyarrow 26")
def test_bloom_filters_exclude_what_is_not_there(catalog: Catalog) -> None:
    wanted = {"write.parquet.bloom-filter-enabled.column.t": "true"}
    table = catalog.create_table("db.bloom", numbers_schema(), properties=wanted)
    files = files_of(catalog, table)
    rows = numbers(table, 10_000)
    files.write(PartitionKey(), rows)
    (ours,) = files.finish()
    path = ours.path.removeprefix("file://")
    present = rows["t"][17].as_py()
    probe = f"SELECT bloom_filter_excludes FROM parquet_bloom_probe('{path}', 't', ?)"
    with duckdb.connect() as connection:
        excluded = {
            text: connection.execute(probe, [text]).fetchall()
            for text in (present, *(f"absent {number}" for number in range(100)))
        }
    assert excluded.pop(present) == [(False,)]
    assert list(excluded.values()).count([(True,)]) > 90


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ({}, r"p=x/[0-9a-f-]{36}"),
        ({"write.object-storage.enabled": "true"}, r"([01]{4}/){3}[01]{8}/p=x/[0-9a-f-]{36}"),
        (
            {
                "write.object-storage.enabled": "true",
                "write.object-storage.partitioned-paths": "false",
            },
            r"([01]{4}/){3}[01]{8}-[0-9a-f-]{36}",
        ),
    ],
)
def test_files_are_spread_below_the_sinks_folder_where_the_table_asks(
    catalog: Catalog, asked: dict[str, str], path: str
) -> None:
    table = catalog.create_table("db.spread", numbers_schema(), properties=asked)
    files = files_of(catalog, table)
    files.write(PartitionKey(folder="p=x"), numbers(table, 3))
    (file,) = files.finish()
    prefix = start_of(table).file_prefix
    assert re.fullmatch(rf"{re.escape(prefix)}/{path}\.parquet", file.path)
    assert table.io.new_input(file.path).exists()


def test_a_table_that_wants_its_data_elsewhere_has_it_there(
    catalog: Catalog, tmp_path: Path
) -> None:
    table = catalog.create_table("db.elsewhere", numbers_schema())
    plans = Plans(catalog)

    def written(prefix: str) -> str:
        batch = Batch(
            number=1,
            transaction=TransactionId(Epoch(1), TransactionNumber(1)),
            table=replace(start_of(table), file_prefix=prefix),
            ranges={},
            target_file_bytes=1,
        )
        return plans.load_plan(batch, SourcePlan({})).shape.data_location

    assert written(f"{table.location()}/data/nonce") == f"{table.location()}/data"
    elsewhere = (tmp_path / "elsewhere").as_uri()
    with table.transaction() as transaction:
        transaction.set_properties({"write.data.path": f"{elsewhere}/"})
    # The plan that is kept knows nothing of it: it is made anew, and not after ten minutes.
    assert written(f"{elsewhere}/headgate/sink/1-a/1") == elsewhere
    for outside in (f"{elsewhere}-not/1", f"{elsewhere}/../1", f"{table.location()}/data/nonce"):
        with pytest.raises(WriteFailed, match="which is not below"):
            written(outside)
