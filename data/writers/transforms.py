"""Iceberg's transforms over whole columns, bound to their source column."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, Transform, TruncateTransform, VoidTransform
from pyiceberg.types import NestedField, PrimitiveType

from headgate.control_protocol.errors import TableChanged


class TransformedColumn:
    """One transform of one column; ``of`` names its owner in errors.

    Raises ``TableChanged`` for a source that has no values of its own, and for an unknown
    transform.
    """

    def __init__(self, transform: Transform[Any, Any], source_id: int, schema: Schema, of: str):
        source: NestedField = schema.find_field(source_id)
        if not isinstance(source.field_type, PrimitiveType):
            raise TableChanged(f"{of}: {source.name} is not primitive")
        self._path = str(schema.find_column_name(source_id))
        self._transform = transform
        try:
            self._function = transform.pyarrow_transform(source.field_type)
        except NotImplementedError as error:
            raise TableChanged(
                f"{of}: the transform {transform} is not known",
                "upgrade headgate, or use known transforms",
            ) from error

    def of(self, table: pa.Table) -> pa.Array:
        """Return the transformed values, one per row."""
        source = column_at(table, self._path)
        if isinstance(self._transform, IdentityTransform):
            return source.storage if isinstance(source, pa.ExtensionArray) else source
        source = _plain(source)
        if isinstance(self._transform, TruncateTransform) and kinds.is_large_binary(source.type):
            return pc.binary_slice(source, 0, self._transform.width)
        if isinstance(self._transform, VoidTransform):
            return pa.nulls(len(source), source.type)
        return self._function(source)


def column_at(table: pa.Table, path: str) -> pa.Array:
    """Return the column under a dotted path; null where a struct around it is null."""
    if path in table.column_names:
        column = table.column(path)
    else:
        first, *rest = path.split(".")
        column = pc.struct_field(table.column(first), rest)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _plain(column: pa.Array) -> pa.Array:
    """Return what the transforms take: storage of extension types, and microseconds.

    They round nanoseconds before 1970 towards zero; flooring to microseconds first gives the same
    years, months, days, hours and (by the specification) buckets.
    """
    if isinstance(column, pa.ExtensionArray):
        return column.storage
    if not (kinds.is_timestamp(column.type) and column.type.unit == "ns"):
        return column
    nanoseconds = column.cast(pa.int64())
    towards_zero = pc.divide(nanoseconds, 1_000)
    below = pc.less(nanoseconds, pc.multiply(towards_zero, 1_000)).cast(pa.int64())
    return pc.subtract(towards_zero, below).cast(pa.timestamp("us", column.type.tz))
