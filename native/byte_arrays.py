"""Packs many byte strings into one buffer: a sequence of values, or columns for speed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.native.kernels import Addresses, Integers, loops


class Packed(Sequence[Any]):
    """Byte values, or ``None``; ``array`` has the type large binary.

    Accessing single values has a cost for each of them.
    """

    __slots__ = ("array",)

    def __init__(self, array: pa.LargeBinaryArray) -> None:
        self.array = array

    @classmethod
    def from_values(cls, values: Iterable[bytes | None]) -> Packed:
        return cls(pa.array(values, pa.large_binary()))

    @classmethod
    def pack(cls, values: Sequence[bytes]) -> Packed:
        """Return the same values, packed if they are not."""
        return values if isinstance(values, Packed) else cls.from_values(values)

    @classmethod
    def copy_from(cls, addresses: Addresses, sizes: Integers) -> Packed:
        """Copy what stands at these addresses of this process's memory; ``None`` for address 0."""
        return cls(loops().gather(addresses, sizes))

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

    def concat_with_tail(self, tail: bytes) -> tuple[bytes, Integers]:
        """Return all values in a row and the tail, and where each of them ends."""
        bounds = np.frombuffer(self.array.buffers()[1] or bytes(8), np.int64)
        bounds = bounds[self.array.offset : self.array.offset + len(self) + 1]
        octets = self.array.buffers()[2]
        inside = memoryview(octets)[bounds[0] : bounds[-1]] if octets else b""
        return b"".join((inside, tail)), bounds[1:] - bounds[0]

    def concat_each_wrapped(self, front: bytes, back: bytes) -> bytes:
        """Return all values in a row, each between these two."""
        kind = pa.large_binary()
        parts = (pa.scalar(front, kind), self.array, pa.scalar(back, kind), pa.scalar(b"", kind))
        joined = pc.binary_join_element_wise(*parts)
        text: bytes = joined.buffers()[2].to_pybytes() if len(joined) else b""
        return text

    def take(self, rows: Integers | Sequence[int]) -> Packed:
        """Return only these values, in this order: of a few out of many, faster than by flags."""
        return Packed(self.array.take(pa.array(rows)))

    def filter(self, wanted: np.ndarray[Any, np.dtype[np.bool_]]) -> Packed:
        """Return only the values whose flag is set."""
        return Packed(self.array.filter(pa.array(wanted)))
