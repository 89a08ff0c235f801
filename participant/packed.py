"""Many byte strings in one buffer: a sequence for who wants one, columns for who is in a hurry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Integers = np.ndarray[Any, np.dtype[np.int64]]
Unsigned = np.ndarray[Any, np.dtype[np.uint64]]


_FAR = 1 << 28
"""Bytes. Places that lie further apart, as a heap and a mapping do, are copied by themselves."""


class Packed(Sequence[Any]):
    """Values of bytes, or ``None``; ``array`` is of large binary.

    Whoever takes single values pays for each of them.
    """

    __slots__ = ("array",)

    def __init__(self, array: pa.LargeBinaryArray) -> None:
        self.array = array

    @classmethod
    def of(cls, values: Iterable[bytes | None]) -> Packed:
        return cls(pa.array(values, pa.large_binary()))

    @classmethod
    def whole(cls, values: Sequence[bytes]) -> Packed:
        """The same values, packed if they are not."""
        return values if isinstance(values, Packed) else cls.of(values)

    @classmethod
    def copied(cls, addresses: Unsigned, sizes: Integers) -> Packed:
        """What stands at these places of this process's memory; ``None`` for the address 0."""
        order = np.argsort(addresses, kind="stable")
        near = np.split(order, np.flatnonzero(np.diff(addresses[order]) > _FAR) + 1)
        if len(near) == 1:
            return cls(_copied(addresses, sizes))
        found = pa.concat_arrays([_copied(addresses[rows], sizes[rows]) for rows in near])
        return cls(found.take(pa.array(np.argsort(order))))

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> Packed: ...
    def __getitem__(self, at: int | slice) -> Any:
        found = self.array[at]
        return Packed(found) if isinstance(at, slice) else found.as_py()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.array.to_pylist())

    def joined(self, tail: bytes) -> tuple[bytes, Integers]:
        """All values one behind the other, and the tail; where in there each of them ends."""
        bounds = np.frombuffer(self.array.buffers()[1] or bytes(8), np.int64)
        bounds = bounds[self.array.offset : self.array.offset + len(self) + 1]
        octets = self.array.buffers()[2]
        inside = memoryview(octets)[bounds[0] : bounds[-1]] if octets else b""
        return b"".join((inside, tail)), bounds[1:] - bounds[0]

    def framed(self, front: bytes, back: bytes) -> bytes:
        """All values one behind the other, each between these two."""
        kind = pa.large_binary()
        parts = (pa.scalar(front, kind), self.array, pa.scalar(back, kind), pa.scalar(b"", kind))
        joined = pc.binary_join_element_wise(*parts)
        text: bytes = joined.buffers()[2].to_pybytes() if len(joined) else b""
        return text

    def where(self, wanted: np.ndarray[Any, np.dtype[np.bool_]]) -> Packed:
        """Only the values whose flag is set."""
        return Packed(self.array.filter(pa.array(wanted)))


def _copied(addresses: Unsigned, sizes: Integers) -> pa.LargeBinaryArray:
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
