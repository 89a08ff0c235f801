"""Finds what records have and a table lacks: fields without a column, and too wide values
(SCHEMA-1).

A finder knows the columns as records name them. For JSON it infers types from values: whole
numbers are long, others double, text stays text, and null, ``[]`` and ``{}`` prove nothing. Formats
with schemas are judged by these, once for each.
"""

from __future__ import annotations

import struct as packing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache, reduce
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as pa_types

from headgate.control_protocol.columns import (
    Column,
    ListOf,
    MapOf,
    Path,
    Struct,
    Type,
    unify_columns,
)
from headgate.control_protocol.schema_evolution import FIELDS_MAX, can_widen
from headgate.data_plane.formats import field_names
from headgate.data_plane.formats.json.values import DECIMALS
from headgate.native.kernels import Fields

_DEPTH_MAX = 8
_FIELDS_KEPT = 64
_INT, _LONG = range(-(2**31), 2**31), range(-(2**63), 2**63)

Rows = np.ndarray[Any, np.dtype[np.int64]]
UnknownColumns = tuple[Rows, Struct]
"""Some rows of the values that were decoded, and what they need."""


class EvolvingFormat(Protocol):
    """Reports which fields records have beyond the columns that it fills (schema evolution)."""

    def watch_unknown_fields(self, finder: UnknownFieldFinder) -> None:
        """Look for unknown fields from now on; ``unknown_columns_of_last_decode`` reports them."""

    @property
    def record_count_with_ignored_fields(self) -> int:
        """Return how many of the decoded records had fields to ignore, as far as seen."""

    def unknown_columns_of_last_decode(
        self, values: Sequence[bytes], bad_rows: Collection[int], /
    ) -> Iterable[UnknownColumns]:
        """Report on the values that were decoded last; ``bad_rows``: those that became no rows."""


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Says where a record has its row: under the path ``row``.

    The fields ``outside`` of it do not describe rows, nor do ``words`` among the row's own fields.
    """

    row: Path = ()
    outside: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()


class UnknownFieldFinder:
    """Finds fields of records that no column of the schema takes.

    ``used`` are top-level names of the row that are not looked at: something other than a column of
    that name uses them, or nothing does. ``defaulted``: the columns that a rule fills for records
    without such a field.
    """

    def __init__(
        self,
        schema: pa.Schema,
        used: Collection[str],
        ignored: Iterable[Path],
        *,
        caseless: bool,
        place: RowPlace | None = None,
        defaulted: Collection[str] = (),
    ) -> None:
        self._schema = schema
        self._place = place or RowPlace()
        self._caseless = caseless
        self._used = frozenset(map(self._normalize_name, {*self._place.words, *used}))
        self._defaulted = frozenset(defaulted)
        self.ignored: frozenset[Path] = frozenset()
        self.fields: Fields | None = None
        """For the C code; ``None`` if a name is more than its letters."""
        self.ignore(ignored)

    def ignore(self, paths: Iterable[Path]) -> None:
        """Stop reporting these fields, which will not become columns."""
        self.ignored |= frozenset(paths)
        plain = all(map(field_names.is_found_by_exact_names, self._schema)) and not self._caseless
        self.fields = None
        if plain:
            exact = field_names.ExactSchema(self._schema)
            self.fields = _cached_known_fields(exact, self._used, self.ignored, self._place)

    # --------------------------------------------------------------------------- JSON's values

    def columns_needed_by_record(self, record: Mapping[str, Any]) -> Struct:
        """Return what the table would need for this object to lose nothing."""
        row = self._row_of(record)
        rest = {
            name: value
            for name, value in row.items()
            if self._normalize_name(name) not in self._used
        }
        return Struct(tuple(self._columns_needed_by_values(rest, list(self._schema), ())))

    def has_ignored_field(self, record: Mapping[str, Any]) -> bool:
        """Return whether the object has a value in a field to be ignored."""
        row = self._row_of(record)
        return any(_has_value_at(row, path) for path in self.ignored)

    def _row_of(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        for step in self._place.row:
            inside = record.get(step)
            record = inside if isinstance(inside, dict) else {}
        return record

    def _columns_needed_by_values(
        self, record: Mapping[str, Any], columns: list[pa.Field], path: Path
    ) -> Iterable[Column]:
        """Yield what is lacking for this record: new columns, and wider ones for its values."""
        by_form = {
            form: column for column in columns for form in field_names.lookup_names_of(column)
        }
        for name, value in record.items():
            column = by_form.get(self._normalize_name(name))
            at = (*path, column.name if column is not None else name)
            if value is None or at in self.ignored:
                continue
            wanted = (
                infer_type(value)
                if column is None
                else self._find_wider_type_for_value(column.type, value, at)
            )
            if wanted is not None:
                yield Column(at[-1], wanted)

    def _normalize_name(self, name: str) -> str:
        return name.lower() if self._caseless else name

    def _find_wider_type_for_value(
        self, data_type: pa.DataType, value: Any, path: Path
    ) -> Type | None:
        """Return what a column would have to be for the value, if it is not yet."""
        if pa_types.is_struct(data_type) and isinstance(value, dict):
            inside = tuple(self._columns_needed_by_values(value, list(data_type), path))
            return Struct(inside) if inside else None
        if pa_types.is_map(data_type) and isinstance(value, dict):
            item = self._find_wider_item_type_for_values(data_type.item_type, value.values(), path)
            return None if item is None else MapOf("string", Column("", item))
        if _is_list(data_type) and isinstance(value, list):
            item = self._find_wider_item_type_for_values(data_type.value_type, value, path)
            return None if item is None else ListOf(Column("", item))
        return _find_wider_primitive_for_value(data_type, value)

    def _find_wider_item_type_for_values(
        self, data_type: pa.DataType, values: Iterable[Any], path: Path
    ) -> Type | None:
        result = (
            self._find_wider_type_for_value(data_type, value, path)
            for value in values
            if value is not None
        )
        return _merge_types(each for each in result if each is not None)

    # ----------------------------------------------------------------------------- by a schema

    def columns_needed_by_writer(self, writer_columns: Struct) -> Struct:
        """Return what the table would need for anything written with these columns."""
        for step in self._place.row:
            inside = [c.type for c in writer_columns.fields if c.name == step]
            if not inside or not isinstance(inside[0], Struct):
                return Struct()
            writer_columns = inside[0]
        rest = (c for c in writer_columns.fields if self._normalize_name(c.name) not in self._used)
        return Struct(
            tuple(self._columns_needed_by_struct(Struct(tuple(rest)), list(self._schema), ()))
        )

    def _columns_needed_by_struct(
        self, written: Struct, columns: list[pa.Field], path: Path
    ) -> Iterable[Column]:
        by_form = {
            form: column for column in columns for form in field_names.lookup_names_of(column)
        }
        there = set()
        for wanted in written.fields:
            column = by_form.get(self._normalize_name(wanted.name))
            at = (*path, column.name if column is not None else wanted.name)
            there.add(at[-1])
            if at in self.ignored:
                continue
            if column is None:
                yield wanted
                continue
            kind = self._find_wider_type_for_written(column.type, wanted.type, at)
            optional = not column.nullable and not wanted.required
            if kind is not None or optional:
                yield Column(
                    column.name,
                    kind or _type_for_becoming_optional(column.type),
                    required=not optional,
                )
        for column in columns:
            at = (*path, column.name)
            if column.name in there or at in self.ignored or column.nullable:
                continue
            if path or column.name not in self._defaulted:
                yield Column(column.name, _type_for_becoming_optional(column.type), required=False)

    def _find_wider_type_for_written(
        self, data_type: pa.DataType, wanted: Type, path: Path
    ) -> Type | None:
        match wanted:
            case Struct() if pa_types.is_struct(data_type):
                inside = tuple(self._columns_needed_by_struct(wanted, list(data_type), path))
                return Struct(inside) if inside else None
            case ListOf(element) if _is_list(data_type):
                item = self._find_wider_item_for_written(data_type.value_field, element, path)
                return None if item is None else ListOf(item)
            case MapOf(key, value) if pa_types.is_map(data_type):
                item = self._find_wider_item_for_written(data_type.item_field, value, path)
                return None if item is None else MapOf(key, item)
            case str():
                return wanted if can_widen(_widening_type_name_of(data_type), wanted) else None
            case _:
                return None

    def _find_wider_item_for_written(
        self, field: pa.Field, item: Column, path: Path
    ) -> Column | None:
        kind = self._find_wider_type_for_written(field.type, item.type, path)
        optional = not field.nullable and not item.required
        if kind is None and not optional:
            return None
        return Column("", kind or _type_for_becoming_optional(field.type), required=not optional)


@lru_cache(maxsize=_FIELDS_KEPT)
def _cached_known_fields(
    exact: field_names.ExactSchema,
    used: frozenset[str],
    ignored: frozenset[Path],
    around: RowPlace,
) -> Fields:
    """Return what the C code has to know, kept for the next batch, and with it what is made of
    it (``one_pass.compile_plan``)."""
    named: list[tuple[int, bytes, int]] = []
    any_key: dict[int, int] = {}
    places = iter(range(1, 10**6))

    def add_columns(columns: list[pa.Field], inside: int, path: Path) -> None:
        for column in columns:
            at = (*path, column.name)
            place = Fields.OPAQUE if at in ignored else add_fields_of_type(column.type, at)
            named.append((inside, column.name.encode(), place))
        known = {column.name for column in columns}
        for at in ignored:
            if at[:-1] == path and at and at[-1] not in known:
                named.append((inside, at[-1].encode(), Fields.IGNORED))

    def add_fields_of_type(data_type: pa.DataType, path: Path) -> int:
        if pa_types.is_struct(data_type):
            place = next(places)
            add_columns(list(data_type), place, path)
            return place
        if _is_list(data_type):
            return add_fields_of_type(data_type.value_type, path)
        if pa_types.is_map(data_type):
            item = add_fields_of_type(data_type.item_type, path)
            if item == Fields.OPAQUE:
                return item
            place = next(places)
            any_key[place] = item
            return place
        return Fields.OPAQUE

    top = 0
    for step in around.row:
        named.append((top, step.encode(), place := next(places)))
        top = place
    add_columns(list(exact.schema), top, ())
    named += [(top, name.encode(), Fields.OPAQUE) for name in used]
    named += [(0, name.encode(), Fields.OPAQUE) for name in around.outside]
    return Fields(named, any_key)


def infer_type(value: Any, depth: int = 0) -> Type | None:
    """Return the column type for the value.

    ``None`` if it proves nothing or is nested too deeply.
    """
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "long" if value in _LONG else "decimal(38, 0)" if abs(value) < 10**38 else "string"
    if isinstance(value, float | Decimal):
        return "double"
    if isinstance(value, str) or (value and depth >= _DEPTH_MAX):
        return "string"
    if isinstance(value, dict):
        items = [(n, k) for n, v in value.items() if (k := infer_type(v, depth + 1)) is not None]
        if len(items) > FIELDS_MAX:
            return MapOf("string", Column("", _merge_types(k for _, k in items) or "string"))
        return Struct(tuple(Column(n, k) for n, k in items)) if items else None
    if isinstance(value, list):
        item = _merge_types(k for v in value if (k := infer_type(v, depth + 1)) is not None)
        return None if item is None else ListOf(Column("", item))
    return None


def _merge_types(found: Iterable[Type]) -> Type | None:
    """Join several types, by way of proposals of one column."""
    columns = [Struct((Column("", kind),)) for kind in found]
    return reduce(unify_columns, columns).fields[0].type if columns else None


def _find_wider_primitive_for_value(data_type: pa.DataType, value: Any) -> Type | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if pa_types.is_int32(data_type):
        whole = -(2**63) <= value < 2**63 and value == int(value)
        return "long" if whole and int(value) not in _INT else None
    if pa_types.is_float32(data_type):
        try:
            packing.pack("<f", value)
        except (OverflowError, packing.error):
            return "double"
        return None
    if pa_types.is_decimal(data_type):
        return _find_wider_decimal_for_value(data_type, Decimal(value))
    return None


def _find_wider_decimal_for_value(data_type: pa.DataType, value: Decimal) -> Type | None:
    whole = max(value.adjusted() + 1, 0) if value else 0
    exponent = value.normalize(DECIMALS).as_tuple().exponent
    fits = isinstance(exponent, int) and -exponent <= data_type.scale
    digits = whole + data_type.scale
    return (
        f"decimal({digits}, {data_type.scale})"
        if fits and data_type.precision < digits <= 38
        else None
    )


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa_types.is_list(data_type) or pa_types.is_large_list(data_type))


def _widening_type_name_of(data_type: pa.DataType) -> str:
    if pa_types.is_decimal(data_type):
        return f"decimal({data_type.precision}, {data_type.scale})"
    return {"int32": "int", "int64": "long", "float": "float", "double": "double"}.get(
        str(data_type), "string"
    )


def _type_for_becoming_optional(data_type: pa.DataType) -> Type:
    """Return a type for a column that only becomes optional: of the same shape, not wider."""
    if pa_types.is_struct(data_type):
        return Struct(
            tuple(Column(each.name, _type_for_becoming_optional(each.type)) for each in data_type)
        )
    if _is_list(data_type):
        return ListOf(Column("", _type_for_becoming_optional(data_type.value_type)))
    if pa_types.is_map(data_type):
        return MapOf("string", Column("", _type_for_becoming_optional(data_type.item_type)))
    return _widening_type_name_of(data_type)


def _has_value_at(value: Any, path: Path) -> bool:
    if isinstance(value, list):
        return any(_has_value_at(item, path) for item in value)
    if not path:
        return value is not None
    return isinstance(value, dict) and _has_value_at(value.get(path[0]), path[1:])
