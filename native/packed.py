"""Many byte strings in one buffer: a sequence for who wants one, columns for who is in a hurry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.native.loops import Addresses, Integers, loops


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
    def copied(cls, addresses: Addresses, sizes: Integers) -> Packed:
        """What stands at these places of this process's memory; ``None`` for the address 0."""
        return cls(loops().gathered(addresses, sizes))

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
