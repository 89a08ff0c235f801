"""Finds JSON's keys under the names by which a table's columns are found (``field_names``).

Records that spell their keys alike are decoded together, under the keys that they use. If that
would be ambiguous (escapes in a key, two keys for one column), the record is parsed, its keys are
renamed, and it is written again: nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pa_types

from headgate.data_plane.formats import column_options, field_names
from headgate.data_plane.formats.casting.relabel import apply_schema_by_position, rows_from_python
from headgate.data_plane.formats.json import values as json_values
from headgate.data_plane.formats.record_format import Faults, UndecodableRecords

# Every text from left to right, so that none begins inside another; the colon makes it a key.
_TEXT = re.compile(rb'"((?:[^"\\]|\\.)*)"(\s*:)?', re.DOTALL)

Keys = frozenset[bytes]
Decode = Callable[[Sequence[bytes], pa.Schema], pa.RecordBatch]


class KeysByFieldName:
    """Decodes with ``decode``, which knows only exact names."""

    def __init__(self, schema: pa.Schema, decode: Decode) -> None:
        self._schema = schema
        self._decode = decode
        self._caseless = any(field_names.is_caseless(field) for field in schema)
        # A column's own name is watched for too: it may be a key that belongs to no column.
        self._watched = set().union(*map(_all_names, schema))
        self._requested: dict[Keys, pa.Schema | None] = {}

    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch:
        groups: dict[Keys, list[int]] = {}
        for row, value in enumerate(values):
            groups.setdefault(self._relevant_keys(value), []).append(row)
        faults = Faults()
        parts: list[pa.RecordBatch] = [rows_from_python([], self._schema)]
        order: list[int] = []
        for keys, rows in groups.items():
            part, good = self._decode_group(keys, [values[row] for row in rows], rows, faults)
            parts.append(part)
            order.extend(good)
        places = pa.array(np.argsort(np.array(order, np.int64)))
        together = pa.concat_batches(parts).take(places)
        if faults.reasons:
            raise UndecodableRecords(faults.reasons, together)
        return together

    def _relevant_keys(self, value: bytes) -> Keys:
        """Return the keys that matter, as spelled; one with an escape makes it ambiguous."""
        result = set()
        for text, colon in _TEXT.findall(value):
            if colon and (b"\\" in text or self._normalize_key(text) in self._watched):
                result.add(text)
        return frozenset(result)

    def _normalize_key(self, key: bytes) -> str:
        text = key.decode(errors="replace")
        return text.lower() if self._caseless else text

    def _decode_group(
        self, keys: Keys, values: list[bytes], rows: list[int], faults: Faults
    ) -> tuple[pa.RecordBatch, list[int]]:
        """Decode what a group allows, and return the rows concerned."""
        if keys not in self._requested:
            self._requested[keys] = self._schema_for(keys)
        asked = self._requested[keys]
        bad: dict[int, str] = {}
        if asked is None:
            values, bad = self._rename_keys(values)
            asked = self._schema
        left = [place for place in range(len(rows)) if place not in bad]
        try:
            result = self._decode([values[place] for place in left], asked)
        except UndecodableRecords as error:
            result = error.rest
            bad |= {left[place]: reason for place, reason in error.bad.items()}
        for place, reason in bad.items():
            faults.note([rows[place]], reason)
        good = [row for place, row in enumerate(rows) if place not in bad]
        return apply_schema_by_position(result, self._schema), good

    def _schema_for(self, keys: Keys) -> pa.Schema | None:
        """Return the schema under the keys that these records use.

        ``None`` if that is ambiguous.
        """
        if any(b"\\" in key for key in keys):
            return None
        spelled = [key.decode(errors="replace") for key in sorted(keys)]
        try:
            return pa.schema([_field_as_spelled(field, spelled) for field in self._schema])
        except field_names.TwoFields:
            return None

    def _rename_keys(self, values: list[bytes]) -> tuple[list[bytes], dict[int, str]]:
        result, bad = [], {}
        row = pa.struct(list(self._schema))
        for place, value in enumerate(values):
            try:
                renamed = _with_column_names_as_keys(json_values.parse_record(value), row)
                result.append(json_values.json_text(renamed).encode("utf-8", "surrogatepass"))
            except ValueError as error:
                result.append(b"")
                bad[place] = str(error)
        return result, bad


def _all_names(field: pa.Field) -> set[str]:
    own = field.name.lower() if field_names.is_caseless(field) else field.name
    inside = (_all_names(child) for child in _outermost_struct_fields(field.type))
    return ({own} | field_names.lookup_names_of(field)).union(*inside)


def _outermost_struct_fields(data_type: pa.DataType) -> list[pa.Field]:
    """Return the struct fields anywhere in a type, but not those inside other such fields."""
    if pa_types.is_struct(data_type):
        return list(data_type)
    inside = [data_type.field(place).type for place in range(data_type.num_fields)]
    return [field for child in inside for field in _outermost_struct_fields(child)]


def _field_as_spelled(field: pa.Field, spelled: list[str]) -> pa.Field:
    place = field_names.match_fields([field], spelled)[0]
    name = field.name if place is None else spelled[place]
    if place is None and field.name in spelled:
        raise field_names.TwoFields  # the key of that name is another column's
    kind = _type_as_spelled(field.type, spelled)
    return pa.field(name, kind, field.nullable, metadata=column_options.read_options_of(field))


def _type_as_spelled(data_type: pa.DataType, spelled: list[str]) -> pa.DataType:
    if pa_types.is_struct(data_type):
        return pa.struct([_field_as_spelled(child, spelled) for child in data_type])
    if pa_types.is_map(data_type):
        return pa.map_(data_type.key_type, _type_as_spelled(data_type.item_type, spelled))
    if _is_list(data_type):
        list_of = pa.large_list if pa_types.is_large_list(data_type) else pa.list_
        return list_of(_type_as_spelled(data_type.value_type, spelled))
    return data_type


def _with_column_names_as_keys(value: Any, data_type: pa.DataType) -> Any:
    """Return the parsed value with the columns' names as its keys. Raises ``TwoFields``."""
    if pa_types.is_struct(data_type) and isinstance(value, dict):
        keys = list(value)
        result = field_names.match_fields(list(data_type), keys)
        return {
            field.name: _with_column_names_as_keys(value[keys[place]], field.type)
            for field, place in zip(data_type, result, strict=True)
            if place is not None
        }
    if pa_types.is_map(data_type) and isinstance(value, dict):
        return {
            key: _with_column_names_as_keys(item, data_type.item_type)
            for key, item in value.items()
        }
    if _is_list(data_type) and isinstance(value, list):
        return [_with_column_names_as_keys(item, data_type.value_type) for item in value]
    return value


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa_types.is_list(data_type) or pa_types.is_large_list(data_type))
