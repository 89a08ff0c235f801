"""Writes the records of a batch into files of its tables: one table, or those that routes name.

Fetched, put or handed on by Spark, with keys or without, records take this way: chunk, filter,
route, per table decode and shape, outlet. With routes, records are split column by column, and wait
undecoded until a portion of their table is worth decoding. One table is what routes with one answer
would be: each chunk is decoded at once, uncut and uncopied.

At most one fetched chunk, the records and rows that wait, and the open files' buffers are in
memory, whatever the ranges' length; all tables of a batch share these bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow.compute as pc

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.events import Destination
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import Batch, BatchNeeds, BatchOutcome, BatchWritten, TableNeed
from headgate.data_plane.batch.failure_classification import (
    TablesNotPlanned,
    raise_if_abandoned,
    translate_write_error,
    try_write,
)
from headgate.data_plane.batch.routed_table import CreationSource, RoutedTable, table_of_start
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.quarantine.poison_search import write_around_poison
from headgate.data_plane.quarantine.rejected_records import BAD_VALUE, OWN_TABLE, RejectedRecords
from headgate.data_plane.quarantine.rowless_record_filter import RowlessRecordFilter
from headgate.data_plane.routing.keyed_routes import may_lead_to_keyed_table
from headgate.data_plane.routing.router import Router
from headgate.data_plane.routing.routes import Target
from headgate.data_plane.routing.table_resolution import (
    NEW_MAX,
    BatchTables,
    NewTable,
    log_unmatched_if_not_recent,
)
from headgate.data_plane.write.change_decode import ChangeDecoder
from headgate.data_plane.write.columns_to_add import MissingColumns
from headgate.data_plane.write.decode import RowDecoder
from headgate.data_plane.write.table_outlets import FileOutlets, Outlets, TableFiles, TableOutlet
from headgate.kafka.librdkafka_binding import Headers, LentHeaders
from headgate.kafka.push_source import HEADER_BYTES
from headgate.kafka.record_fetch import Chunk, ReadRequest, read_ranges
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import Integers

if TYPE_CHECKING:
    from headgate.data_plane.write.transformed_rows import TransformedRows

_PORTION = (1024 * 1024, 8_192)
"""So many bytes or records of a table are worth decoding: each portion costs 0.7 ms."""
_LENT_PORTION = (256 * 1024, 512)
"""The same where headers would have to be kept for it."""
_WAITING_BYTES_MAX = 64 * 1024 * 1024


class TableDecoder(Protocol):
    """Decodes the records of one table of a batch, and hands its rows on.

    By place of the batch's ranges: so many records became rows (``row_counts``), and keys of so
    many are in key files (``deleted_counts``).
    """

    @property
    def row_counts(self) -> Integers: ...

    @property
    def deleted_counts(self) -> Integers: ...

    @property
    def missing_columns(self) -> MissingColumns | None:
        """Return what the table lacks for some of them (SCHEMA-2)."""

    def add_chunk(self, chunk: Chunk, *, only_note_needs: bool) -> None:
        """Take records that the filter passed on; ``rejected`` takes those that become no rows.

        ``only_note_needs``: nothing of this attempt will count, only what tables need. Nor does
        anything once a record stops the sink; but the first such record of each partition does
        (BATCH-2).
        """

    def ignored_field_counts(self) -> Mapping[str, int]:
        """Do as ``RowDecoder.ignored_field_counts``."""


def new_decoder(
    routed: RoutedTable,
    plan: WriterPlan,
    batch: Batch,
    *,
    rejected: RejectedRecords,
    outlet: TableOutlet,
) -> TableDecoder:
    """Return the decoder of the table's records. Raises ``ConfigurationError``."""
    if plan.source.changes is None:
        return RowDecoder(routed, plan, batch, rejected=rejected, outlet=outlet)
    assert isinstance(outlet, TableFiles), "changes are written where they are read"
    return ChangeDecoder(routed, plan, batch, rejected=rejected, outlet=outlet)


@dataclass(slots=True)
class _Table:
    """Holds one table's share of a batch under way."""

    at: Destination
    decoder: TableDecoder
    waiting: list[Chunk] = field(default_factory=list)
    waiting_records: int = 0
    waiting_bytes: int = 0

    def add_waiting(self, chunk: Chunk) -> None:
        self.waiting.append(chunk)
        self.waiting_records += len(chunk.offsets)
        self.waiting_bytes += int(chunk.lengths.sum()) + _bytes_of_keys(chunk.keys)

    @property
    def is_worth_decoding(self) -> bool:
        lent = self.waiting[-1].headers is not None
        size, records = _LENT_PORTION if lent else _PORTION
        return self.waiting_records >= records or self.waiting_bytes >= size

    def decode_waiting(self, *, only_note_needs: bool = False) -> None:
        """Decode what waits.

        ``only_note_needs``: nothing of this attempt will count, only what records need."""
        if self.waiting:
            chunk = Chunk.concat(self.waiting)
            self.waiting, self.waiting_records, self.waiting_bytes = [], 0, 0
            self.decoder.add_chunk(chunk, only_note_needs=only_note_needs)

    def detach_waiting_chunks(self) -> None:
        """Keep what waits beyond the chunk that it came with, which may have brought several: one
        for each topic."""
        for place, chunk in enumerate(self.waiting):
            if isinstance(chunk.headers, LentHeaders):
                kept = self.waiting[place] = chunk.detached_copy()
                self.waiting_bytes += _memory_bytes_of_headers(kept.headers or ())


def _bytes_of_keys(keys: Packed | None) -> int:
    return 0 if keys is None else pc.sum(pc.binary_length(keys.array)).as_py() or 0


def _memory_bytes_of_headers(headers: Sequence[Headers]) -> int:
    return sum(HEADER_BYTES + len(value or b"") for some in headers for _, value in some or ())


def merge_table_needs(number: int, tables: tuple[TableNeed, ...]) -> BatchNeeds:
    """Return what all tables together need: in each partition the first record that waits."""
    first = reduce(Offsets.minimum_per_partition, (need.first for need in tables))
    records = sum(need.records for need in tables)
    return BatchNeeds(number, first=first, records=records, tables=tables)


class BatchRows:
    """Brings the records of one batch to ``outlets``, table by table.

    ``add_chunk`` for all chunks, then ``decode_waiting``, then ``finish``; or ``discard``.
    Where records need more than there is, ``finish`` says what, and no file is left. Routes behind
    a transform look at its rows (``result_routing``), not here: in this process
    (``transformed_rows``), or in Spark's next stage.
    """

    def __init__(self, plan: WriterPlan, batch: Batch, outlets: Outlets) -> None:
        self._plan = plan
        self._batch = batch
        self._outlets = outlets
        self._rejected = RejectedRecords(plan, batch)
        self._partitions = list(batch.ranges)
        self._open: dict[str, _Table] = {}
        self._new_tables: dict[str, NewTable] = {}
        self._only_note_needs = False
        self._only: RoutedTable | None = None
        self._transformed: TransformedRows | None = None
        if plan.shaping.has_local_transform:
            self._transformed = _transformed_rows(plan, batch, self._rejected, outlets)
        routing = plan.source.routing
        if routing is None or plan.shaping.transform is not None:
            self._only, tombstones = (
                table_of_start(plan, batch),
                plan.source.primary_deletes_by_tombstone,
            )
        else:
            self._routing, tombstones = routing, bool(routing.keys)
            self._tables = BatchTables(plan, batch)
            self._router = Router(plan.source, batch, self._reject_bad, self._tables.grouping_key)
            topics = {at.topic for at in batch.ranges}
            self._changing = {topic for topic in topics if may_lead_to_keyed_table(routing, topic)}
        self._prefilter = RowlessRecordFilter(
            batch, self._rejected, plan.poison_records, tombstones=tombstones
        )

    def add_chunk(self, chunk: Chunk) -> None:
        """Take a chunk. Raises what ``rejected`` raises about records that become no rows."""
        chunk = self._prefilter.count_and_take_rowless_out(chunk)
        if self._only is not None:
            # The fast path: no split, no copy, no waiting, and no call more for a chunk.
            self._get_or_open_table(self._only, self._plan).decoder.add_chunk(
                chunk, only_note_needs=False
            )
            return
        for target, some in self._router.split(chunk):
            self._route_chunk(target, some)
        self._decode_until_waiting_fits()

    def decode_waiting(self) -> None:
        """Decode what waits.

        Raises ``TablesNotPlanned``, and what opening the one table raises if nothing came.
        """
        if self._only is not None:
            self._get_or_open_table(self._only, self._plan)
            if self._transformed is not None:
                self._transformed.require_every_table_planned()
            return
        self._tables.require_every_table_planned()
        for _, table in sorted(self._open.items()):
            self._decode_table(table)

    def finish(self) -> BatchWritten | BatchNeeds:
        # Both before any file is finished: files of an attempt that does not count are discarded.
        self._rejected.require_no_stop()
        if needs := self._batch_needs():
            self.discard()
            return needs
        secondary = self._outlets.finish()
        own = secondary.pop(self._only.destination, ()) if self._only else ()
        if self._rejected.reasons:
            log_unmatched_if_not_recent(self._rejected.reasons)
        quarantined = self._rejected.finish()
        results = self._prefilter.partition_results(*self._record_and_delete_counts())
        return BatchWritten(
            self._batch.number,
            results,
            own,
            quarantined,
            secondary,
            self._ignored_counts_by_description(),
        )

    def discard(self) -> None:
        self._rejected.discard()
        self._outlets.discard()

    def _reject_bad(self, chunk: Chunk, bad: Mapping[int, str]) -> None:
        self._rejected.reject_bad(chunk, bad, BAD_VALUE)

    def _route_chunk(self, target: Target | None, chunk: Chunk) -> None:
        chunk = self._take_rowless_tombstones_out(target, chunk)
        if not len(chunk.offsets):
            return
        if target is not None and (reason := self._tables.why_reserved(target)):
            self._rejected.reject_bad(
                chunk, dict.fromkeys(range(len(chunk.offsets)), reason), OWN_TABLE
            )
            return
        if target is not None and (trouble := self._tables.why_diverted(target)):
            self._rejected.divert_or_stop(chunk, target.table, trouble)
            return
        routed = self._tables.resolve_or_request_table(target)
        if routed is None:
            return
        if target is not None and isinstance(routed, RoutedTable) and routed.creation is not None:
            self._note_new_table(target, routed.creation).note_needed_columns(chunk)
            return
        if isinstance(routed, str) or routed.plan is None:
            self._rejected.reject_unmatched(chunk, str(routed))
            return
        table = self._get_or_open_table(routed, routed.plan)
        table.add_waiting(chunk)
        if table.is_worth_decoding:
            self._decode_table(table)

    def _take_rowless_tombstones_out(self, target: Target | None, chunk: Chunk) -> Chunk:
        """Take tombstones out, except for keyed tables, for which they are changes.

        ``chunk``: records of one topic.
        """
        if not self._routing.keys or (target and self._routing.key_of(target.table)):
            return chunk
        if target is not None or self._partitions[chunk.places[0]].topic not in self._changing:
            return self._rejected.take_tombstones_out(chunk)
        unrouted = self._plan.source.handling.unrouted_tombstones
        return self._rejected.take_tombstones_out(chunk, unrouted) if unrouted else chunk

    def _decode_until_waiting_fits(self) -> None:
        """Bound what waits."""
        # The fetcher lends headers until the next chunk: after that their memory holds others'.
        for table in self._open.values():
            table.detach_waiting_chunks()
        while sum(table.waiting_bytes for table in self._open.values()) > _WAITING_BYTES_MAX:
            self._decode_table(max(self._open.values(), key=lambda table: table.waiting_bytes))

    def _decode_table(self, table: _Table) -> None:
        table.decode_waiting(only_note_needs=self._only_note_needs)
        self._only_note_needs |= bool(table.decoder.missing_columns)
        self._outlets.flush_largest_until_within_limit()

    def _note_new_table(self, target: Target, creation: CreationSource) -> NewTable:
        new_table = self._new_tables.get(target.table)
        if new_table is None:
            new_table = NewTable(target.table, target.raw, creation, list(self._batch.ranges))
            self._new_tables[target.table] = new_table
            self._only_note_needs = True
        return new_table

    def _batch_needs(self) -> BatchNeeds | None:
        """Return what is needed; of one table START says which it is.

        Raises ``TablesNotPlanned``.
        """
        number = self._batch.number
        if self._only is not None:
            needs = self._open[self._only.name].decoder.missing_columns
            return needs.to_batch_needs(number) if needs else None
        if self._tables.postponed and not self._new_tables:
            raise TablesNotPlanned(frozenset({self._tables.postponed}))
        missing = self._needs_of_tables()
        return merge_table_needs(number, missing) if missing else None

    def _needs_of_tables(self) -> tuple[TableNeed, ...]:
        """SCHEMA-2: what any of the tables lacks. Topics first: nothing slows their tables down
        (ROUTE-4)."""
        names = sorted(self._new_tables, key=lambda name: not self._tables.is_named_by_topic(name))
        new = [self._new_tables[name].table_need for name in names[:NEW_MAX]]
        evolving = [
            needs.to_table_need(table.at)
            for table in self._open.values()
            if (needs := table.decoder.missing_columns)
        ]
        return (*new, *evolving)

    def _ignored_counts_by_description(self) -> Mapping[str, int]:
        """Return how many records have fields that become no column (SCHEMA-6).

        They are counted by a text for people: the table, if there are many, and the joined paths.
        """
        return {
            paths if self._only else f"{table.at.table}: {paths}": records
            for table in self._open.values()
            for paths, records in table.decoder.ignored_field_counts().items()
        }

    def _record_and_delete_counts(self) -> tuple[Integers, Integers]:
        """Return, by place, how many records became rows of any table, and how many delete rows."""
        records, deleted = np.zeros((2, len(self._batch.ranges)), np.int64)
        for table in self._open.values():
            records += table.decoder.row_counts
            deleted += table.decoder.deleted_counts
        if self._transformed is not None:
            records -= self._transformed.left_out
        return records, deleted

    def _get_or_open_table(self, routed: RoutedTable, plan: WriterPlan) -> _Table:
        table = self._open.get(routed.name)
        if table is None:
            outlet = self._transformed or self._outlets.get_or_open_outlet(routed, plan)
            decoder = new_decoder(routed, plan, self._batch, rejected=self._rejected, outlet=outlet)
            table = self._open[routed.name] = _Table(routed.destination, decoder)
        return table


def _transformed_rows(
    plan: WriterPlan, batch: Batch, rejected: RejectedRecords, outlets: Outlets
) -> TransformedRows:
    # Only for sinks with a function: no other needs what routes its result.
    from headgate.data_plane.write.transformed_rows import TransformedRows

    return TransformedRows(plan, batch, rejected=rejected, outlets=outlets)


# ------------------------------------------------------------------------------------------ entries


def write_ranges(
    plan: WriterPlan, batch: Batch, *, abandoned: Callable[[], bool] = lambda: False
) -> BatchWritten | BatchNeeds:
    """Read exactly the batch's ranges from the source, and write them; errors as ``write_chunks``.

    Also raises ``OffsetOutOfRange``, ``TopicRecreated`` and ``MissingRights``.
    """
    # Closed at once on an error too: a suspended reader would go on fetching behind our back.
    with closing(read_source_in_chunks(plan, batch)) as chunks:
        return write_chunks(plan, batch, chunks, abandoned=abandoned)


def read_source_in_chunks(plan: WriterPlan, batch: Batch) -> Generator[Chunk, None, None]:
    """Yield all records of the batch's ranges, with the parts that the plan asks for. Close it."""
    source, parts = plan.source, plan.wanted_record_parts()
    by_header = source.routing is not None and any(r.header for r in source.routing.routes)
    request = ReadRequest(
        source.kafka,
        batch.ranges,
        source.topic_ids,
        with_keys="key" in parts
        or source.handling.keeps_rejected_records
        or source.feeds_keyed_tables,
        with_headers="headers" in parts
        or source.handling.keeps_rejected_records
        or by_header
        or any(source.schema_id_headers),
    )
    return read_ranges(request)


def write_chunks(
    plan: WriterPlan,
    batch: Batch,
    chunks: Iterable[Chunk],
    *,
    abandoned: Callable[[], bool] = lambda: False,
) -> BatchWritten | BatchNeeds:
    """Write the chunks, which hold exactly the batch's ranges. On any error no file is left.

    Raises ``PoisonRecord``, ``TooManyBadRecords``, ``ConfigurationError``, ``TableChanged``,
    ``BatchAbandoned``, ``SourceTruncated``, ``TablesNotPlanned`` (with all of them), whatever
    reading the chunks raises; for anything else ``WriteFailed``, or ``Unforeseen`` where no other
    system is to blame.
    """
    rows = BatchRows(plan, batch, FileOutlets(batch))
    try:
        for chunk in chunks:
            rows.add_chunk(chunk)
            raise_if_abandoned(batch, abandoned)
        rows.decode_waiting()
        return rows.finish()
    except BaseException as error:
        rows.discard()
        if isinstance(error, HeadgateError) or not isinstance(error, Exception):
            raise
        shown = plan.source.handling.keeps_content
        raise translate_write_error(error, batch, with_text=shown) from error


def write_ranges_around_poison(
    plan: WriterPlan, batch: Batch, *, abandoned: Callable[[], bool] = lambda: False
) -> BatchOutcome:
    """Read the batch's ranges from the source and write them. Raises ``BatchAbandoned``."""

    def attempt(plan: WriterPlan, batch: Batch) -> BatchOutcome:
        write = partial(write_ranges, plan, batch, abandoned=abandoned)
        return try_write(batch.number, write)

    return write_around_poison(attempt, plan, batch)


def write_chunk_around_poison(
    plan: WriterPlan, batch: Batch, chunk: Chunk, *, abandoned: Callable[[], bool] = lambda: False
) -> BatchOutcome:
    """Write the chunk, which holds exactly the batch's ranges. Raises ``BatchAbandoned``."""

    def attempt(plan: WriterPlan, part: Batch) -> BatchOutcome:
        chunks = [chunk if part is batch else _chunk_within_ranges(chunk, part)]
        write = partial(write_chunks, plan, part, chunks, abandoned=abandoned)
        return try_write(part.number, write)

    return write_around_poison(attempt, plan, batch)


def _chunk_within_ranges(chunk: Chunk, part: Batch) -> Chunk:
    begins = np.array([span.begin for span in part.ranges.values()], np.int64)[chunk.places]
    ends = np.array([span.end for span in part.ranges.values()], np.int64)[chunk.places]
    return chunk.filter((chunk.offsets >= begins) & (chunk.offsets < ends))
