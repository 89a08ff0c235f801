"""Reads JSON objects whose writer left a JSON Schema in a registry."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pa_types

from headgate.control_protocol.columns import Column, ListOf, Struct, Type
from headgate.data_plane.formats.casting.decimals import Unscaled
from headgate.data_plane.formats.connect.arrow_schema import (
    Unread,
    pruned_type,
)
from headgate.data_plane.formats.connect.format import ConnectJsonRecords
from headgate.data_plane.formats.connect.json_schema_translation import JsonSchema
from headgate.data_plane.formats.connect.schema_inference import with_default_precision
from headgate.data_plane.formats.json import values as json_values
from headgate.data_plane.formats.json.format import JsonRecords
from headgate.data_plane.formats.record_format import UndecodableRecords
from headgate.data_plane.formats.unknown_fields import UnknownColumns, UnknownFieldFinder
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Flags


class SchemaJsonRecords(JsonRecords):
    """Reads values as ``JsonRecords``, unless their schema says what they cannot.

    Unknown fields are those of the schema, and those that values have beyond it: JSON Schemas are
    open unless they say otherwise.
    """

    def __init__(self, schema: JsonSchema) -> None:
        super().__init__()
        self._schema = schema
        self._columns: UnknownFieldFinder | None = None
        self._typed = ConnectJsonRecords({}) if schema.connect else None

    def decode(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        if self._typed is None:
            return super().decode(values, schema)
        packed = Packed.pack(values)
        try:
            return self._typed.decode_payloads(self._schema.connect, list(packed), schema)
        except UndecodableRecords as error:
            if self._schema.counted:
                raise  # read as plain JSON, its numbers would be other times
            known, bad = error.rest, error.bad
        # Connect's converter can write decimals as numbers too, under the same schema.
        rows = np.array(sorted(bad), np.int64)
        rows = rows[self._flag_decimals_all_numbers(packed.take(rows), schema)]
        try:
            read, left = super().decode(packed.take(rows), schema), rows
        except UndecodableRecords as error:
            read, left = error.rest, np.delete(rows, list(error.bad))
        first = np.delete(np.arange(len(packed), dtype=np.int64), list(bad))
        for row in left.tolist():
            del bad[row]
        order = np.argsort(np.concatenate([first, left]))
        together = pa.concat_batches([known, read]).take(pa.array(order))
        if bad:
            raise UndecodableRecords(bad, together)
        return together

    def _flag_decimals_all_numbers(self, values: Packed, schema: pa.Schema) -> Flags:
        """Return in which records no decimal that a column looks for is anything but a number.

        Only those can be read as plain JSON: there, base64 is a text, or another number.
        """
        assert self._typed is not None, "asked only where it could not read these"
        try:
            whole = self._typed.type_unless_null_schema(self._schema.connect)
        except ValueError:  # the reason why all of them are bad
            whole = None
        if whole is None:
            return np.zeros(len(values), np.bool_)
        kind = pruned_type(whole, schema)
        return np.array([_spells_decimals_as_numbers(value, kind) for value in values], np.bool_)

    def unknown_columns_of_last_decode(
        self, values: Sequence[bytes], bad_rows: Collection[int], /
    ) -> Iterable[UnknownColumns]:
        assert self._finder is not None, "nobody watches"
        wanted = _required_columns_only(self._finder.columns_needed_by_writer(self._schema.columns))
        if wanted.fields and len(values):
            yield np.arange(len(values), dtype=np.int64), with_default_precision(wanted)
        if self._typed is not None:
            self._marks = None
        for rows, shown in super().unknown_columns_of_last_decode(values, bad_rows):
            beyond = _undeclared_columns(shown, self._schema.columns)
            if beyond.fields:
                yield rows, beyond


def _spells_decimals_as_numbers(value: bytes, data_type: pa.DataType) -> bool:
    try:
        record = json_values.parse_record(value)
    except ValueError:
        return False
    return all(
        isinstance(found, int | Decimal) and not isinstance(found, bool)
        for found in _decimals_inside(record, data_type)
    )


def _decimals_inside(value: Any, data_type: pa.DataType) -> Iterator[Any]:
    """Yield what stands where the schema has a decimal, nulls apart."""
    if isinstance(data_type, Unscaled | Unread):
        if value is not None:
            yield value
    elif pa_types.is_struct(data_type) and isinstance(value, dict):
        for child in data_type:
            yield from _decimals_inside(value.get(child.name), child.type)
    elif pa_types.is_map(data_type) and isinstance(value, dict):
        for item in value.values():
            yield from _decimals_inside(item, data_type.item_type)
    elif pa_types.is_large_list(data_type) and isinstance(value, list):
        for item in value:
            yield from _decimals_inside(item, data_type.value_type)


def _required_columns_only(wanted: Struct) -> Struct:
    """Leave out columns that are only to become optional: a schema that does not name a field says
    nothing of it."""
    kept = (
        replace(each, type=_type_with_required_columns_only(each.type))
        for each in wanted.fields
        if each.required
    )
    return Struct(tuple(each for each in kept if each.type != Struct()))


def _type_with_required_columns_only(column_type: Type) -> Type:
    match column_type:
        case Struct():
            return _required_columns_only(column_type)
        case ListOf(element):
            return ListOf(replace(element, type=_type_with_required_columns_only(element.type)))
        case _:
            return column_type


def _undeclared_columns(shown: Struct, declared: Struct) -> Struct:
    """Return what values show, without what the schema declares."""
    known = {column.name: column.type for column in declared.fields}
    found: list[Column] = []
    for column in shown.fields:
        if column.name not in known:
            found.append(column)
        elif (kind := _undeclared_part_of_type(column.type, known[column.name])) is not None:
            found.append(replace(column, type=kind))
    return Struct(tuple(found))


def _undeclared_part_of_type(shown: Type, declared: Type) -> Type | None:
    match shown, declared:
        case Struct(), Struct():
            left = _undeclared_columns(shown, declared)
            return left if left.fields else None
        case ListOf(item), ListOf(known):
            kind = _undeclared_part_of_type(item.type, known.type)
            return None if kind is None else ListOf(replace(item, type=kind))
        case _:
            return None
