"""Finds dates and times that a Delta table cannot be partitioned by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headgate.tables.delta.columns import SUPPORTED_TIMES


@dataclass(frozen=True, slots=True)
class SupportedYears:
    """Implements ``ValueCheck``. ``partition_types``: the types of the partition columns."""

    partition_types: Mapping[str, str]

    def find_unsupported_rows(self, rows: pa.RecordBatch) -> Mapping[int, str]:
        reasons: dict[int, str] = {}
        for name, column_type in self.partition_types.items():
            values = rows.column(name).cast(pa.int32() if column_type == "date" else pa.int64())
            years = SUPPORTED_TIMES[column_type]
            outside = pc.or_(pc.less(values, years.start), pc.greater_equal(values, years.stop))
            why = f"{name}: no folder of a Delta table is of a year before 1 or beyond 9999"
            reasons |= dict.fromkeys(pc.indices_nonzero(outside).to_pylist(), why)
        return reasons


def year_check_for(partition_types: Mapping[str, Any]) -> SupportedYears | None:
    """Return the check for columns of these types, if any of them needs it."""
    dated = {
        name: column_type
        for name, column_type in partition_types.items()
        if column_type in SUPPORTED_TIMES
    }
    return SupportedYears(dated) if dated else None
