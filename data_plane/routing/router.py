"""Splits chunks of records by the tables that routes send them to (rules ROUTE-1 to ROUTE-3).

Routes look at topics, or at values (a field, a header, a record's name), column by column.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import pyarrow as pa

from headgate.control_protocol.ports import Batch
from headgate.data_plane.batch.writer_task_plan import SourcePlan
from headgate.data_plane.formats import field_names
from headgate.data_plane.formats.column_options import AS_TEXT, FROM, ColumnRule, parse_path
from headgate.data_plane.formats.format_registry import ValueOptions, create_record_format
from headgate.data_plane.formats.format_with_column_options import RuledColumns
from headgate.data_plane.formats.record_format import RecordFormat, RecordNames, UndecodableRecords
from headgate.data_plane.quarantine.rowless_record_filter import flags_of_all_but
from headgate.data_plane.routing.routes import Names, Route, Target
from headgate.kafka.record_fetch import Chunk
from headgate.native.kernels import Integers

# ------------------------------------------------------------------------------------------- values


class NamedFormat(Protocol):
    """Tells the record name that each value has."""

    def names_of_records(self, values: Sequence[bytes]) -> RecordNames:
        """Return the full name of each value's record, where it is one."""


@dataclass(frozen=True, slots=True)
class Values:
    """Holds, per record, the index of its value among the ``distinct`` ones, or -1 for none.

    ``bad``: records of which the value cannot be read, with the reason.
    """

    codes: Integers
    distinct: Sequence[str]
    bad: Mapping[int, str]


class RouteValues:
    """Reads what one route looks at. An instance serves one thread."""

    def __init__(self, route: Route, source: SourcePlan) -> None:
        self._route = route
        self._source = source
        options = ValueOptions.from_options(source.format_options)
        made = create_record_format(source.format_name, options.of_format)
        self._format: RecordFormat = made
        self._schema = pa.schema([])
        if route.field:
            name, rule = _column_and_decoding_rule_of_route(route, made)
            column = pa.field(name, pa.string())
            self._schema = pa.schema(
                [field_names.with_lookup_case(column, caseless=options.caseless)]
            )
            if rule.options_needing_format():
                rules, caseless = {name: rule}, options.caseless
                self._format = RuledColumns(made, rules, self._schema, caseless=caseless)

    def values_of(self, chunk: Chunk) -> Values:
        """Return the values of records that have all some value of their own."""
        if self._route.header:
            return _dictionary_encode(
                [
                    _last_header_value(found or (), self._route.header)
                    for found in chunk.headers or ()
                ]
            )
        chunk = self._source.with_schema_ids_prepended(chunk)
        if self._route.record:
            found = cast("NamedFormat", self._format).names_of_records(chunk.values)
            return Values(found.indices, found.names, {})
        return self._field_values(chunk)

    def _field_values(self, chunk: Chunk) -> Values:
        bad: Mapping[int, str] = {}
        left = np.arange(len(chunk.offsets), dtype=np.int64)
        try:
            rows = self._format.decode(chunk.values, self._schema)
        except UndecodableRecords as error:
            rows, bad = error.rest, error.bad
            left = np.delete(left, list(bad))
        encoded = rows.column(0).dictionary_encode()
        codes = np.full(len(chunk.offsets), -1, np.int64)
        codes[left] = np.asarray(encoded.indices.fill_null(-1), np.int64)
        return Values(codes, encoded.dictionary.to_pylist(), bad)


def _column_and_decoding_rule_of_route(
    route: Route, record_format: RecordFormat
) -> tuple[str, ColumnRule]:
    """Return a column and its rule; numbers become text where the format can do that."""
    known: frozenset[str] = getattr(record_format, "rules", frozenset())
    path = parse_path(route.field)
    as_text = AS_TEXT in known
    if len(path) == 1:
        return path[0], ColumnRule(as_text=as_text)
    if FROM not in known:
        return route.field, ColumnRule()
    return "value", ColumnRule(path=path, as_text=as_text)


def _last_header_value(headers: Sequence[tuple[str, bytes | None]], name: str) -> str | None:
    """Return the last one of this name, as Kafka's clients have it."""
    for known, value in reversed(headers):
        if known == name:
            return None if value is None else value.decode(errors="backslashreplace")
    return None


def _dictionary_encode(values: Sequence[str | None]) -> Values:
    encoded = pa.array(values, pa.string()).dictionary_encode()
    codes = np.asarray(encoded.indices.fill_null(-1), np.int64)
    return Values(codes, encoded.dictionary.to_pylist(), {})


# ------------------------------------------------------------------------------------------- tables


@dataclass(slots=True)
class _Rule:
    """A route for the records of one topic. ``values``: of one that looks at more than that."""

    route: Route
    names: Names
    values: RouteValues | None


GroupingKey = Callable[[Target], Hashable]
"""Returns the same for tables whose records are dealt with together."""

OnBad = Callable[[Chunk, Mapping[int, str]], None]
"""Takes those records of a chunk, by their place, whose value cannot be read, with the reasons."""


class Router:
    """Splits chunks of one batch by table. Serves one thread.

    Where a route looks at values, what has none goes to no table: nothing tells of which it is.
    """

    def __init__(
        self,
        source: SourcePlan,
        batch: Batch,
        on_bad: OnBad,
        grouping_key: GroupingKey = lambda target: target,
    ) -> None:
        self._on_bad = on_bad
        self._grouping_key = grouping_key
        routing = source.routing
        assert routing is not None, "chosen for it"
        self._topics = [at.topic for at in batch.ranges]
        topics_known = sorted(set(self._topics))
        self._codes = np.array([topics_known.index(topic) for topic in self._topics], np.int64)
        values = {
            route: _build_route_values_unless_by_topic(route, source) for route in routing.routes
        }
        self._rules = [
            [_Rule(route, Names(route, parts), values[route]) for route, parts in found]
            for found in map(routing.routes_of_topic, topics_known)
        ]

    def split(self, chunk: Chunk) -> Iterator[tuple[Target | None, Chunk]]:
        """Yield the chunk's records by table; ``None``: no route matches.

        Of tables with the same grouping key any one stands for all.
        """
        codes = self._codes[chunk.places]
        for code in np.unique(codes).tolist():
            yield from self._split_by_rules(code, _filter_chunk(chunk, codes == code))

    def _split_by_rules(self, code: int, chunk: Chunk) -> Iterator[tuple[Target | None, Chunk]]:
        for rule in self._rules[code]:
            if rule.values is None:
                yield rule.names.target_of_topic(), chunk
                return
            if rule.route.is_by_record_value and chunk.values.array.null_count:
                there = np.asarray(chunk.values.array.is_valid())
                yield None, chunk.filter(~there)
                chunk = chunk.filter(there)
                if not len(chunk.offsets):
                    return
            result = rule.values.values_of(chunk)
            which = result.codes
            if result.bad:
                self._on_bad(chunk, result.bad)
                good = flags_of_all_but(chunk, result.bad)
                chunk, which = chunk.filter(good), which[good]
            named = [rule.names.target_of_value(value) for value in result.distinct]
            is_matched = np.array([target is not None for target in named] + [False], np.bool_)
            yield from _split_routed_by_target(chunk, which, named, self._grouping_key)
            chunk = _filter_chunk(chunk, ~is_matched[which])
            if not len(chunk.offsets):
                return
        yield None, chunk


def _build_route_values_unless_by_topic(route: Route, source: SourcePlan) -> RouteValues | None:
    return None if route.is_by_topic_alone else RouteValues(route, source)


def _split_routed_by_target(
    chunk: Chunk, codes: Integers, named: list[Target | None], grouping_key: GroupingKey
) -> Iterator[tuple[Target, Chunk]]:
    groups: dict[Hashable, tuple[int, Target]] = {}
    places: dict[Target, int] = {}
    for target in sorted({target for target in named if target is not None}):
        places[target], _ = groups.setdefault(grouping_key(target), (len(groups), target))
    there = [target for _, target in groups.values()]
    of_value = np.array([places[t] if t else -1 for t in named] + [-1], np.int64)
    of_record = of_value[codes]
    is_routed = of_record >= 0
    for place, some in _filter_chunk(chunk, is_routed).split_by_group(of_record[is_routed]):
        yield there[place], some


def _filter_chunk(chunk: Chunk, wanted: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Chunk:
    return chunk if wanted.all() else chunk.filter(wanted)
