"""Compares keyed tables with the fold of their source, value by value and in bounded memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyroaring import BitMap64

from headgate.config.route_checks import source_of
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import PartitionCohorts
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import Batch
from headgate.data_plane.batch.routed_table import RoutedTable
from headgate.data_plane.batch.write_plan import SourcePlan, WriterPlan, plan_of_table
from headgate.data_plane.write.write_batch import chunks_of
from headgate.kafka.record_fetch import Chunk
from headgate.operations.audit.replay_compare import WRONG, Fault, Faults, Held, compare
from headgate.operations.audit.replay_records import (
    Fold,
    ReadRecords,
    Shares,
    fold_batch,
    fold_source,
    fold_table,
)
from headgate.operations.audit.replay_spill import SLICE_BYTES, Slices, Slicing
from headgate.operations.audit.report import Finding
from headgate.runtime.write_planning import source_plan
from headgate.tables.iceberg.reader import IcebergReader
from headgate.tables.iceberg.upsert.key_reader import Sources

Chunks = Callable[[WriterPlan, Batch], Generator[Chunk, None, None]]

_NONE = Offsets()

_SAID: Mapping[Fault, str] = {
    Fault.LOST: "keys have no row, whose last records are rows",
    Fault.ANEW: "keys have no row, because the table was re-created after their last records "
    "(docs/guides/upserts-and-deletes.md says how to fill it)",
    Fault.OUTDATED: "rows are older than the last records of their keys",
    Fault.UNDELETED: "rows exist that the last records of their keys delete",
    Fault.INVENTED: "rows match no record of the source, as these settings read it",
    Fault.TWICE: "rows exist in addition to the right ones of their keys",
    Fault.VALUE: "rows have other values than their records",
}


@dataclass(frozen=True, slots=True)
class SourceRanges:
    """What to read: ``ranges`` of the logs, and offsets in them that never were changes.

    ``cohorts``: which partitions are younger than others (U8).
    """

    ranges: Mapping[TopicPartition, OffsetRange]
    topic_ids: Mapping[str, TopicId]
    left_out: Mapping[TopicPartition, BitMap64] = field(default_factory=dict)
    cohorts: PartitionCohorts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoldEvidence:
    """The result of the comparison. ``sources``: the partitions' numbers in ``faults``."""

    read: ReadRecords
    faults: Faults
    sources: Mapping[int, TopicPartition]

    def findings(self, besides: frozenset[Fault] = frozenset()) -> Iterator[Finding]:
        """Yield what is wrong, except what another event explains just as well."""
        for fault in WRONG:
            count = self.faults.count(fault)
            if count and fault not in besides:
                where = ", ".join(sorted(self.faults.columns.get(fault, ())))
                columns = f" in {where}" if where else ""
                text = f"{count} {_SAID[fault]}{columns}: {self._places(fault)}"
                yield Finding(fault.value, text)

    def unproven(self, compacted: Mapping[str, bool | None]) -> Iterator[str]:
        """Yield what cannot be known.

        ``compacted``: which topics are compacted, according to Kafka.
        """
        counts = {fault: self.faults.count(fault) for fault in Fault}
        if found := counts[Fault.AGED]:
            yield (
                f"{found} rows are of records that the source no longer holds: nothing tells "
                f"whether they are right: {self._places(Fault.AGED)}"
            )
        if found := counts[Fault.VANISHED]:
            named = sorted(name for name, is_so in compacted.items() if is_so)
            why = f"{', '.join(named)} is compacted" if named else "the topic may be compacted"
            yield (
                f"{found} rows are of records that are not in the source any more: {why}, so later "
                f"records replaced them: {self._places(Fault.VANISHED)}"
            )
        if found := counts[Fault.CROSSED]:
            yield (
                f"{found} keys have records in several partitions, which no order tells apart: "
                f"{self._places(Fault.CROSSED)}"
            )
        if found := counts[Fault.NEW_COLUMN]:
            columns = ", ".join(sorted(self.faults.columns[Fault.NEW_COLUMN]))
            yield (
                f"{found} rows have no value in columns that were added later ({columns}), and "
                "their records have one"
            )

    def of(self, at: TopicPartition, *faults: Fault) -> int:
        """Return how many rows of a partition have one of these faults."""
        numbers = [number for number, known in self.sources.items() if known == at]
        return sum(self.faults.count(fault, number) for fault in faults for number in numbers)

    def _places(self, fault: Fault) -> str:
        known = self.faults.examples.get(fault, [])
        places = [f"{self.sources.get(number, '?')}@{offset}" for number, offset in known]
        more = ", ..." if self.faults.count(fault) > len(known) else ""
        return f"records {', '.join(places)}{more}"


@contextmanager
def folding(
    settings: SinkSettings, source: SourceRanges, slice_bytes: int = SLICE_BYTES
) -> Iterator[Folding]:
    with tempfile.TemporaryDirectory(prefix="headgate-audit-") as folder:
        yield Folding(settings, source, Path(folder), slice_bytes)


class Folding:
    """One reading of the source, for tables that share it. ``add`` them, then ``read``, and then
    each may be ``compared``."""

    def __init__(
        self, settings: SinkSettings, source: SourceRanges, folder: Path, slice_bytes: int
    ) -> None:
        self._settings, self._source = settings, source
        self._folder, self._slice_bytes = folder, slice_bytes
        self._tables: list[tuple[IcebergReader, Fold]] = []
        self._read: Sequence[tuple[Slices, ReadRecords]] = ()

    def add(self, reader: IcebergReader) -> int:
        """Return the table's number. Raises ``ConfigurationError``."""
        start = _start(reader)
        reading = source_plan(self._settings, self._batch(start))
        if self._settings.tables:
            reading = source_of(self._settings, reading, start.table)
        plan = plan_of_table(reader.table, start, reading)
        rows = sum(file.records for file in reader.live_files() if not file.deletes)
        records = sum(len(span) for span in self._source.ranges.values())
        folder = self._folder / str(len(self._tables))
        folder.mkdir()
        slicing = Slicing(max(rows, records), self._slice_bytes)
        fold = Fold(start, plan, folder, slicing, sources=Sources(self._source.cohorts))
        self._tables.append((reader, fold))
        return len(self._tables) - 1

    def read(
        self,
        on_progress: Callable[[int], None],
        *,
        chunks: Chunks = chunks_of,
        shares: Callable[[SourcePlan, Batch], Shares] | None = None,
    ) -> None:
        """``shares`` tells the records of several tables apart, and of others beside them.

        Raises what reading a batch raises, and ``Unreachable`` where there is no room for them on
        disk.
        """
        folds = [fold for _, fold in self._tables]
        plan, batch = folds[0].plan, self._batch(folds[0].start)
        more: dict[str, Shares] = {}
        if shares:
            tables = {f.start.table: RoutedTable(f.start.table, f.plan) for f in folds}
            source = replace(plan.source, routing=self._settings.tables.routing)
            plan = replace(plan, source=source, tables=tables)
            more["shares"] = shares(source, batch)
        left_out = self._source.left_out
        every = chunks(plan, batch)
        self._read = fold_source(folds, batch, left_out, on_progress, chunks=every, **more)

    def compared(self, number: int, earlier: Offsets = _NONE) -> FoldEvidence:
        """``earlier``: up to where an earlier table of that name was filled.

        Raises as ``TableReader.scan``, and ``Unreachable`` as ``read``.
        """
        (reader, fold), (changes, read) = self._tables[number], self._read[number]
        ranges = self._source.ranges
        live = fold_table(fold, reader)
        sources = {fold.source(at): at for at in ranges}
        held = Held(
            {source: ranges[at].begin for source, at in sources.items()},
            {source: read.offsets[at] for source, at in sources.items()},
            _later_columns(reader),
            fold.sources,
            {source: earlier[at] for source, at in sources.items() if at in earlier},
        )
        floors = reader.history().examined_from
        faults = Faults(floors={source: floors.get(at, 0) for source, at in sources.items()})
        for part in range(fold.slicing.count):
            compare(changes.read(part), live.read(part), held, faults)
        return FoldEvidence(read, faults, sources)

    def _batch(self, start: TableStart) -> Batch:
        return fold_batch(start, self._source.ranges, self._source.topic_ids)


def _start(reader: IcebergReader) -> TableStart:
    table = reader.table
    return TableStart(
        table=".".join(table.name()),
        uuid=str(table.metadata.table_uuid),
        schema_id=table.schema().schema_id,
        spec_id=table.spec().spec_id,
        file_prefix="",
    )


def _later_columns(reader: IcebergReader) -> frozenset[str]:
    """Return columns that some of the table's schemas lack: older rows have no value in them."""
    schemas = reader.table.schemas().values()
    ids = [{each.field_id for each in schema.fields} for schema in schemas]
    everywhere = set.intersection(*ids)
    now = reader.table.schema().fields
    return frozenset(each.name for each in now if each.field_id not in everywhere)
