"""Sorts rows by a table's sort order, as Iceberg's specification has it.

Nulls go first or last as the order's field says, whichever its direction. Floating-point numbers:
-NaN, the negative ones, -0, 0, the positive ones, NaN.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pa_types
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder

from headgate.data_plane.files.partitioning import TransformedColumn


class Sorter:
    """Sorts by ``order``. Raises ``TableChanged`` for a transform that is not known.

    ``order_id`` belongs on files whose rows all came from one call of ``sort``.
    """

    def __init__(self, order: SortOrder, schema: Schema) -> None:
        self.order_id = order.order_id
        self._keys = [_Key(field, schema) for field in order.fields]

    def __bool__(self) -> bool:
        return bool(self._keys)

    def sort(self, table: pa.Table) -> pa.Table:
        """Return all rows, in order; rows that the order does not distinguish keep their order."""
        return table.take(self.sorted_indices(table))

    def sorted_indices(self, table: pa.Table) -> pa.Array:
        """Return the numbers of the rows, in the order of ``sort``."""
        columns: list[pa.Array] = []
        directions: list[str] = []
        for key in self._keys:
            for column, direction in key.columns_to_sort_by(table):
                columns.append(column)
                directions.append(direction)
        names = [str(place) for place in range(len(columns))]
        keys = pa.table(columns, names=names)
        sort_keys = list(zip(names, directions, strict=True))
        return pc.sort_indices(keys, sort_keys=sort_keys)


class _Key:
    """Turns one field of the order into columns that Arrow sorts in the same way."""

    def __init__(self, field: SortField, schema: Schema) -> None:
        where = f"sort field {schema.find_column_name(field.source_id)}"
        self._column = TransformedColumn(field.transform, field.source_id, schema, where)
        self._direction = "ascending" if field.direction is SortDirection.ASC else "descending"
        self._nulls_first = field.null_order is NullOrder.NULLS_FIRST

    def columns_to_sort_by(self, table: pa.Table) -> list[tuple[pa.Array, str]]:
        values = self._column.transformed_values(table)
        if pa_types.is_floating(values.type):
            values = _as_total_order(values)
        result = [(values, self._direction)]
        if values.null_count:
            is_null = values.is_null().cast(pa.int8())
            result.insert(0, (is_null, "descending" if self._nulls_first else "ascending"))
        return result


def _as_total_order(numbers: pa.Array) -> pa.Array:
    """Return integers in the numbers' total order (IEEE 754): the bits, reversed for negatives."""
    bits = np.int32 if pa_types.is_float32(numbers.type) else np.int64
    raw = numbers.fill_null(0).to_numpy(zero_copy_only=False).view(bits)
    ordered = raw ^ ((raw >> (8 * raw.itemsize - 1)) & np.iinfo(bits).max)
    return pa.array(ordered, mask=np.asarray(numbers.is_null()))
