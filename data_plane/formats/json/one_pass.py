"""Reads JSON objects into columns in one pass of the C code: the first way, and the shortest.

A plan is compiled from a schema, and from the fields that somebody looks for beyond it. The C code
takes a record only when every value is written in the plainest way that its column has, and none of
its objects names a key twice; it leaves all others, as a whole, to the rules (``bad_record_search``
and ``values``). So it never refuses a record, and what it takes is what the rules would make of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pa_types

from headgate.data_plane.formats import column_options
from headgate.data_plane.formats.casting import epoch_times
from headgate.data_plane.formats.casting.relabel import relabel_with_type, storage_type
from headgate.data_plane.formats.field_names import ExactSchema
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Fields, Integers, Octets, Table, Walked, WalkPlan, loops

LEFT: Final = 1
"""In what is found of a record: it was left to the rules. Its marks are two bits above."""

_LACKS, _IGNORES = 4, 8
_DEPTH_MAX = 32
_BYTES_MAX = 2**31 - 1
"""Of a block; so offsets of 32 bits are enough for any of its columns."""
_ITEMS_PER_ROW, _DATA_MIN = 2, 4096
_PLANS_KEPT = 64


class _Kind(IntEnum):
    """Lists what the C code makes of a value, in its order (``column_kind``)."""

    SKIPPED, BOOLEAN, INT32, INT64, FLOAT, DOUBLE, STRING, BINARY, FIXED, UUID = range(10)
    DATE, TIME, TIMESTAMP, DECIMAL, STRUCT, LIST, MAP = range(10, 17)


# Places in a row of the table, in the order of the C code's ``struct column``.
_KIND, _NULLABLE, _LARGE, _ONE, _OTHER, _FIRST_KEY, _KEY_COUNT, _UNKNOWN, _ITEM, _KEY = range(10)
_OPTION, _VALID, _VALUES, _DATA, _ROOM, _DATA_ROOM, _COUNT, _USED, _NULLS = range(10, 19)
_WIDTHS = {
    _Kind.INT32: 4,
    _Kind.FLOAT: 4,
    _Kind.DATE: 4,
    _Kind.INT64: 8,
    _Kind.DOUBLE: 8,
    _Kind.TIME: 8,
    _Kind.TIMESTAMP: 8,
    _Kind.UUID: 16,
    _Kind.DECIMAL: 16,
}
_PLAIN = {
    pa.bool_(): _Kind.BOOLEAN,
    pa.int32(): _Kind.INT32,
    pa.int64(): _Kind.INT64,
    pa.float32(): _Kind.FLOAT,
    pa.float64(): _Kind.DOUBLE,
    pa.string(): _Kind.STRING,
    pa.large_string(): _Kind.STRING,
    pa.binary(): _Kind.BINARY,
    pa.large_binary(): _Kind.BINARY,
    pa.date32(): _Kind.DATE,
}
_PER_SECOND = {"us": 10**6, "ns": 10**9}
_OFFSETS = (_Kind.STRING, _Kind.BINARY, _Kind.LIST, _Kind.MAP)
_HAS_DATA = (_Kind.STRING, _Kind.BINARY)


class _Unplanned(Exception):
    """Says that a plan cannot express the schema."""


@dataclass(slots=True)
class _Column:
    kind: _Kind
    type: pa.DataType
    nullable: bool = True
    one: int = 0
    other: int = 0
    place: int = Fields.OPAQUE
    depth: int = 0
    first_key: int = 0
    key_count: int = 0
    unknown: int = 0
    item: int = 0
    key: int = 0
    option: int = 0
    repeated: bool = False
    children: list[int] = field(default_factory=list)


class Plan:
    """What one schema, and the fields that somebody asks about, make of JSON objects."""

    def __init__(self, schema: pa.Schema, fields: Fields | None) -> None:
        """Raises ``_Unplanned``."""
        self.schema = schema
        self._within = fields.within if fields else {}
        self._any = fields.any.tolist() if fields else []
        self._keys: list[tuple[int, bytes, int, int]] = []
        self.columns: list[_Column] = []
        if not len(schema):
            raise _Unplanned
        row = pa.struct(list(schema))
        self._add_column(_Column(_Kind.STRUCT, row, place=0 if fields else Fields.OPAQUE))
        for column in self._columns_even_if_added_meanwhile():
            if column.kind == _Kind.LIST:
                column.item = self._add_column(self._plan_column(column.type.value_field, column))
                column.children = [column.item]
            elif column.kind == _Kind.MAP:
                self._add_map_entries(column)
            elif column.kind in (_Kind.STRUCT, _Kind.SKIPPED):
                self._add_object_members(column)
        self.walk = WalkPlan(self._keys)
        self.table: Table = np.zeros((len(self.columns), _NULLS + 1), np.int64)
        for at, column in enumerate(self.columns):
            self.table[at, : _OPTION + 1] = self._encode_column(column)

    def _columns_even_if_added_meanwhile(self) -> Iterable[_Column]:
        """Return every column, also those that are added meanwhile."""
        yield from self.columns

    def _add_column(self, column: _Column) -> int:
        if column.depth > _DEPTH_MAX:
            raise _Unplanned
        self.columns.append(column)
        return len(self.columns) - 1

    def _plan_column(
        self, source: pa.Field, around: _Column, place_in_fields: int | None = None
    ) -> _Column:
        kind, one, other = _kind_of(source.type)
        at = around.place if place_in_fields is None else place_in_fields
        made = _Column(kind, source.type, source.nullable, one, other, at, around.depth + 1)
        made.repeated = around.repeated or around.kind in (_Kind.LIST, _Kind.MAP)
        if column_options.has_read_option(source):
            # By the rules, a struct with nothing else in it is never null.
            only = around.depth and all(map(_has_read_options_throughout, around.type))
            if made.repeated or only or at >= 0:
                raise _Unplanned
            made.option = _option_code_of(source, kind)
        return made

    def _add_map_entries(self, column: _Column) -> None:
        inside = self._any[column.place] if column.place >= 0 else Fields.OPAQUE
        if not inside:  # somebody takes it for a struct
            raise _Unplanned
        key = self._plan_column(column.type.key_field, column, Fields.OPAQUE)
        if key.kind != _Kind.STRING:
            raise _Unplanned
        column.key = self._add_column(key)
        column.item = self._add_column(self._plan_column(column.type.item_field, column, inside))
        column.children = [column.key, column.item]

    def _add_object_members(self, column: _Column) -> None:
        fields = list(column.type) if column.kind == _Kind.STRUCT else []
        if column.kind == _Kind.STRUCT and not fields:
            raise _Unplanned
        if column.place >= 0 and self._any[column.place]:
            raise _Unplanned
        known = self._within.get(column.place, {}) if column.place >= 0 else {}
        inside = self.columns.index(column)
        column.first_key = len(self._keys)
        column.unknown = _LACKS if column.place >= 0 else 0
        taken: set[bytes] = set()
        for child in fields:
            name = _require_name_without_escape(child)
            if name in taken:
                raise _Unplanned
            taken.add(name)
            place = known.get(name, _UNKNOWN_FIELD) if column.place >= 0 else Fields.OPAQUE
            at = self._add_column(self._plan_column(child, column, place))
            column.children.append(at)
            self._keys.append((inside, name, at, _MARKS.get(place, 0)))
        for name, place in known.items():
            if name in taken or not _needs_no_escape(name):
                continue
            at = -1
            if place >= 0 and not self._any[place]:
                skipped = _Column(_Kind.SKIPPED, pa.null(), place=place, depth=column.depth + 1)
                at = self._add_column(skipped)
            elif place >= 0:
                raise _Unplanned
            self._keys.append((inside, name, at, _MARKS.get(place, 0)))
        column.key_count = len(self._keys) - column.first_key

    def _encode_column(self, column: _Column) -> list[int]:
        large = column.type in (pa.large_string(), pa.large_binary())
        large = large or pa_types.is_large_list(column.type)
        keys = [column.first_key, column.key_count, column.unknown, column.item, column.key]
        return [column.kind, column.nullable, large, column.one, column.other, *keys, column.option]


_UNKNOWN_FIELD = -2
_MARKS = {_UNKNOWN_FIELD: _LACKS, Fields.IGNORED: _IGNORES}


def compile_plan(schema: pa.Schema, fields: Fields | None) -> Plan | None:
    """Return the plan; ``None`` if it cannot express the schema, which the rules then read.

    It is kept: to compile it for every batch would cost a tenth of a small one.
    """
    return _cached_plan(ExactSchema(schema), fields)


@lru_cache(maxsize=_PLANS_KEPT)
def _cached_plan(exact: ExactSchema, fields: Fields | None) -> Plan | None:
    try:
        return Plan(exact.schema, fields)
    except _Unplanned:
        return None


def _require_name_without_escape(source: pa.Field) -> bytes:
    try:
        name: bytes = source.name.encode()
    except UnicodeEncodeError as error:
        raise _Unplanned from error
    if not _needs_no_escape(name):
        raise _Unplanned
    return name


def _needs_no_escape(name: bytes) -> bool:
    """Return whether a key of that name is written as the name is."""
    return not any(octet < 32 or octet in b'"\\' for octet in name)


class _KindOf(NamedTuple):
    """The C code's kind of a type, and up to two parameters, such as precision and scale."""

    kind: _Kind
    one: int = 0
    other: int = 0


def _kind_of(data_type: pa.DataType) -> _KindOf:
    if data_type == pa.uuid():
        return _KindOf(_Kind.UUID)
    if isinstance(data_type, pa.BaseExtensionType):
        raise _Unplanned
    if data_type in _PLAIN:
        return _KindOf(_PLAIN[data_type])
    for is_kind, result in (
        (pa_types.is_struct, _Kind.STRUCT),
        (pa_types.is_list, _Kind.LIST),
        (pa_types.is_large_list, _Kind.LIST),
        (pa_types.is_map, _Kind.MAP),
    ):
        if is_kind(data_type):
            return _KindOf(result)
    if pa_types.is_fixed_size_binary(data_type) and data_type.byte_width:
        return _KindOf(_Kind.FIXED, data_type.byte_width)
    if pa_types.is_decimal128(data_type) and 0 <= data_type.scale <= data_type.precision:
        return _KindOf(_Kind.DECIMAL, data_type.precision, data_type.scale)
    if (
        pa_types.is_time64(data_type) or pa_types.is_timestamp(data_type)
    ) and data_type.unit in _PER_SECOND:
        zoned = pa_types.is_timestamp(data_type) and data_type.tz is not None
        result = _Kind.TIMESTAMP if pa_types.is_timestamp(data_type) else _Kind.TIME
        return _KindOf(result, _PER_SECOND[data_type.unit], int(zoned))
    raise _Unplanned


def _has_read_options_throughout(field: pa.Field) -> bool:
    """Return whether the field, or everything in it, has a rule of its own."""
    if pa_types.is_struct(field.type) and field.type.num_fields:
        return all(map(_has_read_options_throughout, field.type))
    return column_options.has_read_option(field)


def _option_code_of(marked: pa.Field, kind: _Kind) -> int:
    """Return what the C code must know of the field's rule (``column_options``)."""
    unit = column_options.unit_of(marked)
    if (
        unit
        and kind in (_Kind.TIME, _Kind.TIMESTAMP)
        and not column_options.has_as_text_option(marked)
    ):
        return int(10 ** epoch_times.DIGITS[unit])
    if unit or kind != _Kind.STRING:
        raise _Unplanned
    return 1


# --------------------------------------------------------------------------------------- the pass


@dataclass(frozen=True, slots=True)
class Taken:
    """The records that the pass took, in their order, and what it found of each record."""

    batch: pa.RecordBatch
    found: Octets

    def rows_left_over(self) -> Integers:
        return np.flatnonzero(self.found == LEFT)


def read_in_one_pass(values: Packed, plan: Plan) -> Taken | None:
    """Read what is plain; ``None`` if nobody can, since there is no C code or the block is huge."""
    array = values.array
    if not loops().walks_json or not len(array) or array.null_count:
        return None
    size = _data_bytes_of(array)
    if size > _BYTES_MAX:
        return None
    buffers = _Buffers(plan, len(array), size)
    into = Walked(buffers.table, np.zeros(len(array), np.uint8))
    begin = 0
    while begin < len(array):
        begin, full = loops().decode_json_into_buffers(array, begin, plan.walk, into)
        if full >= 0:
            buffers.grow(full >> 1, only_data=bool(full & 1))
    columns = [buffers.build_column(at) for at in plan.columns[0].children]
    return Taken(pa.RecordBatch.from_arrays(columns, schema=plan.schema), into.found)


def _data_bytes_of(array: pa.LargeBinaryArray) -> int:
    bounds = np.frombuffer(array.buffers()[1], np.int64)
    return int(bounds[array.offset + len(array)] - bounds[array.offset])


class _Buffers:
    """The memory that a pass writes into. C asks for more where it is short, and goes on."""

    def __init__(self, plan: Plan, rows: int, size: int) -> None:
        self._plan = plan
        self.table: Table = plan.table.copy()
        self._owned: dict[tuple[int, int], Any] = {}
        texts = sum(column.kind in _HAS_DATA for column in plan.columns)
        share = max(_DATA_MIN, 2 * size // max(texts, 1))
        inside = [False] * len(plan.columns)
        for at, column in enumerate(plan.columns):
            for child in column.children:
                # An item may come many times in a row, and so may everything in it.
                inside[child] |= inside[at] or column.kind in (_Kind.LIST, _Kind.MAP)
            if at and column.kind != _Kind.SKIPPED:
                self._reserve_values(at, rows * _ITEMS_PER_ROW if inside[at] else rows)
                if column.kind in _OFFSETS:
                    np.frombuffer(self._owned[at, _VALUES], np.uint8)[:8] = 0
            if column.kind in _HAS_DATA:
                self._resize(at, _DATA, min(share, size) + 1)
                self.table[at, _DATA_ROOM] = min(share, size)

    def grow(self, at: int, *, only_data: bool) -> None:
        if only_data:
            room = 2 * int(self.table[at, _DATA_ROOM]) + _DATA_MIN
            self._resize(at, _DATA, room)
            self.table[at, _DATA_ROOM] = room
        else:
            self._reserve_values(at, 2 * int(self.table[at, _ROOM]) + 64)

    def _reserve_values(self, at: int, room: int) -> None:
        self._resize(at, _VALID, (room + 7) // 8)
        size = self._values_byte_size(at, room)
        if size:
            self._resize(at, _VALUES, size)
        self.table[at, _ROOM] = room

    def _values_byte_size(self, at: int, room: int) -> int:
        column = self._plan.columns[at]
        if column.kind == _Kind.BOOLEAN:
            return (room + 7) // 8
        if column.kind in _OFFSETS:
            return (room + 1) * (8 if self.table[at, _LARGE] else 4)
        return room * (column.one if column.kind == _Kind.FIXED else _WIDTHS.get(column.kind, 0))

    def _resize(self, at: int, place: int, size: int) -> None:
        buffer = self._owned.get((at, place))
        if buffer is None:
            buffer = self._owned[at, place] = pa.allocate_buffer(max(size, 8), resizable=True)
        else:
            buffer.resize(max(size, 8))
        self.table[at, place] = buffer.address

    def build_column(self, at: int) -> pa.Array:
        """Return the column, whose memory is no longer this object's."""
        column = self._plan.columns[at]
        stored = self._build_array(at)
        return relabel_with_type(stored, column.type) if stored.type != column.type else stored

    def _build_array(self, at: int) -> pa.Array:
        column, count = self._plan.columns[at], int(self.table[at, _COUNT])
        valid = self._owned[at, _VALID] if self.table[at, _NULLS] else None
        kind = storage_type(column.type)
        children = [self._build_array(child) for child in column.children]
        if column.kind == _Kind.STRUCT:
            return pa.Array.from_buffers(kind, count, [valid], children=children)
        values = self._shrink(at, _VALUES, self._values_byte_size(at, count))
        if column.kind == _Kind.LIST:
            return pa.Array.from_buffers(kind, count, [valid, values], children=children)
        if column.kind == _Kind.MAP:
            pairs = pa.StructArray.from_arrays(children, fields=[kind.key_field, kind.item_field])
            return pa.Array.from_buffers(kind, count, [valid, values], children=[pairs])
        buffers = [valid, values]
        if column.kind in _HAS_DATA:
            buffers.append(self._shrink(at, _DATA, int(self.table[at, _USED])))
        return pa.Array.from_buffers(kind, count, buffers)

    def _shrink(self, at: int, place: int, size: int) -> Any:
        buffer = self._owned[at, place]
        if buffer.size > size:
            buffer.resize(size, shrink_to_fit=True)
        return buffer
