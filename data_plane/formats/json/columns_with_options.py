"""Reads JSON into marked columns (``column_options``): numbers with a unit, anything as text.

The columnar parser reads numbers as doubles, and does not take numbers for text. So these columns
are read from the record's own text, next to all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.types as pa_types

from headgate.data_plane.formats import column_options
from headgate.data_plane.formats.casting.cast_to_table import cast_column, require_no_faults
from headgate.data_plane.formats.json import paths
from headgate.data_plane.formats.record_format import Faults, UndecodableRecords
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Flags

Decode = Callable[[Packed, pa.Schema], pa.RecordBatch]
Path = tuple[str, ...]
Parents = tuple[pa.Field, ...]

# The plain path needs a column to know the number of rows.
_NO_KEY = pa.field("headgate: no key of a record", pa.bool_())


@dataclass(frozen=True, slots=True)
class _Records:
    """Holds records as they came, the columns of the plain path, and what is wrong with them."""

    values: Packed
    plain: pa.RecordBatch
    faults: Faults


def decode_with_read_options(
    some: Sequence[bytes], schema: pa.Schema, decode_plain: Decode
) -> pa.RecordBatch:
    """Decode like a ``RecordFormat``. ``decode_plain`` decodes what is not marked."""
    values, faults = Packed.pack(some), Faults()
    rest = [field for field in map(_without_marked_parts, schema) if field is not None]
    try:
        rows = decode_plain(values, pa.schema(rest or [_NO_KEY]))
    except UndecodableRecords as error:
        rows, bad = error.rest, error.bad
        _raise_with_good_rows(values, schema, rows, bad)
    return require_no_faults(_rows_with_read_options(values, schema, rows, faults), faults)


def _raise_with_good_rows(
    values: Packed, schema: pa.Schema, rows: pa.RecordBatch, bad: dict[int, str]
) -> NoReturn:
    good = np.ones(len(values), np.bool_)
    good[list(bad)] = False
    left, faults = np.flatnonzero(good), Faults()
    result = _rows_with_read_options(values.filter(good), schema, rows, faults)
    try:
        result = require_no_faults(result, faults)
    except UndecodableRecords as error:
        result = error.rest
    further = {int(left[row]): reason for row, reason in faults.reasons.items()}
    raise UndecodableRecords({**bad, **further}, result)


def _rows_with_read_options(
    values: Packed, schema: pa.Schema, rows: pa.RecordBatch, faults: Faults
) -> pa.RecordBatch:
    records = _Records(values, rows, faults)
    columns = [_build_column(records, field, (), None) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _read_column_with_option(records: _Records, field: pa.Field, parents: Parents) -> pa.Array:
    path = _path_to(field, parents)
    kinds_, texts = paths.pick_values_at_path(records.values, path)
    name, faults = ".".join(path), records.faults
    for kind, reason in _NEVER.items():
        faults.note(np.flatnonzero(kinds_ == kind), f"{name}: {reason}")
    if column_options.unit_of(field):
        odd = (kinds_ == paths.WORD) | (kinds_ == paths.NESTED)
        faults.note(np.flatnonzero(odd), f"{name}: is neither a number nor text")
        texts = texts if not odd.any() else _with_nulls_at(texts, odd)
    _note_if_required(records, field, parents, np.isin(kinds_, _ABSENT))
    return cast_column(texts, field.with_name(name).with_nullable(nullable=True), faults)


def _note_if_required(records: _Records, field: pa.Field, parents: Parents, absent: Flags) -> None:
    """Note where a required field is absent, unless an optional struct around it is."""
    if field.nullable:
        return
    asked = absent.copy()
    for depth, parent in enumerate(parents):
        if not asked.any():
            return
        if parent.nullable:
            asked &= ~_flag_absent(records.values, _path_to(parent, parents[:depth]))
    name = ".".join(_path_to(field, parents))
    records.faults.note(np.flatnonzero(asked), f"{name}: a required value is missing")


def _flag_absent(values: Packed, path: Path) -> Flags:
    kinds_, _ = paths.pick_values_at_path(values, path)
    return np.isin(kinds_, _ABSENT)


def _path_to(field: pa.Field, parents: Parents) -> Path:
    return (*(parent.name for parent in parents), field.name)


_ABSENT = (paths.NULL, paths.MISSING)
_NEVER = {
    paths.NO_OBJECT: "what should hold it is not an object",
    paths.DOUBT: "holds half a surrogate pair",
}


def _with_nulls_at(texts: pa.Array, odd: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Array:
    places = np.arange(len(texts), dtype=np.int64)
    return texts.take(pa.array(places, mask=odd))


def _build_column(
    records: _Records, field: pa.Field, parents: Parents, around: pa.Array | None
) -> pa.Array:
    """Build the column, or a field inside one; ``around``: what the plain path read around it."""
    if column_options.has_read_option(field):
        return _read_column_with_option(records, field, parents)
    read = _find_plain_column(records.plain, field, parents, around)
    if not pa_types.is_struct(field.type) or not column_options.any_field_has_read_option(
        field.type
    ):
        assert read is not None, "what is not marked is read by the plain path"
        return read
    children = [_build_column(records, child, (*parents, field), read) for child in field.type]
    if read is not None:
        absent = np.asarray(read.is_null())
    else:  # all of it is marked
        absent = _flag_absent(records.values, _path_to(field, parents))
        _note_if_required(records, field, parents, absent)
    mask = pa.array(absent) if absent.any() else None
    return pa.StructArray.from_arrays(children, fields=list(field.type), mask=mask)


def _find_plain_column(
    plain: pa.RecordBatch, field: pa.Field, parents: Parents, around: pa.Array | None
) -> pa.Array | None:
    if not parents:
        place = plain.schema.get_field_index(field.name)
        return plain.column(place) if place >= 0 else None
    place = -1 if around is None else around.type.get_field_index(field.name)
    return around.field(place) if around is not None and place >= 0 else None


def _without_marked_parts(field: pa.Field) -> pa.Field | None:
    """Return the field without its marked parts; ``None`` if nothing else is left."""
    if column_options.has_read_option(field):
        return None
    if not pa_types.is_struct(field.type) or not column_options.any_field_has_read_option(
        field.type
    ):
        return field
    inside = [child for child in map(_without_marked_parts, field.type) if child is not None]
    return field.with_type(pa.struct(inside)) if inside else None
