"""Compares keyed tables with a replay of their source, value by value and in bounded memory."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from headgate.config.routed_tables import source_plan_of_table
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import PartitionCohorts
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import (
    Epoch,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import Batch
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.control_protocol.table_format import Anywhere, SupportsKeyedAudit
from headgate.control_protocol.table_history import History, TableReader
from headgate.data_plane.batch.record_numbers import bitmap_of
from headgate.data_plane.batch.routed_table import RoutedTable
from headgate.data_plane.batch.writer_task_plan import SourcePlan, WriterPlan, plan_of_table
from headgate.data_plane.cdc.operations import Operation
from headgate.data_plane.cdc.policy import Tombstones
from headgate.data_plane.quarantine.poison_search import read_around_poison
from headgate.data_plane.quarantine.rowless_record_filter import flags_of_all_but
from headgate.data_plane.routing.router import Router
from headgate.data_plane.write.change_decode import ChangeReader
from headgate.data_plane.write.write_batch import read_source_in_chunks
from headgate.kafka.record_fetch import Chunk
from headgate.operations.audit.replay_compare import (
    OURS,
    SLICE_BYTES,
    WRONG,
    Fault,
    Faults,
    ReplayedSource,
    SliceCount,
    Slices,
    note_faults_of_slice,
)
from headgate.operations.audit.report import Finding
from headgate.runtime.write_planning import build_source_plan, shaping_of
from headgate.tables.iceberg.upsert.key_index import KeyHash
from headgate.tables.iceberg.upsert.key_reader import UNKNOWN, Sources
from headgate.tables.iceberg.upsert.position_deletes import sorted_positions_of

# Reads the source's records as changes, with the sink's own code, and the table's rows.
#
# Both are split into slices by the hash of their keys: the material of a replay.


Shares = Callable[[Chunk], Iterable[tuple[int, Chunk]]]
"""The records of a chunk of replays, each with the number of its replay."""

WAITING_BYTES_MAX = SLICE_BYTES
"""So many bytes of records wait in all replays together."""


@dataclass(slots=True)
class ReadRecords:
    """Which offsets hold records, by partition, and which of these are the replay's ``own``.

    Of its own ones so many change nothing: ``passed_over``, skipped by the envelope or the policy
    for tombstones; ``bad``, by their contents.
    """

    offsets: dict[TopicPartition, BitMap64] = field(default_factory=dict)
    own: dict[TopicPartition, BitMap64] = field(default_factory=dict)
    passed_over: int = 0
    bad: int = 0


@dataclass(frozen=True, slots=True)
class TableReplay:
    """Where records and rows of a table are set aside, and by which hash of their keys."""

    start: TableStart
    plan: WriterPlan
    folder: Path
    slicing: SliceCount
    hashed: KeyHash = field(default_factory=KeyHash)
    sources: Sources = field(default_factory=Sources)

    @property
    def columns(self) -> pa.Schema:
        """Return the table's columns; any may be null, since a deleting record has no row."""
        return pa.schema(
            [each.with_nullable(nullable=True) for each in self.plan.shape.arrow_schema()]
        )

    @property
    def deletion_mark_column(self) -> str:
        """Return the column in which deletes mark rows, if they do (KEY-13)."""
        changes = self.plan.source.changes
        return changes.deleted_at if changes else ""

    @property
    def keeps_history(self) -> bool:
        """Return whether each change has a row of its own (KEY-14)."""
        changes = self.plan.source.changes
        return changes is not None and changes.history

    @property
    def slice_schema(self) -> pa.Schema:
        return pa.schema([*(each.remove_metadata() for each in self.columns), *OURS])

    def new_slices(self, name: str) -> Slices:
        return Slices(self.folder, name, self.slice_schema, self.slicing)

    def hash_keys(self, columns: Sequence[pa.Array]) -> Sequence[pa.Array]:
        """Hash the keys, whose ``columns`` have the table's types."""
        return [
            pa.array(word)
            for word in self.hashed([_without_extension_type(each) for each in columns])
        ]

    def intern_source_of(self, at: TopicPartition) -> int:
        """Return a partition's number; the topic counts only if the table has a column for it."""
        with_topic = "topic" in self.plan.source.record_columns
        return self.sources.intern_source(at.topic if with_topic else "", at.partition)


def batch_that_is_only_read(
    start: TableStart,
    ranges: Mapping[TopicPartition, OffsetRange],
    topic_ids: Mapping[str, TopicId],
) -> Batch:
    """Return the ranges as a batch that is read and never written."""
    first = TransactionId(Epoch(0), TransactionNumber(0))
    return Batch(1, first, start, ranges, 1, topic_ids)


def read_source_into_slices(
    table_replays: Sequence[TableReplay],
    batch: Batch,
    not_changes: Mapping[TopicPartition, BitMap64],
    on_progress: Callable[[int], None],
    *,
    chunks: Generator[Chunk, None, None],
    split_by_table: Shares = lambda chunk: [(0, chunk)],
) -> list[tuple[Slices, ReadRecords]]:
    """Read the ``chunks`` of a batch, and close them, into slices of each replay. ``not_changes``:
    offsets that never were changes.

    Raises what reading a batch raises, and ``Unreachable`` if there is no room for them.
    """
    sifting = _Prefilter(batch, not_changes)
    readings = [
        _SourceReader(table_replay, replace(batch, table=table_replay.start), sifting.offsets)
        for table_replay in table_replays
    ]
    done = 0
    with closing(chunks) as every:
        for chunk in every:
            for number, records in split_by_table(sifting.filter_noting_offsets(chunk)):
                readings[number].add_chunk(records)
            while sum(each.slices.buffered_bytes for each in readings) > WAITING_BYTES_MAX:
                max(readings, key=lambda each: each.slices.buffered_bytes).slices.flush()
            done += len(chunk.offsets)
            on_progress(done)
    for reading in readings:
        reading.slices.flush()
    return [(reading.slices, reading.read) for reading in readings]


def read_table_into_slices(table_replay: TableReplay, reader: TableReader) -> Slices:
    """Read the live rows into slices.

    Raises as ``TableReader.scan``, and as ``read_source_into_slices``.
    """
    slices, columns = table_replay.new_slices("rows"), table_replay.columns
    changes = table_replay.plan.source.changes
    assert changes is not None, "only keyed tables are replayed"
    parts = table_replay.plan.source.record_columns
    _, files = reader.scan(columns.names)
    for file in files:
        for batch in file.batches():
            rows = [_cast(batch.column(each.name), each.type) for each in columns]
            named = dict(zip(columns.names, rows, strict=True))
            topics = named[parts["topic"]] if "topic" in parts else None
            numbers = table_replay.sources.intern_sources(topics, named[parts["partition"]])
            offsets = pc.fill_null(pc.cast(named[parts["offset"]], pa.int64()), UNKNOWN)
            ours = [
                *table_replay.hash_keys([named[name] for name in changes.key]),
                pa.array(numbers),
                offsets,
            ]
            deletes = pa.array(np.zeros(batch.num_rows, np.bool_))
            slices.add_rows(
                pa.RecordBatch.from_arrays([*rows, *ours, deletes], schema=slices.schema)
            )
    slices.flush()
    return slices


class _Prefilter:
    """Notes the ``offsets`` of all records of one batch, by partition."""

    def __init__(self, batch: Batch, left_out: Mapping[TopicPartition, BitMap64]) -> None:
        self.offsets = {at: BitMap64() for at in batch.ranges}
        self._left_out = [left_out.get(at, BitMap64()) for at in batch.ranges]

    def filter_noting_offsets(self, chunk: Chunk) -> Chunk:
        """Note the chunk's offsets, and return the records that may be changes."""
        is_kept = np.ones(len(chunk.offsets), np.bool_)
        for place, at in enumerate(self.offsets):
            here = np.flatnonzero(chunk.places == place)
            offsets = bitmap_of(pa.array(chunk.offsets[here]))
            self.offsets[at] |= offsets
            if out := offsets & self._left_out[place]:
                is_kept[here[np.isin(chunk.offsets[here], sorted_positions_of(out))]] = False
        return chunk if is_kept.all() else chunk.filter(is_kept)


class _SourceReader:
    """The records of one replay on their way into slices."""

    def __init__(
        self, table_replay: TableReplay, batch: Batch, offsets: dict[TopicPartition, BitMap64]
    ) -> None:
        changes = table_replay.plan.source.changes
        assert changes is not None, "only keyed tables are replayed"
        self._replay = table_replay
        self._key = changes.key
        self._deleting = changes.tombstones is Tombstones.DELETE
        self._partitions = list(batch.ranges)
        self._numbers = np.array(
            [table_replay.intern_source_of(at) for at in self._partitions], np.int32
        )
        self._reading = ChangeReader(
            *(table_replay.plan, batch, table_replay.plan.shape.arrow_schema()),
            mapping=table_replay.plan.name_mapping(),
        )
        self.slices = table_replay.new_slices("records")
        self.read = ReadRecords(offsets, {at: BitMap64() for at in self._partitions})

    def add_chunk(self, chunk: Chunk) -> None:
        for place in np.unique(chunk.places).tolist():
            offsets = chunk.offsets[chunk.places == place]
            self.read.own[self._partitions[place]] |= bitmap_of(pa.array(offsets))
        chunk = self._skip_tombstones_without_effect(chunk)
        if not len(chunk.offsets):
            return
        read = read_around_poison(chunk, self._reading.schema, self._reading.read)
        refused = {row: reason for bad, _ in read.bad for row, reason in bad.items()}
        self.read.bad += len(refused)
        records = chunk.filter(flags_of_all_but(chunk, refused)) if refused else chunk
        ordered = self._reading.operations_of(read.rows)
        upserts, deletes = ordered == Operation.UPSERT, ordered == Operation.DELETE
        self.read.passed_over += int((ordered >= Operation.SKIP).sum())
        rows = self._reading.select_table_rows(read.rows, upserts)
        keys = [rows.column(name) for name in self._key]
        self._add_changes(rows.columns, keys, records.filter(upserts), deletes=False)
        gone = self._reading.select_deleted_keys(read.rows, deletes)
        count = int(deletes.sum())
        nothing = [pa.nulls(count, each.type) for each in self._replay.columns]
        self._add_changes(
            nothing, [gone[name] for name in self._key], records.filter(deletes), deletes=True
        )

    def _add_changes(
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
                *self._replay.hash_keys(keys),
                pa.array(self._numbers[records.places]),
                pa.array(records.offsets),
                pa.array(np.full(count, deletes)),
            ]
            self.slices.add_rows(
                pa.RecordBatch.from_arrays([*columns, *ours], schema=self.slices.schema)
            )

    def _skip_tombstones_without_effect(self, chunk: Chunk) -> Chunk:
        """Skip records without a value if they delete nothing."""
        if self._deleting or not chunk.values.array.null_count:
            return chunk
        there = np.asarray(chunk.values.array.is_valid())
        self.read.passed_over += int((~there).sum())
        return chunk.filter(there)


def _cast(column: pa.Array, data_type: pa.DataType) -> pa.Array:
    return column if column.type == data_type else column.cast(data_type)


def _without_extension_type(column: pa.Array) -> pa.Array:
    return column.storage if isinstance(column, pa.ExtensionArray) else column


Chunks = Callable[[WriterPlan, Batch], Generator[Chunk, None, None]]

_NONE = Offsets()

_SAID: Mapping[Fault, str] = {
    Fault.LOST: "keys have no row, whose last records are rows",
    Fault.RECREATED: "keys have no row, because the table was re-created after their last records "
    "(docs/guides/upserts-and-deletes.md says how to fill it)",
    Fault.OUTDATED: "rows are older than the last records of their keys",
    Fault.UNDELETED: "rows exist that the last records of their keys delete",
    Fault.INVENTED: "rows match no record of the source, as these settings read it",
    Fault.TWICE: "rows exist in addition to the right ones of their keys",
    Fault.VALUE: "rows have other values than their records",
}


_SAID_OF_VERSIONS: Mapping[Fault, str] = {
    Fault.LOST: "changes have no version of their key",
    Fault.RECREATED: "changes have no version of their key, because the table was re-created after "
    "them",
    Fault.TWICE: "versions exist in addition to the right ones of their changes",
}
"""Of a history (KEY-14)."""


@dataclass(frozen=True, slots=True)
class SourceRanges:
    """What to read: ``ranges`` of the logs, and offsets in them that never were changes.

    ``cohorts``: which partitions are younger than others (KEY-8).
    """

    ranges: Mapping[TopicPartition, OffsetRange]
    topic_ids: Mapping[str, TopicId]
    left_out: Mapping[TopicPartition, BitMap64] = field(default_factory=dict)
    cohorts: PartitionCohorts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of the comparison. ``sources``: the partitions' numbers in ``faults``;
    ``versions``: of each change, not only of the last one of a key."""

    read: ReadRecords
    faults: Faults
    sources: Mapping[int, TopicPartition]
    versions: bool = False

    def find_faults(self, explained: frozenset[Fault] = frozenset()) -> Iterator[Finding]:
        """Yield what is wrong, except what another event explains just as well."""
        for fault in WRONG:
            count = self.faults.count_of(fault)
            if count and fault not in explained:
                where = ", ".join(sorted(self.faults.columns.get(fault, ())))
                columns = f" in {where}" if where else ""
                said = _SAID_OF_VERSIONS.get(fault) if self.versions else None
                text = (
                    f"{count} {said or _SAID[fault]}{columns}: {self._describe_examples_of(fault)}"
                )
                yield Finding(fault.value, text)

    def describe_unproven(self, compacted: Mapping[str, bool | None]) -> Iterator[str]:
        """Yield what cannot be known.

        ``compacted``: which topics are compacted, according to Kafka.
        """
        counts = {fault: self.faults.count_of(fault) for fault in Fault}
        if count := counts[Fault.AGED]:
            yield (
                f"{count_of(count, 'row is of a record', 'rows are of records')} that the source "
                "no longer holds: nothing tells whether they are right: "
                f"{self._describe_examples_of(Fault.AGED)}"
            )
        if count := counts[Fault.VANISHED]:
            named = sorted(name for name, is_so in compacted.items() if is_so)
            why = f"{', '.join(named)} is compacted" if named else "the topic may be compacted"
            yield (
                f"{count_of(count, 'row is of a record that is', 'rows are of records that are')} "
                f"not in the source any more: {why}, so later records replaced them: "
                f"{self._describe_examples_of(Fault.VANISHED)}"
            )
        if count := counts[Fault.CROSSED]:
            yield (
                f"{count_of(count, 'key has records', 'keys have records')} in several "
                "partitions, which no order tells apart: "
                f"{self._describe_examples_of(Fault.CROSSED)}"
                + (" (their versions are there, and nothing tells which was first)" * self.versions)
            )
        if count := counts[Fault.FORMER_DELETE]:
            yield (
                f"{count_of(count, 'key was', 'keys were')} deleted before changes.on_delete "
                "changed for this table: their rows may be marked, or gone: "
                f"{self._describe_examples_of(Fault.FORMER_DELETE)}"
            )
        if count := counts[Fault.NEW_COLUMN]:
            columns = ", ".join(sorted(self.faults.columns[Fault.NEW_COLUMN]))
            yield (
                f"{count_of(count, 'row has', 'rows have')} no value in columns that were added "
                f"later ({columns}), and their records have one"
            )

    def faulty_row_count(self, at: TopicPartition, *faults: Fault) -> int:
        """Return how many rows of a partition have one of these faults."""
        numbers = [number for number, known in self.sources.items() if known == at]
        return sum(self.faults.count_of(fault, number) for fault in faults for number in numbers)

    def _describe_examples_of(self, fault: Fault) -> str:
        known = self.faults.examples.get(fault, [])
        places = [f"{self.sources.get(number, '?')}@{offset}" for number, offset in known]
        more = ", ..." if self.faults.count_of(fault) > len(known) else ""
        return f"records {', '.join(places)}{more}"


@contextmanager
def open_replay(
    settings: SinkSettings, source: SourceRanges, slice_bytes: int = SLICE_BYTES
) -> Iterator[Replay]:
    with tempfile.TemporaryDirectory(prefix="headgate-audit-") as folder:
        yield Replay(settings, source, Path(folder), slice_bytes)


class Replay:
    """One reading of the source, for tables that share it.

    ``add_table_and_return_number`` them, then ``read_source``; then ``compare_table`` each.
    """

    def __init__(
        self, settings: SinkSettings, source: SourceRanges, folder: Path, slice_bytes: int
    ) -> None:
        self._settings, self._source = settings, source
        self._folder, self._slice_bytes = folder, slice_bytes
        self._tables: list[tuple[SupportsKeyedAudit, TableReplay]] = []
        self._read: Sequence[tuple[Slices, ReadRecords]] = ()

    def add_table_and_return_number(self, reader: SupportsKeyedAudit) -> int:
        """Return the table's number. Raises ``ConfigurationError``."""
        view = reader.view()
        start = TableStart(view.table, view.uuid, view.schema_id, view.spec_id, file_prefix="")
        reading = build_source_plan(self._settings, self._build_batch_of_source(start))
        if self._settings.tables:
            reading = source_plan_of_table(self._settings, reading, start.table)
        plan = plan_of_table(reader.table, start, reading, shaping_of(self._settings))
        rows = sum(file.records for file in reader.live_files() if not file.deletes)
        records = sum(len(span) for span in self._source.ranges.values())
        folder = self._folder / str(len(self._tables))
        folder.mkdir()
        slicing = SliceCount(max(rows, records), self._slice_bytes)
        table_replay = TableReplay(
            start, plan, folder, slicing, sources=Sources(self._source.cohorts)
        )
        self._tables.append((reader, table_replay))
        return len(self._tables) - 1

    def read_source(
        self,
        on_progress: Callable[[int], None],
        *,
        chunks: Chunks = read_source_in_chunks,
        make_split: Callable[[SourcePlan, Batch], Shares] | None = None,
    ) -> None:
        """``make_split`` tells the records of several tables apart, and of others beside them.

        Raises what reading a batch raises, and ``Unreachable`` where there is no room for them on
        disk.
        """
        table_replays = [table_replay for _, table_replay in self._tables]
        plan, batch = table_replays[0].plan, self._build_batch_of_source(table_replays[0].start)
        more: dict[str, Shares] = {}
        if make_split:
            tables = {f.start.table: RoutedTable(f.start.table, f.plan) for f in table_replays}
            source = replace(plan.source, routing=self._settings.tables.routing)
            plan = replace(plan, source=source, tables=tables)
            more["split_by_table"] = make_split(source, batch)
        left_out = self._source.left_out
        every = chunks(plan, batch)
        self._read = read_source_into_slices(
            table_replays, batch, left_out, on_progress, chunks=every, **more
        )

    def compare_table(self, number: int, earlier_table_offsets: Offsets = _NONE) -> ReplayResult:
        """``earlier_table_offsets``: up to where an earlier table of that name was filled.

        Raises as ``TableReader.scan``, and ``Unreachable`` as ``read_source``.
        """
        (reader, table_replay), (changes, read) = self._tables[number], self._read[number]
        ranges = self._source.ranges
        live, history = read_table_into_slices(table_replay, reader), reader.history()
        sources = {table_replay.intern_source_of(at): at for at in ranges}
        replayed = ReplayedSource(
            {source: ranges[at].begin for source, at in sources.items()},
            {source: read.offsets[at] for source, at in sources.items()},
            reader.columns_added_after_creation(),
            table_replay.sources,
            {
                source: earlier_table_offsets[at]
                for source, at in sources.items()
                if at in earlier_table_offsets
            },
            table_replay.deletion_mark_column,
            ends_of_doubtful_deletes(reader, sources, ranges),
            find_time_column_and_expiry_limit(self._settings, history, table_replay.columns),
            table_replay.keeps_history,
        )
        floors = history.offsets_with_full_history_above
        faults = Faults(floors={source: floors.get(at, 0) for source, at in sources.items()})
        for part in range(table_replay.slicing.count):
            note_faults_of_slice(changes.read_slice(part), live.read_slice(part), replayed, faults)
        return ReplayResult(read, faults, sources, table_replay.keeps_history)

    def _build_batch_of_source(self, start: TableStart) -> Batch:
        return batch_that_is_only_read(start, self._source.ranges, self._source.topic_ids)


def find_time_column_and_expiry_limit(
    settings: SinkSettings, history: History, columns: pa.Schema
) -> tuple[str, pa.Scalar] | None:
    """EXPIRY-3: return the column of rows' times, and below which value rows have expired."""
    name, limit_ms = settings.maintenance.rows_by, history.expired_before_ms
    if limit_ms is None or name not in columns.names:
        return None
    moment = pa.scalar(limit_ms, pa.timestamp("ms", tz="UTC"))
    return name, moment.cast(columns.field(name).type)  # a day that is not over is not below


def ends_of_doubtful_deletes(
    reader: SupportsKeyedAudit,
    sources: Mapping[int, TopicPartition],
    ranges: Mapping[TopicPartition, OffsetRange],
) -> Mapping[int, int]:
    """Return, by the source's number, below which offset nothing tells what deletes did."""
    doubtful = reader.end_offsets_of_former_on_delete()
    if doubtful is Anywhere.ANYWHERE:
        return {source: ranges[at].end for source, at in sources.items()}
    return {source: doubtful[at] for source, at in sources.items() if at in doubtful}


# A source's records told apart by the sink's routes: which keyed table each is of, or none.


@dataclass(slots=True)
class OtherRecords:
    """Offsets of records that are of no table of a replay: the sink passed over those ``let_go``,
    and what the ``absent`` ones came to nobody can see. The rest is rows of other tables.

    ``not_replayed``: by keyed table without a replay, how many of the ``absent`` are its.
    """

    let_go: dict[TopicPartition, BitMap64] = field(default_factory=dict)
    absent: dict[TopicPartition, BitMap64] = field(default_factory=dict)
    not_replayed: Counter[str] = field(default_factory=Counter)


class RoutedSplit:
    """``Shares`` of one batch, by the sink's own code; ``others`` notes what is in no replay.

    ``tables``: the names of the replays, each with the offsets up to which its records count.
    """

    def __init__(
        self,
        source: SourcePlan,
        batch: Batch,
        tables: Sequence[tuple[str, Offsets]],
        others: OtherRecords,
    ) -> None:
        assert source.routing is not None, "chosen for it"
        self._handling, self._routing = source.handling, source.routing
        self._partitions = list(batch.ranges)
        self._numbers = {name: number for number, (name, _) in enumerate(tables)}
        self._ends = [
            np.array([until.get(at, 0) for at in self._partitions], np.int64) for _, until in tables
        ]
        self._others = others
        self._router = Router(source, batch, self._note_bad_if_skipped)

    def __call__(self, chunk: Chunk) -> Iterator[tuple[int, Chunk]]:
        for target, some in self._router.split(chunk):
            if target is None:
                self._note_unmatched_if_skipped(some)
            elif (number := self._numbers.get(target.table)) is not None:
                delivered = some.offsets < self._ends[number][some.places]
                yield number, some.filter(delivered)
                self._note_offsets(self._others.absent, some.filter(~delivered))
            elif self._routing.key_of(target.table):
                self._note_offsets(self._others.absent, some)
                self._others.not_replayed[target.table] += len(some.offsets)
            elif self._handling.tombstones is Disposal.SKIP:
                self._note_offsets(self._others.let_go, _tombstones_of(some))

    def _note_unmatched_if_skipped(self, chunk: Chunk) -> None:
        untold = self._handling.unrouted_tombstones or self._handling.unmatched
        if untold is Disposal.SKIP:
            self._note_offsets(self._others.let_go, _tombstones_of(chunk))
        if self._handling.unmatched is Disposal.SKIP:
            there = np.asarray(chunk.values.array.is_valid())
            self._note_offsets(self._others.let_go, chunk.filter(there))

    def _note_bad_if_skipped(self, chunk: Chunk, bad: Mapping[int, str]) -> None:
        if self._handling.policy is Disposal.SKIP:
            is_bad = np.zeros(len(chunk.offsets), np.bool_)
            is_bad[list(bad)] = True
            self._note_offsets(self._others.let_go, chunk.filter(is_bad))

    def _note_offsets(self, into: dict[TopicPartition, BitMap64], chunk: Chunk) -> None:
        for place in np.unique(chunk.places).tolist():
            offsets = bitmap_of(pa.array(chunk.offsets[chunk.places == place]))
            at = self._partitions[place]
            into[at] = into.get(at, BitMap64()) | offsets


def _tombstones_of(chunk: Chunk) -> Chunk:
    """The records without a value."""
    return chunk.filter(np.asarray(chunk.values.array.is_null()))
