"""Avro written by fastavro, which shares no code with what reads it here."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import strategies as st
from unit.data_plane.formats.json_tables import plain_rows

from headgate.data_plane.formats.avro.format import AvroRecords
from headgate.data_plane.formats.record_format import UndecodableRecords


def record(**fields: Any) -> dict[str, Any]:
    listed = [{"name": name, "type": kind} for name, kind in fields.items()]
    return {"type": "record", "name": "Row", "fields": listed}


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def physical(schema: Any) -> Any:
    """The schema without logical types: what their values are on the wire."""
    if isinstance(schema, dict):
        return {key: physical(part) for key, part in schema.items() if key != "logicalType"}
    return [physical(part) for part in schema] if isinstance(schema, list) else schema


def zigzag(number: int) -> bytes:
    number = ((number << 1) ^ (number >> 63)) & (2**64 - 1)
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def decoded(schema: Any, values: Sequence[bytes], columns: pa.Schema) -> list[dict[str, Any]]:
    return plain_rows(AvroRecords({"schema": json.dumps(schema)}).decode(values, columns))


def reasons(schema: Any, values: Sequence[bytes], columns: pa.Schema) -> Mapping[int, str]:
    """What is bad; empty when nothing is."""
    try:
        AvroRecords({"schema": json.dumps(schema)}).decode(values, columns)
    except UndecodableRecords as error:
        assert error.rest.num_rows + len(error.bad) == len(values)
        error.rest.validate(full=True)
        return error.bad
    return {}


# -------------------------------------------------------- any schema, its column, and its values

_LEAVES: list[tuple[Any, pa.DataType, st.SearchStrategy[Any]]] = [
    ("boolean", pa.bool_(), st.booleans()),
    ("int", pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    ("long", pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    ("float", pa.float32(), st.floats(width=32, allow_nan=False)),
    ("double", pa.float64(), st.floats(allow_nan=False)),
    ("string", pa.large_string(), st.text(max_size=9)),
    ("bytes", pa.large_binary(), st.binary(max_size=9)),
]
_leaf = st.sampled_from(_LEAVES)
World = tuple[Any, pa.DataType, st.SearchStrategy[Any]]


def _nullable(world: World) -> World:
    schema, column, values = world
    return ["null", schema], column, st.none() | values


def _array(world: World) -> World:
    schema, column, values = world
    return {"type": "array", "items": schema}, pa.large_list(column), st.lists(values, max_size=4)


def _map(world: World) -> World:
    schema, column, values = world
    kind = pa.map_(pa.large_string(), column)
    entries = st.dictionaries(st.text(max_size=3), values, max_size=3)
    return {"type": "map", "values": schema}, kind, entries


@st.composite
def _named(draw: st.DrawFn, inner: st.SearchStrategy[World]) -> World:
    name = f"N{draw(st.uuids()).hex}"
    if draw(st.booleans()):
        size = draw(st.integers(1, 20))
        fixed = {"type": "fixed", "name": name, "size": size}
        return fixed, pa.binary(size), st.binary(min_size=size, max_size=size)
    parts = draw(st.lists(inner, min_size=1, max_size=3))
    names = [f"f{number}" for number in range(len(parts))]
    schema = {
        "type": "record",
        "name": name,
        "fields": [{"name": n, "type": part[0]} for n, part in zip(names, parts, strict=True)],
    }
    column = pa.struct([(n, part[1]) for n, part in zip(names, parts, strict=True)])
    values = st.fixed_dictionaries({n: part[2] for n, part in zip(names, parts, strict=True)})
    return schema, column, values


def _is_union(world: World) -> bool:
    return isinstance(world[0], list)


worlds: st.SearchStrategy[World] = st.recursive(
    _leaf,
    lambda inner: st.one_of(
        inner.filter(lambda world: not _is_union(world)).map(_nullable),
        inner.map(_array),
        inner.map(_map),
        _named(inner),
    ),
    max_leaves=4,
)


def normal(value: Any, column: pa.DataType) -> Any:
    """What fastavro gave, in Arrow's shape for the column."""
    if value is None:
        return None
    if pa.types.is_map(column):
        return [(key, normal(item, column.item_type)) for key, item in value.items()]
    if pa.types.is_large_list(column):
        return [normal(item, column.value_type) for item in value]
    if pa.types.is_struct(column):
        return {field.name: normal(value[field.name], field.type) for field in column}
    return value
