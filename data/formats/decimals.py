"""Reads decimals as Avro and Connect write them: big-endian two's complement, and a scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

_WIDTH = 16
_DIGITS_MAX = 38
_LIMIT = 10**_DIGITS_MAX
_HIGH_MAX = _LIMIT >> 64

Octets = np.ndarray[Any, np.dtype[np.uint8]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Positions = np.ndarray[Any, np.dtype[np.int64]]


def decimals_of(
    octets: Octets, begins: Positions, lengths: Positions, scale: int
) -> tuple[pa.Array, Flags]:
    """Return the numbers at these places (no bytes are zero), and which exceed 38 digits."""
    places = (begins + lengths - _WIDTH)[:, None] + np.arange(_WIDTH)
    inside = places >= begins[:, None]
    octets = octets if len(octets) else np.zeros(1, np.uint8)
    digits = octets[np.where(inside, places, 0)]
    leading = octets[np.minimum(begins, len(octets) - 1)]
    negative = (lengths > 0) & (leading >= 128)
    digits = np.where(inside, digits, np.where(negative, 255, 0)[:, None]).astype(np.uint8)
    numbers = np.ascontiguousarray(digits[:, ::-1])
    high = numbers.view("<i8")[:, 1]
    wide = (lengths > _WIDTH) | (high >= _HIGH_MAX) | (high < -_HIGH_MAX)
    for row in np.flatnonzero(wide).tolist():
        begin, length = int(begins[row]), int(lengths[row])
        number = int.from_bytes(octets[begin : begin + length].tobytes(), "big", signed=True)
        wide[row] = abs(number) >= _LIMIT
        number = 0 if wide[row] else number
        numbers[row] = np.frombuffer(number.to_bytes(_WIDTH, "little", signed=True), np.uint8)
    target = pa.decimal128(_DIGITS_MAX, scale)
    found = pa.Array.from_buffers(target, len(begins), [None, pa.py_buffer(numbers.tobytes())])
    return found, wide
