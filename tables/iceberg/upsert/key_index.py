"""Where the row of a key is: a cache of the live data files' keys, in bounded memory (rule KEY-7).

Sorted runs that are merged as they grow, like those of an LSM tree: 28 bytes for each row. What is
known of a data file stays true for ever, because data files never change; the index is only ever
behind its table, never ahead of it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.control_protocol.errors import KeyIndexFull
from headgate.native.kernels import Integers, Lanes, Words, loops
from headgate.tables.iceberg.upsert.index_memory import Take

ROW_BYTES = 28
MERGED_ROWS_MAX = 1_000_000
MERGED_SHARE = 8
"""Runs become at most this large, or this part of the index: a merge needs little beside it, and a
key is looked up in few of them."""

Numbers = npt.NDArray[np.int64]

_SHORT_MAX = 2**16 - 1


@dataclass(frozen=True, slots=True)
class FileKeys:
    """The keys of a file's rows, in their order. ``sources``: numbers of the partitions that the
    records came from, -1 where nobody knows; ``offsets``: there, if they were asked for."""

    high: Words
    low: Words
    sources: npt.NDArray[np.int32]
    offsets: Numbers

    def __len__(self) -> int:
        return len(self.high)


@dataclass(frozen=True, slots=True)
class Found:
    """Rows with looked up keys: ``asked`` is the place of the key among those asked for."""

    asked: Numbers
    files: npt.NDArray[np.int32]
    positions: npt.NDArray[np.uint32]
    sources: npt.NDArray[np.int32]

    def without_files(self, gone: set[int]) -> Found:
        """Without the rows of these files."""
        if not gone:
            return self
        kept = ~np.isin(self.files, list(gone))
        return Found(self.asked[kept], self.files[kept], self.positions[kept], self.sources[kept])


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows in the order of their keys' high words."""

    high: Words
    low: Words
    files: npt.NDArray[np.int32]
    positions: npt.NDArray[np.uint32]
    sources: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.high)

    def select_rows(self, chosen: npt.NDArray[np.bool_] | Numbers) -> _Run:
        return _Run(
            self.high[chosen],
            self.low[chosen],
            self.files[chosen],
            self.positions[chosen],
            self.sources[chosen],
        )

    def merge_with(self, other: _Run) -> _Run:
        """One run of both, in one pass, for each is sorted; column by column, for the memory."""
        high = np.concatenate([self.high, other.high])
        order = np.argsort(high, kind="stable").astype(np.uint32)
        return _Run(
            high[order],
            np.concatenate([self.low, other.low])[order],
            np.concatenate([self.files, other.files])[order],
            np.concatenate([self.positions, other.positions])[order],
            np.concatenate([self.sources, other.sources])[order],
        )


@dataclass(slots=True)
class KeyIndex:
    """``bytes_max`` bounds what it holds; ``dead`` tells which positions of a file are dead: merges
    forget those rows, so that a key which changes often does not fill the runs. ``any_dead``:
    whether it is worth asking. ``take``: where other tables' indexes have a part of the bytes."""

    bytes_max: int
    dead: Callable[[str], Numbers] = field(default=lambda _: np.empty(0, np.int64))
    take: Take | None = None
    any_dead: Callable[[], bool] = field(default=lambda: True)
    numbers: dict[str, int] = field(default_factory=dict)
    _paths: dict[int, str] = field(default_factory=dict)
    _gone: set[int] = field(default_factory=set)
    _runs: list[_Run] = field(default_factory=list)
    _next: int = 0

    def __len__(self) -> int:
        return sum(len(run) for run in self._runs)

    def path(self, number: int) -> str:
        return self._paths[number]

    def add(self, path: str, keys: FileKeys) -> None:
        """Raises ``KeyIndexFull`` where it would become too large; it is as before then."""
        if not self._has_room(len(keys)):
            self._forget_gone()
        rows = len(self) + len(keys)
        if not self._has_room(len(keys)):
            raise KeyIndexFull(
                f"{rows} rows of a keyed table need {rows * ROW_BYTES} bytes to be found by their "
                f"keys, and all such tables may have {self.bytes_max}",
                "raise changes.index_memory_bytes, or fill several tables",
            )
        number, self._next = self._next, self._next + 1
        self.numbers[path], self._paths[number] = number, path
        order, high = sort_words(keys.high)
        run = _Run(
            high,
            keys.low[order],
            np.full(len(keys), number, np.int32),
            order.astype(np.uint32),
            keys.sources[order],
        )
        self._runs.append(run)
        while self._two_are_merged():
            self._runs[-2:] = [self._alive(self._runs[-2]).merge_with(self._alive(self._runs[-1]))]

    def _has_room(self, more: int) -> bool:
        wanted = (len(self) + more) * ROW_BYTES
        return self.take(wanted) if self.take else wanted <= self.bytes_max

    def forget_file(self, path: str) -> None:
        """A data file that is not in the table any more."""
        number = self.numbers.pop(path)
        del self._paths[number]
        self._gone.add(number)

    def find(self, high: Words, low: Words) -> Found:
        """Every row with one of these keys, dead ones among them. ``high`` is sorted."""
        found = [_in_run(run, high, low) for run in self._runs or [_EMPTY]]
        return Found(
            np.concatenate([each.asked for each in found]),
            np.concatenate([each.files for each in found]),
            np.concatenate([each.positions for each in found]),
            np.concatenate([each.sources for each in found]),
        ).without_files(self._gone)

    def _two_are_merged(self) -> bool:
        if len(self._runs) < 2:
            return False
        larger, newest = self._runs[-2:]
        rows_max = max(MERGED_ROWS_MAX, len(self) // MERGED_SHARE)
        return len(larger) < 2 * len(newest) and len(larger) + len(newest) <= rows_max

    def _alive(self, run: _Run) -> _Run:
        if not self._gone and not self.any_dead():
            return run
        keep = ~np.isin(run.files, list(self._gone))
        for number, places in group_by_number(run.files[keep], np.flatnonzero(keep)):
            dead = self.dead(self._paths[number])
            if len(dead):
                keep[places] &= ~np.isin(run.positions[places], dead)
        return run if keep.all() else run.select_rows(keep)

    def _forget_gone(self) -> None:
        self._runs = [run for run in map(self._alive, self._runs) if len(run)]
        self._gone.clear()


def join_keys(parts: Sequence[FileKeys]) -> FileKeys:
    """The keys of the parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    empty = np.empty(0, np.uint64)
    return FileKeys(
        np.concatenate([empty, *(part.high for part in parts)]),
        np.concatenate([empty, *(part.low for part in parts)]),
        np.concatenate([np.empty(0, np.int32), *(part.sources for part in parts)]),
        np.concatenate([np.empty(0, np.int64), *(part.offsets for part in parts)]),
    )


def group_by_number(
    numbers: npt.NDArray[np.integer[Any]], values: npt.NDArray[Any]
) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """The values of each number."""
    if not len(numbers):
        return
    lowest = numbers.min()
    if numbers.max() - lowest <= _SHORT_MAX:  # a radix sort, ten times as fast
        order = np.argsort((numbers - lowest).astype(np.uint16), kind="stable")
    else:
        order = np.argsort(numbers, kind="stable")
    numbers, values = numbers[order], values[order]
    cuts = np.flatnonzero(np.diff(numbers)) + 1
    begins = [0, *cuts.tolist()]
    for begin, part in zip(begins, np.split(values, cuts), strict=True):
        yield int(numbers[begin]), part


def sort_words(words: Words) -> tuple[Numbers, Words]:
    """Return the order of random words, and the words in it; three times as fast as an argsort.

    The last bits of each give way to its place, which hardly ever changes the order.
    """
    bits = np.uint64(len(words).bit_length())
    packed = (words >> bits) << bits
    packed |= np.arange(len(words), dtype=np.uint64)
    packed.sort()
    packed &= (np.uint64(1) << bits) - np.uint64(1)
    order = packed.view(np.int64)
    found = words[order]
    if (found[1:] < found[:-1]).any():
        order = np.argsort(words)
        found = words[order]
    return order, found


def _in_run(run: _Run, high: Words, low: Words) -> Found:
    """Rows with the same high word, and of those the rows with the same low one."""
    at = loops().place_words(run.high, high)
    asked = np.flatnonzero(at < len(run))
    asked = asked[run.high[at[asked]] == high[asked]]
    at = at[asked]
    several = at + 1 < len(run)
    several[several] = run.high[at[several] + 1] == high[asked[several]]
    if several.any():
        counts = np.ones(len(at), np.int64)
        counts[several] = np.searchsorted(run.high, high[asked[several]], "right") - at[several]
        firsts = np.repeat(np.cumsum(counts) - counts, counts)
        asked, at = np.repeat(asked, counts), np.repeat(at, counts)
        at = at + np.arange(len(at)) - firsts
    same = run.low[at] == low[asked]
    at = at[same]
    return Found(asked[same], run.files[at], run.positions[at], run.sources[at])


_EMPTY = _Run(
    np.empty(0, np.uint64),
    np.empty(0, np.uint64),
    np.empty(0, np.int32),
    np.empty(0, np.uint32),
    np.empty(0, np.int32),
)


# 128 bits for each key: equal keys have equal ones, others by a chance of one in 2**128.
#
# The index lives as long as one coordinator, so that each has a seed of its own: nobody can make
# keys that collide. A key of one whole number is mixed by a bijection, and never collides at all.


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
            return _mix_bits(numbers ^ np.uint64(self.seeds[0])), np.zeros(len(numbers), np.uint64)
        one, other = (np.full(len(columns[0]), seed, np.uint64) for seed in self.seeds)
        lanes = one, other
        for column in columns:
            if _is_number(column.type):
                numbers = _numbers(column)
                lanes = loops().absorb_words(numbers, lanes) or _mix_in_word(lanes, _Word(numbers))
            else:
                lanes = _with_bytes(lanes, _as_binary(column))
        return lanes


@dataclass(frozen=True, slots=True)
class _Word:
    """The next eight bytes of some rows' keys; ``rows``: which, ``None``: all."""

    values: Words
    rows: npt.NDArray[np.int64] | None = None


def _mix_in_word(lanes: Lanes, word: _Word) -> Lanes:
    """The lanes with the word mixed in. The C of ``native`` does the same, row by row."""
    with np.errstate(over="ignore"):
        for lane, step in zip(lanes, _STEPS, strict=True):
            at = slice(None) if word.rows is None else word.rows
            lane[at] = _mix_bits((lane[at] ^ word.values) + step)
    return lanes


def _mix_bits(words: Words) -> Words:
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


def _as_binary(column: pa.Array) -> pa.LargeBinaryArray:
    kind = column.type
    if pa.types.is_decimal(kind):  # as many digits as there can be: a wider column hashes alike
        column = pc.cast(column, pa.decimal128(38, kind.scale)).view(pa.binary(16))
    return pc.cast(column, pa.large_binary())


def _with_bytes(lanes: Lanes, values: pa.LargeBinaryArray) -> Lanes:
    """The length of each value first: else parts of a key could move from one column to another."""
    lengths: Integers = pc.binary_length(values).to_numpy(zero_copy_only=False)
    if (done := loops().absorb_bytes(values, _LONG_BYTES, lanes)) is None:
        for word in _words_of_bytes(values, lengths):
            lanes = _mix_in_word(lanes, word)
    else:
        lanes = done
    for word in _digests(values, np.flatnonzero(lengths > _LONG_BYTES)):
        lanes = _mix_in_word(lanes, word)
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
