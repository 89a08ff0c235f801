"""Writes the records of a batch into files of its tables: one table, or those that routes name.

Fetched, put or handed on by Spark, with keys or without, records take this way: chunk, sieve,
route, per table decode and shape, outlet. With routes, records are told apart by columns, and wait
undecoded until a portion of their table is worth decoding. One table is what routes with one answer
would be: each chunk is decoded at once, uncut and uncopied.

At most one fetched chunk, the records and rows that wait, and the open files' buffers are in
memory, whatever the ranges' length; all tables of a batch share these bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Protocol

import numpy as np

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.events import Destination
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import Batch, BatchNeeds, BatchOutcome, BatchWritten, TableNeed
from headgate.data_plane.batch.batch_failures import TablesWanted, attempted, go_on, write_failed
from headgate.data_plane.batch.routed_table import Making, RoutedTable, of_start
from headgate.data_plane.batch.routes import Target
from headgate.data_plane.batch.write_plan import WriterPlan
from headgate.data_plane.quarantine.poison_search import narrowed
from headgate.data_plane.quarantine.prefilter import Sieve
from headgate.data_plane.quarantine.rejected_records import BAD_VALUE, OWN_TABLE, Aside
from headgate.data_plane.routing.keyed_routes import may_key
from headgate.data_plane.routing.router import Router
from headgate.data_plane.routing.targets import NEW_MAX, KnownTables, Newcomer, tell
from headgate.data_plane.write.change_decode import ChangedRows
from headgate.data_plane.write.decode import Decoding
from headgate.data_plane.write.missing_columns import Needs
from headgate.data_plane.write.table_outlets import ManyFiles, Outlets, TableFiles, TableOutlet
from headgate.kafka.record_fetch import Chunk, ReadRequest, read_ranges
from headgate.native.kernels import Integers

_PORTION = (1024 * 1024, 8_192)
"""So many bytes or records of a table are worth decoding: each portion costs 0.7 ms."""
_LENT_PORTION = (256 * 1024, 512)
"""The same where headers would have to be kept for it."""
_WAITING_BYTES_MAX = 64 * 1024 * 1024


class TableReading(Protocol):
    """The records of one table of a batch, on their way.

    By place of the batch's ranges: ``records`` became rows, those ``deleted`` are in key files.
    """

    @property
    def records(self) -> Integers: ...

    @property
    def deleted(self) -> Integers: ...

    @property
    def needs(self) -> Needs | None:
        """What the table lacks for some of them (S2)."""

    def take(self, chunk: Chunk, *, in_vain: bool) -> None:
        """Take sifted records, as ``aside`` does those that become no rows.

        ``in_vain``: nothing of this attempt will count, only needs. Nor does anything once a record
        stops the sink; but the first such record of each partition does (P14).
        """

    def ignored(self) -> Mapping[str, int]:
        """As ``Decoding.ignored``."""


def reading_of(
    known: RoutedTable, plan: WriterPlan, batch: Batch, *, aside: Aside, outlet: TableOutlet
) -> TableReading:
    """What is to become of the table's records. Raises ``ConfigurationError``."""
    if plan.source.changes is None:
        return Decoding(known, plan, batch, aside=aside, outlet=outlet)
    assert isinstance(outlet, TableFiles), "changes are written where they are read"
    return ChangedRows(known, plan, batch, aside=aside, outlet=outlet)


@dataclass(slots=True)
class _Table:
    """One table's share of a batch under way."""

    at: Destination
    reading: TableReading
    waiting: list[Chunk] = field(default_factory=list)
    waiting_records: int = 0
    waiting_bytes: int = 0

    def waits(self, chunk: Chunk) -> None:
        self.waiting.append(chunk)
        self.waiting_records += len(chunk.offsets)
        self.waiting_bytes += int(chunk.lengths.sum())

    @property
    def worth_decoding(self) -> bool:
        lent = self.waiting[-1].headers is not None
        octets, records = _LENT_PORTION if lent else _PORTION
        return self.waiting_records >= records or self.waiting_bytes >= octets

    def decode(self, *, in_vain: bool = False) -> None:
        """``in_vain``: nothing of this attempt will count, only what records need."""
        if self.waiting:
            chunk = Chunk.joined(self.waiting)
            self.waiting, self.waiting_records, self.waiting_bytes = [], 0, 0
            self.reading.take(chunk, in_vain=in_vain)

    def keep(self) -> None:
        """Keep what waits beyond the chunk that it came with, which may have brought several: one
        for each topic."""
        self.waiting = [chunk.kept() for chunk in self.waiting]


def needed(number: int, tables: tuple[TableNeed, ...]) -> BatchNeeds:
    """What all tables together need: in each partition the first record that waits."""
    first = reduce(Offsets.earliest, (need.first for need in tables))
    records = sum(need.records for need in tables)
    return BatchNeeds(number, first=first, records=records, tables=tables)


class BatchRows:
    """The records of one batch on their way to ``outlets``, table by table.

    ``take`` all chunks, then ``end``, which decodes what waits, then ``finish``; or ``discard``.
    Where records need more than there is, ``finish`` says what, and no file is left. Routes behind
    a transform look at its rows (``result_routing``), not here.
    """

    def __init__(self, plan: WriterPlan, batch: Batch, outlets: Outlets) -> None:
        self._plan = plan
        self._batch = batch
        self._outlets = outlets
        self._aside = Aside(plan, batch)
        self._partitions = list(batch.ranges)
        self._open: dict[str, _Table] = {}
        self._newcomers: dict[str, Newcomer] = {}
        self._in_vain = False
        self._only: RoutedTable | None = None
        routing = plan.source.routing
        if routing is None or plan.shaping.transform is not None:
            self._only, tombstones = of_start(plan, batch), plan.source.takes_tombstones
        else:
            self._routing, tombstones = routing, bool(routing.keys)
            self._known = KnownTables(plan, batch)
            self._router = Router(plan.source, batch, self._take_bad, self._known.alike)
            topics = {at.topic for at in batch.ranges}
            self._changing = {topic for topic in topics if may_key(routing, topic)}
        self._sieve = Sieve(batch, self._aside, plan.condemned, tombstones=tombstones)

    def take(self, chunk: Chunk) -> None:
        """Raises what ``aside`` raises about records that become no rows."""
        chunk = self._sieve.sifted(chunk)
        if self._only is not None:
            self._table(self._only, self._plan).reading.take(chunk, in_vain=False)
            return
        for target, some in self._router.split(chunk):
            self._take(target, some)
        self._between_chunks()

    def end(self) -> None:
        """Raises ``TablesWanted``, and what opening the one table raises if nothing came."""
        if self._only is not None:
            self._table(self._only, self._plan)
            return
        self._known.require()
        for _, table in sorted(self._open.items()):
            self._decode(table)

    def finish(self) -> BatchWritten | BatchNeeds:
        self._aside.require_none()
        if needs := self._needed():
            self.discard()
            return needs
        followed = self._outlets.finish()
        own = followed.pop(self._only.at, ()) if self._only else ()
        if self._aside.reasons:
            tell(self._aside.reasons)
        quarantined = self._aside.finish()
        results = self._sieve.results(*self._counts())
        return BatchWritten(
            self._batch.number, results, own, quarantined, followed, self._ignored()
        )

    def discard(self) -> None:
        self._aside.discard()
        self._outlets.discard()

    def _take_bad(self, chunk: Chunk, bad: Mapping[int, str]) -> None:
        self._aside.take(chunk, bad, BAD_VALUE)

    def _take(self, target: Target | None, chunk: Chunk) -> None:
        chunk = self._without_tombstones(target, chunk)
        if not len(chunk.offsets):
            return
        if target is not None and (reason := self._known.own(target)):
            self._aside.take(chunk, dict.fromkeys(range(len(chunk.offsets)), reason), OWN_TABLE)
            return
        if target is not None and (trouble := self._known.trouble(target)):
            self._aside.diverted(chunk, target.table, trouble)
            return
        found = self._known.find(target)
        if found is None:
            return
        if target is not None and isinstance(found, RoutedTable) and found.making is not None:
            self._newcomer(target, found.making).take(chunk)
            return
        if isinstance(found, str) or found.plan is None:
            self._aside.unmatched(chunk, str(found))
            return
        table = self._table(found, found.plan)
        table.waits(chunk)
        if table.worth_decoding:
            self._decode(table)

    def _without_tombstones(self, target: Target | None, chunk: Chunk) -> Chunk:
        """Of a key they are changes, whose table takes them, or which are as unmatched as others.

        ``chunk``: records of one topic.
        """
        if not self._routing.keys or (target and self._routing.key_of(target.table)):
            return chunk
        if target is not None or self._partitions[chunk.places[0]].topic not in self._changing:
            return self._aside.without_tombstones(chunk)
        untold = self._plan.source.handling.untold_tombstones
        return self._aside.without_tombstones(chunk, untold) if untold else chunk

    def _between_chunks(self) -> None:
        """Bounds what waits; headers are lent until the next chunk."""
        for table in self._open.values():
            table.keep()
        while sum(table.waiting_bytes for table in self._open.values()) > _WAITING_BYTES_MAX:
            self._decode(max(self._open.values(), key=lambda table: table.waiting_bytes))

    def _decode(self, table: _Table) -> None:
        table.decode(in_vain=self._in_vain)
        self._in_vain |= bool(table.reading.needs)
        self._outlets.flush_largest()

    def _newcomer(self, target: Target, making: Making) -> Newcomer:
        newcomer = self._newcomers.get(target.table)
        if newcomer is None:
            newcomer = Newcomer(target.table, target.raw, making, list(self._batch.ranges))
            self._newcomers[target.table] = newcomer
            self._in_vain = True
        return newcomer

    def _needed(self) -> BatchNeeds | None:
        """Return what is needed; of one table START says which it is. Raises ``TablesWanted``."""
        number = self._batch.number
        if self._only is not None:
            needs = self._open[self._only.name].reading.needs
            return needs.outcome(number) if needs else None
        if self._known.put_off and not self._newcomers:
            raise TablesWanted(frozenset({self._known.put_off}))
        lacking = self._needs()
        return needed(number, lacking) if lacking else None

    def _needs(self) -> tuple[TableNeed, ...]:
        """S2: what any of the tables lacks. Topics first: nothing slows their tables down (R4)."""
        names = sorted(self._newcomers, key=lambda name: not self._known.by_topic(name))
        new = [self._newcomers[name].need for name in names[:NEW_MAX]]
        evolving = [
            needs.of_table(table.at)
            for table in self._open.values()
            if (needs := table.reading.needs)
        ]
        return (*new, *evolving)

    def _ignored(self) -> Mapping[str, int]:
        """By table and path: fields of how many records become no column (S6)."""
        return {
            paths if self._only else f"{table.at.table}: {paths}": records
            for table in self._open.values()
            for paths, records in table.reading.ignored().items()
        }

    def _counts(self) -> tuple[Integers, Integers]:
        """By place, how many records became rows of any table, and how many delete rows."""
        records, deleted = np.zeros((2, len(self._batch.ranges)), np.int64)
        for table in self._open.values():
            records += table.reading.records
            deleted += table.reading.deleted
        return records, deleted

    def _table(self, known: RoutedTable, plan: WriterPlan) -> _Table:
        table = self._open.get(known.name)
        if table is None:
            outlet = self._outlets.of(known, plan)
            reading = reading_of(known, plan, self._batch, aside=self._aside, outlet=outlet)
            table = self._open[known.name] = _Table(known.at, reading)
        return table


# ------------------------------------------------------------------------------------------ entries


def write_ranges(
    plan: WriterPlan, batch: Batch, *, abandoned: Callable[[], bool] = lambda: False
) -> BatchWritten | BatchNeeds:
    """Read exactly the batch's ranges from the source, and write them; errors as ``write_chunks``.

    Also raises ``OffsetOutOfRange``, ``TopicRecreated`` and ``MissingRights``.
    """
    # Closed at once on an error too: a suspended reader would go on fetching behind our back.
    with closing(chunks_of(plan, batch)) as chunks:
        return write_chunks(plan, batch, chunks, abandoned=abandoned)


def chunks_of(plan: WriterPlan, batch: Batch) -> Generator[Chunk, None, None]:
    """Yield all records of the batch's ranges, with the parts that the plan asks for. Close it."""
    source, parts = plan.source, plan.record_parts()
    by_header = source.routing is not None and any(r.header for r in source.routing.routes)
    reading = ReadRequest(
        source.kafka,
        batch.ranges,
        source.topic_ids,
        with_keys="key" in parts or source.handling.keeps or source.has_keys,
        with_headers="headers" in parts or source.handling.keeps or by_header,
    )
    return read_ranges(reading)


def write_chunks(
    plan: WriterPlan,
    batch: Batch,
    chunks: Iterable[Chunk],
    *,
    abandoned: Callable[[], bool] = lambda: False,
) -> BatchWritten | BatchNeeds:
    """Write the chunks, which hold exactly the batch's ranges. On any error no file is left.

    Raises ``PoisonRecord``, ``TooManyBadRecords``, ``ConfigurationError``, ``TableChanged``,
    ``Abandoned``, ``SourceTruncated``, ``TablesWanted`` (all that it wants), whatever reading the
    chunks raises; for anything else ``WriteFailed``, or ``Unforeseen`` where no other system is to
    blame.
    """
    rows = BatchRows(plan, batch, ManyFiles(batch))
    try:
        for chunk in chunks:
            rows.take(chunk)
            go_on(batch, abandoned)
        rows.end()
        return rows.finish()
    except BaseException as error:
        rows.discard()
        if isinstance(error, HeadgateError) or not isinstance(error, Exception):
            raise
        raise write_failed(error, batch) from error


def write_narrowed(
    plan: WriterPlan, batch: Batch, *, abandoned: Callable[[], bool] = lambda: False
) -> BatchOutcome:
    """Read the batch's ranges from the source and write them. Raises ``Abandoned``."""

    def attempt(plan: WriterPlan, batch: Batch) -> BatchOutcome:
        write = partial(write_ranges, plan, batch, abandoned=abandoned)
        return attempted(batch.number, write)

    return narrowed(attempt, plan, batch)


def write_put(
    plan: WriterPlan, batch: Batch, chunk: Chunk, *, abandoned: Callable[[], bool] = lambda: False
) -> BatchOutcome:
    """Write the chunk, which holds exactly the batch's ranges. Raises ``Abandoned``."""

    def attempt(plan: WriterPlan, part: Batch) -> BatchOutcome:
        chunks = [chunk if part is batch else _within(chunk, part)]
        write = partial(write_chunks, plan, part, chunks, abandoned=abandoned)
        return attempted(part.number, write)

    return narrowed(attempt, plan, batch)


def _within(chunk: Chunk, part: Batch) -> Chunk:
    begins = np.array([span.begin for span in part.ranges.values()], np.int64)[chunk.places]
    ends = np.array([span.end for span in part.ranges.values()], np.int64)[chunk.places]
    return chunk.where((chunk.offsets >= begins) & (chunk.offsets < ends))
