"""Finds what a keyed commit changes: the last record of each key (rules KEY-3, KEY-8 to KEY-10).

Arrow finds it from keys, positions and offsets alone; Spark would sort whole rows for it. From the
table's existing rows, too, it reads only the keys and where their records came from.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headgate.control_protocol.commit_record import KeyCounts
from headgate.control_protocol.errors import KeyInTwoPartitions, TableChanged
from headgate.control_protocol.events import FileKind
from headgate.control_protocol.table_format import NumberedFile, RowKey
from headgate.tables.storage.file_store import Folder, name_relative_to

_TOPIC, _PARTITION, _OFFSET = "_topic", "_partition", "_offset"

_NONE = -1
"""The number for a missing value."""

_BATCH_ROWS = 1 << 17

_Numbers = npt.NDArray[np.int64]
_Column = Any
"""From Arrow, in one piece or several."""


class Fold:
    """The changes of one commit, whose files exist.

    ``note_table_rows`` comes before ``check_and_count_key_changes``.
    """

    def __init__(self, key: RowKey, numbered: Sequence[NumberedFile], folder: Folder) -> None:
        """``folder`` is the table's, which contains them."""
        self._key = key
        self._folder = folder
        files = [file for file, _ in numbered]
        self._claimed = sum(file.records for file in files)
        self._paths = [file.path for file in files]
        gone = [file.kind is FileKind.KEYS for file in files]
        read = [
            self._read_keys_and_coordinates(*of_file)
            for of_file in zip(self._paths, gone, strict=True)
        ]
        lengths = [len(part) for part in read]
        self._goes = np.repeat(gone, lengths)
        self._begins = np.cumsum([0, *lengths])
        columns, of_key = pa.concat_tables(read, promote_options="permissive").columns, len(key.key)
        self._values = columns[:of_key]
        self._keys, self._places = _Numbered(self._values), _Numbered(columns[of_key:-1])
        number, place, offset = self._keys.numbers, self._places.numbers, _as_numbers(columns[-1])
        decided = np.repeat([each for _, each in numbered], lengths)
        latest = np.full(self._keys.count, _NONE)
        np.maximum.at(latest, number, decided)
        offset = np.where(decided == latest[number], offset, _NONE)
        newest = np.full(self._keys.count, _NONE)
        np.maximum.at(newest, number, offset)
        wins = np.flatnonzero(offset == newest[number])
        self._last = np.empty(self._keys.count, np.int64)
        self._last[number[wins]] = wins
        self._place = place[self._last]
        self._live = np.zeros(self._keys.count, bool)
        self._moved = np.zeros(self._keys.count, bool)
        self._moved[number[place != self._place[number]]] = True

    @property
    def wanted_columns(self) -> list[str]:
        """Return the columns of the table that ``note_table_rows`` takes."""
        return [*self._key.key, *filter(None, [self._key.topic]), self._key.partition]

    def note_table_rows(self, rows: Iterable[pa.RecordBatch]) -> None:
        """Note rows of the table; they have the ``wanted_columns`` in that order."""
        for batch in rows:
            of_key = len(self._key.key)
            numbers = self._keys.find_numbers(batch.columns[:of_key])
            there = np.flatnonzero(numbers != _NONE)
            numbers = numbers[there]
            self._live[numbers] = True
            places = [column.take(pa.array(there)) for column in batch.columns[of_key:]]
            other = self._places.find_numbers(places) != self._place[numbers]
            # Rows of others do not say where they come from, and are not compared (KEY-8).
            has_origin = np.asarray(pc.is_valid(places[-1]))
            self._moved[numbers[other & has_origin]] = True

    def check_and_count_key_changes(self) -> KeyCounts:
        """Count what happens to the records. Raises ``KeyInTwoPartitions``, ``TableChanged``."""
        records, keys = len(self._goes), self._keys.count
        if records != self._claimed:
            raise TableChanged(
                f"the files of the transaction have {records} records, their writers wrote "
                f"{self._claimed}",
                "somebody changed them; start the sink again, which writes them again",
            )
        if moved := _count_true(self._moved):
            raise KeyInTwoPartitions(
                f"{moved} keys have records in two partitions, and no order tells which is newer",
                "nothing of them is in the table; produce each key to one partition",
            )
        goes = self._goes[self._last]
        going, there = _count_true(goes), _count_true(self._live)
        deleted = _count_true(goes & self._live)
        return KeyCounts(
            inserted=keys - going - (there - deleted),
            updated=there - deleted,
            deleted=deleted,
            absent=going - deleted,
            superseded=records - keys,
        )

    def write_or_reuse_new_row_files(self, output_folder: str) -> Iterator[str]:
        """Yield files of the new rows: staged ones, or new ones below ``output_folder``.

        New ones leave out superseded rows.
        """
        last = np.zeros(len(self._goes), bool)
        last[self._last] = True
        spans = zip(self._paths, self._begins[:-1], self._begins[1:], strict=True)
        for path, begin, end in spans:
            chosen = last[begin:end] & ~self._goes[begin:end]
            if chosen.any():
                yield path if chosen.all() else self._copy_rows(path, chosen, output_folder)

    def keys_to_delete(self) -> pa.Table:
        """Return the keys of live rows to delete."""
        rows = self._last[self._goes[self._last] & self._live]
        return pa.table(self._values, names=list(self._key.key)).take(rows)

    def _read_keys_and_coordinates(self, path: str, is_key_file: bool) -> pa.Table:  # noqa: FBT001 - of each file one
        """Return keys and coordinates, whatever their names in the file."""
        columns = [*self.wanted_columns, self._key.offset]
        if is_key_file:
            coordinates = [*filter(None, [self._key.topic and _TOPIC]), _PARTITION, _OFFSET]
            columns = [*self._key.key, *coordinates]
        with self._open_parquet(path) as file:
            records = file.read(columns)
        return pa.table([records[name] for name in columns], [str(n) for n in range(len(columns))])

    def _copy_rows(self, path: str, row_mask: npt.NDArray[np.bool_], output_folder: str) -> str:
        """Write the chosen rows of a file to another."""
        copied, begin = f"{output_folder}/{uuid.uuid4()}.parquet", 0
        with (
            self._open_parquet(path) as file,
            self._folder.open_output(copied) as stream,
            pq.ParquetWriter(stream, file.schema_arrow) as writer,
        ):
            for batch in file.iter_batches(_BATCH_ROWS):
                end = begin + len(batch)
                writer.write_batch(batch.filter(pa.array(row_mask[begin:end])))
                begin = end
        return f"{self._folder.location}/{copied}"

    def _open_parquet(self, path: str) -> pq.ParquetFile:
        return pq.ParquetFile(
            self._folder.arrow_source(name_relative_to(self._folder.location, path))
        )


class _Numbered:
    """Numbers the values of one or several columns from 0 on; equal ones have the same number."""

    def __init__(self, columns: Sequence[_Column]) -> None:
        first, *others = columns
        self._first = pc.unique(first)
        self._others: list[tuple[pa.Array, pa.Array]] = []
        self.numbers, self.count = _indices_among(first, self._first), len(self._first)
        for column in others:
            values = pc.unique(column)
            paired = _numbers_of_pairs(self.numbers, column, values)
            pairs = pc.unique(paired)
            self._others.append((values, pairs))
            self.numbers, self.count = _indices_among(paired, pairs), len(pairs)

    def find_numbers(self, columns: Sequence[_Column]) -> _Numbers:
        """Return the numbers of these values, ``_NONE`` for unknown ones."""
        first, *others = columns
        numbers = _indices_among(first, self._first)
        for column, (values, pairs) in zip(others, self._others, strict=True):
            numbers = _indices_among(_numbers_of_pairs(numbers, column, values), pairs)
        return numbers


def _numbers_of_pairs(numbers: _Numbers, column: _Column, values: pa.Array) -> pa.Array:
    """Return a number for each pair; negative if one of the two is missing."""
    at = _indices_among(column, values)
    return pa.array(np.where(at == _NONE, _NONE, numbers * len(values) + at))


def _indices_among(column: _Column, values: pa.Array) -> _Numbers:
    """Return the index of each among the values, ``_NONE`` if it is not among them."""
    return _as_numbers(pc.index_in(column.cast(values.type), values).fill_null(_NONE))


def _as_numbers(column: _Column) -> _Numbers:
    return np.asarray(column.cast(pa.int64()))


def _count_true(chosen: npt.NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(chosen))
