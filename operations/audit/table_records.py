"""Collects which records the table holds, by their coordinates (topic, partition, offset).

Offsets are kept as compressed bitmaps. Dense ranges cost next to nothing, so memory grows with the
gaps of the source, not with the size of the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from headgate.control_protocol.identifiers import SinkName, TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.table_history import FileRows, TableReader
from headgate.data_plane.batch.record_numbers import bitmap_of
from headgate.operations.audit.files import OnProgress
from headgate.tables.iceberg.row_deletion import column_or_field
from headgate.tables.iceberg.upsert.key_index import KeyHash
from headgate.tables.storage.read_ahead import STORAGE_THREADS, read_ahead_in_order

EXAMPLES_MAX = 5

_BYTES_A_KEY = 64
"""Two words, as parts and as a whole, which are copied and sorted for comparison."""

_BYTES_READ_AHEAD = 1024 * 1024
"""Smaller files are read many at a time, because requests take most of their time."""


@dataclass(slots=True)
class SeenOffsets:
    """The offsets of one partition that the table holds, and those that it holds repeatedly.

    ``rewound``: offsets that a person told the sink to read again; repeated rows of theirs count in
    ``requested``, not in ``twice``. ``begin``: below it others wrote rows, and not the sink;
    repeated ones count in ``before``. ``untold``: rows that are repeated among files of which
    nobody knows any more who brought them (``of_nobody``).
    """

    offsets: BitMap64 = field(default_factory=BitMap64)
    rewound: BitMap64 = field(default_factory=BitMap64)
    begin: int = 0
    twice: int = 0
    requested: int = 0
    before: int = 0
    untold: int = 0
    of_nobody: BitMap64 = field(default_factory=BitMap64)
    examples: list[tuple[int, str]] = field(default_factory=list)
    """Some repeated offsets, each with a file that repeats it."""

    def add_row_offsets(
        self, offsets: pa.Int64Array, path: str, *, unattributed_below: int = 0
    ) -> None:
        """Count the rows of one file; ``offsets`` has no nulls. Nobody knows who brought those
        below ``unattributed_below``."""
        if unattributed_below:
            offsets = self._drop_and_count_unattributed_repeats(offsets, unattributed_below)
        if self.begin:
            is_before = pc.less(offsets, self.begin)
            before = offsets.filter(is_before)
            of_others = bitmap_of(before)
            self.before += len(before) - len(of_others - self.offsets)
            self.offsets |= of_others
            offsets = offsets.filter(pc.invert(is_before))
        fresh = bitmap_of(offsets)
        again = fresh & self.offsets
        requested = again & self.rewound
        again -= requested
        self.requested += len(requested)
        inside = len(offsets) - len(fresh)
        if inside:
            repeated = [offset for offset, n in Counter(offsets.to_pylist()).items() if n > 1]
            self._keep_examples_of_repeated(repeated, path)
        self._keep_examples_of_repeated(again, path)
        self.twice += inside + len(again)
        self.offsets |= fresh

    def _drop_and_count_unattributed_repeats(
        self, offsets: pa.Int64Array, below: int
    ) -> pa.Int64Array:
        """Count repeated rows among files of nobody; what others repeat is counted as ever."""
        is_untold = pc.less(offsets, below)
        untold = offsets.filter(is_untold)
        here = bitmap_of(untold)
        first = here - self.of_nobody
        again = len(untold) - len(first)
        self.of_nobody |= here
        if not again:
            return offsets
        self.untold += again
        known = offsets.filter(pc.invert(is_untold))
        return pa.concat_arrays([known, pa.array([*first], pa.int64())])

    def _keep_examples_of_repeated(self, offsets: Iterable[int], path: str) -> None:
        for offset in offsets:
            if len(self.examples) >= EXAMPLES_MAX:
                return
            self.examples.append((offset, path))


@dataclass(slots=True)
class TableRecords:
    """Everything the scan saw. ``foreign_rows`` have no coordinates of this sink's topics."""

    partitions: dict[TopicPartition, SeenOffsets] = field(default_factory=dict)
    rewound: Mapping[TopicPartition, BitMap64] = field(default_factory=dict)
    begins: Mapping[TopicPartition, int] = field(default_factory=dict)
    foreign_rows: int = 0
    others: dict[SinkName, TableRecords] = field(default_factory=dict)

    def get_or_add_offsets_of(self, at: TopicPartition) -> SeenOffsets:
        if at not in self.partitions:
            rewound = self.rewound.get(at, BitMap64())
            self.partitions[at] = SeenOffsets(rewound=rewound, begin=self.begins.get(at, 0))
        return self.partitions[at]


def bitmap_of_ranges(ranges: Iterable[OffsetRange]) -> BitMap64:
    """Return the offsets of these ranges."""
    offsets = BitMap64()
    for each in ranges:
        offsets.add_range(each.begin, each.end)
    return offsets


def scan_records(
    reader: TableReader,
    columns: tuple[str, str, str],
    skipped_files: frozenset[str],
    *,
    on_progress: OnProgress,
    sinks_of_foreign_files: Mapping[str, SinkName] | None = None,
    into: TableRecords | None = None,
    only_topic: str = "",
    unattributed_below: Mapping[str, Mapping[TopicPartition, int]] | None = None,
) -> TableRecords:
    """Read the three coordinate columns of every live file except the skipped ones.

    ``unattributed_below``: by path, the offsets below which nobody knows who brought the file.
    ``only_topic``: the only topic, if no column names it. ``sinks_of_foreign_files``: by path, the
    other sinks that files are of; their records are kept apart under ``others``. ``into``: what
    this table's records are added to, such as those of the sink's other tables.
    """
    count, every_file = reader.scan([name for name in columns if name])
    files = (file for file in every_file if file.path not in skipped_files)
    records = into or TableRecords()

    def read_if_small(file: FileRows) -> tuple[FileRows, list[pa.RecordBatch] | None]:
        small = file.size_bytes <= _BYTES_READ_AHEAD
        return file, list(file.at_once()) if small else None

    for done, (file, batches) in enumerate(
        read_ahead_in_order(read_if_small, files, STORAGE_THREADS)
    ):
        on_progress("rows", done, count)
        sink = (sinks_of_foreign_files or {}).get(file.path)
        into_one = records if sink is None else records.others.setdefault(sink, TableRecords())
        untold = (unattributed_below or {}).get(file.path)
        for batch in file.batches() if batches is None else batches:
            _add_rows_of_batch(
                into_one,
                batch,
                columns,
                file.path,
                only_topic=only_topic,
                unattributed_below=untold,
            )
    for seen in records.partitions.values():
        seen.offsets.run_optimize()
    return records


def scan_staged_files(
    files: Iterable[FileRows], columns: tuple[str, str, str], into: TableRecords
) -> None:
    """Count the rows of files that no snapshot lists yet."""
    for file in files:
        for batch in file.batches():
            _add_rows_of_batch(into, batch, columns, file.path)


def positions_of_records(
    rows: pa.RecordBatch, columns: tuple[str, str, str], records: Mapping[TopicPartition, BitMap64]
) -> Iterator[int]:
    """Yield the positions of rows whose records are wanted; ``rows`` has no nulls there."""
    values = (column_or_field(rows, name).to_pylist() for name in columns)
    for place, (topic, partition, offset) in enumerate(zip(*values, strict=True)):
        if offset in records.get(TopicPartition(topic, partition), ()):
            yield place


class KeyCount(NamedTuple):
    """How many live rows a table has, and how many distinct keys they have."""

    rows: int
    distinct: int


def count_rows_and_distinct_keys(
    reader: TableReader, key: tuple[str, ...], rows_max: int, memory_bytes: int
) -> KeyCount:
    """Return how many live rows there are, and how many distinct keys.

    If ``rows_max`` of them would need more memory, the table is read several times, each time for
    another part of the hashes.
    """
    hashed, parts = KeyHash(), max(1, -(-rows_max * _BYTES_A_KEY // memory_bytes))
    rows_read, different = 0, 0
    for part in range(parts):
        hashes = np.concatenate(
            [np.zeros((0, 2), np.uint64), *_hash_keys_of_part(reader, key, hashed, (part, parts))]
        )
        rows_read, different = rows_read + len(hashes), different + len(np.unique(hashes, axis=0))
    return KeyCount(rows_read, different)


def _hash_keys_of_part(
    reader: TableReader, key: tuple[str, ...], hashed: KeyHash, part_and_part_count: tuple[int, int]
) -> Iterator[npt.NDArray[np.uint64]]:
    """Yield hashes of rows that belong to the part: its number, and the number of parts."""
    number, parts = part_and_part_count
    _, files = reader.scan(key)
    for file in files:
        for batch in file.batches():
            if batch.num_rows:
                words = np.stack(hashed([batch.column(name) for name in key]), axis=1)
                yield words[words[:, 0] % np.uint64(parts) == number] if parts > 1 else words


def _add_rows_of_batch(
    records: TableRecords,
    batch: pa.RecordBatch,
    columns: tuple[str, str, str],
    path: str,
    *,
    only_topic: str = "",
    unattributed_below: Mapping[TopicPartition, int] | None = None,
) -> None:
    topic, partition, offset = columns
    named = {name: column_or_field(batch, name) for name in columns if name}
    rows = pa.table({topic: pa.repeat(only_topic, batch.num_rows), **named})
    for group in (
        rows.group_by([topic, partition], use_threads=False)
        .aggregate([(offset, "list")])
        .to_batches()
    ):
        topics, numbers = group.column(topic), group.column(partition)
        offsets = group.column(f"{offset}_list")
        for topic_name, number, values in zip(topics, numbers, offsets, strict=True):
            known = values.values.drop_null().cast(pa.int64())
            known = known.filter(pc.greater_equal(known, 0))  # others may write -1 for "none"
            records.foreign_rows += len(values.values) - len(known)
            if topic_name.as_py() is None or number.as_py() is None:
                records.foreign_rows += len(known)
                continue
            at = TopicPartition(topic_name.as_py(), number.as_py())
            below = (unattributed_below or {}).get(at, 0)
            records.get_or_add_offsets_of(at).add_row_offsets(known, path, unattributed_below=below)
