"""Reads JSON into marked columns (``column_options``): numbers with a unit, anything as text.

The columnar parser reads numbers as doubles, and does not take numbers for text. So these columns
are read from the record's own text, next to all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

Decode = Callable[[Packed, pa.Schema], pa.RecordBatch]
Path = tuple[str, ...]

# The plain path needs a column to know the number of rows.
_NO_KEY = pa.field("headgate: no key of a record", pa.bool_())


@dataclass(frozen=True, slots=True)
class _Found:
    """Holds the columns of the plain path by name, and the marked ones by path."""

    plain: pa.RecordBatch
    marked: dict[Path, pa.Array]


def decode_with_read_options(
    some: Sequence[bytes], schema: pa.Schema, decode_plain: Decode
) -> pa.RecordBatch:
    """Decode like a ``RecordFormat``. ``decode_plain`` decodes what is not marked."""
    values, faults = Packed.pack(some), Faults()
    rest = [field for field in map(_prune_fields_with_read_option, schema) if field is not None]
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
    marked = {
        path: _read_column_with_option(values, path, field, faults)
        for column in schema
        for path, field in _find_fields_with_read_option(column, ())
    }
    result = _Found(rows, marked)
    columns = [_build_column(result, field, (), None) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _read_column_with_option(
    values: Packed, path: Path, field: pa.Field, faults: Faults
) -> pa.Array:
    kinds_, texts = paths.pick_values_at_path(values, path)
    name = ".".join(path)
    for kind, reason in _NEVER.items():
        faults.note(np.flatnonzero(kinds_ == kind), f"{name}: {reason}")
    if column_options.unit_of(field):
        odd = (kinds_ == paths.WORD) | (kinds_ == paths.NESTED)
        faults.note(np.flatnonzero(odd), f"{name}: is neither a number nor text")
        texts = texts if not odd.any() else _with_nulls_at(texts, odd)
    return cast_column(texts, field.with_name(name), faults)


_NEVER = {
    paths.NO_OBJECT: "what should hold it is not an object",
    paths.DOUBT: "holds half a surrogate pair",
}


def _with_nulls_at(texts: pa.Array, odd: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Array:
    places = np.arange(len(texts), dtype=np.int64)
    return texts.take(pa.array(places, mask=odd))


def _build_column(found: _Found, field: pa.Field, path: Path, parent: pa.Array | None) -> pa.Array:
    """Build the column, or a field inside one; ``parent``: what the plain path read around it."""
    path = (*path, field.name)
    if column_options.has_read_option(field):
        return found.marked[path]
    read = _find_plain_column(found, field, path, parent)
    if not pa_types.is_struct(field.type) or not column_options.any_field_has_read_option(
        field.type
    ):
        assert read is not None, "what is not marked is read by the plain path"
        return read
    children = [_build_column(found, child, path, read) for child in field.type]
    mask = read.is_null() if read is not None and read.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(field.type), mask=mask)


def _find_plain_column(
    found: _Found, field: pa.Field, path: Path, parent: pa.Array | None
) -> pa.Array | None:
    if len(path) == 1:
        place = found.plain.schema.get_field_index(field.name)
        return found.plain.column(place) if place >= 0 else None
    place = -1 if parent is None else parent.type.get_field_index(field.name)
    return parent.field(place) if parent is not None and place >= 0 else None


def _prune_fields_with_read_option(field: pa.Field) -> pa.Field | None:
    """Return the field without its marked parts; ``None`` if nothing else is left."""
    if column_options.has_read_option(field):
        return None
    if not pa_types.is_struct(field.type) or not column_options.any_field_has_read_option(
        field.type
    ):
        return field
    inside = [
        child for child in map(_prune_fields_with_read_option, field.type) if child is not None
    ]
    return field.with_type(pa.struct(inside)) if inside else None


def _find_fields_with_read_option(field: pa.Field, path: Path) -> Iterator[tuple[Path, pa.Field]]:
    path = (*path, field.name)
    if column_options.has_read_option(field):
        yield path, field
    elif pa_types.is_struct(field.type):
        for child in field.type:
            yield from _find_fields_with_read_option(child, path)
