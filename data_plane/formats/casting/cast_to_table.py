"""Converts Arrow columns of a writer's types to the table's types, exactly, or says why not.

What formats with typed values (Avro, JSON with Connect's envelope) read goes through here:

- integers: whole numbers of any kind that fit, and text that spells one
- floats and doubles: numbers that they hold exactly (NaN and infinities are such), and text as in
  JSON; a decimal when the nearest double is written like it
- decimals: integers, decimals and text to the last digit; floats and doubles as they are written in
  the fewest digits
- booleans: booleans. Strings: text; records, arrays and maps become their JSON text
- dates: dates, days since 1970, text; times: times, milliseconds of the day, text; timestamps:
  timestamps, milliseconds since 1970, text. One without a zone is taken as UTC, and the reverse
- UUIDs: UUIDs, 16 bytes, text; fixed and binary: bytes, base64 text
- structs: records and maps by their names; lists: arrays; maps: maps and records

Text goes by the rules of ``json.values``. Whole columns are cast at once; where that refuses, the
column is halved until the values that are at fault stand alone.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pa_types

from headgate.data_plane.formats import column_options, field_names
from headgate.data_plane.formats.casting import exact_casts, times
from headgate.data_plane.formats.casting.decimals import (
    Unscaled,
    VariableScale,
    unscaled_to_numbers_of_any_width,
)
from headgate.data_plane.formats.json import values as json_values
from headgate.data_plane.formats.record_format import Faults, UndecodableRecords

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Rows = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class _Place:
    """Locates the values being cast: each one's record (-1: a place without any), and a path."""

    rows: Rows
    faults: Faults
    path: str

    def note_fault(self, at: np.ndarray[Any, Any], reason: str) -> None:
        rows = self.rows[at]
        self.faults.note(rows[rows >= 0], f"{self.path}: {reason}" if self.path else reason)

    def place_inside(self, rows: Rows, name: str) -> _Place:
        return _Place(rows, self.faults, f"{self.path}{name}")


def cast_rows(values: pa.Array, schema: pa.Schema, faults: Faults) -> pa.RecordBatch:
    """Return one value per row: records by their fields; other types into the only column.

    Bad rows are noted and still included.
    """
    at = _Place(np.arange(len(values), dtype=np.int64), faults, "")
    if _may_be_record(values.type):
        whole = _cast_field(values, pa.field("", pa.struct(list(schema)), nullable=False), at)
        columns = [whole.field(place) for place in range(len(schema))]
    elif len(schema) == 1:
        columns = [
            _cast_field(values, schema.field(0), at.place_inside(at.rows, schema.field(0).name))
        ]
    else:
        at.note_fault(
            np.ones(len(values), np.bool_), f"a single value is no row of {len(schema)} columns"
        )
        columns = [pa.nulls(len(values), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def cast_column(values: pa.Array, field: pa.Field, faults: Faults) -> pa.Array:
    """Return one column, with one value per row."""
    rows = np.arange(len(values), dtype=np.int64)
    return _cast_field(values, field, _Place(rows, faults, field.name))


def flag_absent_field(values: pa.Array, path: Sequence[pa.Field]) -> Flags:
    """Return which records lack the field at the path's end; a null on the way lacks nothing."""
    result = np.zeros(len(values), np.bool_)
    if not path or pa_types.is_null(values.type):
        return result
    if pa_types.is_union(values.type):
        for there, inside in _branches_of(values):
            result[there] = flag_absent_field(inside, path)
        return result
    if not pa_types.is_struct(values.type):
        return result
    available = [values.type.field(place).name for place in range(values.type.num_fields)]
    place = field_names.match_fields(path[:1], available)[0]
    if place is None:
        return _valid_flags(values)
    return flag_absent_field(values.field(place), path[1:]) & _valid_flags(values)


def _may_be_record(data_type: pa.DataType) -> bool:
    if pa_types.is_union(data_type):
        return any(
            _may_be_record(data_type.field(place).type) for place in range(data_type.num_fields)
        )
    return bool(pa_types.is_struct(data_type))


def require_no_faults(rows: pa.RecordBatch, faults: Faults) -> pa.RecordBatch:
    """Return the rows if none is bad. Raises ``UndecodableRecords`` otherwise."""
    if not faults.reasons:
        return rows
    good = np.ones(rows.num_rows, np.bool_)
    good[list(faults.reasons)] = False
    # Column by column, which is twice as fast: of a whole batch Arrow filters by places.
    kept = [column.filter(pa.array(good)) for column in rows.columns]
    raise UndecodableRecords(faults.reasons, pa.RecordBatch.from_arrays(kept, schema=rows.schema))


def _cast_children(records: pa.StructArray, fields: list[pa.Field], at: _Place) -> list[pa.Array]:
    available = [records.type.field(place).name for place in range(records.type.num_fields)]
    everything = np.ones(len(records), np.bool_)
    try:
        result = field_names.match_fields(fields, available)
    except field_names.TwoFields as error:
        at.note_fault(everything, str(error))
        result = [None] * len(fields)
    rows = np.where(_valid_flags(records), at.rows, -1)
    dot = "." if at.path else ""
    return [
        _cast_field(
            pa.nulls(len(records)) if place is None else records.field(place),
            field,
            at.place_inside(rows, f"{dot}{field.name}"),
        )
        for field, place in zip(fields, result, strict=True)
    ]


def _cast_field(values: pa.Array, field: pa.Field, at: _Place) -> pa.Array:
    source, target = values.type, field.type
    if pa_types.is_union(source):
        return _cast_union(values, field, at)
    if not field.nullable and values.null_count:
        at.note_fault(~_valid_flags(values), "a required value is missing")
    if pa_types.is_null(source):
        if not field.nullable:
            at.note_fault(np.ones(len(values), np.bool_), "a required value is missing")
        return pa.nulls(len(values), target)
    if isinstance(source, VariableScale) and pa_types.is_struct(target):
        values = values.storage
    if pa_types.is_nested(values.type):
        return _cast_nested(values, field, at)
    unit, as_text = column_options.unit_of(field), column_options.has_as_text_option(field)
    return _cast_halving_on_error(values, _Column(target, unit, as_text), at)


@dataclass(frozen=True, slots=True)
class _Column:
    """Converts single values. ``unit``: of numbers that become times.

    ``as_text``: numbers and booleans become text as they are written.
    """

    type: pa.DataType
    unit: str
    as_text: bool

    def cast_values(self, values: pa.Array) -> pa.Array:
        shown = exact_casts.numbers_and_booleans_to_text(values) if self.as_text else values
        return exact_casts.cast(shown, self.type, self.unit)

    def guess_refused_values(self, values: pa.Array) -> Flags | None:
        asked = self.unit or self.as_text
        return None if asked else exact_casts.guess_refused_values(values, self.type)


def _cast_halving_on_error(values: pa.Array, column: _Column, at: _Place) -> pa.Array:
    target = column.type
    if not len(values):  # for example, a union's branch that no record takes
        return pa.nulls(0, target)
    try:
        return column.cast_values(values)
    except exact_casts.Impossible as error:
        at.note_fault(_valid_flags(values), str(error))
        return pa.nulls(len(values), target)
    except (pa.ArrowException, ValueError, ArithmeticError) as error:
        if len(values) == 1:
            return _cast_refused_value(values, column, error, at)
    suspects = column.guess_refused_values(values)
    if suspects is not None and 0 < suspects.sum() < len(values):
        return _cast_suspects_apart(values, suspects, column, at)
    half = len(values) // 2
    parts = (slice(None, half), slice(half, None))
    return _concat_arrays(
        [_cast_halving_on_error(values[p], column, at.place_inside(at.rows[p], "")) for p in parts]
    )


def _cast_suspects_apart(values: pa.Array, wrong: Flags, column: _Column, at: _Place) -> pa.Array:
    good = _cast_halving_on_error(
        values.filter(pa.array(~wrong)), column, at.place_inside(at.rows[~wrong], "")
    )
    bad = [
        _cast_halving_on_error(
            values[row : row + 1], column, at.place_inside(at.rows[row : row + 1], "")
        )
        for row in np.flatnonzero(wrong).tolist()
    ]
    order = np.argsort(np.concatenate([np.flatnonzero(~wrong), np.flatnonzero(wrong)]))
    return _concat_arrays([good, *bad]).take(pa.array(order))


def _cast_refused_value(
    values: pa.Array, column: _Column, refusal: Exception, at: _Place
) -> pa.Array:
    target = column.type
    try:
        return exact_casts.cast_refused_value_alone(values, target, refusal, column.unit)
    except ValueError as reason:
        at.note_fault(np.ones(1, np.bool_), str(reason))
        return pa.nulls(1, target)


def _cast_union(values: pa.UnionArray, field: pa.Field, at: _Place) -> pa.Array:
    parts, base = [], 0
    places = np.zeros(len(values), np.int64)
    for there, child in _branches_of(values):
        parts.append(_cast_field(child, field, at.place_inside(at.rows[there], "")))
        places[there] = base + np.arange(len(child))
        base += len(child)
    return _concat_arrays(parts).take(pa.array(places))


def _concat_arrays(parts: list[pa.Array]) -> pa.Array:
    if len(parts) > 1 and isinstance(parts[0], pa.ExtensionArray):
        storage = pa.concat_arrays([part.storage for part in parts])
        return pa.ExtensionArray.from_storage(parts[0].type, storage)
    return pa.concat_arrays(parts)


# ------------------------------------------------------------------------------ nested values


def _cast_nested(values: pa.Array, field: pa.Field, at: _Place) -> pa.Array:
    source, target = values.type, field.type
    if pa_types.is_struct(source) and pa_types.is_struct(target):
        children = _cast_children(values, list(target), at)
        if not children:
            return pa.array([{}] * len(values), target)
        return pa.StructArray.from_arrays(children, fields=list(target), mask=_null_mask(values))
    if pa_types.is_large_list(source) and _is_list(target):
        return _cast_list(values, target, at)
    if pa_types.is_map(source) and pa_types.is_map(target):
        return _cast_map(values, target, at)
    if _is_map_by_name(source) and pa_types.is_struct(target):
        return _cast_map_to_struct(values, target, at)
    if column_options.is_text_type(target):
        return _json_text_of(values, target, at)
    at.note_fault(
        _valid_flags(values), f"{_describe_kind(source)} cannot go into a column of type {target}"
    )
    return pa.nulls(len(values), target)


def _offsets_and_rows_of_items(values: pa.Array, at: _Place) -> tuple[pa.Array, Rows]:
    """Return offsets that begin at zero, and the record of each item."""
    offsets = np.asarray(values.offsets).astype(np.int64)
    return offsets - offsets[0], np.repeat(at.rows, np.diff(offsets))


def _cast_list(values: pa.Array, target: pa.DataType, at: _Place) -> pa.Array:
    offsets, rows = _offsets_and_rows_of_items(values, at)
    items = _cast_field(values.flatten(), target.value_field, at.place_inside(rows, "[]"))
    large = pa_types.is_large_list(target)
    kind = pa.LargeListArray if large else pa.ListArray
    places = pa.array(offsets, pa.int64() if large else pa.int32())
    return kind.from_arrays(places, items, type=target, mask=_null_mask(values))


def _cast_map(values: pa.Array, target: pa.MapType, at: _Place) -> pa.Array:
    offsets, rows = _offsets_and_rows_of_items(values, at)
    source_keys, source_items = _entries_of(values)
    keys = _cast_field(source_keys, target.key_field, at.place_inside(rows, " key"))
    items = _cast_field(source_items, target.item_field, at.place_inside(rows, "[]"))
    owners = np.repeat(np.arange(len(values)), np.diff(offsets))
    bad = _flag_repeated_keys(keys, owners)
    at.place_inside(rows, "").note_fault(bad, "has a key twice")
    if keys.null_count:  # noted as bad already; but Arrow's maps have no place for them
        whole = ~np.isin(owners, owners[~_valid_flags(keys)])
        keys, items, owners = (
            keys.filter(pa.array(whole)),
            items.filter(pa.array(whole)),
            owners[whole],
        )
    counts = np.bincount(owners, minlength=len(values))
    places = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    return pa.MapArray.from_arrays(places, keys, items, type=target, mask=_null_mask(values))


def _flag_repeated_keys(keys: pa.Array, owners: Rows) -> Flags:
    stored = keys.storage if isinstance(keys, pa.ExtensionArray) else keys
    if pa_types.is_nested(stored.type):  # Arrow compares none of these
        stored = pa.array([repr(key) for key in stored.to_pylist()], pa.large_string())
    codes = np.asarray(stored.dictionary_encode().indices.fill_null(-1))
    _, first = np.unique(np.stack([owners, codes], axis=1), axis=0, return_index=True)
    again = np.ones(len(codes), np.bool_)
    again[first] = False
    return again


def _cast_map_to_struct(values: pa.Array, target: pa.StructType, at: _Place) -> pa.Array:
    offsets, _ = _offsets_and_rows_of_items(values, at)
    names, items = _entries_of(values)
    keys = names.to_pylist()
    owners = np.repeat(np.arange(len(values)), np.diff(offsets))
    rows = np.where(_valid_flags(values), at.rows, -1)
    children = []
    for child in target:
        forms, lower = field_names.lookup_names_of(child), field_names.is_caseless(child)
        hits = np.array([(key.lower() if lower else key) in forms for key in keys], np.bool_)
        counts = np.bincount(owners[hits], minlength=len(values))
        inside = at.place_inside(rows, f".{child.name}")
        inside.note_fault(counts > 1, "two keys belong into this column")
        places = np.zeros(len(values), np.int64)
        places[owners[hits]] = np.flatnonzero(hits)
        children.append(_cast_field(items.take(pa.array(places, mask=counts == 0)), child, inside))
    return pa.StructArray.from_arrays(children, fields=list(target), mask=_null_mask(values))


def _json_text_of(values: pa.Array, target: pa.DataType, at: _Place) -> pa.Array:
    texts = [
        None if value is None else json_values.json_text(value)
        for value in _arrow_to_json_values(values, at)
    ]
    return pa.array(texts, target)


def _arrow_to_json_values(values: pa.Array, at: _Place) -> list[Any]:
    """Return Arrow values as JSON would have them."""
    kind = values.type
    if isinstance(kind, VariableScale):
        return _arrow_to_json_values(values.storage, at)
    if isinstance(kind, Unscaled):
        return unscaled_to_numbers_of_any_width(values)
    if pa_types.is_union(kind):
        return _json_values_of_union(values, at)
    if pa_types.is_struct(kind):
        there = _valid_flags(values)
        rows = np.where(there, at.rows, -1)
        children = {
            child.name: _arrow_to_json_values(
                values.field(n), at.place_inside(rows, f".{child.name}")
            )
            for n, child in enumerate(kind)
        }
        return [
            {name: items[row] for name, items in children.items()} if valid else None
            for row, valid in enumerate(there.tolist())
        ]
    if pa_types.is_map(kind) or _is_list(kind):
        return _json_values_of_items(values, at)
    if pa_types.is_temporal(kind):
        # From the counts: Arrow's Python values do not reach as far, and need pandas for some.
        sound = _cast_halving_on_error(values, _Column(kind, "", as_text=False), at)
        counts = sound.cast(pa.int32() if pa_types.is_date(kind) else pa.int64()).to_pylist()
        return [None if count is None else times.iso_text(count, kind) for count in counts]
    return [_primitive_as_json(value) for value in values.to_pylist()]


def _json_values_of_union(values: pa.UnionArray, at: _Place) -> list[Any]:
    result: list[Any] = [None] * len(values)
    for there, child in _branches_of(values):
        inside = _arrow_to_json_values(child, at.place_inside(at.rows[there], ""))
        for row, value in zip(there.tolist(), inside, strict=True):
            result[row] = value
    return result


def _json_values_of_items(values: pa.Array, at: _Place) -> list[Any]:
    """Return arrays as lists, and maps as dictionaries."""
    offsets, rows = _offsets_and_rows_of_items(values, at)
    ends = zip(offsets[:-1].tolist(), offsets[1:].tolist(), _valid_flags(values), strict=True)
    if not pa_types.is_map(values.type):
        parts = _arrow_to_json_values(values.flatten(), at.place_inside(rows, "[]"))
        return [parts[begin:end] if valid else None for begin, end, valid in ends]
    keys, items = _entries_of(values)
    owners = np.repeat(np.arange(len(values)), np.diff(offsets))
    at.place_inside(rows, "").note_fault(_flag_repeated_keys(keys, owners), "has a key twice")
    values_ = _arrow_to_json_values(items, at.place_inside(rows, "[]"))
    pairs = list(zip(map(str, keys.to_pylist()), values_, strict=True))
    return [dict(pairs[begin:end]) if valid else None for begin, end, valid in ends]


def _entries_of(values: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    begin, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
    return values.keys.slice(begin, end - begin), values.items.slice(begin, end - begin)


def _branches_of(values: pa.UnionArray) -> Iterator[tuple[Rows, pa.Array]]:
    codes, offsets = np.asarray(values.type_codes), np.asarray(values.offsets).astype(np.int64)
    for code in range(values.type.num_fields):
        there = np.flatnonzero(codes == code)
        yield there, values.field(code).take(pa.array(offsets[there]))


def _primitive_as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no number for it
    return value if value is None or isinstance(value, str | int | float | Decimal) else str(value)


def _valid_flags(values: pa.Array) -> Flags:
    result: Flags = values.is_valid().to_numpy(zero_copy_only=False)
    return result


def _null_mask(values: pa.Array) -> pa.Array | None:
    return values.is_null() if values.null_count else None


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa_types.is_list(data_type) or pa_types.is_large_list(data_type))


def _describe_kind(data_type: pa.DataType) -> str:
    if pa_types.is_struct(data_type):
        return "a record"
    if not pa_types.is_map(data_type):
        return "an array"
    return "a map" if _is_map_by_name(data_type) else f"a map by {data_type.key_type}"


def _is_map_by_name(data_type: pa.DataType) -> bool:
    """Return whether it is a map whose keys may name columns: Protobuf's may be numbers."""
    return bool(pa_types.is_map(data_type) and column_options.is_text_type(data_type.key_type))
