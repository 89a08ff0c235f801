"""Where the row of a key is: a cache of the live data files' keys, in bounded memory (rule KEY-7).

Sorted runs that are merged as they grow, like those of an LSM tree. A row takes 28 bytes of memory;
beyond some millions of rows, 32 of the local disk and 1.4 of memory. What is known of a data file
stays true for ever, because data files never change; the index is only ever behind its table, never
ahead of it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.control_protocol.errors import KeyIndexFull
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.native.kernels import Integers, Lanes, Words, loops
from headgate.tables.iceberg.upsert.index_memory import TryResize
from headgate.tables.iceberg.upsert.key_runs import (
    EMPTY,
    ROW_BYTES,
    Found,
    Merge,
    Run,
    SearchedKeys,
    StoredRun,
    merge_and_store_runs,
    merge_live_rows_of_stored_runs,
    merge_runs_keeping_duplicates,
    stored_run_memory_max,
)

_log = redacted_logger(__name__)

MERGED_ROWS_MAX = 1_000_000
MERGED_SHARE = 8
"""Runs become at most this large, or this part of the index: a merge needs little beside it, and a
key is looked up in few of them."""

HELD_ROWS_MAX = 4_000_000
"""What one table has in memory at most, before it goes to a file."""
READERS = 16
"""Threads that wait for the disk."""
MERGED_RUNS = 8
"""So many files of up to twice that size become one, beside commits; larger ones stay apart."""

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


@dataclass(slots=True)
class KeyIndex:
    """``bytes_max`` bounds what it holds of memory; ``dead`` tells which positions of a file are
    dead: merges forget those rows, so that a key which changes often does not fill the runs.
    ``try_resize``: where other tables' indexes have a part of the bytes. ``any_dead``: whether it
    is worth asking. ``folder``: for the files of what is too much for memory; without one there
    are none."""

    bytes_max: int
    dead: Callable[[str], Numbers] = field(default=lambda _: np.empty(0, np.int64))
    try_resize: TryResize | None = None
    any_dead: Callable[[], bool] = field(default=lambda: True)
    folder: str | None = None
    numbers: dict[str, int] = field(default_factory=dict)
    _paths: dict[int, str] = field(default_factory=dict)
    _gone: set[int] = field(default_factory=set)
    _runs: list[Run] = field(default_factory=list)
    _stored: list[StoredRun] = field(default_factory=list)
    _merge: Merge | None = None
    _next: int = 0

    def __len__(self) -> int:
        return sum(map(len, self._runs)) + sum(map(len, self._stored))

    @property
    def bytes_in_memory(self) -> int:
        """What it holds of memory."""
        return self._memory_bytes_of(sum(map(len, self._runs)), self._stored)

    def close(self) -> None:
        """End what works for it; nobody asks it any more."""
        if self._merge:
            self._merge.cancel()

    def path_of_file(self, number: int) -> str:
        return self._paths[number]

    def add_file(self, path: str, keys: FileKeys) -> None:
        """Add a file's keys. Raises ``KeyIndexFull``; then it finds what it found before."""
        number = self._next
        order, high = order_and_sorted_words(keys.high)
        run = Run(
            high,
            keys.low[order],
            np.full(len(keys), number, np.int32),
            order.astype(np.uint32),
            keys.sources[order],
        )
        self.numbers[path], self._paths[number] = number, path
        if not (self._try_spill_all_if_full(run) or self._try_hold_in_memory(run)):
            self._drop_dead_and_removed_rows()
            if not (self._try_spill_all_if_full(run) or self._try_hold_in_memory(run)):
                del self.numbers[path], self._paths[number]
                raise self._full_error(len(keys))
        self._next += 1
        while self._should_merge_newest_two():
            self._runs[-2:] = [
                merge_runs_keeping_duplicates([*map(self._filter_of_live_rows(), self._runs[-2:])])
            ]

    def _try_hold_in_memory(self, run: Run) -> bool:
        """Keep the run in memory; return whether there was room."""
        rows = sum(map(len, self._runs)) + len(run)
        if not self._try_resize_to(self._memory_bytes_of(rows, self._stored)):
            return False
        self._runs.append(run)
        return True

    def _try_spill_all_if_full(self, run: Run) -> bool:
        """Write all that is in memory, and the run, to a file: if that is too much for memory.

        Return whether it was done.
        """
        rows = sum(map(len, self._runs)) + len(run)
        wanted = self._memory_bytes_of(rows, self._stored)
        if self.folder is None or (rows <= HELD_ROWS_MAX and self._try_resize_to(wanted)):
            return False
        try:
            made = merge_and_store_runs(
                self.folder, [*map(self._filter_of_live_rows(), self._runs), run]
            )
        except OSError as error:
            _log.warning("keys stay in memory, for %s takes no more: %s", self.folder, error)
            return False
        self._take_merged_runs_if_done()
        stored = [*self._stored, *([made] if made else [])]
        if not self._try_resize_to(self._memory_bytes_of(0, stored)):
            return False
        self._runs, self._stored = [], stored
        self._gone &= set().union(*(each.rows_of for each in stored))
        self._begin_merge_if_worthwhile()
        return True

    def _begin_merge_if_worthwhile(self) -> None:
        """Make one of many small ones; leave out what is gone where it is more than the rest.

        It takes seconds, so no commit waits for it. At most one at a time, and only where its
        result has room beside the runs that it is made of.
        """
        if self._merge or self.folder is None:
            return
        chosen = [run for run in self._stored if len(run) <= 2 * HELD_ROWS_MAX]
        if len(chosen) < MERGED_RUNS:
            chosen = [
                run for run in self._stored if 2 * self._row_count_in_live_files(run) < len(run)
            ]
        more = stored_run_memory_max(sum(map(len, chosen)))
        if chosen and self._try_resize_to(self.bytes_in_memory + more):
            self._merge = Merge(self.folder, chosen, self._filter_of_live_rows())

    def _take_merged_runs_if_done(self) -> None:
        """Replace the runs by what was made of them, if that is done."""
        if self._merge and self._merge.is_done:
            merge, self._merge = self._merge, None
            if merge.error is not None:
                _log.warning("runs of keys stay apart: %s", merge.error)
            kept = [run for run in self._stored if run not in merge.runs]
            self._stored = kept + merge.result()

    def _row_count_in_live_files(self, run: StoredRun) -> int:
        """Return how many of its rows are in files that the table has, dead ones among them."""
        return sum(rows for number, rows in run.rows_of.items() if number not in self._gone)

    def _full_error(self, rows_to_add: int) -> KeyIndexFull:
        wanted = self._memory_bytes_of(sum(map(len, self._runs)) + rows_to_add, self._stored)
        return KeyIndexFull(
            f"{len(self) + rows_to_add} rows of a keyed table need {wanted} bytes to be found by "
            f"their keys, and all such tables may have {self.bytes_max}",
            "raise changes.index_memory_bytes, or fill several tables",
        )

    def _try_resize_to(self, total_bytes: int) -> bool:
        return self.try_resize(total_bytes) if self.try_resize else total_bytes <= self.bytes_max

    def _memory_bytes_of(self, rows: int, stored: Sequence[StoredRun]) -> int:
        more = self._merge.result_bytes_max if self._merge else 0
        return rows * ROW_BYTES + sum(run.bytes_in_memory for run in stored) + more

    def forget_file(self, path: str) -> None:
        """A data file that is not in the table any more."""
        number = self.numbers.pop(path)
        del self._paths[number]
        self._gone.add(number)

    def find_rows(self, high: Words, low: Words) -> Found:
        """Every row with one of these keys, dead ones among them. ``high`` is sorted."""
        self._take_merged_runs_if_done()
        wanted = SearchedKeys.from_words(high, low)
        found = [run.find_keys(wanted) for run in self._runs or [EMPTY]]
        if self._stored:
            # A disk answers many at once: in turn, each page would wait for the one before.
            parts = wanted.split(-(-READERS // len(self._stored)))
            with ThreadPoolExecutor(READERS) as readers:
                asked = [(run, part) for run in self._stored for part in parts]
                found += readers.map(lambda pair: pair[0].find_keys(pair[1]), asked)
        return Found(
            np.concatenate([each.asked for each in found]),
            np.concatenate([each.files for each in found]),
            np.concatenate([each.positions for each in found]),
            np.concatenate([each.sources for each in found]),
        ).without_files(self._gone)

    def _should_merge_newest_two(self) -> bool:
        if len(self._runs) < 2:
            return False
        larger, newest = self._runs[-2:]
        rows_max = max(MERGED_ROWS_MAX, len(self) // MERGED_SHARE)
        return len(larger) < 2 * len(newest) and len(larger) + len(newest) <= rows_max

    def _filter_of_live_rows(self) -> Callable[[Run], Run]:
        """Return what leaves the living of a run, also in another thread while this index goes on:
        what is dead stays dead, and what dies later is left out another time."""
        if not self._gone and not self.any_dead():  # first: the copies are of all files
            return lambda run: run
        paths, gone = dict(self._paths), list(self._gone)

        def select_live_rows(run: Run) -> Run:
            keep = ~np.isin(run.files, gone)
            for number, places in group_by_number(run.files[keep], np.flatnonzero(keep)):
                dead = self.dead(paths[number])
                if len(dead):
                    keep[places] &= ~np.isin(run.positions[places], dead)
            return run if keep.all() else run.select_rows(keep)

        return select_live_rows

    def _drop_dead_and_removed_rows(self) -> None:
        """Make room, for which a commit waits: the sink would stop otherwise."""
        if self._merge:
            self._merge.wait()
            self._take_merged_runs_if_done()
        self._runs = [run for run in map(self._filter_of_live_rows(), self._runs) if len(run)]
        worn = [run for run in self._stored if self._row_count_in_live_files(run) < len(run)]
        if worn and self.folder is not None:
            with suppress(OSError):  # there is no room for what would make some
                merged = merge_live_rows_of_stored_runs(
                    self.folder, worn, self._filter_of_live_rows()
                )
                kept = [run for run in self._stored if run not in worn]
                self._stored = kept + ([merged] if merged else [])
        self._gone &= set().union(*(run.rows_of for run in self._stored))


def concat_keys(parts: Sequence[FileKeys]) -> FileKeys:
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


def order_and_sorted_words(words: Words) -> tuple[Numbers, Words]:
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
        if len(columns) == 1 and _fits_one_word(columns[0].type):
            numbers = _integers_or_times_as_words(columns[0])
            return _mix_bits(numbers ^ np.uint64(self.seeds[0])), np.zeros(len(numbers), np.uint64)
        one, other = (np.full(len(columns[0]), seed, np.uint64) for seed in self.seeds)
        lanes = one, other
        for column in columns:
            if _fits_one_word(column.type):
                numbers = _integers_or_times_as_words(column)
                lanes = loops().absorb_words(numbers, lanes) or _mix_word_into_lanes(
                    lanes, _Word(numbers)
                )
            else:
                lanes = _mix_values_into_lanes(lanes, _as_binary(column))
        return lanes


@dataclass(frozen=True, slots=True)
class _Word:
    """The next eight bytes of some rows' keys; ``rows``: which, ``None``: all."""

    values: Words
    rows: npt.NDArray[np.int64] | None = None


def _mix_word_into_lanes(lanes: Lanes, word: _Word) -> Lanes:
    """Mix the word into the lanes, in place, and return them.

    The C of ``native`` does the same, row by row.
    """
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


def _fits_one_word(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_temporal(kind) or pa.types.is_boolean(kind)
    )


def _integers_or_times_as_words(column: pa.Array) -> Words:
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


def _mix_values_into_lanes(lanes: Lanes, values: pa.LargeBinaryArray) -> Lanes:
    """Mix the values into the lanes, perhaps in place, and return them.

    The length of each value first: else parts of a key could move from one column to another.
    """
    lengths: Integers = pc.binary_length(values).to_numpy(zero_copy_only=False)
    if (done := loops().absorb_bytes(values, _LONG_BYTES, lanes)) is None:
        for word in _words_of_bytes(values, lengths):
            lanes = _mix_word_into_lanes(lanes, word)
    else:
        lanes = done
    for word in _digests_of(values, np.flatnonzero(lengths > _LONG_BYTES)):
        lanes = _mix_word_into_lanes(lanes, word)
    return lanes


def _words_of_bytes(values: pa.LargeBinaryArray, lengths: Integers) -> Iterator[_Word]:
    """Yield the lengths of all values, then the short ones' bytes, eight at a time."""
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


def _digests_of(values: pa.LargeBinaryArray, rows: npt.NDArray[np.int64]) -> Iterator[_Word]:
    made = b"".join(
        hashlib.blake2b(value, digest_size=16).digest()
        for value in values.take(pa.array(rows)).to_pylist()
    )
    for half in np.frombuffer(made, np.uint64).reshape(-1, 2).T:
        yield _Word(half, rows)
