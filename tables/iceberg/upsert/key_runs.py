"""Sorted runs of a key index's rows: small ones in memory, the others in files of this process.

A stored run is a file without a name, mapped into memory: it is gone with the process, however
that ends. In memory are only the first word of each of its pages, and a filter that says of most
keys that they are not in it. So a key is looked up by one page of each run that may have it.
"""

from __future__ import annotations

import mmap
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headgate.control_protocol.current_sink import bound_to_current_sink
from headgate.native.kernels import Integers, Words, loops

ROW_BYTES: Final = 28
"""Of a row in memory."""

_STORED: Final = np.dtype(
    [
        ("high", "<u8"),
        ("low", "<u8"),
        ("file", "<i4"),
        ("position", "<u4"),
        ("source", "<i4"),
        ("unused", "<i4"),
    ]
)
_PAGE_ROWS: Final = mmap.PAGESIZE // _STORED.itemsize
_FILTERED_ROWS: Final = 6
"""To one word of the filter, with five bits each: one in a hundred keys passes that is not there,
in each of some dozens of runs."""

_SLICE_ROWS: Final = 1_000_000
_ONE: Final = np.uint64(1)
_LAST: Final = np.uint64(2**64 - 1)


@dataclass(frozen=True, slots=True)
class Run:
    """Rows in the order of their keys' high words."""

    high: Words
    low: Words
    files: npt.NDArray[np.int32]
    positions: npt.NDArray[np.uint32]
    sources: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.high)

    def select_rows(self, chosen: npt.NDArray[np.bool_] | Integers | slice) -> Run:
        return Run(
            self.high[chosen],
            self.low[chosen],
            self.files[chosen],
            self.positions[chosen],
            self.sources[chosen],
        )

    def find_keys(self, wanted: SearchedKeys) -> Found:
        """Return where the wanted keys are."""
        at = self.insertion_points_of(wanted.high)
        return _find_rows_at_insertion_points(self, wanted, np.arange(len(at)), at)

    def insertion_points_of(self, ascending: Words) -> Integers:
        """Return where each word belongs, before its equals."""
        return loops().find_lower_bounds(self.high, ascending)


EMPTY: Final = Run(
    np.empty(0, np.uint64),
    np.empty(0, np.uint64),
    np.empty(0, np.int32),
    np.empty(0, np.uint32),
    np.empty(0, np.int32),
)


def merge_runs_keeping_duplicates(runs: Sequence[Run]) -> Run:
    """Return one run of all, in one pass, for each is sorted; column by column, for the memory."""
    if len(runs) == 1:
        return runs[0]
    high = np.concatenate([run.high for run in runs])
    order = np.argsort(high, kind="stable").astype(np.uint32)
    return Run(
        high[order],
        np.concatenate([run.low for run in runs])[order],
        np.concatenate([run.files for run in runs])[order],
        np.concatenate([run.positions for run in runs])[order],
        np.concatenate([run.sources for run in runs])[order],
    )


@dataclass(frozen=True, slots=True)
class Found:
    """Rows with looked up keys: ``asked`` is the place of the key among those asked for."""

    asked: Integers
    files: npt.NDArray[np.int32]
    positions: npt.NDArray[np.uint32]
    sources: npt.NDArray[np.int32]

    def without_files(self, file_numbers: set[int]) -> Found:
        """Without the rows of these files."""
        if not file_numbers:
            return self
        kept = ~np.isin(self.files, list(file_numbers))
        return Found(self.asked[kept], self.files[kept], self.positions[kept], self.sources[kept])


@dataclass(frozen=True, slots=True)
class SearchedKeys:
    """Keys to look up, in the order of their high words, and what filters know them by.

    ``first``: the place of the first of them among all that are asked for.
    """

    high: Words
    low: Words
    bits: Words
    first: int = 0

    @classmethod
    def from_words(cls, high: Words, low: Words) -> SearchedKeys:
        return cls(high, low, _bloom_bits_of(high))

    def split(self, count: int) -> list[SearchedKeys]:
        """Return so many parts, in order."""
        cuts = [len(self.high) * at // count for at in range(count + 1)]
        return [
            SearchedKeys(self.high[a:b], self.low[a:b], self.bits[a:b], a)
            for a, b in pairwise(cuts)
        ]


class StoredRun:
    """A run in a file. ``rows_of``: how many rows it has of each data file."""

    def __init__(
        self, mapped: mmap.mmap, firsts: Words, passing: Words, rows_of: dict[int, int]
    ) -> None:
        mapped.madvise(mmap.MADV_RANDOM)  # or each page that is asked for brings its neighbours
        rows = np.frombuffer(mapped, _STORED)
        self._mapped = mapped
        self._rows = rows
        self._firsts = firsts
        self._passing = passing
        self.rows_of = rows_of
        self.high = rows["high"]
        self.low = rows["low"]
        self.files = rows["file"]
        self.positions = rows["position"]
        self.sources = rows["source"]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def bytes_in_memory(self) -> int:
        """What it takes of memory that nobody can take back."""
        return self._firsts.nbytes + self._passing.nbytes

    def find_keys(self, wanted: SearchedKeys) -> Found:
        """Return where the wanted keys are."""
        words = self._passing[_bloom_word_indexes_of(wanted.high, len(self._passing))]
        asked = np.flatnonzero(words & wanted.bits == wanted.bits)
        return _find_rows_at_insertion_points(
            self, wanted, asked, self.insertion_points_of(wanted.high[asked])
        )

    def insertion_points_of(self, ascending: Words) -> Integers:
        """Return where each word belongs, before its equals: a search within its page."""
        page = np.maximum(loops().find_lower_bounds(self._firsts, ascending) - 1, 0)
        begin = page * _PAGE_ROWS
        end = np.minimum(begin + _PAGE_ROWS, len(self))
        while (open_ := begin < end).any():
            middle = np.where(open_, (begin + end) // 2, 0)
            below = open_ & (self.high[middle] < ascending)
            begin = np.where(below, middle + 1, begin)
            end = np.where(open_ & ~below, middle, end)
        return begin

    def copy_rows(self, begin: int, end: int) -> Run:
        start = begin // _PAGE_ROWS * mmap.PAGESIZE
        size = end * _STORED.itemsize - start
        if size > 0:
            self._mapped.madvise(mmap.MADV_WILLNEED, start, size)
        rows = self._rows[begin:end]
        return Run(*(np.ascontiguousarray(rows[name]) for name in _STORED.names[:-1]))  # type: ignore[index]


def merge_and_store_runs(folder: str, runs: Sequence[Run]) -> StoredRun | None:
    """Store one run of all of them; ``None`` for no rows. Raises ``OSError``."""
    return _store_sorted_parts(folder, [merge_runs_keeping_duplicates(runs)], sum(map(len, runs)))


class Merge:
    """Makes one run of several stored ones in a thread: lookups go on in these meanwhile.

    ``alive`` returns what is left of a run. Whoever asks for the result takes it; if nobody does,
    it is gone, like a file that was not written to its end.
    """

    def __init__(self, folder: str, runs: Sequence[StoredRun], alive: Callable[[Run], Run]) -> None:
        self.runs: Final = tuple(runs)
        self._folder = folder
        self._alive = alive
        self._cancelled = False
        self._made: StoredRun | None = None
        self.error: BaseException | None = None
        work = bound_to_current_sink(self._merge)
        self._thread = threading.Thread(target=work, name="headgate-key-merge", daemon=True)
        self._thread.start()

    @property
    def result_bytes_max(self) -> int:
        """What the new run takes of memory at most."""
        return stored_run_memory_max(sum(map(len, self.runs)))

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()

    def cancel(self) -> None:
        """Let it end at its next slice."""
        self._cancelled = True

    def result(self) -> list[StoredRun]:
        """Return what stands for the runs, once it is done: themselves if there was an error."""
        if self.error is not None:
            return list(self.runs)
        return [self._made] if self._made else []

    def _merge(self) -> None:
        try:
            self._made = merge_live_rows_of_stored_runs(
                self._folder, self.runs, self._live_rows_unless_merge_cancelled
            )
        except BaseException as error:  # noqa: BLE001 - the runs stay apart, whatever it was
            self.error = error

    def _live_rows_unless_merge_cancelled(self, run: Run) -> Run:
        """Return the run's live rows. Raises ``InterruptedError`` once it is cancelled."""
        if self._cancelled:
            raise InterruptedError("nobody wants it any more")
        return self._alive(run)


def merge_live_rows_of_stored_runs(
    folder: str, runs: Sequence[StoredRun], select_live_rows: Callable[[Run], Run]
) -> StoredRun | None:
    """Store one run of the live rows of these; ``None`` for no rows. Raises ``OSError``.

    Slice by slice of the words, so that memory holds little of it.
    """
    total = sum(map(len, runs))
    count = total // _SLICE_ROWS + 1
    bounds = np.array([(number << 64) // count for number in range(count)], np.uint64)
    cuts = [[*run.insertion_points_of(bounds).tolist(), len(run)] for run in runs]

    def merged_slices() -> Iterator[Run]:
        for at in range(count):
            parts = zip(runs, cuts, strict=True)
            yield merge_runs_keeping_duplicates(
                [select_live_rows(run.copy_rows(cut[at], cut[at + 1])) for run, cut in parts]
            )

    return _store_sorted_parts(folder, merged_slices(), total)


def stored_run_memory_max(rows: int) -> int:
    """Return what a stored run of at most so many rows takes of memory."""
    return (rows // _FILTERED_ROWS + rows // _PAGE_ROWS + 2) * _ONE.itemsize


def _store_sorted_parts(folder: str, parts: Iterable[Run], rows_max: int) -> StoredRun | None:
    passing = np.zeros(rows_max // _FILTERED_ROWS + 1, np.uint64)
    firsts: list[Words] = []
    rows_of: dict[int, int] = {}
    count = 0
    with tempfile.TemporaryFile(dir=folder, prefix="headgate-keys-") as file:
        for part in parts:
            for begin in range(0, len(part), _SLICE_ROWS):
                some = part.select_rows(slice(begin, begin + _SLICE_ROWS))
                file.write(_to_stored_array(some).data)
                firsts.append(some.high[-count % _PAGE_ROWS :: _PAGE_ROWS])
                _add_to_bloom_filter(passing, some.high)
                numbers, counts = np.unique(some.files, return_counts=True)
                for number, found in zip(numbers.tolist(), counts.tolist(), strict=True):
                    rows_of[number] = rows_of.get(number, 0) + found
                count += len(some)
        if not count:
            return None
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    return StoredRun(mapped, np.concatenate(firsts), passing, rows_of)


def _to_stored_array(run: Run) -> npt.NDArray[Any]:
    rows = np.zeros(len(run), _STORED)
    rows["high"], rows["low"] = run.high, run.low
    rows["file"], rows["position"], rows["source"] = run.files, run.positions, run.sources
    return rows


# A word of the filter is chosen by the upper half of a high word, its bits by the lower one. So the
# rows of one word stand together, and nothing is asked about the low word, which is 0 for numbers.


def _bloom_word_indexes_of(high: Words, word_count: int) -> Words:
    return (high >> np.uint64(32)) * np.uint64(word_count) >> np.uint64(32)


def _bloom_bits_of(high: Words) -> Words:
    result = np.zeros(len(high), np.uint64)
    for shift in (0, 6, 12, 18, 24):
        result |= np.uint64(1) << (high >> np.uint64(shift) & np.uint64(63))
    return result


def _add_to_bloom_filter(passing: Words, ascending: Words) -> None:
    places = _bloom_word_indexes_of(ascending, len(passing))
    begins = np.flatnonzero(np.append(True, places[1:] != places[:-1]))
    passing[places[begins]] |= np.bitwise_or.reduceat(_bloom_bits_of(ascending), begins)


def _find_rows_at_insertion_points(
    run: Run | StoredRun, wanted: SearchedKeys, asked: Integers, at: Integers
) -> Found:
    """Return the rows with the same high word, and of those the rows with the same low one.

    ``asked``: indexes into ``wanted``; ``at``: where their high words would be inserted.
    """
    inside = at < len(run)
    asked, at = asked[inside], at[inside]
    same = run.high[at] == wanted.high[asked]
    asked, at = asked[same], at[same]
    several = at + 1 < len(run)
    several[several] = run.high[at[several] + 1] == wanted.high[asked[several]]
    if several.any():
        counts = np.ones(len(at), np.int64)
        words = wanted.high[asked[several]]
        behind = run.insertion_points_of(np.minimum(words, _LAST - _ONE) + _ONE)
        counts[several] = np.where(words == _LAST, len(run), behind) - at[several]
        firsts = np.repeat(np.cumsum(counts) - counts, counts)
        asked, at = np.repeat(asked, counts), np.repeat(at, counts)
        at = at + np.arange(len(at)) - firsts
    equal = run.low[at] == wanted.low[asked]
    at = at[equal]
    return Found(asked[equal] + wanted.first, run.files[at], run.positions[at], run.sources[at])
