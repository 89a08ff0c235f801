"""Byte strings in one buffer, taken one by one and all at once."""

from __future__ import annotations

import numpy as np

from headgate.native.byte_arrays import Packed

VALUES = [b"a", None, b"", b"bcd", b"\x00\xff"]


def test_it_is_a_sequence_of_what_was_put_in() -> None:
    packed = Packed.from_values(VALUES)
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
    packed = Packed.from_values([b"a"])
    assert Packed.pack(packed) is packed
    assert list(Packed.pack([b"a"])) == [b"a"]


def test_flags_choose() -> None:
    flags = np.array([True, False, True, False, True])
    assert list(Packed.from_values(VALUES).filter(flags)) == [b"a", b"", b"\x00\xff"]


def test_framed_values_stand_behind_each_other() -> None:
    assert Packed.from_values([b"a", b"", b"bc"]).concat_each_wrapped(b"<", b">") == b"<a><><bc>"
    assert Packed.from_values([b"x", b"a", b"b"])[1:].concat_each_wrapped(b"(", b")") == b"(a)(b)"
    assert Packed.from_values([]).concat_each_wrapped(b"<", b">") == b""
