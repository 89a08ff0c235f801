"""Relabels Arrow values with another type of the same shape: other names, other labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.types as pa_types


def relabel_with_type(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Return ``values`` as ``target``, whose storage must equal that of the values throughout."""
    mask = values.is_null() if values.null_count else None
    if isinstance(target, pa.BaseExtensionType):
        stored = values.storage if isinstance(values, pa.ExtensionArray) else values
        return pa.ExtensionArray.from_storage(target, stored)
    if pa_types.is_struct(target):
        inside = [
            relabel_with_type(values.field(at), field.type) for at, field in enumerate(target)
        ]
        if not inside:
            return values
        return pa.StructArray.from_arrays(inside, fields=list(target), mask=mask)
    if pa_types.is_map(target):
        keys, items = (
            relabel_with_type(values.keys, target.key_type),
            relabel_with_type(values.items, target.item_type),
        )
        return pa.MapArray.from_arrays(values.offsets, keys, items, type=target, mask=mask)
    if pa_types.is_list(target) or pa_types.is_large_list(target):
        items = relabel_with_type(values.values, target.value_type)
        kind = pa.LargeListArray if pa_types.is_large_list(target) else pa.ListArray
        return kind.from_arrays(values.offsets, items, type=target, mask=mask)
    return values


def apply_schema_by_position(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns, by position, under the schema's names."""
    columns = [relabel_with_type(rows.column(at), field.type) for at, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def rows_from_python(values: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Build rows from Python values. Arrow itself cannot build UUIDs inside structs."""
    stored = _storage_schema(schema)
    if stored is schema:
        return pa.RecordBatch.from_pylist(list(values), schema)
    return apply_schema_by_position(pa.RecordBatch.from_pylist(list(values), stored), schema)


def array_from_python(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """Build a column from Python values, likewise."""
    return relabel_with_type(pa.array(values, storage_type(data_type)), data_type)


@lru_cache(maxsize=64)
def _storage_schema(schema: pa.Schema) -> pa.Schema:
    stored = [storage_type(field.type) for field in schema]
    if stored == schema.types:
        return schema
    return pa.schema([pa.field(*of) for of in zip(schema.names, stored, strict=True)])


def storage_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type without extensions, which Arrow stores values of this type as."""
    if isinstance(data_type, pa.BaseExtensionType):
        return data_type.storage_type
    if pa_types.is_struct(data_type):
        return pa.struct([pa.field(field.name, storage_type(field.type)) for field in data_type])
    if pa_types.is_map(data_type):
        return pa.map_(storage_type(data_type.key_type), storage_type(data_type.item_type))
    if pa_types.is_large_list(data_type):
        return pa.large_list(storage_type(data_type.value_type))
    return (
        pa.list_(storage_type(data_type.value_type)) if pa_types.is_list(data_type) else data_type
    )
