"""Reads the source's records as changes, with the sink's own code, and the table's rows.

Both are split into slices by the hash of their keys: the material of a fold.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import Batch
from headgate.control_protocol.table_history import TableReader
from headgate.data_plane.batch.record_numbers import bitmap_of
from headgate.data_plane.batch.write_plan import WriterPlan
from headgate.data_plane.cdc.operations import Operation
from headgate.data_plane.cdc.policy import Tombstones
from headgate.data_plane.quarantine.poison_search import read_around_poison
from headgate.data_plane.quarantine.prefilter import all_but
from headgate.data_plane.write.change_decode import ChangeReader
from headgate.kafka.record_fetch import Chunk
from headgate.operations.audit.replay_spill import OURS, SLICE_BYTES, Slices, Slicing
from headgate.tables.iceberg.upsert.delete_files import positions_of
from headgate.tables.iceberg.upsert.key_index import KeyHash
from headgate.tables.iceberg.upsert.key_reader import UNKNOWN, Sources

Shares = Callable[[Chunk], Iterable[tuple[int, Chunk]]]
"""The records of a chunk that are of folds, each with the number of its fold."""

WAITING_BYTES_MAX = SLICE_BYTES
"""So many bytes of records wait in all folds together."""


@dataclass(slots=True)
class ReadRecords:
    """Which offsets hold records, by partition, and which of these are the fold's ``own``.

    Of its own ones so many change nothing: ``passed_over``, skipped by the envelope or the policy
    for tombstones; ``bad``, by their contents.
    """

    offsets: dict[TopicPartition, BitMap64] = field(default_factory=dict)
    own: dict[TopicPartition, BitMap64] = field(default_factory=dict)
    passed_over: int = 0
    bad: int = 0


@dataclass(frozen=True, slots=True)
class Fold:
    """Where records and rows of a table are set aside, and by which hash of their keys."""

    start: TableStart
    plan: WriterPlan
    folder: Path
    slicing: Slicing
    hashed: KeyHash = field(default_factory=KeyHash)
    sources: Sources = field(default_factory=Sources)

    @property
    def columns(self) -> pa.Schema:
        """Return the table's columns; any may be null, since a deleting record has no row."""
        return pa.schema(
            [each.with_nullable(nullable=True) for each in self.plan.shape.arrow_schema()]
        )

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*(each.remove_metadata() for each in self.columns), *OURS])

    def slices(self, name: str) -> Slices:
        return Slices(self.folder, name, self.schema, self.slicing)

    def words(self, columns: Sequence[pa.Array]) -> Sequence[pa.Array]:
        """Hash the keys, whose ``columns`` have the table's types."""
        return [pa.array(word) for word in self.hashed([_plain(each) for each in columns])]

    def source(self, at: TopicPartition) -> int:
        """Return a partition's number; the topic counts only if the table has a column for it."""
        with_topic = "topic" in self.plan.source.record_columns
        return self.sources.number(at.topic if with_topic else "", at.partition)


def fold_batch(
    start: TableStart,
    ranges: Mapping[TopicPartition, OffsetRange],
    topic_ids: Mapping[str, TopicId],
) -> Batch:
    """Return the ranges as a batch that is read and never written."""
    first = TransactionId(Epoch(0), TransactionNumber(0))
    return Batch(1, first, start, ranges, 1, topic_ids)


def fold_source(
    folds: Sequence[Fold],
    batch: Batch,
    left_out: Mapping[TopicPartition, BitMap64],
    on_progress: Callable[[int], None],
    *,
    chunks: Generator[Chunk, None, None],
    shares: Shares = lambda chunk: [(0, chunk)],
) -> list[tuple[Slices, ReadRecords]]:
    """Read the ``chunks`` of a batch, and close them, into slices of each fold. ``left_out``:
    offsets that never were changes.

    Raises what reading a batch raises, and ``Unreachable`` if there is no room for them.
    """
    sifting = _Sifting(batch, left_out)
    readings = [
        _SourceReading(fold, replace(batch, table=fold.start), sifting.offsets) for fold in folds
    ]
    done = 0
    with closing(chunks) as every:
        for chunk in every:
            for number, records in shares(sifting.filter(chunk)):
                readings[number].take(records)
            while sum(each.slices.waiting_bytes for each in readings) > WAITING_BYTES_MAX:
                max(readings, key=lambda each: each.slices.waiting_bytes).slices.flush()
            done += len(chunk.offsets)
            on_progress(done)
    for reading in readings:
        reading.slices.flush()
    return [(reading.slices, reading.read) for reading in readings]


def fold_table(fold: Fold, reader: TableReader) -> Slices:
    """Read the live rows into slices. Raises as ``TableReader.scan``, and as ``fold_source``."""
    slices, columns = fold.slices("rows"), fold.columns
    changes = fold.plan.source.changes
    assert changes is not None, "only keyed tables are folded"
    parts = fold.plan.source.record_columns
    _, files = reader.scan(columns.names)
    for file in files:
        for batch in file.batches():
            rows = [_cast(batch.column(each.name), each.type) for each in columns]
            named = dict(zip(columns.names, rows, strict=True))
            topics = named[parts["topic"]] if "topic" in parts else None
            numbers = fold.sources.numbers(topics, named[parts["partition"]])
            offsets = pc.fill_null(pc.cast(named[parts["offset"]], pa.int64()), UNKNOWN)
            ours = [*fold.words([named[name] for name in changes.key]), pa.array(numbers), offsets]
            deletes = pa.array(np.zeros(batch.num_rows, np.bool_))
            slices.add(pa.RecordBatch.from_arrays([*rows, *ours, deletes], schema=slices.schema))
    slices.flush()
    return slices


class _Sifting:
    """Notes the ``offsets`` of all records of one batch, by partition."""

    def __init__(self, batch: Batch, left_out: Mapping[TopicPartition, BitMap64]) -> None:
        self.offsets = {at: BitMap64() for at in batch.ranges}
        self._left_out = [left_out.get(at, BitMap64()) for at in batch.ranges]

    def filter(self, chunk: Chunk) -> Chunk:
        """The records that may be changes."""
        wanted = np.ones(len(chunk.offsets), np.bool_)
        for place, at in enumerate(self.offsets):
            here = np.flatnonzero(chunk.places == place)
            found = bitmap_of(pa.array(chunk.offsets[here]))
            self.offsets[at] |= found
            if out := found & self._left_out[place]:
                wanted[here[np.isin(chunk.offsets[here], positions_of(out))]] = False
        return chunk if wanted.all() else chunk.where(wanted)


class _SourceReading:
    """The records of one fold on their way into slices."""

    def __init__(self, fold: Fold, batch: Batch, offsets: dict[TopicPartition, BitMap64]) -> None:
        changes = fold.plan.source.changes
        assert changes is not None, "only keyed tables are folded"
        self._fold = fold
        self._key = changes.key
        self._deleting = changes.tombstones is Tombstones.DELETE
        self._partitions = list(batch.ranges)
        self._numbers = np.array([fold.source(at) for at in self._partitions], np.int32)
        self._reading = ChangeReader(
            *(fold.plan, batch, fold.plan.shape.arrow_schema()), mapping=fold.plan.name_mapping()
        )
        self.slices = fold.slices("records")
        self.read = ReadRecords(offsets, {at: BitMap64() for at in self._partitions})

    def take(self, chunk: Chunk) -> None:
        for place in np.unique(chunk.places).tolist():
            offsets = chunk.offsets[chunk.places == place]
            self.read.own[self._partitions[place]] |= bitmap_of(pa.array(offsets))
        chunk = self._with_values(chunk)
        if not len(chunk.offsets):
            return
        read = read_around_poison(chunk, self._reading.schema, self._reading.read)
        refused = {row: reason for bad, _ in read.bad for row, reason in bad.items()}
        self.read.bad += len(refused)
        records = chunk.where(all_but(chunk, refused)) if refused else chunk
        told = self._reading.operations(read.rows)
        upserts, deletes = told == Operation.UPSERT, told == Operation.DELETE
        self.read.passed_over += int((told >= Operation.SKIP).sum())
        rows = self._reading.rows(read.rows, upserts)
        keys = [rows.column(name) for name in self._key]
        self._add(rows.columns, keys, records.where(upserts), deletes=False)
        gone = self._reading.keys(read.rows, deletes)
        count = int(deletes.sum())
        nothing = [pa.nulls(count, each.type) for each in self._fold.columns]
        self._add(nothing, [gone[name] for name in self._key], records.where(deletes), deletes=True)

    def _add(
        self,
        columns: Sequence[pa.Array],
        keys: Sequence[pa.Array],
        records: Chunk,
        *,
        deletes: bool,
    ) -> None:
        count = len(records.offsets)
        if count:
            ours = [
                *self._fold.words(keys),
                pa.array(self._numbers[records.places]),
                pa.array(records.offsets),
                pa.array(np.full(count, deletes)),
            ]
            self.slices.add(
                pa.RecordBatch.from_arrays([*columns, *ours], schema=self.slices.schema)
            )

    def _with_values(self, chunk: Chunk) -> Chunk:
        """Skip records without a value if they delete nothing."""
        if self._deleting or not chunk.values.array.null_count:
            return chunk
        there = np.asarray(chunk.values.array.is_valid())
        self.read.passed_over += int((~there).sum())
        return chunk.where(there)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)


def _plain(column: pa.Array) -> pa.Array:
    return column.storage if isinstance(column, pa.ExtensionArray) else column
