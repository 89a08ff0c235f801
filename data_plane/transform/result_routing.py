"""Sends a transform's result to many tables: each row goes where the routes send it (ROUTE-1,
ROUTE-2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pa_types
from pyroaring import BitMap64

from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.ports import Batch
from headgate.data_plane.batch.record_numbers import Integers, RecordNumbers
from headgate.data_plane.batch.routed_table import RoutedTable, table_of_start
from headgate.data_plane.batch.writer_task_plan import WriterPlan
from headgate.data_plane.quarantine.rejected_records import OWN_TABLE, RejectedRecords
from headgate.data_plane.routing.routes import TABLE_COLUMN, Names, Routing, Target
from headgate.data_plane.routing.table_resolution import BatchTables
from headgate.data_plane.transform.result_rows import (
    RECORD,
    Numbered,
    ResultRows,
    coordinates_by_column,
    require_record_column,
    require_record_places,
    require_valid_result,
    rows_until_stop_then_raise,
)
from headgate.kafka.record_fetch import Chunk
from headgate.native.kernels import Flags


@dataclass(frozen=True, slots=True)
class TableRows:
    """Holds rows of one table."""

    table: str
    numbered: Numbered

    @property
    def numbers(self) -> Integers:
        return self.numbered.numbers


@dataclass(frozen=True, slots=True)
class RejectionReason:
    """Why records go to no table; ``table``: the one with the trouble, if that is why (SUSPEND-1);
    ``bad``: they name one of the sink's own."""

    reason: str
    table: str = ""
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Unmatched:
    """Holds records that go to no table, and why."""

    why: RejectionReason
    numbers: Integers


RoutedRows = TableRows | Unmatched


def require_routable(result: pa.Schema, plan: WriterPlan, name: str) -> None:
    """Check that routes can read such a result. Single tables are checked with their rows.

    Raises ``ConfigurationError``.
    """
    twice = sorted(column for column, count in Counter(result.names).items() if count > 1)
    if twice:
        raise ConfigurationError(f"{name} gives the column {twice[0]!r} twice", "name it once")
    require_record_column(result, name)
    assert plan.source.routing is not None, "chosen for it"
    if not any(route.field for route in plan.source.routing.routes):
        return
    if TABLE_COLUMN not in result.names:
        raise ConfigurationError(
            f"{name} gives no column {TABLE_COLUMN}, which a route looks at",
            "add it, as the expression that names the table",
        )
    kind = result.field(TABLE_COLUMN).type
    if not (pa_types.is_string(kind) or pa_types.is_large_string(kind)):
        raise ConfigurationError(f"{name} gives {TABLE_COLUMN} as {kind}", "CAST it to a string")


class _RowTargets(NamedTuple):
    """Holds distinct targets, and for each row its target's index, -1 for none."""

    codes: Integers
    targets: list[Target]


class _RowRouter:
    """Finds the tables of rows by their topics, and by the transform's routing columns."""

    def __init__(self, routing: Routing, numbering: RecordNumbers) -> None:
        topics = [at.topic for at in numbering.partitions]
        names = sorted(set(topics))
        self._topic_of_place = np.array([names.index(topic) for topic in topics], np.int64)
        self._rules = [
            [
                (route.is_by_topic_alone, Names(route, parts))
                for route, parts in routing.routes_of_topic(topic)
            ]
            for topic in names
        ]

    def targets_of(self, places: Integers, table_names: pa.Array) -> _RowTargets:
        encoded = table_names.dictionary_encode()
        values = np.asarray(encoded.indices.fill_null(-1), np.int64)
        distinct: list[str] = encoded.dictionary.to_pylist()
        result: dict[Target, int] = {}
        codes = np.full(len(places), -1, np.int64)
        topics = self._topic_of_place[places]
        for topic in np.unique(topics).tolist():
            left = topics == topic
            for by_topic, names in self._rules[topic]:
                named = (
                    [names.target_of_topic()]
                    if by_topic
                    else [names.target_of_value(v) for v in distinct]
                )
                numbers = [result.setdefault(t, len(result)) if t else -1 for t in named]
                chosen = np.array([*numbers, -1], np.int64)[0 if by_topic else values]
                codes = np.where(left, chosen, codes)
                left &= codes < 0
        return _RowTargets(codes, list(result))


@dataclass(slots=True)
class _TableResult:
    """Says how one table takes a result of this schema; ``problem``: why it does not."""

    schema: pa.Schema
    rows: ResultRows
    unknown_columns: list[str] = field(default_factory=list)
    problem: str = ""


class ResultTables:
    """Turns a transform's batches into rows of START's table, or of those that routes name."""

    def __init__(self, plan: WriterPlan, batch: Batch, name: str) -> None:
        self._name = name
        self._numbering = RecordNumbers(batch.ranges)
        self._only: RoutedTable | None = None
        if plan.source.routing is None:
            self._only = table_of_start(plan, batch)
            self._rows = ResultRows(plan, self._numbering, name)
            return
        self._router = _RowRouter(plan.source.routing, self._numbering)
        self._batch_tables = BatchTables(plan, batch)
        self._tables: dict[str, _TableResult] = {}

    def route(self, batches: Iterable[pa.RecordBatch]) -> Iterator[RoutedRows]:
        """Raise ``TablesNotPlanned``; or as ``convert_batch``, ``rows_until_stop_then_raise``."""
        yield from rows_until_stop_then_raise(batches, self.route_batch)
        self.require_every_table_planned()

    def require_every_table_planned(self) -> None:
        """Raises ``TablesNotPlanned``."""
        if self._only is None:
            self._batch_tables.require_every_table_planned()

    def route_batch(self, batch: pa.RecordBatch) -> Iterator[RoutedRows]:
        """Raise as ``ResultRows.convert_batch``."""
        if self._only is not None:
            yield TableRows(self._only.name, self._rows.convert_batch(batch))
            return
        numbers, places, _ = require_record_places(batch, self._numbering, self._name)
        named = TABLE_COLUMN in batch.schema.names
        names = batch.column(TABLE_COLUMN) if named else pa.nulls(batch.num_rows, pa.string())
        codes, targets = self._group_targets(*self._router.targets_of(places, names))
        for code in np.unique(codes).tolist():
            those = codes == code
            target = targets[code] if code >= 0 else None
            if target is not None and (reason := self._batch_tables.why_reserved(target)):
                yield Unmatched(RejectionReason(reason, bad=True), numbers[those])
                continue
            if target is not None and (trouble := self._batch_tables.why_diverted(target)):
                yield Unmatched(RejectionReason(trouble, target.table), numbers[those])
                continue
            result = self._batch_tables.resolve_or_request_table(target)
            if isinstance(result, str):
                yield Unmatched(RejectionReason(result), numbers[those])
            elif result is not None:
                yield from self._convert_rows_for_table(
                    result, batch.filter(pa.array(those)), numbers[those]
                )

    def _group_targets(self, codes: Integers, targets: list[Target]) -> _RowTargets:
        """Return one target for all that are alike."""
        groups: dict[Hashable, int] = {}
        places = [
            groups.setdefault(self._batch_tables.grouping_key(each), len(groups))
            for each in targets
        ]
        together = np.array([*places, -1], np.int64)[codes]
        return _RowTargets(together, [targets[places.index(place)] for place in range(len(groups))])

    def _convert_rows_for_table(
        self, routed: RoutedTable, batch: pa.RecordBatch, numbers: Integers
    ) -> Iterator[RoutedRows]:
        table = self._result_of_table(routed, batch.schema)
        if table.problem:
            yield Unmatched(RejectionReason(table.problem), numbers)
            return
        for column in table.unknown_columns:
            filled = np.asarray(batch.column(batch.schema.names.index(column)).is_valid())
            if filled.any():
                reason = f"{self._name} gives {column!r}, which {routed.name} has not"
                yield Unmatched(RejectionReason(reason), numbers[filled])
                batch, numbers = batch.filter(pa.array(~filled)), numbers[~filled]
        if batch.num_rows:
            yield TableRows(routed.name, table.rows.convert_batch(batch))

    def _result_of_table(self, routed: RoutedTable, result: pa.Schema) -> _TableResult:
        made = self._tables.get(routed.name)
        # A function may give other columns each time that it is called.
        if made is None or not result.equals(made.schema):
            assert routed.plan is not None, "it has no problem"
            made = self._build_table_result(routed, routed.plan, result)
            self._tables[routed.name] = made
        return made

    def _build_table_result(
        self, routed: RoutedTable, plan: WriterPlan, result: pa.Schema
    ) -> _TableResult:
        has = {*plan.shape.arrow_schema().names, *coordinates_by_column(plan), RECORD}
        unsupported = [name for name in result.names if name not in has and name != TABLE_COLUMN]
        made = _TableResult(result, ResultRows(plan, self._numbering, self._name), unsupported)
        try:
            there = [column for column in result if column.name in has]
            require_valid_result(pa.schema(there), plan, self._name)
        except ConfigurationError as error:
            made.problem = f"{routed.name}: {error.message}"
        return made


# ------------------------------------------------------------------------------- without a table


def reject_records(rejected: RejectedRecords, chunk: Chunk, why: RejectionReason) -> None:
    """Take all these records, which a transform's result sends to no table."""
    if why.table:
        rejected.divert_or_stop(chunk, why.table, why.reason)
    elif why.bad:
        reasons = dict.fromkeys(range(len(chunk.offsets)), why.reason)
        rejected.reject_bad(chunk, reasons, OWN_TABLE)
    else:
        rejected.reject_unmatched(chunk, why.reason)


class WantedRecords:
    """Finds records among others, with the reasons why they are wanted."""

    def __init__(self, unmatched: Mapping[RejectionReason, BitMap64]) -> None:
        self._reasons = list(unmatched)
        arrays = [np.fromiter(some, np.int64, len(some)) for some in unmatched.values()]
        numbers = np.concatenate([np.zeros(0, np.int64), *arrays])
        order = np.argsort(numbers)
        self._numbers = numbers[order]
        self._codes = np.repeat(np.arange(len(arrays)), [len(some) for some in arrays])[order]

    def flags_by_reason(self, numbers: Integers) -> Iterator[tuple[RejectionReason, Flags]]:
        """Yield, for each reason, which of the records with these numbers are rejected for it."""
        if not len(self._numbers):
            return
        places = np.searchsorted(self._numbers, numbers).clip(max=len(self._numbers) - 1)
        codes = np.where(self._numbers[places] == numbers, self._codes[places], -1)
        for code in np.unique(codes[codes >= 0]).tolist():
            yield self._reasons[code], codes == code
