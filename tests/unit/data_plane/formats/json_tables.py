"""A schema with every type that a table can have, and the table values that JSON should give."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headgate.data_plane.formats.json.format import JsonRecords
from headgate.data_plane.formats.record_format import UndecodableRecords

UTC = pa.timestamp("us", tz="UTC")

COLUMNS: dict[str, pa.DataType] = {
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(10, 2),
    "wide_decimal": pa.decimal128(38, 10),
    "boolean": pa.bool_(),
    "string": pa.large_string(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": UTC,
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", tz="UTC"),
    "uuid": pa.uuid(),
    "fixed": pa.binary(4),
    "binary": pa.large_binary(),
    "struct": pa.struct([("a", pa.int64()), ("b", UTC)]),
    "list": pa.large_list(pa.int32()),
    "map": pa.map_(pa.large_string(), pa.decimal128(10, 2)),
    "deep": pa.large_list(pa.struct([("m", pa.map_(pa.large_string(), pa.large_list(UTC)))])),
}
EVERYTHING = pa.schema(list(COLUMNS.items()))


def one_column(name: str, *, required: bool = False) -> pa.Schema:
    return pa.schema([pa.field("v", COLUMNS[name], nullable=not required)])


def document(text: str) -> bytes:
    """A record with the one column ``v``, spelled as given."""
    return b'{"v":%s}' % text.encode()


def decoded(schema: pa.Schema, values: Sequence[bytes]) -> list[dict[str, Any]]:
    return plain_rows(JsonRecords().decode(values, schema))


def reasons(schema: pa.Schema, values: Sequence[bytes]) -> Mapping[int, str]:
    """What is bad; empty when nothing is."""
    try:
        JsonRecords().decode(values, schema)
    except UndecodableRecords as error:
        assert error.rest.num_rows + len(error.bad) == len(values)
        return error.bad
    return {}


def plain_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows whose temporal values are counts: exact, and without a time zone database."""
    columns = [_counts(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()


def _counts(column: pa.Array) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        return column.storage
    return column.cast(_counted(column.type))


def _counted(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_temporal(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([(child.name, _counted(child.type)) for child in kind])
    if pa.types.is_large_list(kind):
        return pa.large_list(_counted(kind.value_type))
    if pa.types.is_list(kind):
        return pa.list_(_counted(kind.value_type))
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_map(kind):
        return pa.map_(_counted(kind.key_type), _counted(kind.item_type))
    return kind


def as_json(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record).encode()
