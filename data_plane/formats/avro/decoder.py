"""Reads Avro's bytes for many values at once: each step moves a cursor in every record.

The values of a batch lie end to end in one buffer. A field is read in all records with a few numpy
operations, so that Python's cost is per field and not per record. Whatever a record holds, nothing
is read outside its own bytes: a record that is cut off, too long or invalid is noted in ``Faults``.
Its cursors then rest in the zeros after the buffer, where they read zeros and do no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headgate.data_plane.formats.avro.schema import Avro
from headgate.data_plane.formats.record_format import Faults
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import loops

Positions = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
ByteArray = np.ndarray[Any, np.dtype[np.uint8]]

_HIGH_BITS = np.uint64(0x8080808080808080)
_LOW_BITS = np.uint64(0x0101010101010101)
_ONE, _SEVEN = np.uint64(1), np.uint64(7)
# Three steps bring the eight groups of seven bits together: (mask, distance) of what moves.
_CLOSE_UP = (
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
)


class Buffer:
    """Holds values end to end, followed by at least ``rest_bytes`` zeros."""

    def __init__(self, values: Sequence[bytes], rest_bytes: int) -> None:
        zeros = b"\x00" * (max(rest_bytes, 16) + 16)
        # ``data`` and ``words`` are views of ``raw``, not copies. Behind the values stand enough
        # zeros for an eight-byte word, and for a varint's tenth byte, at the last place.
        self.raw, self.ends = Packed.pack(values).concat_with_tail(zeros)
        self.data: ByteArray = np.frombuffer(self.raw, np.uint8)
        # Not the first zero: the cursor of a last record that was read to its end stands there.
        self.rest = len(self.raw) - len(zeros) + 1
        # The eight bytes that begin at each place, as one number.
        self.words = np.ndarray((len(self.raw) - 7,), "<u8", self.raw, 0, (1,))

    def sliding_byte_windows(self, size: int) -> np.ndarray[Any, Any]:
        """Return the ``size`` bytes that begin at each place."""
        return np.ndarray((len(self.raw) - size + 1,), f"V{size}", self.raw, 0, (1,))


class Cursors:
    """Keeps the places in the buffer, in rising order, where the next item of each value begins.

    ``rows`` tells which record each belongs to. A place is never after its record's end.
    """

    def __init__(self, buffer: Buffer, faults: Faults, rows: Positions, at: Positions) -> None:
        self.buffer = buffer
        self.faults = faults
        self.rows = rows
        self.at = at
        self.ends = np.where(at >= buffer.rest, buffer.rest, buffer.ends[rows])

    def __len__(self) -> int:
        return len(self.at)

    def select(self, wanted: Flags | Positions) -> Cursors:
        """Return separate cursors for some of the values."""
        return Cursors(self.buffer, self.faults, self.rows[wanted], self.at[wanted])

    def advance_to(self, wanted: Flags | Positions, others: Cursors) -> None:
        """Move to where the cursors that ``select(wanted)`` returned have got."""
        self.at[wanted] = others.at
        self.ends[wanted] = others.ends

    def note_fault_and_park(self, wrong: Flags, reason: str) -> None:
        """Note the records as bad, and put their cursors to rest: they read nothing more."""
        if wrong.any():
            self.faults.note(self.rows[wrong], reason)
            self.at[wrong] = self.ends[wrong] = self.buffer.rest

    def skip_bytes(self, lengths: Positions | int) -> None:
        """Skip bytes; negative lengths are a fault."""
        lengths = np.asarray(lengths, np.int64)
        self.note_fault_and_park(
            (lengths < 0) | (lengths > self.ends - self.at), "ends too early, or is not Avro"
        )
        self.at += np.where(self.at >= self.buffer.rest, 0, lengths)

    def take_bytes(self, size: int) -> ByteArray:
        """Return the next ``size`` bytes of each: an array of two dimensions."""
        self.note_fault_and_park(self.ends - self.at < size, "ends too early")
        result = self.buffer.sliding_byte_windows(size)[self.at].view(np.uint8).reshape(-1, size)
        self.at += np.where(self.at >= self.buffer.rest, 0, size)
        return result

    def read_longs(self) -> Positions:
        """Return the next variable-length zigzag number of each."""
        read = loops().read_longs(self.buffer.data, self.buffer.rest, self.at, self.ends)
        if read:
            self.at = read[1]
            return read[0]
        first = self.buffer.data[self.at]
        if (first < 128).all():
            numbers, lengths = first.astype(np.uint64), np.ones_like(self.at)
        else:
            numbers, lengths = self._peek_long_words_and_lengths()
        self.skip_bytes(lengths)
        numbers[self.at >= self.buffer.rest] = 0
        result: Positions = (numbers >> _ONE).astype(np.int64) ^ -(numbers & _ONE).astype(np.int64)
        return result

    def _peek_long_words_and_lengths(
        self,
    ) -> tuple[np.ndarray[Any, np.dtype[np.uint64]], Positions]:
        """Return the bits of each next number, zigzag not yet undone, and its length in bytes;
        moves no cursor."""
        words = self.buffer.words[self.at]
        last = ~words & _HIGH_BITS
        lowest = last & (~last + _ONE)
        # All bits up to the last byte's highest one; all of them if no byte is the last.
        mask = lowest | (lowest - _ONE)
        lengths = ((mask & _LOW_BITS) * _LOW_BITS >> np.uint64(56)).astype(np.int64)
        words = words & mask & ~_HIGH_BITS
        for stays, moves, distance in _CLOSE_UP:
            words = (words & stays) | ((words & moves) >> distance)
        more = last == 0
        if more.any():
            ninth = self.buffer.data[self.at[more] + 8].astype(np.uint64)
            tenth = self.buffer.data[self.at[more] + 9].astype(np.uint64)
            goes_on = ninth >= 128
            tenth[~goes_on] = 0
            words[more] |= (ninth & np.uint64(127)) << np.uint64(56) | tenth << np.uint64(63)
            lengths[more] = 9 + goes_on
            beyond = np.zeros(len(self), np.bool_)
            beyond[more] = tenth > 1
            self.note_fault_and_park(beyond, "holds a number of more than 64 bits")
        return words, lengths


# Skips one Avro value after another in plain Python, for long arrays in few records.
#
# The cursors above move through all records at once, whose cost per item rises the fewer records
# there are. This is the alternative. It only tells where a valid value ends, by the same rules;
# everything else is left to them to find at fault.


UNSOUND = -1
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
_WIDTHS = {"null": 0, "float": 4, "double": 8}


def end_of_value_or_unsound(avro_type: Avro, raw: bytes, at: int, end: int) -> int:
    """Return where the value that begins at ``at`` ends, at most ``end``; else ``UNSOUND``."""
    name = avro_type.type
    if name in _WIDTHS or name == "fixed":
        at += _WIDTHS.get(name, avro_type.size)
        return at if at <= end else UNSOUND
    if name == "record":
        for child in avro_type.children:
            at = end_of_value_or_unsound(child, raw, at, end)
            if at == UNSOUND:
                return UNSOUND
        return at
    if name == "boolean":
        return at + 1 if at < end and raw[at] <= 1 else UNSOUND
    if name in ("array", "map"):
        return _end_of_blocks_or_unsound(avro_type, raw, at, end)
    number, at = _read_long_and_end(raw, at, end)
    if at == UNSOUND or name == "long":
        return at
    if name == "int":
        return at if _INT_MIN <= number <= _INT_MAX else UNSOUND
    if name in ("string", "bytes"):
        return at + number if 0 <= number <= end - at else UNSOUND
    if name == "enum":
        return at if 0 <= number < len(avro_type.names) else UNSOUND
    if not 0 <= number < len(avro_type.children):
        return UNSOUND
    return end_of_value_or_unsound(avro_type.children[number], raw, at, end)


def _read_long_and_end(raw: bytes, at: int, end: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= end:
            return 0, UNSOUND
        octet = raw[at]
        at += 1
        number |= (octet & 127) << shift
        if octet < 128:
            return (number >> 1) ^ -(number & 1), at if number < 2**64 else UNSOUND
    return 0, UNSOUND


def _end_of_blocks_or_unsound(avro_type: Avro, raw: bytes, at: int, end: int) -> int:
    item, text = avro_type.children[0], Avro("string")
    if item.bytes_min == 0 and avro_type.type == "array":
        return UNSOUND  # of no bytes: ``columns`` bounds how many may be claimed
    while True:
        count, at = _read_long_and_end(raw, at, end)
        if at == UNSOUND or count < 0:
            return UNSOUND  # a negative count has a size, which ``Cursors`` checks
        if count == 0:
            return at
        for _ in range(count):
            if avro_type.type == "map":
                at = end_of_value_or_unsound(text, raw, at, end)
            at = end_of_value_or_unsound(item, raw, at, end) if at != UNSOUND else UNSOUND
            if at == UNSOUND:
                return UNSOUND
