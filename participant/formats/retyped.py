"""The same Arrow values under another type of the same shape: other names, other labels."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as kinds


def retyped(values: pa.Array, target: pa.DataType) -> pa.Array:
    """``values`` as ``target``, whose storage throughout is that of the values."""
    mask = values.is_null() if values.null_count else None
    if isinstance(target, pa.ExtensionType):
        stored = values.storage if isinstance(values, pa.ExtensionArray) else values
        return pa.ExtensionArray.from_storage(target, stored)
    if kinds.is_struct(target):
        inside = [retyped(values.field(at), field.type) for at, field in enumerate(target)]
        if not inside:
            return values
        return pa.StructArray.from_arrays(inside, fields=list(target), mask=mask)
    if kinds.is_map(target):
        keys, items = retyped(values.keys, target.key_type), retyped(values.items, target.item_type)
        return pa.MapArray.from_arrays(values.offsets, keys, items, type=target, mask=mask)
    if kinds.is_list(target) or kinds.is_large_list(target):
        items = retyped(values.values, target.value_type)
        kind = pa.LargeListArray if kinds.is_large_list(target) else pa.ListArray
        return kind.from_arrays(values.offsets, items, type=target, mask=mask)
    return values


def retyped_rows(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns, by their places, under the schema's names."""
    columns = [retyped(rows.column(at), field.type) for at, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
