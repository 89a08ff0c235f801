"""Runs the loops over every message or value, in C (``loops.c``) or else in Python.

The C code is compiled when headgate is installed from source, if there is a compiler, and is part
of its wheels. It knows nothing of Python: it is called through ``ctypes``, with the addresses of
librdkafka's functions. Both ways give the same results; decision 0009 has the cost of each.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
from collections import deque
from collections.abc import Mapping, Sequence
from ctypes import c_int, c_int64, c_uint32, c_void_p
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from itertools import repeat
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

Integers = np.ndarray[Any, np.dtype[np.int64]]
Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Addresses = np.ndarray[Any, np.dtype[np.uint64]]
Words = np.ndarray[Any, np.dtype[np.uint64]]
Lanes = tuple[Words, Words]
Octets = np.ndarray[Any, np.dtype[np.uint8]]
Places = np.ndarray[Any, np.dtype[np.int32]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

_COMPILED = "_loops.abi3.so"
_WORD_BYTES = 8
_BLOCK_BYTES = 64
"""So many SHA-256 takes at once."""
DIGEST_BYTES = 32
_NUMBERING = Lock()
"""Hash tables are made once and never replaced: the C code of other threads reads them."""
_FAR = 1 << 28
"""In bytes. Addresses further apart, as in a heap and a mapping, are copied separately."""


class Loops(Protocol):
    """What is done for every message or value.

    ``addresses`` and ``messages`` are places in this process's memory, and must be valid.
    """

    walks_json: bool
    """Whether there is ``decode_json_into_buffers``."""

    def gather(self, addresses: Addresses, sizes: Integers) -> pa.LargeBinaryArray:
        """Copy the given number of bytes from each address; address 0 gives null."""

    def message_timestamps(self, timestamp: Any, messages: Addresses) -> Integers:
        """Return what librdkafka's ``rd_kafka_message_timestamp`` says for each."""

    def destroy_messages(self, destroy: Any, messages: Addresses) -> None:
        """Call librdkafka's ``rd_kafka_message_destroy`` on each."""

    def read_longs(
        self, octets: Octets, rest: int, at: Integers, ends: Integers
    ) -> tuple[Integers, Integers] | None:
        """Return Avro's numbers that begin at these places, and where each of them ends.

        A number is 0 if its place is ``rest``, which at least ten zeros follow. ``None`` if
        somebody has to look more closely: one is not a number, or ends beyond its record.
        """

    def flag_json_objects(
        self, values: pa.LargeBinaryArray, fields: Fields | None = None
    ) -> Octets | None:
        """Classify each value: 0 for a JSON object, 1 for anything else, 2 if it may repeat a key.

        ``bad_record_search`` has the rules. Added to that: 4 if it has a field with content that
        is not one of ``fields``, 8 if it has one to be ignored; certain only for an object.
        ``None``: left to the caller.
        """

    def pick_json(self, values: pa.LargeBinaryArray, path: Sequence[bytes]) -> Picks | None:
        """Find the value at the end of this path of keys in each JSON object.

        The objects are sound, and name no key twice. ``None``: left to the caller.
        """

    def decode_json_into_buffers(
        self, values: pa.LargeBinaryArray, begin: int, plan: WalkPlan, into: Walked
    ) -> tuple[int, int]:
        """Put JSON objects, from the given one on, into the buffers of columns.

        Return where it stopped, and what needs more room there (-1: nothing; it is done).
        """

    def scan_protobuf_fields(self, octets: Octets, spans: Spans, wanted: Slots) -> FieldScan | None:
        """Return what is wanted of each Protobuf message. ``None``: left to the caller."""

    def read_items(
        self, octets: Octets, spans: Spans, which: tuple[int, int], offsets: Integers
    ) -> tuple[Integers, Integers] | None:
        """Return the items of one repeated field of scanned messages, as a ``FieldScan`` has them.

        ``which``: its number and wire type. ``None``: left to the caller.
        """

    def absorb_words(self, words: Words, lanes: Lanes) -> Lanes | None:
        """Mix one word of each row into the lanes of a hash (``key_index``).

        The result may be the given lanes. ``None``: left to the caller.
        """

    def absorb_bytes(self, values: pa.LargeBinaryArray, most: int, lanes: Lanes) -> Lanes | None:
        """Mix in the length of each value, and its bytes unless they are more than ``most``."""

    def find_lower_bounds(self, ascending: Words, wanted: Words) -> Integers:
        """Return where each wanted word belongs, before its equals. Both are sorted."""

    def keyed_digests(self, values: pa.LargeBinaryArray, key: bytes, *, as_text: bool) -> pa.Array:
        """Return the HMAC-SHA-256 of each value, as 32 bytes or as their hexadecimal digits in a
        large string; a null stays null."""


class Fields:
    """The known fields of JSON objects. Places are numbered from 0, the record itself.

    ``named``: for each field the place that contains it, its name and its own place, or ``OPAQUE``
    if its content is not looked at, ``IGNORED`` if the field itself is ignored. ``any_key``: for
    the place of a map, that of its values.
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
        """The hash table of the C code (``number_fields``), made on the first call."""
        self.within: dict[int, dict[bytes, int]] = {}
        """The place of each field, by the place that contains it."""
        for inside, name, place in named:
            self.within.setdefault(inside, {}).setdefault(name, place)

    @property
    def slot_count(self) -> int:
        return 1 << (2 * len(self.places) + 2).bit_length()


class WalkPlan:
    """The keys of JSON objects and what is done with the value of each (``json.one_pass``).

    ``keys``: for each the column that it is a field of, its name, its own column, and its mark.
    """

    def __init__(self, keys: Sequence[tuple[int, bytes, int, int]]) -> None:
        self.names = np.frombuffer(b"".join((*(name for _, name, _, _ in keys), b"\0")), np.uint8)
        self.bounds = np.cumsum([0, *(len(name) for _, name, _, _ in keys)], dtype=np.int64)
        self.inside = np.array([inside for inside, _, _, _ in keys], np.int64)
        self.places = np.arange(len(keys), dtype=np.int64)
        rows = [
            (begin, len(name), column, mark)
            for begin, (_, name, column, mark) in zip(self.bounds.tolist(), keys, strict=False)
        ]
        # One more than there are: what is compared with the next key may be behind the last.
        self.keys = np.array([*rows, (0, 0, -1, 0)], np.int64)
        self.slot_count = 1 << (2 * len(keys) + 2).bit_length()
        self.slots: Integers | None = None
        """The hash table of the C code (``number_fields``), made on the first call."""


@dataclass(frozen=True, slots=True)
class Walked:
    """What is written while JSON objects are walked.

    ``columns``: numbers and addresses, a row for each column (``struct column``). ``found``: 1 for
    each record that was left, else its marks as those of ``flag_json_objects``.
    """

    columns: Table
    found: Octets


@cache
def powers_of_ten_128_bit() -> Integers:
    """Return for each power from -330 to 310 its first 128 bits, and the power of two beside."""
    rows = []
    for exponent in range(-330, 311):
        shift = (10 ** abs(exponent)).bit_length() - 128
        if exponent >= 0:
            bits = 10**exponent >> shift if shift > 0 else 10**exponent << -shift
        else:
            bits, shift = (1 << (shift + 255)) // 10**-exponent, -(shift + 255)
        rows.append((bits >> 64, bits & (2**64 - 1), shift & (2**64 - 1)))
    return np.array(rows, np.uint64).view(np.int64)


@dataclass(frozen=True, slots=True)
class Picks:
    """For each value, its kind (``paths`` lists them) and the address of its text."""

    kinds: Octets
    addresses: Addresses
    sizes: Integers


@dataclass(frozen=True, slots=True)
class Spans:
    """Where values lie in a buffer."""

    begins: Integers
    ends: Integers


@dataclass(frozen=True, slots=True)
class Slots:
    """What is wanted of a message.

    ``kinds`` has a column for each field: its number, its wire type, its mode (``decoder``
    lists them), its oneof (-1: none). ``by_number``: the field of each small number, or -1.
    """

    by_number: Places
    kinds: Places


@dataclass(frozen=True, slots=True)
class FieldScan:
    """For each field and message, a number's bits, or where its bytes begin and how many there are.

    A length of -1 means absent. For a repeated field, ``values`` has the number of items.

    ``found``: 0 for a message; 1 for invalid bytes; 2 for a message whose parts must be merged.
    """

    values: Integers
    sizes: Integers
    found: Octets


@cache
def loops() -> Loops:
    """Return this installation's loops."""
    try:
        # This also works from an archive, in which Spark's executors get this package.
        with as_file(files(__package__) / _COMPILED) as path:
            return InC(path)
    except (OSError, AttributeError):  # missing, or for another platform or version
        return InPython()


class InC:
    """Calls the C code, which runs without Python's lock."""

    walks_json = True

    def __init__(self, path: Path) -> None:
        """Raises ``OSError`` if it cannot be loaded, ``AttributeError`` if it does not match."""
        self._c = ctypes.CDLL(str(path))
        place = c_void_p
        for name, result, arguments in (
            ("gather", None, (place, place, c_int64, place)),
            ("timestamps", None, (place, place, c_int64, place)),
            ("destroy_messages", None, (place, place, c_int64)),
            ("read_longs", c_int, (place, c_int64, place, place, c_int64, place, place)),
            ("flag_json_objects", None, (place, place, c_int64, place, place, place, c_int64)),
            ("number_fields", None, (*[place] * 4, c_int64, place, c_int64)),
            ("pick_json", None, (place, place, c_int64, place, place, c_int64, *[place] * 3)),
            (
                "decode_json_into_buffers",
                c_int64,
                (*[place] * 2, c_int64, c_int64, *[place] * 4, c_int64, *[place] * 3),
            ),
            (
                "scan_protobuf_fields",
                None,
                (place, place, place, c_int64, place, c_int64, place, c_int64, *[place] * 3),
            ),
            ("read_items", None, (place, place, place, c_int64, c_uint32, c_uint32, *[place] * 3)),
            ("absorb_words", None, (place, c_int64, place, place)),
            ("absorb_bytes", None, (place, place, c_int64, c_int64, place, place)),
            ("find_lower_bounds", None, (place, c_int64, place, c_int64, place)),
            ("keyed_digests", None, (place, place, c_int64, place, c_int, c_int, place, place)),
        ):
            function = getattr(self._c, name)
            # Without these ctypes would pass an address as an int of 32 bits.
            function.restype, function.argtypes = result, arguments

    def gather(self, addresses: Addresses, sizes: Integers) -> pa.LargeBinaryArray:
        addresses = np.ascontiguousarray(addresses)
        count = len(addresses)
        bounds = np.zeros(count + 1, np.int64)
        np.cumsum(sizes, out=bounds[1:])
        octets = pa.allocate_buffer(int(bounds[-1]))  # not cleared: each byte is written below
        self._c.gather(addresses.ctypes.data, bounds.ctypes.data, count, octets.address)
        there = addresses != 0
        valid = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
        parts = [valid, pa.py_buffer(bounds), octets]
        return pa.Array.from_buffers(pa.large_binary(), count, parts)

    def message_timestamps(self, timestamp: Any, messages: Addresses) -> Integers:
        found = np.empty(len(messages), np.int64)
        self._c.timestamps(_address(timestamp), *_address_and_length(messages), found.ctypes.data)
        return found

    def destroy_messages(self, destroy: Any, messages: Addresses) -> None:
        self._c.destroy_messages(_address(destroy), *_address_and_length(messages))

    def read_longs(
        self, octets: Octets, rest: int, at: Integers, ends: Integers
    ) -> tuple[Integers, Integers] | None:
        numbers, behind = np.empty_like(at), np.empty_like(at)
        read = (octets.ctypes.data, rest, _address_and_length(at)[0], *_address_and_length(ends))
        sound = self._c.read_longs(*read, numbers.ctypes.data, behind.ctypes.data)
        return (numbers, behind) if sound else None

    def flag_json_objects(
        self, values: pa.LargeBinaryArray, fields: Fields | None = None
    ) -> Octets:
        found = np.zeros(len(values), np.uint8)
        if len(values):
            _, bounds, octets = values.buffers()
            first = bounds.address + values.offset * _WORD_BYTES
            begin = octets.address if octets else 0  # only empty values
            asked = (None, None, 0) if fields is None else self._pointers_of_fields(fields)
            self._c.flag_json_objects(begin, first, len(values), found.ctypes.data, *asked)
        return found

    def _pointers_of_fields(self, fields: Fields) -> tuple[int, int, int]:
        slots = self._key_slots_of(fields, fields.places)
        return fields.any.ctypes.data, slots.ctypes.data, fields.slot_count

    def _key_slots_of(self, keys: Fields | WalkPlan, places: Integers) -> Integers:
        with _NUMBERING:
            if keys.slots is None:
                slots = np.zeros(3 * keys.slot_count, np.int64)
                arrays = (keys.names, keys.bounds, keys.inside, places)
                where = [each.ctypes.data for each in arrays]
                self._c.number_fields(*where, len(places), slots.ctypes.data, keys.slot_count)
                keys.slots = slots
            return keys.slots

    def pick_json(self, values: pa.LargeBinaryArray, path: Sequence[bytes]) -> Picks:
        count = len(values)
        kinds = np.zeros(count, np.uint8)
        begins, sizes = np.zeros(count, np.int64), np.zeros(count, np.int64)
        if not count:
            return Picks(kinds, begins.view(np.uint64), sizes)
        _, bounds, octets = values.buffers()
        first = bounds.address + values.offset * _WORD_BYTES
        begin = octets.address if octets else 0  # only empty values
        keys = np.frombuffer(b"".join((*path, b"\0")), np.uint8)
        ends = np.cumsum([0, *map(len, path)], dtype=np.int64)
        asked = (keys.ctypes.data, ends.ctypes.data, len(path))
        found = (kinds.ctypes.data, begins.ctypes.data, sizes.ctypes.data)
        self._c.pick_json(begin, first, count, *asked, *found)
        # Addresses into the values' own buffer: they are good only while the caller holds these.
        return Picks(kinds, (begins + begin).astype(np.uint64), sizes)

    def decode_json_into_buffers(
        self, values: pa.LargeBinaryArray, begin: int, plan: WalkPlan, into: Walked
    ) -> tuple[int, int]:
        assert into.columns.flags.c_contiguous, "the C code reads it as structs"
        slots = self._key_slots_of(plan, plan.places)
        _, bounds, octets = values.buffers()
        first = bounds.address + values.offset * _WORD_BYTES
        full = np.zeros(1, np.int64)
        stopped = self._c.decode_json_into_buffers(
            octets.address if octets else 0,  # only empty values
            first,
            begin,
            len(values),
            into.columns.ctypes.data,
            *(each.ctypes.data for each in (plan.keys, plan.names, slots)),
            plan.slot_count,
            *(each.ctypes.data for each in (powers_of_ten_128_bit(), into.found, full)),
        )
        return stopped, int(full[0])

    def scan_protobuf_fields(self, octets: Octets, spans: Spans, wanted: Slots) -> FieldScan:
        count, rows = wanted.kinds.shape[1], len(spans.begins)
        values, sizes = np.zeros((count, rows), np.int64), np.full((count, rows), -1, np.int64)
        found = np.zeros(rows, np.uint8)
        where = (octets.ctypes.data, spans.begins.ctypes.data, spans.ends.ctypes.data, rows)
        asked = (wanted.by_number.ctypes.data, len(wanted.by_number), wanted.kinds.ctypes.data)
        arrays = (values.ctypes.data, sizes.ctypes.data, found.ctypes.data)
        self._c.scan_protobuf_fields(*where, *asked, count, *arrays)
        return FieldScan(values, sizes, found)

    def read_items(
        self, octets: Octets, spans: Spans, which: tuple[int, int], offsets: Integers
    ) -> tuple[Integers, Integers]:
        values, sizes = np.zeros(offsets[-1], np.int64), np.zeros(offsets[-1], np.int64)
        rows = len(spans.begins)
        where = (octets.ctypes.data, spans.begins.ctypes.data, spans.ends.ctypes.data, rows)
        arrays = (offsets.ctypes.data, values.ctypes.data, sizes.ctypes.data)
        self._c.read_items(*where, *which, *arrays)
        return values, sizes

    def absorb_words(self, words: Words, lanes: Lanes) -> Lanes:
        self._c.absorb_words(
            *_address_and_length(words), *(_address_and_length(lane)[0] for lane in lanes)
        )
        return lanes

    def absorb_bytes(self, values: pa.LargeBinaryArray, most: int, lanes: Lanes) -> Lanes:
        if len(values):
            _, bounds, octets = values.buffers()
            first = bounds.address + values.offset * _WORD_BYTES
            begin = octets.address if octets else 0  # only empty values
            into = (_address_and_length(lane)[0] for lane in lanes)
            self._c.absorb_bytes(begin, first, len(values), most, *into)
        return lanes

    def find_lower_bounds(self, ascending: Words, wanted: Words) -> Integers:
        places = np.empty(len(wanted), np.int64)
        self._c.find_lower_bounds(
            *_address_and_length(ascending), *_address_and_length(wanted), places.ctypes.data
        )
        return places

    def keyed_digests(
        self, values: pa.LargeBinaryArray, key: bytes, *, as_text: bool, bits_max: int = 512
    ) -> pa.Array:
        """``bits_max``: of the processor's vectors, for tests of what others do."""
        count, size = len(values), DIGEST_BYTES * (2 if as_text else 1)
        digests = pa.allocate_buffer(size * count)
        if count:
            _, bounds, octets = values.buffers()
            first = bounds.address + values.offset * _WORD_BYTES
            begin = octets.address if octets else 0  # only empty values
            block, firsts = np.frombuffer(_hmac_key_block(key), np.uint8), np.empty(count, np.int64)
            key_at, firsts_at = block.ctypes.data, firsts.ctypes.data
            self._c.keyed_digests(
                *(begin, first, count, key_at, bits_max, size, firsts_at, digests.address)
            )
        valid = None
        if values.null_count:
            valid = pa.py_buffer(np.packbits(np.asarray(values.is_valid()), bitorder="little"))
        if not as_text:
            return pa.Array.from_buffers(pa.binary(size), count, [valid, digests])
        ends = pa.py_buffer(np.arange(count + 1, dtype=np.int64) * size)
        return pa.Array.from_buffers(pa.large_string(), count, [valid, ends, digests])


def _hmac_key_block(key: bytes) -> bytes:
    """Return the key as HMAC takes it: a longer one is hashed, a shorter one filled with zeros."""
    key = hashlib.sha256(key).digest() if len(key) > _BLOCK_BYTES else key
    return key.ljust(_BLOCK_BYTES, b"\0")


def _address(function: Any) -> int | None:
    return ctypes.cast(function, c_void_p).value


def _address_and_length(numbers: np.ndarray[Any, Any]) -> tuple[int, int]:
    # A slice with steps has the address of its first number, and C would read those in between.
    assert numbers.flags.c_contiguous and numbers.itemsize == _WORD_BYTES, "no column of words"
    return numbers.ctypes.data, len(numbers)


class InPython:
    """Does the same without C: one call of librdkafka's functions for each message."""

    walks_json = False

    def gather(self, addresses: Addresses, sizes: Integers) -> pa.LargeBinaryArray:
        order = np.argsort(addresses, kind="stable")
        near = np.split(order, np.flatnonzero(np.diff(addresses[order]) > _FAR) + 1)
        if len(near) == 1:
            return _gather_near(addresses, sizes)
        found = pa.concat_arrays([_gather_near(addresses[rows], sizes[rows]) for rows in near])
        return found.take(pa.array(np.argsort(order)))

    def message_timestamps(self, timestamp: Any, messages: Addresses) -> Integers:
        found = map(timestamp, messages.tolist(), repeat(None))
        return np.fromiter(found, np.int64, len(messages))

    def destroy_messages(self, destroy: Any, messages: Addresses) -> None:
        deque(map(destroy, messages.tolist()), maxlen=0)

    def read_longs(self, octets: Octets, rest: int, at: Integers, ends: Integers) -> None:
        """Left to the caller, who has numpy."""

    def flag_json_objects(self, values: pa.LargeBinaryArray, fields: Fields | None = None) -> None:
        """Left to the caller, who has regular expressions."""

    def pick_json(self, values: pa.LargeBinaryArray, path: Sequence[bytes]) -> None:
        """Left to the caller, who has Python's own parser."""

    def decode_json_into_buffers(
        self, values: pa.LargeBinaryArray, begin: int, plan: WalkPlan, into: Walked
    ) -> tuple[int, int]:
        raise NotImplementedError("nothing but C code walks JSON; ask walks_json")

    def scan_protobuf_fields(self, octets: Octets, spans: Spans, wanted: Slots) -> None:
        """Left to the caller (``decoder``)."""

    def read_items(
        self, octets: Octets, spans: Spans, which: tuple[int, int], offsets: Integers
    ) -> None:
        """Left to the caller (``decoder``)."""

    def absorb_words(self, words: Words, lanes: Lanes) -> None:
        """Left to the caller, who has numpy."""

    def absorb_bytes(self, values: pa.LargeBinaryArray, most: int, lanes: Lanes) -> None:
        """Left to the caller, who has numpy."""

    def find_lower_bounds(self, ascending: Words, wanted: Words) -> Integers:
        return np.searchsorted(ascending, wanted)

    def keyed_digests(self, values: pa.LargeBinaryArray, key: bytes, *, as_text: bool) -> pa.Array:
        digests = (
            None if value is None else hmac.digest(key, value, "sha256")
            for value in values.to_pylist()
        )
        if not as_text:
            return pa.array(list(digests), pa.binary(DIGEST_BYTES))
        return pa.array([digest and digest.hex() for digest in digests], pa.large_string())


def _gather_near(addresses: Addresses, sizes: Integers) -> pa.LargeBinaryArray:
    """Read the values as a binary array over all of that memory.

    Its elements are, in rising order, the values and what lies between them; taking every second
    one copies the values and reads nothing else. Arrow reserves about half of what lies between the
    first and the last.
    """
    if not sizes.any():
        return pa.array([b"" if address else None for address in addresses], pa.large_binary())
    low = int(addresses[sizes > 0].min()) - 1
    # An empty value may stand anywhere, so put it in front of all others.
    begins = np.where(sizes > 0, addresses.astype(np.int64) - low, 0)
    order = np.argsort(begins, kind="stable")
    bounds = np.stack([begins[order], begins[order] + sizes[order]], axis=1).reshape(-1)
    # Borrowed from whoever gave the addresses, and not held: ``take`` below copies out of it before
    # this returns, and nothing of it may leave here.
    memory = pa.foreign_buffer(low, int(bounds[-1]))
    pieces = pa.Array.from_buffers(
        pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), memory]
    )
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(0, len(bounds), 2)
    return pieces.take(pa.array(places, mask=addresses == 0))
