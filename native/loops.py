"""What is done for every message or value: in C (``loops.c``), or in Python where that is missing.

The C is compiled when headgate is installed from source, if there is a compiler, and is part of its
wheels. It knows nothing of Python: it is called through ``ctypes``, with librdkafka's functions by
their addresses. Both ways give the same; decision 0009 has what each of them costs.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Mapping, Sequence
from ctypes import c_int, c_int64, c_uint32, c_void_p
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from itertools import repeat
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

Integers = np.ndarray[Any, np.dtype[np.int64]]
Addresses = np.ndarray[Any, np.dtype[np.uint64]]
Words = np.ndarray[Any, np.dtype[np.uint64]]
Lanes = tuple[Words, Words]
Octets = np.ndarray[Any, np.dtype[np.uint8]]
Places = np.ndarray[Any, np.dtype[np.int32]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

_COMPILED = "_loops.abi3.so"
_WORD_BYTES = 8
_FAR = 1 << 28
"""Bytes. Places that lie further apart, as a heap and a mapping do, are copied by themselves."""


class Loops(Protocol):
    """``addresses`` and ``messages`` are places in this process's memory, and must be right."""

    def gathered(self, addresses: Addresses, sizes: Integers) -> pa.LargeBinaryArray:
        """Copies of so many bytes from each; null for the address 0, which has no bytes."""

    def timestamps(self, timestamp: Any, messages: Addresses) -> Integers:
        """What librdkafka's ``rd_kafka_message_timestamp`` says of each."""

    def give_back(self, destroy: Any, messages: Addresses) -> None:
        """Librdkafka's ``rd_kafka_message_destroy`` on each."""

    def longs(
        self, octets: Octets, rest: int, at: Integers, ends: Integers
    ) -> tuple[Integers, Integers] | None:
        """Avro's numbers that begin at these places, and where each of them ends.

        0 where the place is ``rest``, behind which there are ten zeros at least. ``None`` when
        somebody has to look more closely: one is no number, or ends behind its record.
        """

    def judged(self, values: pa.LargeBinaryArray, fields: Fields | None = None) -> Octets | None:
        """Of each value 0 when it is one JSON object, 1 when it is none (``json_suspects`` has the
        rules), 2 when it is one in which an object perhaps names a key twice.

        Beside that, 4 when it has a field that says something and is none of these, 8 when it has
        one to be ignored; of 0 alone that is sure. ``None``: left to the caller.
        """

    def picked(self, values: pa.LargeBinaryArray, path: Sequence[bytes]) -> Picks | None:
        """Where in each JSON object the value at the end of this path of keys is.

        The objects are sound, and name no key twice. ``None``: left to the caller.
        """

    def scanned(self, octets: Octets, spans: Spans, wanted: Slots) -> Scanned | None:
        """Of each Protobuf message what is wanted. ``None``: left to the caller."""

    def items(
        self, octets: Octets, spans: Spans, which: tuple[int, int], offsets: Integers
    ) -> tuple[Integers, Integers] | None:
        """Of messages that were scanned the items of one repeated field, as ``Scanned`` has values.

        ``which``: its number and wire type. ``None``: left to the caller.
        """

    def absorbed(self, words: Words, lanes: Lanes) -> Lanes | None:
        """The lanes of a hash (``key_hash``), with a word of each row mixed in.

        They may be the ones that were given. ``None``: left to the caller.
        """

    def absorbed_bytes(self, values: pa.LargeBinaryArray, most: int, lanes: Lanes) -> Lanes | None:
        """So, with the length of each value, and its bytes unless they are more than ``most``."""


class Fields:
    """The fields of JSON objects that are known. Places are numbered from 0, the record itself.

    ``named``: for each field the place that it is in, its name and its own place, or ``OPAQUE``
    where nothing in it is looked at, ``IGNORED`` where it is not either. ``any_key``: by the place
    of a map that of its values.
    """

    OPAQUE, IGNORED = -1, -3

    def __init__(self, named: Sequence[tuple[int, bytes, int]], any_key: Mapping[int, int]) -> None:
        self.names = np.frombuffer(b"".join((*(name for _, name, _ in named), b"\0")), np.uint8)
        self.bounds = np.cumsum([0, *(len(name) for _, name, _ in named)], dtype=np.int64)
        self.inside = np.array([inside for inside, _, _ in named], np.int64)
        self.places = np.array([place for _, _, place in named], np.int64)
        top = max((0, *any_key.values(), *any_key, *self.places.tolist()))
        self.any = np.zeros(top + 1, np.int64)
        for place, inside in any_key.items():
            self.any[place] = inside
        self.slots: Integers | None = None
        """As the C has numbered them."""

    @property
    def slot_count(self) -> int:
        return 1 << (2 * len(self.places) + 2).bit_length()


@dataclass(frozen=True, slots=True)
class Picks:
    """By value its kind (``json_picks`` lists them), and where its text is in memory."""

    kinds: Octets
    addresses: Addresses
    sizes: Integers


@dataclass(frozen=True, slots=True)
class Spans:
    """Where in some octets values lie."""

    begins: Integers
    ends: Integers


@dataclass(frozen=True, slots=True)
class Slots:
    """What is wanted of a message. ``kinds`` has a column for each field: its number, its wire
    type, its mode (``protobuf_bytes`` lists them), its oneof (-1: none). ``by_number``: the field
    of each small number, or -1."""

    by_number: Places
    kinds: Places


@dataclass(frozen=True, slots=True)
class Scanned:
    """By field and message a number's bits, or where its bytes begin; and how many bytes these are
    (-1: it is not there). Of a repeated field ``values`` has the number of items.

    ``found``: 0 for a message; 1 for what is none; 2 for one whose parts have to be put together.
    """

    values: Integers
    sizes: Integers
    found: Octets


@cache
def loops() -> Loops:
    """Those of this installation."""
    try:
        # Out of an archive too, in which Spark's executors get this package.
        with as_file(files(__package__) / _COMPILED) as path:
            return InC(path)
    except (OSError, AttributeError):  # there is none, or one of another platform or version
        return InPython()


class InC:
    """Python's lock is let go while they run."""

    def __init__(self, path: Path) -> None:
        """Raises ``OSError`` when this process cannot load it, ``AttributeError`` when it is not
        what belongs to this module."""
        self._c = ctypes.CDLL(str(path))
        place = c_void_p
        for name, result, arguments in (
            ("gather", None, (place, place, c_int64, place)),
            ("timestamps", None, (place, place, c_int64, place)),
            ("give_back", None, (place, place, c_int64)),
            ("longs", c_int, (place, c_int64, place, place, c_int64, place, place)),
            ("judged", None, (place, place, c_int64, place, place, place, c_int64)),
            ("numbered", None, (*[place] * 4, c_int64, place, c_int64)),
            ("picked", None, (place, place, c_int64, place, place, c_int64, *[place] * 3)),
            (
                "scanned",
                None,
                (place, place, place, c_int64, place, c_int64, place, c_int64, *[place] * 3),
            ),
            ("items", None, (place, place, place, c_int64, c_uint32, c_uint32, *[place] * 3)),
            ("absorb_words", None, (place, c_int64, place, place)),
            ("absorb_bytes", None, (place, place, c_int64, c_int64, place, place)),
        ):
            function = getattr(self._c, name)
            function.restype, function.argtypes = result, arguments

    def gathered(self, addresses: Addresses, sizes: Integers) -> pa.LargeBinaryArray:
        addresses = np.ascontiguousarray(addresses)
        count = len(addresses)
        bounds = np.zeros(count + 1, np.int64)
        np.cumsum(sizes, out=bounds[1:])
        octets = pa.allocate_buffer(int(bounds[-1]))
        self._c.gather(addresses.ctypes.data, bounds.ctypes.data, count, octets.address)
        there = addresses != 0
        valid = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
        parts = [valid, pa.py_buffer(bounds), octets]
        return pa.Array.from_buffers(pa.large_binary(), count, parts)

    def timestamps(self, timestamp: Any, messages: Addresses) -> Integers:
        found = np.empty(len(messages), np.int64)
        self._c.timestamps(_address(timestamp), *_span(messages), found.ctypes.data)
        return found

    def give_back(self, destroy: Any, messages: Addresses) -> None:
        self._c.give_back(_address(destroy), *_span(messages))

    def longs(
        self, octets: Octets, rest: int, at: Integers, ends: Integers
    ) -> tuple[Integers, Integers] | None:
        numbers, behind = np.empty_like(at), np.empty_like(at)
        read = (octets.ctypes.data, rest, _span(at)[0], *_span(ends))
        sound = self._c.longs(*read, numbers.ctypes.data, behind.ctypes.data)
        return (numbers, behind) if sound else None

    def judged(self, values: pa.LargeBinaryArray, fields: Fields | None = None) -> Octets:
        found = np.zeros(len(values), np.uint8)
        if len(values):
            _, bounds, octets = values.buffers()
            first = bounds.address + values.offset * _WORD_BYTES
            begin = octets.address if octets else 0  # of empty values alone
            asked = (None, None, 0) if fields is None else self._numbered(fields)
            self._c.judged(begin, first, len(values), found.ctypes.data, *asked)
        return found

    def _numbered(self, fields: Fields) -> tuple[int, int, int]:
        count = fields.slot_count
        if fields.slots is None:
            slots = np.zeros(3 * count, np.int64)
            told = (fields.names, fields.bounds, fields.inside, fields.places)
            where = [each.ctypes.data for each in told]
            self._c.numbered(*where, len(fields.places), slots.ctypes.data, count)
            fields.slots = slots
        return fields.any.ctypes.data, fields.slots.ctypes.data, count

    def picked(self, values: pa.LargeBinaryArray, path: Sequence[bytes]) -> Picks:
        count = len(values)
        kinds = np.zeros(count, np.uint8)
        begins, sizes = np.zeros(count, np.int64), np.zeros(count, np.int64)
        if not count:
            return Picks(kinds, begins.view(np.uint64), sizes)
        _, bounds, octets = values.buffers()
        first = bounds.address + values.offset * _WORD_BYTES
        begin = octets.address if octets else 0  # of empty values alone
        keys = np.frombuffer(b"".join((*path, b"\0")), np.uint8)
        ends = np.cumsum([0, *map(len, path)], dtype=np.int64)
        asked = (keys.ctypes.data, ends.ctypes.data, len(path))
        found = (kinds.ctypes.data, begins.ctypes.data, sizes.ctypes.data)
        self._c.picked(begin, first, count, *asked, *found)
        return Picks(kinds, (begins + begin).astype(np.uint64), sizes)

    def scanned(self, octets: Octets, spans: Spans, wanted: Slots) -> Scanned:
        count, rows = wanted.kinds.shape[1], len(spans.begins)
        values, sizes = np.zeros((count, rows), np.int64), np.full((count, rows), -1, np.int64)
        found = np.zeros(rows, np.uint8)
        where = (octets.ctypes.data, spans.begins.ctypes.data, spans.ends.ctypes.data, rows)
        asked = (wanted.by_number.ctypes.data, len(wanted.by_number), wanted.kinds.ctypes.data)
        told = (values.ctypes.data, sizes.ctypes.data, found.ctypes.data)
        self._c.scanned(*where, *asked, count, *told)
        return Scanned(values, sizes, found)

    def items(
        self, octets: Octets, spans: Spans, which: tuple[int, int], offsets: Integers
    ) -> tuple[Integers, Integers]:
        values, sizes = np.zeros(offsets[-1], np.int64), np.zeros(offsets[-1], np.int64)
        rows = len(spans.begins)
        where = (octets.ctypes.data, spans.begins.ctypes.data, spans.ends.ctypes.data, rows)
        told = (offsets.ctypes.data, values.ctypes.data, sizes.ctypes.data)
        self._c.items(*where, *which, *told)
        return values, sizes

    def absorbed(self, words: Words, lanes: Lanes) -> Lanes:
        self._c.absorb_words(*_span(words), *(_span(lane)[0] for lane in lanes))
        return lanes

    def absorbed_bytes(self, values: pa.LargeBinaryArray, most: int, lanes: Lanes) -> Lanes:
        if len(values):
            _, bounds, octets = values.buffers()
            first = bounds.address + values.offset * _WORD_BYTES
            begin = octets.address if octets else 0  # of empty values alone
            into = (_span(lane)[0] for lane in lanes)
            self._c.absorb_bytes(begin, first, len(values), most, *into)
        return lanes


def _address(function: Any) -> int | None:
    return ctypes.cast(function, c_void_p).value


def _span(numbers: np.ndarray[Any, Any]) -> tuple[int, int]:
    assert numbers.flags.c_contiguous and numbers.itemsize == _WORD_BYTES, "no column of words"
    return numbers.ctypes.data, len(numbers)


class InPython:
    """A call from Python for each message's timestamp, and one to give it back."""

    def gathered(self, addresses: Addresses, sizes: Integers) -> pa.LargeBinaryArray:
        order = np.argsort(addresses, kind="stable")
        near = np.split(order, np.flatnonzero(np.diff(addresses[order]) > _FAR) + 1)
        if len(near) == 1:
            return _taken(addresses, sizes)
        found = pa.concat_arrays([_taken(addresses[rows], sizes[rows]) for rows in near])
        return found.take(pa.array(np.argsort(order)))

    def timestamps(self, timestamp: Any, messages: Addresses) -> Integers:
        found = map(timestamp, messages.tolist(), repeat(None))
        return np.fromiter(found, np.int64, len(messages))

    def give_back(self, destroy: Any, messages: Addresses) -> None:
        deque(map(destroy, messages.tolist()), maxlen=0)

    def longs(self, octets: Octets, rest: int, at: Integers, ends: Integers) -> None:
        """Left to the caller, who has numpy."""

    def judged(self, values: pa.LargeBinaryArray, fields: Fields | None = None) -> None:
        """Left to the caller, who has regular expressions."""

    def picked(self, values: pa.LargeBinaryArray, path: Sequence[bytes]) -> None:
        """Left to the caller, who has Python's own parser."""

    def scanned(self, octets: Octets, spans: Spans, wanted: Slots) -> None:
        """Left to the caller (``protobuf_bytes``)."""

    def items(
        self, octets: Octets, spans: Spans, which: tuple[int, int], offsets: Integers
    ) -> None:
        """Left to the caller (``protobuf_bytes``)."""

    def absorbed(self, words: Words, lanes: Lanes) -> None:
        """Left to the caller, who has numpy."""

    def absorbed_bytes(self, values: pa.LargeBinaryArray, most: int, lanes: Lanes) -> None:
        """Left to the caller, who has numpy."""


def _taken(addresses: Addresses, sizes: Integers) -> pa.LargeBinaryArray:
    """The places in rising order, with what lies between them, are an array of binary over all of
    that memory; taking every second of its elements copies those, and reads nothing else.

    Arrow reserves about half of what lies between the first and the last.
    """
    if not sizes.any():
        return pa.array([b"" if address else None for address in addresses], pa.large_binary())
    low = int(addresses[sizes > 0].min()) - 1
    # One without bytes may stand anywhere: in front of all others, and in nobody's way.
    begins = np.where(sizes > 0, addresses.astype(np.int64) - low, 0)
    order = np.argsort(begins, kind="stable")
    bounds = np.stack([begins[order], begins[order] + sizes[order]], axis=1).reshape(-1)
    memory = pa.foreign_buffer(low, int(bounds[-1]))
    pieces = pa.Array.from_buffers(
        pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), memory]
    )
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(0, len(bounds), 2)
    return pieces.take(pa.array(places, mask=addresses == 0))
