"""Converts columns to the simpler types of a file format, with its own names and labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as pa_types
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType

from headgate.control_protocol.errors import WriteFailed

Stored = Callable[[pa.Array], pa.Array]
Labels = Callable[[NestedField], dict[str, str]]


@dataclass(frozen=True, slots=True)
class TypeMapping:
    """Maps the columns of a table to what a file format stores.

    ``primitive`` converts values of a primitive type to the stored ones; ``name`` and ``labels``
    return a field's name in the file and what is written beside it. ``maps_as_lists``: a map is
    stored as a list of structs.
    """

    primitive: Callable[[PrimitiveType], Stored]
    name: Callable[[NestedField], str]
    labels: Labels
    maps_as_lists: bool = False

    def stored_rows(self, rows: pa.Table, struct: StructType) -> pa.Table:
        """Return the rows as stored. Raises ``WriteFailed`` for a null in a required column."""
        columns, fields = [], []
        for place, field in enumerate(struct.fields):
            column = rows.column(place).combine_chunks()
            if field.required and column.null_count:
                raise WriteFailed(f"column {field.name} is required, and a row has no value for it")
            if not isinstance(field.field_type, PrimitiveType):
                column = column.take(pa.array(np.arange(len(column))))  # offsets begin at zero
            columns.append(self._stored_array(column, field.field_type))
            fields.append(self._stored_field(field, columns[-1].type))
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))

    def _stored_field(self, field: NestedField, data_type: pa.DataType) -> pa.Field:
        return pa.field(
            self.name(field), data_type, nullable=not field.required, metadata=self.labels(field)
        )

    def _stored_array(self, array: pa.Array, iceberg_type: IcebergType) -> pa.Array:
        mask = array.is_null() if array.null_count else None
        if isinstance(iceberg_type, StructType):
            return self._stored_struct(array, iceberg_type, mask)
        if isinstance(iceberg_type, ListType):
            items = self._stored_array(array.values, iceberg_type.element_type)
            listed = pa.list_(self._stored_field(iceberg_type.element_field, items.type))
            offsets = array.offsets.cast(pa.int32())
            return pa.ListArray.from_arrays(offsets, items, type=listed, mask=mask)
        if isinstance(iceberg_type, MapType):
            return self._stored_map(array, iceberg_type, mask)
        assert isinstance(iceberg_type, PrimitiveType), "Iceberg has no other types"
        stored = array.storage if isinstance(array, pa.ExtensionArray) else array
        return self.primitive(iceberg_type)(stored)

    def _stored_struct(
        self, array: pa.StructArray, iceberg_type: StructType, mask: pa.Array | None
    ) -> pa.Array:
        inside = [
            self._stored_array(array.field(at), f.field_type)
            for at, f in enumerate(iceberg_type.fields)
        ]
        if not inside:
            return array
        fields = [
            self._stored_field(f, a.type) for f, a in zip(iceberg_type.fields, inside, strict=True)
        ]
        return pa.StructArray.from_arrays(inside, fields=fields, mask=mask)

    def _stored_map(
        self, array: pa.MapArray, iceberg_type: MapType, mask: pa.Array | None
    ) -> pa.Array:
        keys = self._stored_array(array.keys, iceberg_type.key_type)
        values = self._stored_array(array.items, iceberg_type.value_type)
        key = self._stored_field(iceberg_type.key_field, keys.type)
        value = self._stored_field(iceberg_type.value_field, values.type)
        if not self.maps_as_lists:
            mapped = pa.map_(key, value)
            return pa.MapArray.from_arrays(array.offsets, keys, values, type=mapped, mask=mask)
        pairs = pa.StructArray.from_arrays([keys, values], fields=[key, value])
        return pa.ListArray.from_arrays(array.offsets, pairs, mask=mask)


def large_types_as_small(values: pa.Array) -> pa.Array:
    """Return the values themselves, in the narrow type if Arrow has them in a wide one."""
    if pa_types.is_large_string(values.type):
        return values.cast(pa.string())
    if pa_types.is_large_binary(values.type):
        return values.cast(pa.binary())
    return values


def times_as_numbers(values: pa.Array) -> pa.Array:
    """Return dates and times as their underlying numbers."""
    return values.view(pa.int32() if pa_types.is_date32(values.type) else pa.int64())
