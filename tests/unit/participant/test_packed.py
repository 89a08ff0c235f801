"""Byte strings in one buffer, taken one by one and all at once."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pyarrow as pa

from headgate.participant.packed import Packed

MAP_NORESERVE = 0x4000  # Linux; only what is written to takes memory
VALUES = [b"a", None, b"", b"bcd", b"\x00\xff"]


def test_it_is_a_sequence_of_what_was_put_in() -> None:
    packed = Packed.of(VALUES)
    assert list(packed) == VALUES
    assert [packed[at] for at in range(len(packed))] == VALUES
    assert (packed[-1], list(packed[1:3]), list(packed[::-2])) == (
        VALUES[-1],
        VALUES[1:3],
        VALUES[::-2],
    )
    assert None in packed
    assert b"z" not in packed


def test_what_is_packed_is_not_packed_again() -> None:
    packed = Packed.of([b"a"])
    assert Packed.whole(packed) is packed
    assert list(Packed.whole([b"a"])) == [b"a"]


def test_flags_choose() -> None:
    flags = np.array([True, False, True, False, True])
    assert list(Packed.of(VALUES).where(flags)) == [b"a", b"", b"\x00\xff"]


def test_pieces_of_memory_are_copied_in_the_order_asked_for() -> None:
    memory = ctypes.create_string_buffer(b"one, two, three, four")
    begin = ctypes.addressof(memory)
    places = [(10, 5), (0, 3), (10, 0), (17, 4), (0, 0), (5, 3)]
    addresses = np.array([0, *(begin + at for at, _ in places), 0, 1], np.uint64)
    sizes = np.array([0, *(size for _, size in places), 0, 0], np.int64)
    packed = Packed.copied(addresses, sizes)
    del memory
    wanted = [None, b"three", b"one", b"", b"four", b"", b"two", None, b""]
    assert list(packed) == wanted
    empty = sizes == 0
    assert list(Packed.copied(addresses[empty], sizes[empty])) == [None, b"", b"", None, b""]
    assert list(Packed.copied(addresses[:0], sizes[:0])) == []


def test_pieces_that_lie_terabytes_apart_take_no_more_than_their_size() -> None:
    """Arrow reserves by the mean distance; an allocator that keeps its word cannot give that."""
    apart = 1 << 41
    memory = mmap.mmap(-1, apart + 8, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    memory[:3], memory[apart:] = b"low", b"highhigh"
    begin = np.frombuffer(memory, np.uint8).ctypes.data
    places = [begin + apart, begin, 0, begin + apart + 4]
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        packed = Packed.copied(np.array(places, np.uint64), np.array([4, 3, 0, 4]))
    finally:
        pa.set_memory_pool(before)
    memory.close()
    assert list(packed) == [b"high", b"low", None, b"high"]


def test_framed_values_stand_behind_each_other() -> None:
    assert Packed.of([b"a", b"", b"bc"]).framed(b"<", b">") == b"<a><><bc>"
    assert Packed.of([b"x", b"a", b"b"])[1:].framed(b"(", b")") == b"(a)(b)"
    assert Packed.of([]).framed(b"<", b">") == b""
