"""Offset ranges in, data files of many tables out: each record goes where the routes send it.

Records are told apart by columns, and wait undecoded until a portion of their table is worth
decoding. All tables of a batch share one bound for open files and one for rows (rule R6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from headgate.control_protocol.errors import ConfigurationError, HeadgateError
from headgate.control_protocol.events import DataFile, Destination
from headgate.control_protocol.ports import Batch, BatchWritten
from headgate.data.writers.aside import BAD_VALUE, Aside
from headgate.data.writers.decoding import Decoding
from headgate.data.writers.failures import TablesWanted, go_on, write_failed
from headgate.data.writers.parquet import DataFiles, file_shape
from headgate.data.writers.partitioned_rows import BUFFER_BYTES, PartitionedRows
from headgate.data.writers.plan import RoutedTable, SourcePlan, WriterPlan
from headgate.data.writers.pools import OpenFiles
from headgate.data.writers.route_values import RouteValues
from headgate.data.writers.routes import Names, Route, Target
from headgate.data.writers.sieve import Sieve, others
from headgate.data.writers.unmatched import tell
from headgate.kafka.fetch import Chunk
from headgate.native.loops import Integers

_PORTION = (1024 * 1024, 8_192)
"""So many bytes or records of a table are worth decoding: each portion costs 0.7 ms."""
_LENT_PORTION = (256 * 1024, 512)
"""The same where headers would have to be kept for it."""
_WAITING_BYTES_MAX = 64 * 1024 * 1024

NO_ROUTE = "no route sends it to a table"


@dataclass(slots=True)
class _Rule:
    """A route for the records of one topic. ``values``: of one that looks at more than that."""

    route: Route
    names: Names
    values: RouteValues | None


class Router:
    """Splits chunks of one batch by table. Serves one thread."""

    def __init__(self, source: SourcePlan, batch: Batch) -> None:
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
        self._alone = [routing.named_by(topic) for topic in known]

    def split(self, chunk: Chunk, aside: Aside) -> Iterator[tuple[Target | None, Chunk]]:
        """The chunk's records by table; ``None`` for those that no route matches."""
        codes = self._codes[chunk.places]
        for code in np.unique(codes).tolist():
            yield from self._of_topic(code, _where(chunk, codes == code), aside)

    def _of_topic(
        self, code: int, chunk: Chunk, aside: Aside
    ) -> Iterator[tuple[Target | None, Chunk]]:
        for rule in self._rules[code]:
            if rule.values is None:
                yield self._alone[code], chunk
                return
            found = rule.values.of(chunk)
            which = found.codes
            if found.bad:
                aside.take(chunk, found.bad, BAD_VALUE)
                good = others(chunk, found.bad)
                chunk, which = chunk.where(good), which[good]
            named = [rule.names.of(value) for value in found.distinct]
            taken = np.array([target is not None for target in named] + [False], np.bool_)
            yield from _by_target(chunk, which, named)
            chunk = _where(chunk, ~taken[which])
            if not len(chunk.offsets):
                return
        yield None, chunk


def _values(route: Route, source: SourcePlan) -> RouteValues | None:
    return None if route.by_topic else RouteValues(route, source)


def _by_target(
    chunk: Chunk, codes: Integers, named: list[Target | None]
) -> Iterator[tuple[Target, Chunk]]:
    there = sorted({target for target in named if target is not None})
    places = {target: place for place, target in enumerate(there)}
    of_value = np.array([places.get(t, -1) if t else -1 for t in named] + [-1], np.int64)
    of_record = of_value[codes]
    taken = of_record >= 0
    for place, some in _where(chunk, taken).grouped(of_record[taken]):
        yield there[place], some


def _where(chunk: Chunk, wanted: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Chunk:
    return chunk if wanted.all() else chunk.where(wanted)


@dataclass(slots=True)
class _Table:
    """One table's share of a batch under way."""

    known: RoutedTable
    decoding: Decoding
    rows: PartitionedRows
    files: DataFiles
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

    def decode(self) -> None:
        if self.waiting:
            chunk = Chunk.joined(self.waiting)
            self.waiting, self.waiting_records, self.waiting_bytes = [], 0, 0
            self.rows.take(self.decoding.rows_of(chunk).rows)

    def keep(self) -> None:
        """What waits is kept beyond the chunk that it came with."""
        if self.waiting:
            self.waiting[-1] = self.waiting[-1].kept()

    def finish(self) -> tuple[DataFile, ...]:
        self.decode()
        self.rows.flush()
        return self.files.finish()


def write_routed(
    plan: WriterPlan,
    batch: Batch,
    chunks: Iterable[Chunk],
    *,
    abandoned: Callable[[], bool] = lambda: False,
) -> BatchWritten:
    """Write the chunks, which hold exactly the batch's ranges. On any error no file is left.

    Raises ``TablesWanted`` with all the tables that it wants, and as ``write_chunks``.
    """
    aside = Aside(plan, batch)
    tables = _Tables(plan, batch, aside)
    try:
        sieve, router = Sieve(batch, aside, plan.condemned), Router(plan.source, batch)
        for chunk in chunks:
            for target, some in router.split(sieve.sifted(chunk), aside):
                tables.take(target, some)
            tables.between_chunks()
            go_on(batch, abandoned)
        followed = tables.finish()
        tell(aside.reasons)
        quarantined = aside.finish()
        results = sieve.results(tables.records())
        return BatchWritten(batch.number, results, (), quarantined, followed)
    except BaseException as error:
        aside.discard()
        tables.discard()
        if isinstance(error, HeadgateError) or not isinstance(error, Exception):
            raise
        raise write_failed(error, batch) from error


class _Tables:
    """All tables of one batch."""

    def __init__(self, plan: WriterPlan, batch: Batch, aside: Aside) -> None:
        if not batch.folder:
            raise ConfigurationError(
                "the coordinator names no folder for tables that are routed to",
                "start every participant with the same sink file",
            )
        assert plan.source.routing is not None, "chosen for it"
        self._plan = plan
        self._batch = batch
        self._aside = aside
        topics = sorted({*batch.topic_ids, *(at.topic for at in batch.ranges)})
        named = plan.source.routing.tables_of(topics)
        self._alone = {target.table: target.raw for target in named.values()}
        self._pool = OpenFiles()
        self._open: dict[str, _Table] = {}
        self._wanted: set[str] = set()

    def take(self, target: Target | None, chunk: Chunk) -> None:
        """Raises what ``aside`` raises about records that have no table."""
        if target is None:
            self._aside.unmatched(chunk, NO_ROUTE)
            return
        known = self._plan.tables.get(target.table)
        trouble = self._batch.parked.get(target.table) or (known.trouble if known else "")
        if trouble and self._plan.quarantine is not None:
            self._aside.diverted(chunk, f"{target.table}: {trouble}")
            return
        if known is None and self._is_listed(target.table):
            self._wanted.add(target.table)
        if self._wanted:
            return  # nothing of this attempt will count
        problem = self._problem(known, target)
        if known is None or known.plan is None or problem:
            self._aside.unmatched(chunk, problem)
            return
        table = self._table(known, known.plan)
        table.waits(chunk)
        if table.worth_decoding:
            table.decode()
            self._flush_largest()

    def between_chunks(self) -> None:
        """Bounds what waits; headers are lent until the next chunk."""
        for table in self._open.values():
            table.keep()
        while sum(table.waiting_bytes for table in self._open.values()) > _WAITING_BYTES_MAX:
            max(self._open.values(), key=lambda table: table.waiting_bytes).decode()
            self._flush_largest()

    def finish(self) -> dict[Destination, tuple[DataFile, ...]]:
        if self._wanted:
            raise TablesWanted(frozenset(self._wanted))
        written = {}
        for name, table in sorted(self._open.items()):
            at = Destination(name, table.known.uuid, table.known.schema_id)
            if files := table.finish():
                written[at] = files
        return written

    def discard(self) -> None:
        for table in self._open.values():
            table.files.discard()

    def records(self) -> Integers:
        """By place, how many records became rows of any table."""
        count = np.zeros(len(self._batch.ranges), np.int64)
        for table in self._open.values():
            count += table.decoding.records
        return count

    def _is_listed(self, name: str) -> bool:
        """Whether there is such a table, or nobody has looked yet."""
        namespace, _, table = name.rpartition(".")
        listed = self._plan.listed.get(namespace)
        return listed is None or table in listed

    def _problem(self, known: RoutedTable | None, target: Target) -> str:
        if known is None:
            return f"there is no table {target.table}, or tables.max of them are in use"
        if known.problem:
            return known.problem
        taken = known.raw_name or self._alone.get(target.table, target.table)
        if target.merge or target.raw == taken:
            return ""
        return (
            f"{target.raw} would go to {target.table}, which takes {taken}: merge = true in the "
            "route lets it"
        )

    def _table(self, known: RoutedTable, plan: WriterPlan) -> _Table:
        table = self._open.get(known.name)
        if table is None:
            shape = file_shape(plan)
            prefix = f"{plan.data_location}/{self._batch.folder}"
            target_bytes = self._batch.target_file_bytes
            files = DataFiles(shape, prefix, target_bytes, pool=self._pool)
            decoding = Decoding(
                plan.source, self._batch, shape.arrow_schema, plan.name_mapping(), aside=self._aside
            )
            rows = PartitionedRows(shape.partitioner, files)
            table = self._open[known.name] = _Table(known, decoding, rows, files)
        return table

    def _flush_largest(self) -> None:
        tables = self._open.values()
        while sum(table.rows.waiting_bytes for table in tables) > BUFFER_BYTES:
            max(tables, key=lambda table: table.rows.waiting_bytes).rows.flush()
