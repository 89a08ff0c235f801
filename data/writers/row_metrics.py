"""Statistics of a file taken from its rows, for formats whose footers cannot be read for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from headgate.data.writers.metrics import FileMetrics
from headgate.data.writers.transforms import column_at


@dataclass(slots=True)
class RowMetrics(FileMetrics):
    """As ``FileMetrics``, without the sizes of columns, which only a footer knows."""

    rows: int = 0
    null_counts: dict[int, int] = field(default_factory=dict)

    def see(self, rows: pa.Table) -> None:
        self.rows += rows.num_rows
        for leaf in self.leaves:
            if leaf.repeated or not leaf.mode.counts:
                continue
            column = column_at(rows, leaf.name)
            nulls = self.null_counts.get(leaf.field_id, 0)
            self.null_counts[leaf.field_id] = nulls + column.null_count
            if leaf.floating:
                self._see_floats(leaf, column)
            elif leaf.bounded:
                found = pc.min_max(_comparable(column))
                low, high = (_raw(found[end].as_py(), column.type) for end in ("min", "max"))
                self._range(leaf).widen(low, high)

    def of_rows(self) -> dict[str, Any]:
        """Return the statistics fields of ``FileDetail``."""
        return {
            "value_counts": dict.fromkeys(self.null_counts, self.rows),
            "null_value_counts": self.null_counts,
            "nan_value_counts": self.nan_counts,
            **self._bounds(),
        }


def _comparable(column: pa.Array) -> pa.Array:
    """Return the values in a form with Iceberg's order: numbers, or bytes."""
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        return column.storage
    if kinds.is_date32(kind):
        return column.view(pa.int32())
    if kinds.is_temporal(kind):
        return column.view(pa.int64())
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return column.cast(pa.large_binary())
    return column


def _raw(value: Any, kind: pa.DataType) -> Any:
    """Return a decimal as its unscaled number, and anything else as it is."""
    if not isinstance(value, Decimal):
        return value
    sign, digits, exponent = value.as_tuple()
    number = int("".join(map(str, digits))) * 10 ** (int(exponent) + kind.scale)
    return -number if sign else number
