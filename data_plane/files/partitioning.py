"""Splits rows into table partitions: Iceberg's transforms over whole columns, a group per value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pa_types
from pyiceberg.conversions import to_bytes
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, Transform, TruncateTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField, PrimitiveType, StructType

from headgate.control_protocol.errors import TableChanged


class TransformedColumn:
    """Applies one transform to one column; ``of`` names its owner in errors.

    Raises ``TableChanged`` for a source that has no values of its own, and for an unknown
    transform.
    """

    def __init__(self, transform: Transform[Any, Any], source_id: int, schema: Schema, of: str):
        source: NestedField = schema.find_field(source_id)
        if not isinstance(source.field_type, PrimitiveType):
            raise TableChanged(f"{of}: {source.name} is not primitive")
        self._path = _path_through_structs(schema.as_struct(), source_id)
        if not self._path:
            raise TableChanged(f"{of}: {source.name} is inside of a list or a map")
        self._transform = transform
        try:
            self._function = transform.pyarrow_transform(source.field_type)
        except NotImplementedError as error:
            raise TableChanged(
                f"{of}: the transform {transform} is not known",
                "upgrade headgate, or use known transforms",
            ) from error

    def transformed_values(self, table: pa.Table) -> pa.Array:
        """Return the transformed values, one per row."""
        source = column_at_path(table, self._path)
        if isinstance(self._transform, IdentityTransform):
            return source.storage if isinstance(source, pa.ExtensionArray) else source
        source = _as_transform_input(source)
        if isinstance(self._transform, TruncateTransform) and pa_types.is_large_binary(source.type):
            return pc.binary_slice(source, 0, self._transform.width)
        if isinstance(self._transform, VoidTransform):
            return pa.nulls(len(source), source.type)
        return self._function(source)


def _path_through_structs(struct: StructType, field_id: int) -> tuple[str, ...]:
    """Return the names that lead to the field; empty where structs alone do not."""
    for field in struct.fields:
        if field.field_id == field_id:
            return (field.name,)
        if isinstance(field.field_type, StructType):
            inside = _path_through_structs(field.field_type, field_id)
            if inside:
                return (field.name, *inside)
    return ()


def column_at_path(table: pa.Table, path: Sequence[str]) -> pa.Array:
    """Return the column under the names, any of which may have dots; null where a struct around it
    is null."""
    first, *rest = path
    column = table.column(first)
    if rest:
        column = pc.struct_field(column, rest)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _as_transform_input(column: pa.Array) -> pa.Array:
    """Return what the transforms take: storage of extension types, and microseconds.

    They round nanoseconds before 1970 towards zero; flooring to microseconds first gives the same
    years, months, days, hours and (by the specification) buckets.
    """
    if isinstance(column, pa.ExtensionArray):
        return column.storage
    if not (pa_types.is_timestamp(column.type) and column.type.unit == "ns"):
        return column
    nanoseconds = column.cast(pa.int64())
    towards_zero = pc.divide(nanoseconds, 1_000)
    below = pc.less(nanoseconds, pc.multiply(towards_zero, 1_000)).cast(pa.int64())
    return pc.subtract(towards_zero, below).cast(pa.timestamp("us", column.type.tz))


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """One table partition. ``values`` are as in ``FileDetail.partition``.

    ``folder``: escaped as Hive does, without slashes at its ends; empty when not partitioned.
    """

    values: tuple[bytes | None, ...] = ()
    folder: str = ""


class Partitioner:
    """Splits tables by one partition spec. Raises ``TableChanged`` for a transform it lacks."""

    def __init__(self, spec: PartitionSpec, schema: Schema) -> None:
        self._spec = spec
        self._schema = schema
        self._types: list[Any] = [field.field_type for field in spec.partition_type(schema).fields]
        self._columns = [
            TransformedColumn(
                field.transform, field.source_id, schema, f"partition field {field.name}"
            )
            for field in spec.fields
        ]

    def split(self, table: pa.Table) -> Iterator[tuple[PartitionKey, pa.Table]]:
        """Yield every partition's rows in order; those of one partition come together."""
        if not self._columns or not table.num_rows:
            yield PartitionKey(), table
            return
        keys = [column.transformed_values(table) for column in self._columns]
        groups = _group_numbers(keys)
        if groups.max() == 0:
            yield self._key_of_row(keys, 0), table
            return
        order = np.argsort(groups, kind="stable")
        ends = np.append(np.flatnonzero(np.diff(groups[order])) + 1, len(order))
        sorted_rows = table.take(pa.array(order))
        begin = 0
        for end in ends.tolist():
            yield self._key_of_row(keys, int(order[begin])), sorted_rows.slice(begin, end - begin)
            begin = end

    def split_off_largest_partitions(self, table: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return the rows of the largest partitions, half of all or more; and the rest."""
        if not self._columns:
            return table, table.slice(0, 0)
        groups = _group_numbers([column.transformed_values(table) for column in self._columns])
        counts = np.bincount(groups)
        largest_first = np.argsort(-counts, kind="stable")
        needed = np.searchsorted(np.cumsum(counts[largest_first]), len(groups) / 2) + 1
        chosen = np.zeros(len(counts), np.bool_)
        chosen[largest_first[:needed]] = True
        wanted = pa.array(chosen[groups])
        return table.filter(wanted), table.filter(pc.invert(wanted))

    def _key_of_row(self, keys: list[pa.Array], row: int) -> PartitionKey:
        values = [_partition_value(key[row]) for key in keys]
        binary = tuple(
            None if value is None else to_bytes(kind, value)
            for kind, value in zip(self._types, values, strict=True)
        )
        return PartitionKey(binary, partition_folder(self._spec, self._schema, values))


def partition_folder(spec: PartitionSpec, schema: Schema, values: Sequence[Any]) -> str:
    """Return the folder of a partition, as in ``PartitionKey``."""
    try:
        return spec.partition_to_path(Record(*values), schema)
    except OverflowError:  # a time beyond the years 1 to 9999, which Python's own have not
        named = zip((field.name for field in spec.fields), map(str, values), strict=True)
        return "/".join(f"{quote_plus(n, safe='')}={quote_plus(v, safe='')}" for n, v in named)


def _group_numbers(keys: list[pa.Array]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a number per row from 0 on, equal where all keys are equal (nulls are equal too)."""
    combined = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        encoded = key.dictionary_encode(null_encoding="encode")
        codes = np.asarray(encoded.indices)
        combined = combined * len(encoded.dictionary) + codes
        # Dense again at every step, so that many fields cannot overflow.
        combined = np.unique(combined, return_inverse=True)[1]
    return combined


def _partition_value(scalar: pa.Scalar) -> Any:
    if pa_types.is_temporal(scalar.type):
        return scalar.value
    return scalar.as_py()
