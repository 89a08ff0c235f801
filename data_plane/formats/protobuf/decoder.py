"""Reads Protocol Buffers' wire format for many messages at once: in C, or here one by one.

It reads the fields of a message that somebody needs. All others are skipped, but must be valid; an
unwanted message's content is not examined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from headgate.data_plane.formats.record_format import Faults
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import FieldScan, Flags, Integers, Octets, Slots, Spans, loops

VARINT, EIGHT, BYTES, GROUP, GROUP_END, FOUR = range(6)
ONE, ONE_MESSAGE, MANY, MANY_BYTES, OTHER_OF_ONEOF = range(5)
"""Modes of a field: a single number or bytes; a message; repeated numbers, perhaps packed.

Then repeated bytes or messages; an unwanted one, which takes its oneof from the wanted ones.
"""

_GROUPS_MAX = 100
_DENSE_MAX = 1024
_SOUND, _PARTS = 0, 2
_NUMBER_MAX = 2**32

Read = tuple[int, int, int, int]
"""A field: its number, its wire type, a number or where its bytes begin, and their length."""


class Broken(ValueError):
    """Says that these bytes are not a message."""


class Items(NamedTuple):
    """All items of a repeated field; ``offsets`` say which of them are each message's."""

    offsets: Integers
    values: Integers
    sizes: Integers


class Messages:
    """Messages of one type in a buffer. ``rows`` tells which record each belongs to."""

    def __init__(self, data: Octets, spans: Spans, rows: Integers, faults: Faults) -> None:
        self.data = data
        self.spans = spans
        self.rows = rows
        self.faults = faults

    @classmethod
    def from_values(cls, values: Sequence[bytes], faults: Faults) -> Messages:
        """Take each value as a message."""
        raw, ends = Packed.pack(values).concat_with_tail(b"\0")
        begins = np.roll(ends, 1)
        begins[:1] = 0
        rows = np.arange(len(ends), dtype=np.int64)
        return cls(np.frombuffer(raw, np.uint8), Spans(begins, ends.copy()), rows, faults)

    def __len__(self) -> int:
        return len(self.rows)

    def note_fault(self, at: Flags, reason: str) -> None:
        self.faults.note(self.rows[at], reason)

    def messages_inside(self, begins: Integers, sizes: Integers, rows: Integers) -> Messages:
        """Return messages inside these ones."""
        spans = Spans(np.ascontiguousarray(begins), np.ascontiguousarray(begins + sizes))
        return Messages(self.data, spans, rows, self.faults)

    def scan_fields(self, wanted: Slots) -> FieldScan:
        """Read what is wanted of each; an invalid one is noted, and has no values."""
        result = loops().scan_protobuf_fields(self.data, self.spans, wanted)
        if result is None:
            result = _scan_messages(self.data, self.spans, wanted)
        unsound = result.found != _SOUND
        if unsound.any():
            broken = result.found == 1
            self.note_fault(broken, "is not a message, or is cut off")
            result.values[:, broken] = 0
            result.sizes[:, broken] = -1
            self._merge_parts(wanted, result)
        return result

    def read_items(self, number: int, wire: int, counts: Integers) -> Items:
        """Return the items of a repeated field."""
        offsets = np.zeros(len(self) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        result = loops().read_items(self.data, self.spans, (number, wire), offsets)
        if result is None:
            result = _read_items(self.data, self.spans, (number, wire), offsets)
        return Items(offsets, *result)

    def _merge_parts(self, wanted: Slots, found: FieldScan) -> None:
        """Merge a message that comes in several parts: it is the concatenation of its parts."""
        behind: list[bytes] = []
        end = len(self.data)
        for place in np.flatnonzero(found.found == _PARTS).tolist():
            for slot, pieces in self._find_parts(place, wanted).items():
                if len(pieces) > 1:
                    behind.append(b"".join(pieces))
                    found.values[slot, place] = end
                    found.sizes[slot, place] = len(behind[-1])
                    end += len(behind[-1])
        if behind:
            self.data = np.concatenate([self.data, np.frombuffer(b"".join(behind), np.uint8)])

    def _find_parts(self, place: int, wanted: Slots) -> dict[int, list[bytes]]:
        """Return the parts of the messages inside one message, by their slots."""
        raw = self.data[self.spans.begins[place] : self.spans.ends[place]].tobytes()
        parts: dict[int, list[bytes]] = {}
        numbers, wires, modes, oneofs = wanted.kinds.tolist()
        slot_of = {number: slot for slot, number in enumerate(numbers)}
        for number, wire, begin, size in read_fields(raw, 0, len(raw)):
            slot = slot_of.get(number, -1)
            if slot < 0 or wire != wires[slot] or modes[slot] in (MANY, MANY_BYTES):
                continue
            if oneofs[slot] >= 0:
                for other in list(parts):
                    if other != slot and oneofs[other] == oneofs[slot]:
                        del parts[other]
            if modes[slot] == ONE_MESSAGE:
                parts.setdefault(slot, []).append(raw[begin : begin + size])
        return parts


def build_slots(fields: Sequence[tuple[int, int, int, int]]) -> Slots:
    """Build slots from the number, wire type, mode and oneof of each field."""
    columns = np.ascontiguousarray(np.array(fields, np.int32).reshape(-1, 4).T)
    small = [number for number in columns[0].tolist() if number < _DENSE_MAX]
    by_number = np.full(max(small, default=0) + 1, -1, np.int32)
    for slot, number in enumerate(columns[0].tolist()):
        if number < _DENSE_MAX:
            by_number[number] = slot
    return Slots(by_number, columns)


# ----------------------------------------------------------------------------- one by one


def read_fields(raw: bytes, at: int, end: int) -> Iterator[Read]:
    """Yield the fields of a message, groups left out. Raises ``Broken``."""
    while at < end:
        read, at = _read_field(raw, at, end)
        if read[1] == GROUP_END:
            raise Broken
        if read[1] == GROUP:
            at = _skip_group(raw, at, end, read[0])
        else:
            yield read


def read_varint(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number of at most 64 bits, and where it ends. Raises ``Broken``."""
    result = 0
    for shift in range(0, 70, 7):
        if at >= end or (shift == 63 and raw[at] > 1):
            break
        result |= (raw[at] & 0x7F) << shift
        at += 1
        if raw[at - 1] < 0x80:
            return result, at
    raise Broken


def _read_field(raw: bytes, at: int, end: int) -> tuple[Read, int]:
    tag, at = read_varint(raw, at, end)
    number, wire = tag >> 3, tag & 7
    if tag >= _NUMBER_MAX or not number or wire > FOUR:
        raise Broken
    if wire == VARINT:
        value, at = read_varint(raw, at, end)
        return (number, wire, value, 0), at
    if wire in (GROUP, GROUP_END):
        return (number, wire, 0, 0), at
    size = 8 if wire == EIGHT else 4
    if wire == BYTES:
        size, at = read_varint(raw, at, end)
    if size > end - at:
        raise Broken
    value = at if wire == BYTES else int.from_bytes(raw[at : at + size], "little")
    return (number, wire, value, size if wire == BYTES else 0), at + size


def _skip_group(raw: bytes, at: int, end: int, number: int) -> int:
    open_ = [number]
    while open_:
        read, at = _read_field(raw, at, end)
        if read[1] == GROUP_END and read[0] != open_.pop():
            raise Broken
        if read[1] == GROUP:
            if len(open_) == _GROUPS_MAX:
                raise Broken
            open_.append(read[0])
    return at


def _read_packed(raw: bytes, begin: int, size: int, wire: int) -> Iterator[int]:
    at, end, width = begin, begin + size, 4 if wire == FOUR else 8
    if wire != VARINT and size % width:
        raise Broken
    while at < end:
        if wire == VARINT:
            value, at = read_varint(raw, at, end)
        else:
            value = int.from_bytes(raw[at : at + width], "little")
            at += width
        yield value


def _as_signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _scan_messages(data: Octets, spans: Spans, wanted: Slots) -> FieldScan:
    shape = wanted.kinds.shape[1], len(spans.begins)
    result = FieldScan(
        np.zeros(shape, np.int64), np.full(shape, -1, np.int64), np.zeros(shape[1], np.uint8)
    )
    raw = data.tobytes()
    each = zip(spans.begins.tolist(), spans.ends.tolist(), strict=True)
    for row, (begin, end) in enumerate(each):
        try:
            _scan_message(read_fields(raw, begin, end), raw, wanted, (result, row))
        except Broken:
            result.found[row] = 1
    return result


def _scan_message(
    fields: Iterator[Read], raw: bytes, wanted: Slots, scan_and_row: tuple[FieldScan, int]
) -> None:
    result, row = scan_and_row
    numbers, wires, modes, oneofs = wanted.kinds.tolist()
    slot_of = {number: slot for slot, number in enumerate(numbers)}
    for number, wire, value, size in fields:
        slot = slot_of.get(number, -1)
        if slot < 0:
            continue
        if modes[slot] == MANY and wire == BYTES:
            result.values[slot, row] += sum(1 for _ in _read_packed(raw, value, size, wires[slot]))
        elif wire == wires[slot] and modes[slot] in (MANY, MANY_BYTES):
            result.values[slot, row] += 1
        elif wire == wires[slot]:
            for other, oneof in enumerate(oneofs):
                if other != slot and oneof >= 0 and oneof == oneofs[slot]:
                    result.sizes[other, row] = -1
            if modes[slot] == ONE_MESSAGE and result.sizes[slot, row] >= 0:
                result.found[row] = _PARTS
            result.values[slot, row] = _as_signed(value)
            result.sizes[slot, row] = size


def _read_items(
    data: Octets, spans: Spans, number_and_wire: tuple[int, int], offsets: Integers
) -> tuple[Integers, Integers]:
    values, sizes = np.zeros(offsets[-1], np.int64), np.zeros(offsets[-1], np.int64)
    raw, (wanted, wire_wanted) = data.tobytes(), number_and_wire
    for row in np.flatnonzero(np.diff(offsets)).tolist():
        to = int(offsets[row])
        for number, wire, value, size in read_fields(
            raw, int(spans.begins[row]), int(spans.ends[row])
        ):
            if number != wanted:
                continue
            if wire == wire_wanted:
                values[to], sizes[to] = _as_signed(value), size
                to += 1
            elif wire == BYTES:
                for item in _read_packed(raw, value, size, wire_wanted):
                    values[to] = _as_signed(item)
                    to += 1
    return values, sizes
