"""Data files in ORC and Avro, as the table's ``write.format.default`` asks for them."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from datetime import UTC
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pytest
from hypothesis import given
from hypothesis import strategies as some
from integration.data_plane.every_type import SCHEMA, TIME, arrow_rows, rows
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzNanoType,
    TimestamptzType,
)
from support.local_catalog import local_catalog

from headgate.control_protocol.errors import ConfigurationError, WriteFailed
from headgate.control_protocol.events import TableStart
from headgate.data_plane.batch.writer_task_plan import SourcePlan, load_table_and_plan
from headgate.data_plane.files.data_files import DataFiles, file_shape_of
from headgate.data_plane.files.format_choice import (
    file_format_encoding_of,
    require_usable_write_properties,
)
from headgate.data_plane.files.metrics import leaves_of, metrics_modes
from headgate.data_plane.files.partitioning import PartitionKey
from headgate.data_plane.formats.casting.relabel import rows_from_python
from headgate.tables.iceberg.data_file import FileDetail

FORMAT = "write.format.default"
EVERY = Schema(*SCHEMA.fields, TIME)
ONLY_PARQUET = ("column_sizes", "split_offsets")
MODES: dict[str, dict[str, str]] = {
    "plain": {},
    "counts": {"write.metadata.metrics.default": "counts"},
    "full": {"write.metadata.metrics.default": "full"},
    "short": {"write.metadata.metrics.default": "truncate(1)"},
    "none": {"write.metadata.metrics.default": "none"},
}


def written(
    schema: Schema, table: pa.Table, properties: Mapping[str, str], calls: int = 1
) -> tuple[io.BytesIO, dict[str, Any]]:
    """A file of the rows, written in so many calls, and what is said of it."""
    leaves = leaves_of(schema, metrics_modes(schema, properties, UNSORTED_SORT_ORDER))
    stream = io.BytesIO()
    encoder = file_format_encoding_of(schema, properties, leaves).begin_file(stream, table)
    size = -(-max(1, table.num_rows) // calls)
    for begin in range(0, table.num_rows, size):
        encoder.write(table.slice(begin, size))
    encoder.close()
    count, statistics = encoder.row_count_and_statistics()
    assert count == table.num_rows
    return io.BytesIO(stream.getvalue()), statistics


def table_of(schema: Schema, values: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_batches([rows_from_python(values, schema_to_pyarrow(schema))])


@pytest.mark.parametrize("modes", MODES)
@pytest.mark.parametrize("kind", ["orc", "avro"])
def test_statistics_are_those_of_a_parquet_file(kind: str, modes: str) -> None:
    """These in turn are compared with Spark's in ``test_files_as_others_see_them``."""
    table = table_of(EVERY, rows())
    _, parquet = written(EVERY, table, MODES[modes])
    _, other = written(EVERY, table, {**MODES[modes], FORMAT: kind}, calls=2)
    for name in ONLY_PARQUET:
        parquet.pop(name)
    assert other == parquet


@given(
    some.lists(
        some.fixed_dictionaries(
            {
                "n": some.none() | some.integers(-(2**63), 2**63 - 1),
                "d": some.none() | some.decimals(-(10**27), 10**27, places=10),
                "f": some.none() | some.floats(),
                "t": some.none() | some.datetimes(timezones=some.just(UTC)),
                "s": some.none() | some.text(max_size=40),
                "in": some.none() | some.fixed_dictionaries({"x": some.none() | some.text()}),
                "m": some.none()
                | some.lists(some.tuples(some.text(max_size=3), some.none() | some.text())),
            }
        ),
        min_size=1,
        max_size=20,
    )
)
def test_any_values_are_in_an_avro_file_and_have_parquets_statistics(
    values: list[dict[str, Any]],
) -> None:
    schema = Schema(
        NestedField(1, "n", LongType()),
        NestedField(2, "d", DecimalType(38, 10)),
        NestedField(3, "f", DoubleType()),
        NestedField(4, "t", TimestamptzType()),
        NestedField(5, "s", StringType()),
        NestedField(6, "in", StructType(NestedField(7, "x", StringType()))),
        NestedField(8, "m", MapType(9, StringType(), 10, StringType(), False)),
    )
    table = table_of(schema, values)
    _, parquet = written(schema, table, {})
    file, found = written(schema, table, {FORMAT: "avro"}, calls=2)
    assert found == {name: of for name, of in parquet.items() if name not in ONLY_PARQUET}
    assert plain(list(fastavro.reader(file))) == plain(table.to_pylist())


@pytest.mark.parametrize("codec", ["gzip", "uncompressed"])
def test_an_avro_file_has_every_value(codec: str) -> None:
    """The other codecs are read by Spark: fastavro would need libraries for them; and it rounds
    one decimal where a schema has several."""
    schema = Schema(*(field for field in EVERY.fields if field.name != "decimal38"))
    table = table_of(schema, rows())
    file, _ = written(schema, table, {FORMAT: "avro", "write.avro.compression-codec": codec})
    seen: list[dict[str, Any]] = list(fastavro.reader(file))  # type: ignore[arg-type]
    for row in seen:  # fastavro knows neither Iceberg's local times nor its UUIDs
        row["timestamp"] = row["timestamp"] and row["timestamp"].replace(tzinfo=None)
        row["uuid"] = row["uuid"] and UUID(bytes=row["uuid"])
    assert plain(seen) == plain(table.to_pylist())


def plain(value: Any) -> Any:
    """Values as text, and a map's pairs as tuples, as Arrow has them."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        pairs = [
            tuple(of.values()) if isinstance(of, dict) and set(of) == {"key", "value"} else of
            for of in value
        ]
        return [plain(of) for of in pairs]
    if isinstance(value, tuple):
        return tuple(plain(of) for of in value)
    return str(value)


def test_an_orc_file_has_every_value_and_the_ids_of_fields() -> None:
    table = table_of(EVERY, rows()[1:3])
    file, _ = written(EVERY, table, {FORMAT: "orc"})
    seen = orc.ORCFile(file).read()
    labels = {name: seen.schema.field(name).metadata for name in ("id", "time", "uuid", "fixed")}
    assert {name: found[b"iceberg.id"] for name, found in labels.items()} == {
        "id": b"1",
        "time": b"27",
        "uuid": b"18",
        "fixed": b"19",
    }
    assert labels["id"][b"iceberg.required"] == b"true"
    assert labels["time"][b"iceberg.long-type"] == b"TIME"
    assert labels["uuid"][b"iceberg.binary-type"] == b"UUID"
    assert labels["fixed"][b"iceberg.length"] == b"20"
    inner = seen.schema.field("map").type
    ids = [field.metadata[b"iceberg.id"] for field in (inner.key_field, inner.item_field)]
    assert ids == [b"61", b"62"]
    plain = [name for name in table.column_names if name not in ("time", "uuid")]
    assert repr(seen.select(plain).cast(table.select(plain).schema).to_pylist()) == repr(
        table.select(plain).to_pylist()
    )


def test_names_that_avro_does_not_allow_are_spelt_as_iceberg_spells_them() -> None:
    schema = Schema(NestedField(1, "1 fare", LongType()), NestedField(2, "größe", StringType()))
    file, _ = written(schema, table_of(schema, [{"1 fare": 7, "größe": "x"}]), {FORMAT: "avro"})
    reader = fastavro.reader(file)
    assert list(reader) == [{"_1_x20fare": 7, "gr_xF6_xDFe": "x"}]


def test_columns_whose_names_become_one_avro_name_keep_their_values() -> None:
    pair = ["a-b", "a_x2Db", "a_x2Db_1"]
    inner = StructType(*(NestedField(n, name, LongType()) for n, name in enumerate(pair, 1)))
    others = [NestedField(5, "1a", LongType()), NestedField(6, "_1a", LongType())]
    schema = Schema(NestedField(4, "in", inner), *others)
    row = {"in": dict(zip(pair, (1, 2, 3), strict=True)), "1a": 4, "_1a": 5}
    file, _ = written(schema, table_of(schema, [row]), {FORMAT: "avro"})
    reader = fastavro.reader(file)
    assert list(reader) == [
        {"in": {"a_x2Db_1_1": 1, "a_x2Db": 2, "a_x2Db_1": 3}, "_1a_5": 4, "_1a": 5}
    ]


@pytest.mark.parametrize("kind", ["orc", "avro"])
def test_a_null_in_a_required_column_is_not_written(kind: str) -> None:
    schema = Schema(NestedField(1, "id", LongType(), required=True))
    table = pa.table({"id": pa.array([1, None], pa.int64())})
    with pytest.raises(WriteFailed, match="id is required"):
        written(schema, table, {FORMAT: kind})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (FORMAT, "csv"),
        ("write.orc.compression-codec", "lzo"),
        ("write.orc.stripe-size-bytes", "0"),
        ("write.orc.compression-strategy", "best"),
        ("write.avro.compression-codec", "brotli"),
        ("write.object-storage.enabled", "maybe"),
        ("write.object-storage.partitioned-paths", "2"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(name: str, value: str) -> None:
    part = name.split(".")[1]
    kind = "csv" if name == FORMAT else part if part in ("orc", "avro") else "parquet"
    with pytest.raises(ConfigurationError, match=name):
        require_usable_write_properties(SCHEMA, {FORMAT: kind, name: value}, UNSORTED_SORT_ORDER)


@pytest.mark.parametrize(
    ("moment", "kind"), [(-1, "parquet"), (-1_000_000, "orc"), (1, "orc"), (None, "orc")]
)
def test_moments_that_orc_would_garble_go_into_a_parquet_file(
    moment: int | None, kind: str, tmp_path: Path
) -> None:
    """Arrow's writer stores the fraction of a second before 1970 as no reader expects it."""
    inside = StructType(NestedField(3, "at", TimestamptzType()))
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "deep", ListType(4, inside, element_required=False)),
    )
    local = local_catalog(tmp_path)
    table = local.catalog.create_table("db.t", schema, properties={FORMAT: "orc"})
    good = arrow_rows(table, [{"id": 1, "deep": [{"at": 5}, None]}])
    other = arrow_rows(table, [{"id": 2, "deep": [None, {"at": moment}]}])
    start = TableStart("db.t", str(table.metadata.table_uuid), 0, 0, f"{table.location()}/data/n")
    shape = file_shape_of(load_table_and_plan(local.catalog, start, SourcePlan({})))
    files = DataFiles(shape, start.file_prefix, 1 << 27)
    for rows_of_a_call in (good, other, good):
        files.write(PartitionKey(), rows_of_a_call)
    found = [(FileDetail.decode(f.detail).file_format, f.records) for f in files.finish()]
    split = [("orc", 1), ("parquet", 1), ("orc", 1)]
    assert found == (split if kind == "parquet" else [("orc", 3)])


@pytest.mark.parametrize("kind", ["orc", "avro"])
def test_nanoseconds_are_refused_by_their_columns_name(kind: str) -> None:
    inside = StructType(NestedField(2, "at", TimestamptzNanoType()))
    schema = Schema(NestedField(1, "trip", inside))
    require_usable_write_properties(schema, {}, UNSORTED_SORT_ORDER)
    with pytest.raises(ConfigurationError, match=r"column trip\.at is of type timestamptz_ns"):
        require_usable_write_properties(schema, {FORMAT: kind}, UNSORTED_SORT_ORDER)


@pytest.mark.parametrize("kind", ["orc", "avro"])
def test_a_plan_that_travelled_to_a_task_writes_the_tables_format(
    kind: str, tmp_path: Path
) -> None:
    schema = Schema(NestedField(1, "id", LongType(), required=True))
    local = local_catalog(tmp_path)
    table = local.catalog.create_table("db.t", schema, properties={FORMAT: kind})
    start = TableStart("db.t", str(table.metadata.table_uuid), 0, 0, f"{table.location()}/data/n")
    sent = pickle.dumps(load_table_and_plan(local.catalog, start, SourcePlan({})))
    files = DataFiles(file_shape_of(pickle.loads(sent)), start.file_prefix, 1 << 27)
    files.write(PartitionKey(), arrow_rows(table, [{"id": 1}]))
    (file,) = files.finish()
    assert (FileDetail.decode(file.detail).file_format, file.path.rpartition(".")[2]) == (
        kind,
        kind,
    )
