"""Reads Protocol Buffers into Arrow columns of the writer's types, as far as a table needs them.

It is exact and complete: what a field cannot hold is a fault of its record. ``cast_to_table`` then
converts the columns to the table's types. One call reads one message type in all records; further
calls read messages inside messages, as deep as the table's columns go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pa_types

from headgate.data_plane.formats import field_names
from headgate.data_plane.formats.protobuf.decoder import (
    BYTES,
    EIGHT,
    FOUR,
    MANY,
    MANY_BYTES,
    ONE,
    ONE_MESSAGE,
    OTHER_OF_ONEOF,
    VARINT,
    Messages,
    build_slots,
)
from headgate.data_plane.formats.protobuf.descriptors import (
    TIMESTAMP,
    WRAPPERS,
    Field,
    Message,
    Types,
    UnfitTypes,
)
from headgate.data_plane.formats.record_format import Faults
from headgate.data_plane.formats.utf8 import decode_text
from headgate.native.kernels import FieldScan, Flags, Integers, loops

_WIRES = {
    "double": EIGHT,
    "fixed64": EIGHT,
    "sfixed64": EIGHT,
    "float": FOUR,
    "fixed32": FOUR,
    "sfixed32": FOUR,
    "string": BYTES,
    "bytes": BYTES,
    "message": BYTES,
}
_DEPTH_MAX = 32
_NANOS = 10**9
_LEAST_S, _MOST_S = -62_135_596_800, 253_402_300_799
_NANOS_S = (2**63 - 1) // _NANOS - 1
"""Seconds whose nanoseconds fit, whatever the fraction."""


@dataclass(frozen=True, slots=True)
class _Values:
    """Values of one field: bits or beginnings, and sizes; ``there``: which messages have one."""

    messages: Messages
    bits: Integers
    sizes: Integers
    there: Flags

    @property
    def absent(self) -> Flags:
        return ~self.there

    def note_fault(self, at: Flags, reason: str) -> None:
        self.messages.note_fault(at & self.there, reason)


@dataclass(frozen=True, slots=True)
class _Target:
    """Names the column that a field goes into; ``None``: it becomes part of a text.

    ``above``: the types of the messages that contain it.
    """

    column: pa.Field | None
    above: tuple[str, ...]

    @property
    def type(self) -> pa.DataType:
        return pa.null() if self.column is None else self.column.type

    @property
    def wanted_fields(self) -> list[pa.Field] | None:
        """Return what is wanted of a message that goes in there; ``None``: everything."""
        return list(self.type) if pa_types.is_struct(self.type) else None

    def with_column(self, column: pa.Field | None) -> _Target:
        return _Target(column, self.above)


class Reader:
    """Reads messages of these types."""

    def __init__(self, types: Types) -> None:
        self._types = types

    def read_records(
        self,
        values: Sequence[bytes],
        message_type: Message,
        wanted: Sequence[pa.Field],
        faults: Faults,
    ) -> pa.Array:
        """Return one Arrow struct per record.

        Raises ``UnfitTypes`` for types that cannot be read.
        """
        return self._read_structs(
            Messages.from_values(values, faults), message_type, list(wanted), ()
        )

    def _read_structs(
        self,
        messages: Messages,
        message_type: Message,
        wanted: list[pa.Field] | None,
        above: tuple[str, ...],
    ) -> pa.Array:
        """Read a message's fields into columns.

        ``wanted``: the columns for the fields; ``None``: every field is wanted."""
        above = (*above, message_type.name)
        if wanted is None and (message_type.name in above[:-1] or len(above) > _DEPTH_MAX):
            raise UnfitTypes(
                f"{message_type.name} may hold itself, and so cannot become text as a whole"
            )
        chosen = self._choose_fields(messages, message_type, wanted)
        oneofs = {field.oneof for field, _ in chosen} - {-1}
        others = [
            field
            for field in message_type.fields
            if field.oneof in oneofs and all(field is not other for other, _ in chosen)
        ]
        modes = [(f.number, _wire_type_of(f), _scan_mode_of(f), f.oneof) for f, _ in chosen]
        modes += [(f.number, _wire_type_of(f), OTHER_OF_ONEOF, f.oneof) for f in others]
        scanned = messages.scan_fields(build_slots(modes))
        columns = []
        for slot, (field, column) in enumerate(chosen):
            with messages.faults.prefixing_reasons(field.name):
                target = _Target(column, above)
                columns.append(self._read_field(messages, field, (scanned, slot), target))
        if not columns:  # Arrow needs a column to know the number of rows
            return pa.array([{}] * len(messages), pa.struct([]))
        return pa.StructArray.from_arrays(columns, [field.name for field, _ in chosen])

    def _choose_fields(
        self, messages: Messages, message_type: Message, wanted: list[pa.Field] | None
    ) -> list[tuple[Field, pa.Field | None]]:
        """Return the fields to read, and the column of each."""
        if wanted is None:
            return [(field, None) for field in message_type.fields if field.type != "group"]
        try:
            result = field_names.match_fields(wanted, [field.name for field in message_type.fields])
        except field_names.TwoFields as error:
            messages.note_fault(np.ones(len(messages), np.bool_), str(error))
            return []
        pairs = [
            (message_type.fields[at], w)
            for at, w in zip(result, wanted, strict=True)
            if at is not None
        ]
        for field, _ in pairs:
            if field.type == "group":
                raise UnfitTypes(
                    f"{message_type.name}.{field.name} is a group, which headgate does not read"
                )
        return pairs

    def _read_field(
        self,
        messages: Messages,
        field: Field,
        scan_and_slot: tuple[FieldScan, int],
        target: _Target,
    ) -> pa.Array:
        scanned, slot = scan_and_slot
        bits, sizes = scanned.values[slot], scanned.sizes[slot]
        if field.repeated:
            return self._read_repeated(messages, field, bits, target)
        there = sizes >= 0
        sound = scanned.found != 1
        if field.required:
            messages.note_fault(~there & sound, "a required field is missing")
        if not field.presence and field.type != "message" and not there.all():
            # An absent field is zero or has no bytes: that is how the writer says so.
            bits, sizes = np.where(there, bits, 0), np.where(there, sizes, 0)
            there = np.ones(len(there), np.bool_)
        return self._read_values(_Values(messages, bits, sizes, there), field, target)

    def _read_repeated(
        self, messages: Messages, field: Field, counts: Integers, target: _Target
    ) -> pa.Array:
        offsets, bits, sizes = messages.read_items(field.number, _wire_type_of(field), counts)
        rows = np.repeat(messages.rows, counts)
        items = messages.messages_inside(np.zeros(0, np.int64), np.zeros(0, np.int64), rows)
        values = _Values(items, bits, sizes, np.ones(len(bits), np.bool_))
        if field.type == "message" and self._types.require_message(field.type_name).entry:
            return self._read_map(values, field, offsets, target)
        item = target.type.value_field if _is_list(target.type) else None
        result = self._read_values(values, field, target.with_column(item))
        return pa.LargeListArray.from_arrays(pa.array(offsets), result)

    def _read_map(
        self, entries: _Values, field: Field, offsets: Integers, target: _Target
    ) -> pa.Array:
        kind = self._types.require_message(field.type_name)
        inside = entries.messages.messages_inside(
            entries.bits, entries.sizes, entries.messages.rows
        )
        both = sorted(kind.fields, key=lambda part: part.number)
        if [part.number for part in both] != [1, 2]:
            raise UnfitTypes(f"{kind.name} is no map's entry")
        scanned = inside.scan_fields(
            build_slots([(p.number, _wire_type_of(p), _scan_mode_of(p), -1) for p in both])
        )
        item = target.type.item_field if pa_types.is_map(target.type) else None
        parts = []
        for slot, (part, column) in enumerate(zip(both, (None, item), strict=True)):
            bits, sizes = scanned.values[slot], scanned.sizes[slot]
            # What an entry does not have is zero or empty; so is a message.
            bits, sizes = np.where(sizes >= 0, bits, 0), np.maximum(sizes, 0)
            values = _Values(inside, bits, sizes, np.ones(len(bits), np.bool_))
            parts.append(self._read_values(values, part, target.with_column(column)))
        keys, items = parts
        keys = keys.fill_null("") if keys.null_count else keys  # of bad records
        owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        last = _flag_last_of_each_key(keys, owners)
        if not last.all():
            counts = np.bincount(owners[last], minlength=len(offsets) - 1)
            offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
            keys, items = keys.filter(pa.array(last)), items.filter(pa.array(last))
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items)

    def _read_values(self, values: _Values, field: Field, target: _Target) -> pa.Array:
        if field.type == "message":
            return self._read_nested_messages(values, field, target)
        if field.type == "enum":
            names_ = self._types.require_enum(field.type_name)
            return _convert_enum(values, names_, field.type_name, target)
        if field.type in ("string", "bytes"):
            return _convert_bytes(values, text=field.type == "string")
        read: Callable[[_Values], pa.Array] = _NUMBERS[field.type]
        return read(values)

    def _read_nested_messages(self, values: _Values, field: Field, target: _Target) -> pa.Array:
        kind = self._types.require_message(field.type_name)
        there, messages = values.there, values.messages
        inside = messages.messages_inside(
            values.bits[there], values.sizes[there], messages.rows[there]
        )
        above, into = target.above, target.type
        whole = pa_types.is_struct(into) or pa_types.is_map(into)
        if kind.name in WRAPPERS and not whole:
            result = self._read_structs(inside, kind, None, above).field(0)
        elif kind.name == TIMESTAMP and not whole:
            unit = into.unit if pa_types.is_timestamp(into) else "us"
            result = _convert_timestamps(
                inside, self._read_structs(inside, kind, None, above), unit
            )
        else:
            result = self._read_structs(inside, kind, target.wanted_fields, above)
        if there.all():
            return result
        places = np.cumsum(there, dtype=np.int64) - 1
        return result.take(pa.array(places, mask=~there))


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa_types.is_list(data_type) or pa_types.is_large_list(data_type))


def _wire_type_of(field: Field) -> int:
    return _WIRES.get(field.type, VARINT)


def _scan_mode_of(field: Field) -> int:
    if field.repeated:
        return MANY_BYTES if _wire_type_of(field) == BYTES else MANY
    return ONE_MESSAGE if field.type == "message" else ONE


def _flag_last_of_each_key(keys: pa.Array, owners: Integers) -> Flags:
    """Flag the last entry for each key of one map."""
    codes = np.asarray(keys.dictionary_encode().indices)
    pairs = np.stack([owners, codes], axis=1)[::-1]
    _, first = np.unique(pairs, axis=0, return_index=True)
    result = np.zeros(len(codes), np.bool_)
    result[len(codes) - 1 - first] = True
    return result


# ---------------------------------------------------------------------------- single values


def _array_with_nulls(values: _Values, found: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(found) if values.there.all() else pa.array(found, mask=values.absent)


def _to_int32_noting_faults(values: _Values) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return whole numbers of 32 bits; others are noted."""
    narrow = values.bits.astype(np.int32)
    values.note_fault(narrow != values.bits, "holds a number of more than 32 bits")
    return narrow


def _decode_zigzag(bits: Integers) -> Integers:
    result: Integers = ((bits.view(np.uint64) >> np.uint64(1)).view(np.int64)) ^ -(bits & 1)
    return result


def _convert_int32(values: _Values) -> pa.Array:
    return _array_with_nulls(values, _to_int32_noting_faults(values))


def _convert_sint32(values: _Values) -> pa.Array:
    wide = _Values(values.messages, _decode_zigzag(values.bits), values.sizes, values.there)
    return _array_with_nulls(values, _to_int32_noting_faults(wide))


def _convert_uint32(values: _Values) -> pa.Array:
    narrow = values.bits.astype(np.uint32)
    values.note_fault(narrow != values.bits, "holds a number of more than 32 bits")
    return _array_with_nulls(values, narrow.astype(np.int64))


def _convert_bool(values: _Values) -> pa.Array:
    values.note_fault(values.bits.view(np.uint64) > 1, "holds a boolean that is neither 0 nor 1")
    return _array_with_nulls(values, values.bits == 1)


def _convert_float(values: _Values) -> pa.Array:
    return _array_with_nulls(values, values.bits.astype(np.uint32).view(np.float32))


_NUMBERS = {
    "int32": _convert_int32,
    "sint32": _convert_sint32,
    "uint32": _convert_uint32,
    "bool": _convert_bool,
    "float": _convert_float,
    "int64": lambda values: _array_with_nulls(values, values.bits),
    "sfixed64": lambda values: _array_with_nulls(values, values.bits),
    "sint64": lambda values: _array_with_nulls(values, _decode_zigzag(values.bits)),
    "uint64": lambda values: _array_with_nulls(values, values.bits.view(np.uint64)),
    "fixed64": lambda values: _array_with_nulls(values, values.bits.view(np.uint64)),
    "double": lambda values: _array_with_nulls(values, values.bits.view(np.float64)),
    "sfixed32": lambda values: _array_with_nulls(
        values, values.bits.astype(np.uint32).view(np.int32)
    ),
    "fixed32": lambda values: _array_with_nulls(values, values.bits),
}


def _convert_bytes(values: _Values, *, text: bool) -> pa.Array:
    there = values.there
    # Asked for now, and ``bits`` are places, not addresses: messages that came in parts are put
    # together at the end of a new buffer (``_merge_parts`` of the decoder).
    base = values.messages.data.ctypes.data
    addresses = np.where(there, values.bits + base, 0).astype(np.uint64)
    data = loops().gather(addresses, np.where(there, values.sizes, 0))
    return decode_text(data, values.note_fault) if text else data


def _convert_enum(values: _Values, known: dict[int, str], name: str, target: _Target) -> pa.Array:
    numbers, into = _to_int32_noting_faults(values), target.type
    if not (pa_types.is_null(into) or pa_types.is_string(into) or pa_types.is_large_string(into)):
        return _array_with_nulls(values, numbers)
    ordered = np.array(sorted(known), np.int64)
    places = np.searchsorted(ordered, numbers).clip(max=max(0, len(ordered) - 1))
    wrong = ordered[places] != numbers if len(ordered) else np.ones(len(numbers), np.bool_)
    values.note_fault(wrong, f"holds a number that the enum {name} has no name for")
    labels = pa.array([known[number] for number in ordered.tolist()] or [""], pa.large_string())
    mask = None if values.there.all() else values.absent
    return labels.take(pa.array(places, mask=mask))


def _convert_timestamps(messages: Messages, found: pa.StructArray, unit: str) -> pa.Array:
    """Convert ``google.protobuf.Timestamp`` to a column's unit."""
    seconds, nanos = (np.asarray(found.field(at)).astype(np.int64) for at in (0, 1))
    most = _NANOS_S if unit == "ns" else _MOST_S
    least = -_NANOS_S if unit == "ns" else _LEAST_S
    wrong = (seconds < least) | (seconds > most) | (nanos < 0) | (nanos >= _NANOS)
    messages.note_fault(wrong, "holds a time out of range")
    seconds, nanos = np.where(wrong, 0, seconds), np.where(wrong, 0, nanos)
    step = 1 if unit == "ns" else 1_000
    fine = nanos % step != 0
    messages.note_fault(fine, "is finer than the column's unit (us)")
    counts = seconds * (_NANOS // step) + nanos // step
    return pa.array(counts).view(pa.timestamp(unit, tz="UTC"))
