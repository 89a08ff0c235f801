"""The values that routes look at (a field, a header, a record's name), column by column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import pyarrow as pa

from headgate.data.formats.column_rules import AS_TEXT, FROM, ColumnRule, path_of
from headgate.data.formats.port import RecordFormat, UndecodableRecords
from headgate.data.formats.registry import ValueOptions, record_format
from headgate.data.formats.ruled_columns import RuledColumns
from headgate.data.writers.plan import SourcePlan
from headgate.data.writers.routes import Route
from headgate.kafka.fetch import Chunk
from headgate.native.loops import Integers


class NamedFormat(Protocol):
    """A format whose values have a record name each."""

    def record_names(self, values: Sequence[bytes]) -> tuple[Integers, Sequence[str]]:
        """Per value the index of its name; -1 where it has none."""


@dataclass(frozen=True, slots=True)
class Values:
    """Per record the index of its value among the ``distinct`` ones, or -1 for none.

    ``bad``: records of which the value cannot be read, with the reason.
    """

    codes: Integers
    distinct: Sequence[str]
    bad: Mapping[int, str]


class RouteValues:
    """Reads what one route looks at. An instance serves one thread."""

    def __init__(self, route: Route, source: SourcePlan) -> None:
        self._route = route
        options = ValueOptions.taken(source.format_options)
        made = record_format(source.format_name, options.of_format)
        self._format: RecordFormat = made
        self._schema = pa.schema([])
        if route.field:
            name, rule = _rule_of(route, made)
            self._schema = pa.schema([pa.field(name, pa.string())])
            if rule.asks():
                rules, caseless = {name: rule}, options.caseless
                self._format = RuledColumns(made, rules, self._schema, caseless=caseless)

    def of(self, chunk: Chunk) -> Values:
        """The values of records that have all some value of their own."""
        if self._route.header:
            return _coded(
                [_header(found or (), self._route.header) for found in chunk.headers or ()]
            )
        if self._route.record:
            codes, names = cast("NamedFormat", self._format).record_names(chunk.values)
            return Values(codes, names, {})
        return self._fields(chunk)

    def _fields(self, chunk: Chunk) -> Values:
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


def _rule_of(route: Route, made: RecordFormat) -> tuple[str, ColumnRule]:
    """A plain name needs no rule; numbers become text where the format can make it of them."""
    known: frozenset[str] = getattr(made, "rules", frozenset())
    path = path_of(route.field)
    as_text = AS_TEXT in known
    if len(path) == 1:
        return path[0], ColumnRule(as_text=as_text)
    if FROM not in known:
        return route.field, ColumnRule()
    return "value", ColumnRule(path=path, as_text=as_text)


def _header(headers: Sequence[tuple[str, bytes | None]], name: str) -> str | None:
    """The last one of this name, as Kafka's clients have it."""
    for known, value in reversed(headers):
        if known == name:
            return None if value is None else value.decode(errors="backslashreplace")
    return None


def _coded(values: Sequence[str | None]) -> Values:
    encoded = pa.array(values, pa.string()).dictionary_encode()
    codes = np.asarray(encoded.indices.fill_null(-1), np.int64)
    return Values(codes, encoded.dictionary.to_pylist(), {})
