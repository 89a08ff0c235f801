"""Checks for faults in rows whose values could all be read."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.data.formats.faults import Faults
from headgate.native.loops import Flags


def note_missing(
    rows: pa.RecordBatch, required: Iterable[str], among: Flags, faults: Faults
) -> None:
    """Make nulls in these columns faults, ``among`` some of the rows."""
    for name in required:
        column = rows.column(name)
        if column.null_count:
            nulls = np.flatnonzero(np.asarray(column.is_null()) & among)
            faults.note(nulls, f"{name}: a required value is missing")


def note_moved(before: pa.RecordBatch, rows: pa.RecordBatch, faults: Faults) -> None:
    """Make changed keys faults if the whole former key is known."""
    known = complete(before)
    if not known.any():
        return
    for column in before.schema:
        old, new = _stored(before.column(column.name)), _stored(rows.column(column.name))
        moved = known & np.asarray(pc.fill_null(pc.not_equal(old, new), fill_value=False))
        faults.note(
            np.flatnonzero(moved),
            f"{column.name}: the key of the row changes; a changed key must be a delete "
            "of the old one and a row with the new one, as Debezium writes it if its "
            "key is table.key",
        )


def complete(keys: pa.RecordBatch) -> Flags:
    """Return in which rows every column has a value."""
    found = np.ones(keys.num_rows, np.bool_)
    for column in keys.columns:
        if column.null_count:
            found &= np.asarray(column.is_valid())
    return found if keys.num_columns else ~found


def _stored(values: pa.Array) -> pa.Array:
    return values.storage if isinstance(values, pa.ExtensionArray) else values
