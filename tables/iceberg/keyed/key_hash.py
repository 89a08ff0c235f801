"""128 bits for each key: equal keys have equal ones, others by a chance of one in 2**128.

The index lives as long as one coordinator, so that each has a seed of its own: nobody can make keys
that collide. A key of one whole number is mixed by a bijection, and never collides at all.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.native.loops import Integers, Lanes, Words, loops

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
        one, other = (np.full(len(columns[0]), seed, np.uint64) for seed in self.seeds)
        lanes = one, other
        for column in columns:
            if _is_number(column.type):
                numbers = _numbers(column)
                lanes = loops().absorbed(numbers, lanes) or _absorbed(lanes, _Word(numbers))
            else:
                lanes = _with_bytes(lanes, _octets(column))
        return lanes


@dataclass(frozen=True, slots=True)
class _Word:
    """The next eight bytes of some rows' keys; ``rows``: which, ``None``: all."""

    values: Words
    rows: npt.NDArray[np.int64] | None = None


def _absorbed(lanes: Lanes, word: _Word) -> Lanes:
    """The lanes with the word mixed in. The C of ``native`` does the same, row by row."""
    with np.errstate(over="ignore"):
        for lane, step in zip(lanes, _STEPS, strict=True):
            at = slice(None) if word.rows is None else word.rows
            lane[at] = _mixed((lane[at] ^ word.values) + step)
    return lanes


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


def _octets(column: pa.Array) -> pa.LargeBinaryArray:
    kind = column.type
    if pa.types.is_decimal(kind):  # as many digits as there can be: a wider column hashes alike
        column = pc.cast(column, pa.decimal128(38, kind.scale)).view(pa.binary(16))
    return pc.cast(column, pa.large_binary())


def _with_bytes(lanes: Lanes, values: pa.LargeBinaryArray) -> Lanes:
    """The length of each value first: else parts of a key could move from one column to another."""
    lengths: Integers = pc.binary_length(values).to_numpy(zero_copy_only=False)
    if (done := loops().absorbed_bytes(values, _LONG_BYTES, lanes)) is None:
        for word in _words_of_bytes(values, lengths):
            lanes = _absorbed(lanes, word)
    else:
        lanes = done
    for word in _digests(values, np.flatnonzero(lengths > _LONG_BYTES)):
        lanes = _absorbed(lanes, word)
    return lanes


def _words_of_bytes(values: pa.LargeBinaryArray, lengths: Integers) -> Iterator[_Word]:
    yield _Word(lengths.view(np.uint64))
    short = lengths <= _LONG_BYTES
    longest = int(lengths[short].max(initial=0))
    if not longest:
        return
    _, bounds, octets = values.buffers()
    begins = np.frombuffer(bounds, np.int64)[values.offset : values.offset + len(values)]
    padded = np.frombuffer(bytes(octets) + bytes(8), np.uint8)
    at_every_byte: Any = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
    for begin in range(0, longest, 8):
        rows = np.flatnonzero((lengths > begin) & short)
        read = at_every_byte[begins[rows] + begin].astype(np.uint64)
        left = np.minimum(lengths[rows] - begin, 8).astype(np.uint64)
        yield _Word(read & (_ALL >> ((_EIGHT - left) * _EIGHT)), rows)


def _digests(values: pa.LargeBinaryArray, long: npt.NDArray[np.int64]) -> Iterator[_Word]:
    made = b"".join(
        hashlib.blake2b(value, digest_size=16).digest()
        for value in values.take(pa.array(long)).to_pylist()
    )
    for half in np.frombuffer(made, np.uint64).reshape(-1, 2).T:
        yield _Word(half, long)
