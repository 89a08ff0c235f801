"""KEY-13: what deletes leave behind where they mark rows.

They show in seeds of ``ages.AGED``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from simulation.mutants.mutant import Family, Planted

from headgate.data_plane.write.delete_marking import MarkedDeletes
from headgate.tables.iceberg.table import IcebergTable

FAMILY = Family(real=True, keyed=True)

TIMES = (MarkedDeletes, "deletion_times_and_bad_rows")


@FAMILY.replaces("KEY-13", TIMES)
def a_mark_loses_its_time(right: Any, self: Any, records: Any, deletes: Any) -> Any:
    """A deleted row has no time, and so lives."""
    marks, bad = right(self, records, deletes)
    return pa.nulls(len(marks), marks.type), bad


@FAMILY.replaces("KEY-13", TIMES)
def rows_that_live_are_marked(right: Any, self: Any, records: Any, deletes: Any) -> Any:
    """Each row has the time of its record."""
    return right(self, records, np.ones_like(deletes))


@FAMILY.patches("KEY-13")
def what_deletes_do_is_not_stored() -> tuple[Planted, ...]:
    """A table does not say that deletes mark its rows."""
    return (
        (IcebergTable, "_require_same_delete_choice", lambda *_: None),
        (IcebergTable, "_first_on_delete_choice_to_store", lambda *_: ""),
    )
