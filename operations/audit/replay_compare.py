"""Compares one slice of the source's records with the same slice of the table's rows.

The record with the highest offset of each key is its last one, in the youngest partition if some
were added (KEY-8). Its row must be in the table with the record's values, and no other row with
that key; if it deletes, there must be no row at all. Of a history, each record is the last one of
its own version (KEY-14).
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from headgate.control_protocol.errors import Unreachable
from headgate.native.kernels import Flags, Integers, Words
from headgate.operations.audit.table_records import EXAMPLES_MAX
from headgate.tables.iceberg.upsert.key_reader import Sources

# Sets rows aside on disk by the hash of their key, so that one slice of them fits into memory.


HIGH, LOW, SOURCE, OFFSET, DELETES = (
    f"headgate.{part}" for part in ("high", "low", "source", "offset", "deletes")
)
"""Extra columns: the key's hash, and the record's partition number, offset, and whether it deletes.

If the record is unknown, number and offset are negative.
"""

OURS = pa.schema(
    [
        (HIGH, pa.uint64()),
        (LOW, pa.uint64()),
        (SOURCE, pa.int32()),
        (OFFSET, pa.int64()),
        (DELETES, pa.bool_()),
    ]
)
SLICE_BYTES = 64 * 1024 * 1024
SLICES_MAX = 4_096
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(slots=True)
class SliceCount:
    """The number of slices, derived from the size of the first rows.

    ``rows``: about how many there will be; ``bytes_max``: the limit of one slice.
    """

    rows: int
    bytes_max: int = SLICE_BYTES
    count: int = 0

    def choose_slice_count_once(self, rows: pa.Table) -> int:
        if not self.count:
            a_row = rows.nbytes / max(1, rows.num_rows)
            self.count = min(SLICES_MAX, 1 + int(self.rows * a_row / self.bytes_max))
        return self.count


@dataclass(slots=True)
class Slices:
    """Rows that were added, to be read back slice by slice from files ``name`` in the folder."""

    folder: Path
    name: str
    schema: pa.Schema
    slicing: SliceCount
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _bytes: int = 0

    def add_rows(self, rows: pa.RecordBatch) -> None:
        """Take rows of the schema, which ends with ``OURS``.

        Raises ``Unreachable`` without room.
        """
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= self.slicing.bytes_max:
            self.flush()

    @property
    def buffered_bytes(self) -> int:
        return self._bytes

    def flush(self) -> None:
        """Write what is buffered. Raises ``Unreachable`` without room."""
        if not self._waiting:  # no row tells how large rows are, and so how many slices there are
            return
        rows = pa.Table.from_batches(self._waiting, self.schema)
        self._waiting, self._bytes = [], 0
        numbers = _slice_number_of_each_row(rows, self.slicing.choose_slice_count_once(rows))
        order = np.argsort(numbers, kind="stable")
        rows = rows.take(pa.array(order))
        begins = np.searchsorted(numbers[order], np.arange(self.slicing.count + 1))
        for number in np.flatnonzero(np.diff(begins)).tolist():
            begin, end = int(begins[number]), int(begins[number + 1])
            self._append_to_slice(number, rows.slice(begin, end - begin))

    def read_slice(self, number: int) -> pa.Table:
        path = self._path_of_slice(number)
        tables = list(_read_appended_tables(path)) if path.exists() else []
        return pa.concat_tables([self.schema.empty_table(), *tables]).combine_chunks()

    def _append_to_slice(self, number: int, rows: pa.Table) -> None:
        try:
            with (
                self._path_of_slice(number).open("ab") as file,
                pa.ipc.new_stream(file, self.schema, options=_COMPRESSED) as stream,
            ):
                stream.write_table(rows)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise Unreachable(
                f"{self.folder} has no room for the records that the audit sets aside",
                "name a folder with more room in TMPDIR, or audit with --no-source",
            ) from error

    def _path_of_slice(self, number: int) -> Path:
        return self.folder / f"{self.name}-{number}.arrow"


def _slice_number_of_each_row(rows: pa.Table, count: int) -> Words:
    high: Words = rows.column(HIGH).to_numpy()
    return high % np.uint64(count)


def _read_appended_tables(path: Path) -> Iterator[pa.Table]:
    """Yield the tables of a file, each appended by one ``flush``."""
    with path.open("rb") as file:
        end = path.stat().st_size
        while file.tell() < end:
            yield pa.ipc.open_stream(file).read_all()


class Fault(StrEnum):
    """How a table differs from the replay of its source, or what nobody can say."""

    LOST = "row-lost"
    """The last record of a key has a row, but the table has none with that key."""
    RECREATED = "table-recreated"
    """The same, of a record that went into an earlier table of that name."""
    OUTDATED = "row-outdated"
    """The table has an older record of the key."""
    UNDELETED = "row-undeleted"
    """The last record of the key deletes it, but a row exists."""
    INVENTED = "row-invented"
    """No record of the source matches this row."""
    TWICE = "key-twice"
    """A row exists in addition to the right one of its key."""
    VALUE = "value-differs"
    """The row comes from the right record, but has another value."""
    VANISHED = "vanished"
    """The source's log covers the row's offset, but has no record there: a compacted topic."""
    AGED = "aged"
    """The row's record is older than what the source holds."""
    CROSSED = "crossed"
    """Records of the key are in several partitions, none of which is younger."""
    NEW_COLUMN = "new-column"
    """The row has no value in a column that was added later; its record has one."""
    EXPIRED = "expired"
    """The key has no row, and its last record's had reached its age (EXPIRY-3)."""
    FORMER_DELETE = "former-delete"
    """The key was deleted before the choice changed what deletes do to rows (KEY-13)."""


WRONG = (
    Fault.LOST,
    Fault.RECREATED,
    Fault.OUTDATED,
    Fault.UNDELETED,
    Fault.INVENTED,
    Fault.TWICE,
    Fault.VALUE,
)


@dataclass(slots=True)
class Faults:
    """How many rows have a fault, by the source's number, with some of their records' offsets.

    ``columns``: where values differ. ``rows``: how many were compared value by value, ``marked`` of
    them as deleted; ``keys``: how many the records have. ``old``: of the lost ones, how many lie
    below the ``floors``, where commits have expired that may have deleted them.
    """

    rows: int = 0
    marked: int = 0
    records: int = 0
    keys: int = 0
    floors: Mapping[int, int] = field(default_factory=dict)
    old: int = 0
    counts: dict[tuple[Fault, int], int] = field(default_factory=dict)
    examples: dict[Fault, list[tuple[int, int]]] = field(default_factory=dict)
    columns: dict[Fault, set[str]] = field(default_factory=dict)

    def count_of(self, fault: Fault, only_source: int | None = None) -> int:
        """Return how many rows have this fault, of every source unless one is named."""
        return sum(
            number
            for (what, where), number in self.counts.items()
            if what is fault and only_source in (None, where)
        )

    def note_fault(self, fault: Fault, sources: Integers, offsets: Integers) -> None:
        known = self.examples.setdefault(fault, [])
        for source, offset in zip(sources[:EXAMPLES_MAX], offsets[:EXAMPLES_MAX], strict=True):
            if len(known) < EXAMPLES_MAX:
                known.append((int(source), int(offset)))
        for source, number in zip(*np.unique(sources, return_counts=True), strict=True):
            at = fault, int(source)
            self.counts[at] = self.counts.get(at, 0) + int(number)
            if fault is Fault.LOST:
                floor = self.floors.get(int(source), 0)
                self.old += int(((sources == source) & (offsets < floor)).sum())


@dataclass(frozen=True, slots=True)
class ReplayedSource:
    """What the source holds, by its number: its first offset, and the offsets with records.

    ``later``: columns that some of the table's schemas lack; ``sources`` tells which of them are
    younger. ``earlier``: the offsets up to which an earlier table of that name was filled.
    ``marks``: the column in which deletes mark rows, if they do; below the offsets of ``doubtful``
    they may have done something else (KEY-13). ``expired``: the column of rows' times, and the one
    below which rows have expired. ``versions``: each record has a row of its own (KEY-14).
    """

    begins: Mapping[int, int]
    offsets: Mapping[int, BitMap64]
    later: frozenset[str] = frozenset()
    sources: Sources = field(default_factory=Sources)
    earlier: Mapping[int, int] = field(default_factory=dict)
    marks: str = ""
    doubtful: Mapping[int, int] = field(default_factory=dict)
    expired: tuple[str, pa.Scalar] | None = None
    versions: bool = False


def note_faults_of_slice(
    records: pa.Table, rows: pa.Table, source: ReplayedSource, faults: Faults
) -> None:
    """Compare replayed records with the table's rows, and note what differs in ``faults``.

    Both have the table's columns, then the internal ones of ``OURS``.
    """
    faults.records += records.num_rows
    last, crossed = _last_records_and_unordered_keys(records, source.sources)
    faults.keys += last.num_rows
    identity: tuple[str, ...] = (HIGH, LOW)
    if (
        source.versions
    ):  # those of a crossed key are compared all the same; only their order is open
        if crossed.any():
            sources, offsets = _to_numpy(last, SOURCE), _to_numpy(last, OFFSET)
            faults.note_fault(Fault.CROSSED, sources[crossed], offsets[crossed])
        last, crossed = records, np.zeros(records.num_rows, np.bool_)
        identity = (HIGH, LOW, SOURCE, OFFSET)
    ids = _group_number_of_each_row(last, rows, identity)
    of_last, of_rows = ids[: last.num_rows], ids[last.num_rows :]
    place = np.full(int(ids.max(initial=-1)) + 1, -1, np.int64)
    place[of_last] = np.arange(last.num_rows)
    _Slice(last, rows, place[of_rows], source=source, faults=faults).note_differences(crossed)


def _last_records_and_unordered_keys(records: pa.Table, known: Sources) -> tuple[pa.Table, Flags]:
    """Return the last record of each key, and which keys have records without an order."""
    high, low = _hash_words_of(records)
    sources, offsets = _to_numpy(records, SOURCE), _to_numpy(records, OFFSET)
    order = np.lexsort((offsets, sources, known.partition_cohorts_of(sources), low, high))
    high, low, sources = high[order], low[order], sources[order]
    same = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    chosen = np.append(~same, True)[: len(order)]
    begins = np.append(True, ~same)[: len(order)]
    puzzling = same & (sources[1:] != sources[:-1])
    puzzling[puzzling] = ~known.younger_partition_mask(
        sources[1:][puzzling], sources[:-1][puzzling]
    )
    mixed = np.append(False, puzzling)[: len(order)]
    keys = np.cumsum(begins) - 1
    crossed = np.bincount(keys, mixed, int(chosen.sum())) > 0
    return records.take(pa.array(order[chosen])), crossed


def _group_number_of_each_row(one: pa.Table, other: pa.Table, columns: Sequence[str]) -> Integers:
    """Return a number for each row of both tables, equal for those equal in these columns."""
    parts = [np.concatenate([t.column(name).to_numpy() for t in (one, other)]) for name in columns]
    order = np.lexsort(parts)
    differ = np.zeros(max(0, len(order) - 1), np.bool_)
    for part in parts:
        differ |= np.diff(part[order]) != 0
    begins = np.append(True, differ)[: len(order)]
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(begins) - 1
    return numbers


class _Slice:
    """The last records of some keys, and the rows; ``place``: the key's position for each row."""

    def __init__(
        self,
        last: pa.Table,
        rows: pa.Table,
        place: Integers,
        *,
        source: ReplayedSource,
        faults: Faults,
    ) -> None:
        self._last, self._rows, self._place = last, rows, place
        self._source, self._faults = source, faults
        self._sources, self._offsets = _to_numpy(rows, SOURCE), _to_numpy(rows, OFFSET)
        self._last_sources, self._last_offsets = _to_numpy(last, SOURCE), _to_numpy(last, OFFSET)
        self._deletes = np.asarray(last.column(DELETES).combine_chunks()).astype(np.bool_)

    def note_differences(self, crossed_keys: Flags) -> None:
        own = (self._sources >= 0) & (self._offsets >= 0)
        known = own & (self._place >= 0)
        puzzling = np.zeros(len(own), np.bool_)
        puzzling[known] = crossed_keys[self._place[known]]
        self._note_fault_of_last_records(Fault.CROSSED, crossed_keys)
        own, known = own & ~puzzling, known & ~puzzling
        doubtful = self._flag_last_records_below(self._source.doubtful)
        former = self._note_and_flag_doubtful_deletes(known, doubtful)
        own, known = own & ~former, known & ~former
        right = known.copy()
        at = self._place[known]
        right[known] = (
            (self._sources[known] == self._last_sources[at])
            & (self._offsets[known] == self._last_offsets[at])
            & ~self._deletes[at]
        )
        right, doubled = self._split_first_per_key(right)
        self._note_fault_of_rows(Fault.TWICE, doubled)
        self._note_wrong_rows(own & ~right & ~doubled, known, right)
        there = np.zeros(len(self._last_sources), np.bool_)
        there[self._place[known]] = True
        lost = ~self._deletes & ~there & ~crossed_keys
        removed = lost & doubtful & self._flag_marked_rows(self._last)
        self._note_fault_of_last_records(Fault.FORMER_DELETE, removed)
        aged = lost & ~removed & flag_expired_rows(self._last, self._source.expired)
        self._note_fault_of_last_records(Fault.EXPIRED, aged)
        lost &= ~removed & ~aged
        earlier = self._flag_last_records_below(self._source.earlier)
        self._note_fault_of_last_records(Fault.RECREATED, lost & earlier)
        self._note_fault_of_last_records(Fault.LOST, lost & ~earlier)
        self._note_value_differences(right)

    def _flag_last_records_below(self, ends: Mapping[int, int]) -> Flags:
        """Return which last records lie below these offsets."""
        is_below = np.zeros(len(self._last_sources), np.bool_)
        for source, end in ends.items():
            is_below |= (self._last_sources == source) & (self._last_offsets < end)
        return is_below

    def _note_and_flag_doubtful_deletes(self, known: Flags, doubtful: Flags) -> Flags:
        """Return which rows their keys' last records left, although such deletes remove rows
        now."""
        former = known.copy()
        at = self._place[known]
        former[known] = self._deletes[at] & doubtful[at]
        self._note_fault_of_rows(Fault.FORMER_DELETE, former)
        return former

    def _flag_marked_rows(self, some: pa.Table) -> Flags:
        """Return which rows are marked as deleted."""
        marks = self._source.marks
        if not marks:
            return np.zeros(some.num_rows, np.bool_)
        return np.asarray(_combine_chunks(some, marks).is_valid())

    def _split_first_per_key(self, correct: Flags) -> tuple[Flags, Flags]:
        """Split correct rows into the first one of each key and the others."""
        places = np.flatnonzero(correct)
        _, first = np.unique(self._place[places], return_index=True)
        once = np.zeros(len(correct), np.bool_)
        once[places[first]] = True
        return once, correct & ~once

    def _note_wrong_rows(self, wrong: Flags, known: Flags, correct: Flags) -> None:
        """Note why these rows are not those of the last records of their keys."""
        held, aged = self._flag_in_source_and_before_its_begin(wrong)
        older = np.zeros(len(wrong), np.bool_)
        at = self._place[known]
        own, last = self._sources[known], self._last_sources[at]
        before = (self._offsets[known] < self._last_offsets[at]) & (own == last)
        older[known] = before | self._source.sources.younger_partition_mask(last, own)
        older &= wrong
        undeleted, beside = older.copy(), older.copy()
        undeleted[older] = self._deletes[self._place[older]]
        beside[older] = np.isin(self._place[older], self._place[correct])
        self._note_fault_of_rows(Fault.UNDELETED, undeleted)
        self._note_fault_of_rows(Fault.TWICE, beside & ~undeleted)
        self._note_fault_of_rows(Fault.OUTDATED, older & ~undeleted & ~beside)
        self._note_fault_of_rows(Fault.INVENTED, wrong & ~older & held)
        self._note_fault_of_rows(Fault.AGED, wrong & ~older & aged)
        self._note_fault_of_rows(Fault.VANISHED, wrong & ~older & ~held & ~aged)

    def _flag_in_source_and_before_its_begin(self, some: Flags) -> tuple[Flags, Flags]:
        """Return which rows have a record at their offset in the source, and which are too old."""
        held, aged = np.zeros(len(some), np.bool_), np.zeros(len(some), np.bool_)
        for row in np.flatnonzero(some).tolist():
            source, offset = int(self._sources[row]), int(self._offsets[row])
            held[row] = offset in self._source.offsets.get(source, BitMap64())
            aged[row] = offset < self._source.begins.get(source, offset + 1)
        return held, aged & ~held

    def _note_value_differences(self, correct: Flags) -> None:
        rows = self._rows.filter(pa.array(correct))
        records = self._last.take(pa.array(self._place[correct]))
        sources, offsets = self._sources[correct], self._offsets[correct]
        self._faults.rows += len(offsets)
        self._faults.marked += int(self._flag_marked_rows(records).sum())
        wrong, new = np.zeros(len(offsets), np.bool_), np.zeros(len(offsets), np.bool_)
        for name in rows.schema.names[: -len(OURS)]:
            ours, theirs = (_combine_chunks(table, name) for table in (records, rows))
            places = np.array(positions_of_differences(ours, theirs), np.int64)
            if not len(places):
                continue
            empty = np.asarray(theirs.is_null())[places] & (name in self._source.later)
            for fault, some, differing in (
                (Fault.VALUE, wrong, places[~empty]),
                (Fault.NEW_COLUMN, new, places[empty]),
            ):
                some[differing] = True
                if len(differing):
                    self._faults.columns.setdefault(fault, set()).add(name)
        for fault, some in ((Fault.VALUE, wrong), (Fault.NEW_COLUMN, new & ~wrong)):
            if some.any():
                self._faults.note_fault(fault, sources[some], offsets[some])

    def _note_fault_of_rows(self, fault: Fault, some: Flags) -> None:
        if some.any():
            self._faults.note_fault(fault, self._sources[some], self._offsets[some])

    def _note_fault_of_last_records(self, fault: Fault, some: Flags) -> None:
        if some.any():
            self._faults.note_fault(fault, self._last_sources[some], self._last_offsets[some])


def flag_expired_rows(rows: pa.Table, expiry_limit: tuple[str, pa.Scalar] | None) -> Flags:
    """Return which rows are below the time up to which rows have expired."""
    if expiry_limit is None:
        return np.zeros(rows.num_rows, np.bool_)
    name, limit = expiry_limit
    below = pc.less(_combine_chunks(rows, name), limit)
    return np.asarray(pc.fill_null(below, fill_value=False))


def positions_of_differences(one: pa.Array, other: pa.Array, begin: int = 0) -> list[int]:
    """Return the positions where two arrays of one type differ; NaN equals NaN."""
    one, other = _view_floats_as_bits(one), _view_floats_as_bits(other)
    if one.equals(other):
        return []
    if len(one) == 1:
        return [begin] if repr(one[0].as_py()) != repr(other[0].as_py()) else []
    half = len(one) // 2
    return positions_of_differences(one[:half], other[:half], begin) + positions_of_differences(
        one[half:], other[half:], begin + half
    )


def _view_floats_as_bits(values: pa.Array) -> pa.Array:
    """Return fractions as their bits, which also makes NaN equal to NaN."""
    if pa.types.is_floating(values.type):
        return values.view(pa.int64() if values.type.bit_width == 64 else pa.int32())
    return values


def _combine_chunks(table: pa.Table, name: str) -> pa.Array:
    return table.column(name).combine_chunks()


def _hash_words_of(table: pa.Table) -> tuple[Words, Words]:
    return table.column(HIGH).to_numpy(), table.column(LOW).to_numpy()


def _to_numpy(table: pa.Table, name: str) -> Integers:
    values: Integers = table.column(name).to_numpy()
    return values
