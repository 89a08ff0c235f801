"""Fills values of required fields inside of null structs.

Such a field has no value, and none is written; but Arrow's Parquet writer refuses the null that
stands for it. So a value that nobody ever sees replaces it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from headgate.data.formats.retyped import array_from


def hiding(schema: pa.Schema) -> tuple[int, ...]:
    """Return the columns in which a struct that may be null has a required field."""
    return tuple(place for place, field in enumerate(schema) if _hides(field))


def filled(table: pa.Table, places: tuple[int, ...]) -> pa.Table:
    """Return the table with values in these columns where a null would be refused."""
    for place in places:
        field = table.schema.field(place)
        column = table.column(place).combine_chunks()
        whole = column.take(pa.array(np.arange(len(column))))  # not a slice: offsets begin at zero
        table = table.set_column(place, field, _filled(whole, field.type))
    return table


def _hides(field: pa.Field) -> bool:
    kind = field.type
    if kinds.is_struct(kind):
        required = any(not child.nullable for child in kind)
        return (field.nullable and required) or any(map(_hides, kind))
    if kinds.is_map(kind):
        return _hides(kind.item_field)
    return _is_list(kind) and _hides(kind.value_field)


def _filled(array: pa.Array, kind: pa.DataType) -> pa.Array:
    mask = array.is_null() if array.null_count else None
    if kinds.is_struct(kind):
        children = [_child(array, place, field) for place, field in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if kinds.is_map(kind):
        items = _filled(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, array.keys, items, type=kind, mask=mask)
    if _is_list(kind):
        made = pa.LargeListArray if kinds.is_large_list(kind) else pa.ListArray
        return made.from_arrays(
            array.offsets, _filled(array.values, kind.value_type), type=kind, mask=mask
        )
    return array


def _child(records: pa.StructArray, place: int, field: pa.Field) -> pa.Array:
    values = _filled(records.field(place), field.type)
    if field.nullable or not records.null_count or not values.null_count:
        return values
    # Only what is hidden: a null in a struct that is not null is still refused.
    hidden = np.asarray(records.is_null())
    plain = values.storage if isinstance(values, pa.ExtensionArray) else values
    both = pa.concat_arrays([plain, array_from([_something(plain.type)], plain.type)])
    found = both.take(pa.array(np.where(hidden, len(plain), np.arange(len(plain)))))
    return (
        pa.ExtensionArray.from_storage(values.type, found)
        if isinstance(values, pa.ExtensionArray)
        else found
    )


def _something(kind: pa.DataType) -> Any:
    if kinds.is_struct(kind):
        return {field.name: _something(field.type) for field in kind}
    if kinds.is_map(kind) or _is_list(kind):
        return []
    if kinds.is_fixed_size_binary(kind):
        return bytes(kind.byte_width)
    if isinstance(kind, pa.BaseExtensionType):
        return _something(kind.storage_type)
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return ""
    if kinds.is_binary(kind) or kinds.is_large_binary(kind):
        return b""
    return False if kinds.is_boolean(kind) else 0


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind))
