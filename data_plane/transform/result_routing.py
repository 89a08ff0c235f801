"""Sends a transform's result to many tables: each row goes where the routes send it (R1, R2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.ports import Batch
from headgate.data_plane.batch.record_numbers import Integers, Numbering
from headgate.data_plane.batch.routed_table import RoutedTable, of_start
from headgate.data_plane.batch.routes import TABLE_COLUMN, Names, Routing, Target
from headgate.data_plane.batch.write_plan import WriterPlan
from headgate.data_plane.routing.targets import KnownTables
from headgate.data_plane.transform.result_rows import (
    RECORD,
    Numbered,
    ResultRows,
    check_result,
    coordinate_columns,
    record_numbers,
    require_record,
    rows_before,
)


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of one table."""

    table: str
    numbered: Numbered

    @property
    def numbers(self) -> Integers:
        return self.numbered.numbers


@dataclass(frozen=True, slots=True)
class Apart:
    """Why records go to no table; ``table``: the one with the trouble, if that is why (I1);
    ``bad``: they name one of the sink's own."""

    reason: str
    table: str = ""
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Unmatched:
    """Records that go to no table, and why."""

    why: Apart
    numbers: Integers


Routed = TableRows | Unmatched


def check_routed(result: pa.Schema, plan: WriterPlan, name: str) -> None:
    """Check that routes can read such a result. Single tables are checked with their rows.

    Raises ``ConfigurationError``.
    """
    twice = sorted(column for column, count in Counter(result.names).items() if count > 1)
    if twice:
        raise ConfigurationError(f"{name} gives the column {twice[0]!r} twice", "name it once")
    require_record(result, name)
    assert plan.source.routing is not None, "chosen for it"
    if not any(route.field for route in plan.source.routing.routes):
        return
    if TABLE_COLUMN not in result.names:
        raise ConfigurationError(
            f"{name} gives no column {TABLE_COLUMN}, which a route looks at",
            "add it, as the expression that names the table",
        )
    kind = result.field(TABLE_COLUMN).type
    if not (kinds.is_string(kind) or kinds.is_large_string(kind)):
        raise ConfigurationError(f"{name} gives {TABLE_COLUMN} as {kind}", "CAST it to a string")


class _RowRouter:
    """Finds the tables of rows by their topics, and by the transform's routing columns."""

    def __init__(self, routing: Routing, numbering: Numbering) -> None:
        topics = [at.topic for at in numbering.partitions]
        known = sorted(set(topics))
        self._topic_of_place = np.array([known.index(topic) for topic in topics], np.int64)
        self._rules = [
            [(route.by_topic, Names(route, parts)) for route, parts in routing.of_topic(topic)]
            for topic in known
        ]

    def targets(self, places: Integers, said: pa.Array) -> tuple[Integers, list[Target]]:
        """Return, for each row, the index of its target, or -1 for none."""
        encoded = said.dictionary_encode()
        values = np.asarray(encoded.indices.fill_null(-1), np.int64)
        distinct: list[str] = encoded.dictionary.to_pylist()
        found: dict[Target, int] = {}
        codes = np.full(len(places), -1, np.int64)
        topics = self._topic_of_place[places]
        for topic in np.unique(topics).tolist():
            left = topics == topic
            for by_topic, names in self._rules[topic]:
                named = [names.alone()] if by_topic else [names.of(v) for v in distinct]
                numbers = [found.setdefault(t, len(found)) if t else -1 for t in named]
                chosen = np.array([*numbers, -1], np.int64)[0 if by_topic else values]
                codes = np.where(left, chosen, codes)
                left &= codes < 0
        return codes, list(found)


@dataclass(slots=True)
class _TableResult:
    """How one table takes a result; ``problem``: why it does not."""

    rows: ResultRows
    lacking: list[str] = field(default_factory=list)
    problem: str = ""


class ResultTables:
    """Turns a transform's batches into rows of START's table, or of those that routes name."""

    def __init__(self, plan: WriterPlan, batch: Batch, name: str) -> None:
        self._name = name
        self._numbering = Numbering(batch.ranges)
        self._only: RoutedTable | None = None
        if plan.source.routing is None:
            self._only = of_start(plan, batch)
            self._rows = ResultRows(plan, self._numbering, name)
            return
        self._router = _RowRouter(plan.source.routing, self._numbering)
        self._known = KnownTables(plan, batch)
        self._tables: dict[str, _TableResult] = {}

    def route(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Routed]:
        """Raises ``TablesWanted``, and as ``ResultRows.of`` and ``rows_before``."""
        yield from rows_before(batches, self._of)
        if self._only is None:
            self._known.require()

    def _of(self, batch: pa.RecordBatch) -> Iterator[Routed]:
        if self._only is not None:
            yield TableRows(self._only.name, self._rows.of(batch))
            return
        numbers, places, _ = record_numbers(batch, self._numbering, self._name)
        named = TABLE_COLUMN in batch.schema.names
        said = batch.column(TABLE_COLUMN) if named else pa.nulls(batch.num_rows, pa.string())
        codes, targets = self._together(*self._router.targets(places, said))
        for code in np.unique(codes).tolist():
            those = codes == code
            target = targets[code] if code >= 0 else None
            if target is not None and (reason := self._known.own(target)):
                yield Unmatched(Apart(reason, bad=True), numbers[those])
                continue
            if target is not None and (trouble := self._known.trouble(target)):
                yield Unmatched(Apart(trouble, target.table), numbers[those])
                continue
            found = self._known.find(target)
            if isinstance(found, str):
                yield Unmatched(Apart(found), numbers[those])
            elif found is not None:
                yield from self._of_table(found, batch.filter(pa.array(those)), numbers[those])

    def _together(self, codes: Integers, targets: list[Target]) -> tuple[Integers, list[Target]]:
        """Return one target for all that are alike."""
        groups: dict[Hashable, int] = {}
        places = [groups.setdefault(self._known.alike(each), len(groups)) for each in targets]
        together = np.array([*places, -1], np.int64)[codes]
        return together, [targets[places.index(place)] for place in range(len(groups))]

    def _of_table(
        self, known: RoutedTable, batch: pa.RecordBatch, numbers: Integers
    ) -> Iterator[Routed]:
        table = self._table(known, batch.schema)
        if table.problem:
            yield Unmatched(Apart(table.problem), numbers)
            return
        for column in table.lacking:
            filled = np.asarray(batch.column(batch.schema.names.index(column)).is_valid())
            if filled.any():
                reason = f"{self._name} gives {column!r}, which {known.name} has not"
                yield Unmatched(Apart(reason), numbers[filled])
                batch, numbers = batch.filter(pa.array(~filled)), numbers[~filled]
        if batch.num_rows:
            yield TableRows(known.name, table.rows.of(batch))

    def _table(self, known: RoutedTable, result: pa.Schema) -> _TableResult:
        if known.name not in self._tables:
            assert known.plan is not None, "it has no problem"
            self._tables[known.name] = self._fitted(known, known.plan, result)
        return self._tables[known.name]

    def _fitted(self, known: RoutedTable, plan: WriterPlan, result: pa.Schema) -> _TableResult:
        has = {*plan.shape.arrow_schema().names, *coordinate_columns(plan), RECORD}
        lacking = [name for name in result.names if name not in has and name != TABLE_COLUMN]
        made = _TableResult(ResultRows(plan, self._numbering, self._name), lacking)
        try:
            there = [column for column in result if column.name in has]
            check_result(pa.schema(there), plan, self._name)
        except ConfigurationError as error:
            made.problem = f"{known.name}: {error.message}"
        return made
