"""Maps PostgreSQL's column types to headgate's, and checks the values that they hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headgate.control_protocol.columns import (
    Column,
    ListOf,
    Struct,
    Type,
    decimal_precision_and_scale,
)
from headgate.control_protocol.errors import ConfigurationError, TableUnfit
from headgate.control_protocol.table_format import RowKey

_TYPES = {
    "boolean": ("boolean", pa.bool_()),
    "int": ("integer", pa.int32()),
    "long": ("bigint", pa.int64()),
    "float": ("real", pa.float32()),
    "double": ("double precision", pa.float64()),
    "date": ("date", pa.date32()),
    "time": ("time without time zone", pa.time64("us")),
    "timestamp": ("timestamp without time zone", pa.timestamp("us")),
    "timestamptz": ("timestamp with time zone", pa.timestamp("us", "UTC")),
    "string": ("text", pa.large_string()),
    "uuid": ("uuid", pa.binary(16)),
    "binary": ("bytea", pa.large_binary()),
}
HEADERS_TYPE = "headgate.headers"
"""A domain over jsonb: ``[{"key": "trace", "value": "AAE="}]``, the values in base64."""

_HEADER = (Column("key", "string", required=False), Column("value", "binary", required=False))
_HEADERS = ListOf(Column("", Struct(_HEADER), required=False))
"""A record's headers in the quarantine, which are the only nested column."""

_HEADERS_IN_ARROW = pa.list_(
    pa.struct([pa.field("key", pa.large_string()), pa.field("value", pa.large_binary())])
)
_NAMES: dict[str, Type] = {postgres: ours for ours, (postgres, _) in _TYPES.items()}
_NAMES["character varying"] = "string"  # without a length
_NAMES[HEADERS_TYPE] = _HEADERS
_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")
_NUL, _LEGIBLE_NUL = "\0", "\\x00"
_DAYS = (-719_162, 2_932_896)
"""From the first day of the year 1 to the last of 9999, counted from 1970."""
_MICROSECONDS_A_DAY = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Found:
    """A column as PostgreSQL's catalog describes it. ``type`` is ``format_type``'s text."""

    name: str
    type: str
    required: bool


def postgres_type(column: Column) -> str:
    """Return the type of a new column. Raises ``ConfigurationError``."""
    if column.type == _HEADERS:
        return HEADERS_TYPE
    if isinstance(column.type, str):
        if parts := decimal_precision_and_scale(column.type):
            return f"numeric({parts[0]},{parts[1]})"
        if column.type in _TYPES:
            return _TYPES[column.type][0]
    raise ConfigurationError(
        f"column {column.name!r}: a PostgreSQL table gets no column of type {column.type} here",
        f"use one of {', '.join(_TYPES)} or decimal(p,s)",
    )


def arrow_type(kind: Type) -> pa.DataType:
    """Return the type in which a column's values are passed to PostgreSQL."""
    if kind == _HEADERS:
        return _HEADERS_IN_ARROW
    assert isinstance(kind, str), "others are refused"
    parts = decimal_precision_and_scale(kind)
    return pa.decimal128(*parts) if parts else _TYPES[kind][1]


def in_files(columns: Sequence[Column]) -> tuple[Mapping[str, pa.DataType], frozenset[str]]:
    """Return the types in which files' columns are read, and which columns a file may lack.

    The table may have got those since the file was written.
    """
    optional = frozenset(column.name for column in columns if not column.required)
    return {column.name: arrow_type(column.type) for column in columns}, optional


def key_columns(columns: Struct, key: RowKey) -> tuple[Column, ...]:
    """Return the columns of a key file."""
    topic = (Column("_topic", "string"),) if key.topic else ()
    place = (Column("_partition", "int"), Column("_offset", "long"))
    return (*(columns[name] for name in key.key), *topic, *place)


def columns_of(table: str, found: list[Found]) -> Struct:
    """Return a table's columns. Raises ``TableUnfit`` for a type that is not filled exactly."""
    return Struct(tuple(Column(f.name, _type(table, f), required=f.required) for f in found))


def _type(table: str, found: Found) -> Type:
    if parts := _NUMERIC.fullmatch(found.type):
        if int(parts[1]) <= 38 and int(parts[2]) <= int(parts[1]):
            return f"decimal({parts[1]}, {parts[2]})"
    elif found.type in _NAMES:
        return _NAMES[found.type]
    raise TableUnfit(
        f"PostgreSQL table {table}: column {found.name!r} is of type {found.type}, which values "
        "are not written to exactly",
        f"known are {', '.join(postgres for postgres, _ in _TYPES.values())} and numeric(p,s) of "
        "38 digits at most; leave the column to a view or another table",
    )


class ExactValues:
    """Implements ``ValueCheck``: no text with a NUL, no time outside the years 1 to 9999."""

    def find_unsupported_rows(self, rows: pa.RecordBatch) -> Mapping[int, str]:
        """For each row that PostgreSQL refuses, name the column and say why."""
        found: dict[int, str] = {}
        for name, values in zip(rows.schema.names, rows.columns, strict=True):
            for holds, why in _CHECKS:
                bad = holds(values)
                if bad is not None and pc.any(bad).as_py():
                    at = pc.indices_nonzero(bad).to_pylist()
                    found |= {row: f"{name}: {why}" for row in at if row not in found}
        return found


def replace_unsupported(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Make a quarantine's rows fit PostgreSQL.

    A NUL becomes the text ``\\x00``, and a time outside the years 1 to 9999 is dropped.
    """
    return pa.RecordBatch.from_arrays(
        [_replaced(each) for each in rows.columns], schema=rows.schema
    )


def _replaced(values: pa.Array) -> pa.Array:
    late, nul = _out_of_years(values), _with_nul(values)
    if late is not None:
        return pc.if_else(late, pa.scalar(None, values.type), values)
    if nul is None or not pc.any(nul).as_py():
        return values
    if _is_text(values.type):
        return pc.replace_substring(values, _NUL, _LEGIBLE_NUL)
    return pa.array([_legible(headers) for headers in values.to_pylist()], values.type)


def _legible(headers: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    if headers is None:
        return None
    told = ((each, each["key"]) for each in headers)
    return [{**each, "key": key and key.replace(_NUL, _LEGIBLE_NUL)} for each, key in told]


def _with_nul(values: pa.Array) -> pa.Array | None:
    if _is_text(values.type):
        return pc.match_substring(values, _NUL)
    if not is_headers(values.type):
        return None
    named = pc.match_substring(pc.struct_field(pc.list_flatten(values), "key"), _NUL)
    rows = pc.unique(pc.filter(pc.list_parent_indices(values), named))
    return pc.is_in(pa.array(range(len(values)), rows.type), rows)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_headers(kind: pa.DataType) -> bool:
    """Return whether these are lists of key and value: a table's files have no other lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _out_of_years(values: pa.Array) -> pa.Array | None:
    if pa.types.is_date32(values.type):
        first, last, numbers = *_DAYS, values.cast(pa.int32())
    elif pa.types.is_timestamp(values.type):
        first, last = _DAYS[0] * _MICROSECONDS_A_DAY, (_DAYS[1] + 1) * _MICROSECONDS_A_DAY - 1
        numbers = values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
    else:
        return None
    kind = numbers.type
    outside = (pc.less(numbers, pa.scalar(first, kind)), pc.greater(numbers, pa.scalar(last, kind)))
    return pc.or_(*outside)


_CHECKS: tuple[tuple[Callable[[pa.Array], pa.Array | None], str], ...] = (
    (_with_nul, "a text of PostgreSQL holds no NUL"),
    (_out_of_years, "only the years 1 to 9999 are written"),
)
