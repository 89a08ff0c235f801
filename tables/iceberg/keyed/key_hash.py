"""128 bits for each key: equal keys have equal ones, others by a chance of one in 2**128.

The index lives as long as one coordinator, so that each has a seed of its own: nobody can make keys
that collide. A key of one whole number is mixed by a bijection, and never collides at all.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Words = npt.NDArray[np.uint64]

_LONG_BYTES = 256
"""Of texts that are longer a digest is mixed: few are, and the loops over words stay short."""

_EIGHT, _ALL = np.uint64(8), np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_MULTIPLY = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_STEPS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))


@dataclass(frozen=True, slots=True)
class KeyHash:
    """``columns`` of equal length to two words each; equal keys of any files to equal words.

    The columns have the types of the table's key, so that a promoted column hashes as before.
    """

    seeds: tuple[int, int] = field(
        default_factory=lambda: (secrets.randbits(64), secrets.randbits(64))
    )

    def __call__(self, columns: Sequence[pa.Array]) -> tuple[Words, Words]:
        if len(columns) == 1 and _is_number(columns[0].type):
            numbers = _numbers(columns[0])
            return _mixed(numbers ^ np.uint64(self.seeds[0])), np.zeros(len(numbers), np.uint64)
        count = len(columns[0])
        lanes = [np.full(count, seed, np.uint64) for seed in self.seeds]
        for column in columns:
            for word in _words(column):
                for lane, step in enumerate(_STEPS):
                    lanes[lane] = _absorbed(lanes[lane], word, step)
        return lanes[0], lanes[1]


@dataclass(frozen=True, slots=True)
class _Word:
    """The next eight bytes of some rows' keys; ``rows``: which, ``None``: all."""

    values: Words
    rows: npt.NDArray[np.int64] | None = None


def _absorbed(lane: Words, word: _Word, step: np.uint64) -> Words:
    with np.errstate(over="ignore"):
        if word.rows is None:
            return _mixed((lane ^ word.values) + step)
        lane[word.rows] = _mixed((lane[word.rows] ^ word.values) + step)
    return lane


def _mixed(words: Words) -> Words:
    """splitmix64's finaliser: a bijection that spreads every bit."""
    with np.errstate(over="ignore"):
        words = (words ^ (words >> _SHIFTS[0])) * _MULTIPLY[0]
        words = (words ^ (words >> _SHIFTS[1])) * _MULTIPLY[1]
        return words ^ (words >> _SHIFTS[2])


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_temporal(kind) or pa.types.is_boolean(kind)
    )


def _numbers(column: pa.Array) -> Words:
    """Times as what they count: a table's column says in which unit."""
    kind = column.type
    if pa.types.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        column = column.view(width)
    values: npt.NDArray[np.int64] = pc.cast(column, pa.int64()).to_numpy(zero_copy_only=False)
    return values.view(np.uint64)


def _words(column: pa.Array) -> list[_Word]:
    kind = column.type
    if _is_number(kind):
        return [_Word(_numbers(column))]
    if pa.types.is_decimal(kind):  # as many digits as there can be: a wider column hashes alike
        column = pc.cast(column, pa.decimal128(38, kind.scale)).view(pa.binary(16))
    return _words_of_bytes(pc.cast(column, pa.large_binary()))


def _words_of_bytes(column: pa.Array) -> list[_Word]:
    """The length of each value first: else parts of a key could move from one column to another."""
    _, offsets, octets = column.buffers()
    bounds = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    begins, lengths = bounds[:-1], np.diff(bounds)
    words = [_Word(lengths.astype(np.uint64))]
    if octets is None or not len(column):
        return words
    padded = np.frombuffer(bytes(octets) + bytes(8), np.uint8)
    at_every_byte: Any = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
    long = np.flatnonzero(lengths > _LONG_BYTES)
    if len(long):
        words += _digests(padded, begins, lengths, long)
    longest = int(lengths[lengths <= _LONG_BYTES].max(initial=0))
    for begin in range(0, longest, 8):
        rows = np.flatnonzero((lengths > begin) & (lengths <= _LONG_BYTES))
        values = at_every_byte[begins[rows] + begin].astype(np.uint64)
        left = np.minimum(lengths[rows] - begin, 8).astype(np.uint64)
        words.append(_Word(values & (_ALL >> ((_EIGHT - left) * _EIGHT)), rows))
    return words


def _digests(
    octets: npt.NDArray[np.uint8],
    begins: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    long: npt.NDArray[np.int64],
) -> list[_Word]:
    made = b"".join(
        hashlib.blake2b(
            octets[begins[row] : begins[row] + lengths[row]].tobytes(), digest_size=16
        ).digest()
        for row in long
    )
    halves = np.frombuffer(made, np.uint64).reshape(-1, 2)
    return [_Word(halves[:, 0].copy(), long), _Word(halves[:, 1].copy(), long)]
