"""Checks for faults in rows whose values could all be read."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import md5
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from headgate.data.formats.faults import Faults
from headgate.native.loops import Flags

PLACEHOLDER = "__debezium_unavailable_value"
"""What Debezium writes for a value that the database did not log because it did not change."""

_OCTETS = PLACEHOLDER.encode()
"""In a list of numbers, Debezium writes these one after the other."""

_UUID = UUID(bytes=md5(_OCTETS, usedforsecurity=False).digest(), version=3)
"""In a list of UUIDs: what Java's ``UUID.nameUUIDFromBytes`` makes of these bytes."""

_TEXTS = (PLACEHOLDER, f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}', str(_UUID))
"""As text; in an hstore that comes as JSON; as a UUID."""

_UNKNOWN = (
    f"Debezium writes {PLACEHOLDER}: the database does not log it; set REPLICA IDENTITY FULL, or "
    "use Debezium's reselect post processor"
)


def without_unavailable(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, Flags]]:
    """Replace values that Debezium does not know by nulls; also return their rows by column."""
    found: dict[str, Flags] = {}
    columns = list(rows.columns)
    for place, column in enumerate(rows.schema):
        unknown = _unavailable(rows.column(place))
        if unknown is not None and unknown.any():
            found[column.name] = unknown
            at = pa.array(np.arange(len(unknown), dtype=np.int64), mask=unknown)
            columns[place] = columns[place].take(at)
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema) if found else rows, found


def note_unavailable(found: dict[str, Flags], faults: Faults) -> None:
    """Make these values faults of their records."""
    for name, unknown in found.items():
        faults.note(np.flatnonzero(unknown), f"{name}: {_UNKNOWN}")


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


def _unavailable(values: pa.Array) -> Flags | None:
    """Return where a value is Debezium's placeholder; ``None``: nowhere."""
    kind = values.type
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        item = kind.value_type
        numbers = kinds.is_integer(item) or kinds.is_floating(item)
        return _spelled(values) if numbers else _in_items(values)
    if kinds.is_map(kind):
        if not _is_text(kind.key_type):
            return None
        return _unavailable(pc.map_lookup(values, pa.scalar(PLACEHOLDER, kind.key_type), "first"))
    if _is_text(kind):
        written = pa.array(_TEXTS, kind)
    elif kinds.is_binary(kind) or kinds.is_large_binary(kind):
        written = pa.array([_OCTETS], kind)
    elif kind == pa.uuid():
        written = pa.array([_UUID.bytes], kind.storage_type)
    else:
        return None
    return np.asarray(pc.is_in(_stored(values), written))


def _in_items(values: pa.Array) -> Flags | None:
    """Return where an item of the list is a placeholder."""
    items = _unavailable(values.flatten())
    if items is None:
        return None
    found = np.zeros(len(values), np.bool_)
    found[np.asarray(pc.list_parent_indices(values))[items]] = True
    return found


def _spelled(values: pa.Array) -> Flags:
    """Return where the numbers of the list are the placeholder's bytes."""
    fitting = pc.fill_null(pc.equal(pc.list_value_length(values), len(_OCTETS)), fill_value=False)
    numbers = values.filter(fitting).flatten()
    written = pa.array(list(_OCTETS) * (len(numbers) // len(_OCTETS)), numbers.type)
    alike = np.asarray(pc.fill_null(pc.equal(numbers, written), fill_value=False))
    found = np.array(fitting)
    found[found] = alike.reshape(-1, len(_OCTETS)).all(axis=1)
    return found


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def _stored(values: pa.Array) -> pa.Array:
    return values.storage if isinstance(values, pa.ExtensionArray) else values
