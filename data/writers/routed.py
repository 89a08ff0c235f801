"""Offset ranges in, data files of many tables out: each record goes where the routes send it.

Records are told apart by columns, and wait undecoded until a portion of their table is worth
decoding. All tables of a batch share one bound for open files and one for rows (rule R6).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.events import Destination
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import Batch, BatchNeeds, BatchWritten
from headgate.control_protocol.table_changes import TableNeed
from headgate.data.writers.aside import BAD_VALUE, OWN_TABLE, Aside
from headgate.data.writers.failures import TablesWanted, go_on, write_failed
from headgate.data.writers.keyed_routes import may_key
from headgate.data.writers.known_tables import NEW_MAX, KnownTables
from headgate.data.writers.many_files import Followed, ManyFiles, Outlets
from headgate.data.writers.newcomers import Newcomer
from headgate.data.writers.plan import SourcePlan, WriterPlan
from headgate.data.writers.route_values import RouteValues
from headgate.data.writers.routed_table import Making, RoutedTable
from headgate.data.writers.routes import Names, Route, Target
from headgate.data.writers.sieve import Sieve, others
from headgate.data.writers.table_readings import TableReading, reading_of
from headgate.data.writers.unmatched import tell
from headgate.kafka.fetch import Chunk
from headgate.native.loops import Integers

_PORTION = (1024 * 1024, 8_192)
"""So many bytes or records of a table are worth decoding: each portion costs 0.7 ms."""
_LENT_PORTION = (256 * 1024, 512)
"""The same where headers would have to be kept for it."""
_WAITING_BYTES_MAX = 64 * 1024 * 1024


@dataclass(slots=True)
class _Rule:
    """A route for the records of one topic. ``values``: of one that looks at more than that."""

    route: Route
    names: Names
    values: RouteValues | None


Alike = Callable[[Target], Hashable]
"""Returns the same for tables whose records are dealt with together."""

OnBad = Callable[[Chunk, Mapping[int, str]], None]
"""Takes those records of a chunk, by their place, whose value cannot be read, with the reasons."""


class Router:
    """Splits chunks of one batch by table. Serves one thread.

    Where a route looks at values, what has none goes to no table: nothing tells of which it is.
    """

    def __init__(
        self, source: SourcePlan, batch: Batch, on_bad: OnBad, alike: Alike = lambda target: target
    ) -> None:
        self._on_bad = on_bad
        self._alike = alike
        routing = source.routing
        assert routing is not None, "chosen for it"
        self._topics = [at.topic for at in batch.ranges]
        known = sorted(set(self._topics))
        self._codes = np.array([known.index(topic) for topic in self._topics], np.int64)
        values = {route: _values(route, source) for route in routing.routes}
        self._rules = [
            [_Rule(route, Names(route, parts), values[route]) for route, parts in found]
            for found in map(routing.of_topic, known)
        ]

    def split(self, chunk: Chunk) -> Iterator[tuple[Target | None, Chunk]]:
        """The chunk's records by table; ``None`` for those that no route matches, and of tables
        that are alike any of them."""
        codes = self._codes[chunk.places]
        for code in np.unique(codes).tolist():
            yield from self._of_topic(code, _where(chunk, codes == code))

    def _of_topic(self, code: int, chunk: Chunk) -> Iterator[tuple[Target | None, Chunk]]:
        for rule in self._rules[code]:
            if rule.values is None:
                yield rule.names.alone(), chunk
                return
            if rule.route.by_value and chunk.values.array.null_count:
                there = np.asarray(chunk.values.array.is_valid())
                yield None, chunk.where(~there)
                chunk = chunk.where(there)
                if not len(chunk.offsets):
                    return
            found = rule.values.of(chunk)
            which = found.codes
            if found.bad:
                self._on_bad(chunk, found.bad)
                good = others(chunk, found.bad)
                chunk, which = chunk.where(good), which[good]
            named = [rule.names.of(value) for value in found.distinct]
            taken = np.array([target is not None for target in named] + [False], np.bool_)
            yield from _by_target(chunk, which, named, self._alike)
            chunk = _where(chunk, ~taken[which])
            if not len(chunk.offsets):
                return
        yield None, chunk


def _values(route: Route, source: SourcePlan) -> RouteValues | None:
    return None if route.by_topic else RouteValues(route, source)


def _by_target(
    chunk: Chunk, codes: Integers, named: list[Target | None], alike: Alike
) -> Iterator[tuple[Target, Chunk]]:
    groups: dict[Hashable, tuple[int, Target]] = {}
    places: dict[Target, int] = {}
    for target in sorted({target for target in named if target is not None}):
        places[target], _ = groups.setdefault(alike(target), (len(groups), target))
    there = [target for _, target in groups.values()]
    of_value = np.array([places[t] if t else -1 for t in named] + [-1], np.int64)
    of_record = of_value[codes]
    taken = of_record >= 0
    for place, some in _where(chunk, taken).grouped(of_record[taken]):
        yield there[place], some


def _where(chunk: Chunk, wanted: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Chunk:
    return chunk if wanted.all() else chunk.where(wanted)


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


def write_routed(
    plan: WriterPlan,
    batch: Batch,
    chunks: Iterable[Chunk],
    *,
    abandoned: Callable[[], bool] = lambda: False,
) -> BatchWritten | BatchNeeds:
    """Write the chunks, which hold exactly the batch's ranges. On any error no file is left.

    Raises ``TablesWanted`` with all the tables that it wants, and as ``write_chunks``.
    """
    routed = RoutedBatch(plan, batch, ManyFiles(batch))
    try:
        for chunk in chunks:
            routed.take(chunk)
            go_on(batch, abandoned)
        routed.end()
        return routed.finish()
    except BaseException as error:
        routed.discard()
        if isinstance(error, HeadgateError) or not isinstance(error, Exception):
            raise
        raise write_failed(error, batch) from error


def needed(number: int, tables: tuple[TableNeed, ...]) -> BatchNeeds:
    """What all tables together need: in each partition the first record that waits."""
    first = reduce(Offsets.earliest, (need.first for need in tables))
    records = sum(need.records for need in tables)
    return BatchNeeds(number, first=first, records=records, tables=tables)


class RoutedBatch:
    """The records of one batch on their way to ``outlets``, table by table.

    ``take`` all chunks, then ``end``, which decodes what waits, then ``finish``; or ``discard``.
    Where records need more than there is, ``finish`` says what, and no file is left.
    """

    def __init__(self, plan: WriterPlan, batch: Batch, outlets: Outlets) -> None:
        self._plan = plan
        self._batch = batch
        self._outlets = outlets
        self._aside = Aside(plan, batch)
        self._known = KnownTables(plan, batch)
        assert plan.source.routing is not None, "chosen for it"
        self._routing = plan.source.routing
        keyed = bool(self._routing.keys)
        self._sieve = Sieve(batch, self._aside, plan.condemned, tombstones=keyed)
        self._router = Router(plan.source, batch, self._take_bad, self._known.alike)
        topics = {at.topic for at in batch.ranges}
        self._changing = {topic for topic in topics if may_key(self._routing, topic)}
        self._partitions = list(batch.ranges)
        self._open: dict[str, _Table] = {}
        self._newcomers: dict[str, Newcomer] = {}
        self._in_vain = False

    def take(self, chunk: Chunk) -> None:
        """Raises what ``aside`` raises about records that become no rows."""
        for target, some in self._router.split(self._sieve.sifted(chunk)):
            self._take(target, some)
        self._between_chunks()

    def end(self) -> None:
        """Raises ``TablesWanted``."""
        self._known.require()
        for _, table in sorted(self._open.items()):
            self._decode(table)

    def finish(self) -> BatchWritten | BatchNeeds:
        self._aside.require_none()
        if self._known.put_off and not self._newcomers:
            raise TablesWanted(frozenset({self._known.put_off}))
        if needs := self._needs():
            self.discard()
            return needed(self._batch.number, needs)
        followed: Followed = self._outlets.finish()
        tell(self._aside.reasons)
        quarantined = self._aside.finish()
        results = self._sieve.results(*self._counts())
        return BatchWritten(self._batch.number, results, (), quarantined, followed, self._ignored())

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
            return self._sieve.without_tombstones(chunk)
        untold = self._plan.source.handling.untold_tombstones
        return self._sieve.without_tombstones(chunk, untold) if untold else chunk

    def _between_chunks(self) -> None:
        """Bounds what waits; headers are lent until the next chunk."""
        for table in self._open.values():
            table.keep()
        while sum(table.waiting_bytes for table in self._open.values()) > _WAITING_BYTES_MAX:
            self._decode(max(self._open.values(), key=lambda table: table.waiting_bytes))

    def _decode(self, table: _Table) -> None:
        table.decode(in_vain=self._in_vain or self._aside.stopping)
        self._in_vain |= bool(table.reading.needs)
        self._outlets.flush_largest()

    def _newcomer(self, target: Target, making: Making) -> Newcomer:
        newcomer = self._newcomers.get(target.table)
        if newcomer is None:
            newcomer = Newcomer(target.table, target.raw, making, list(self._batch.ranges))
            self._newcomers[target.table] = newcomer
            self._in_vain = True
        return newcomer

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
            f"{table.at.table}: {paths}": records
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
            at = Destination(known.name, known.uuid, known.schema_id)
            reading = reading_of(known, plan, self._batch, aside=self._aside, outlet=outlet)
            table = self._open[known.name] = _Table(at, reading)
        return table
