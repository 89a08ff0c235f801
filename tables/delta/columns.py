"""Translates Delta's columns between its JSON and neutral columns, and values as Delta writes them.

See Delta's protocol, "Schema Serialization Format" and "Partition Value Serialization".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from headgate.control_protocol.columns import (
    Column,
    ListOf,
    MapOf,
    Path,
    Struct,
    Type,
    decimal_precision_and_scale,
)
from headgate.control_protocol.errors import ConfigurationError, TableUnfit

_OURS = {
    "string": "string",
    "long": "long",
    "integer": "int",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
_DELTAS = {ours: delta for delta, ours in _OURS.items()}
_PARTITIONS = ("string", "long", "int", "boolean", "date", "timestamptz", "timestamp")
_MEANING = ("delta.generationExpression", "delta.identity.", "delta.invariants")
"""Field metadata that a writer would have to compute or to check."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SUPPORTED_DAYS = range(-719_162, 2_932_897)
_DAY_US = 86_400_000_000
_SUPPORTED_MOMENTS = range(_SUPPORTED_DAYS.start * _DAY_US, _SUPPORTED_DAYS.stop * _DAY_US)
SUPPORTED_TIMES = {
    "date": _SUPPORTED_DAYS,
    "timestamptz": _SUPPORTED_MOMENTS,
    "timestamp": _SUPPORTED_MOMENTS,
}
"""The days and moments that Delta can write as text: years have four digits, from 1 on."""


def columns_from_delta(table: str, schema: str) -> Struct:
    """Return a table's columns. Raises ``TableUnfit`` for what our files cannot hold."""
    return _parse_struct(table, json.loads(schema), ())


def delta_schema_from_columns(columns: Struct, comments: Mapping[str, str]) -> str:
    """Return the JSON of a new table's schema. Raises ``ConfigurationError`` naming the column."""
    fields = [_field_json(column, comments.get(column.name)) for column in columns.fields]
    return json.dumps({"type": "struct", "fields": fields})


def require_partitionable(columns: Struct, partition_by: Sequence[str]) -> None:
    """Raise ``ConfigurationError`` if Delta cannot name a file's value of such a column."""
    types = {column.name: column.type for column in columns.fields}
    for name in partition_by:
        column_type = types.get(name)
        if column_type is None:
            raise ConfigurationError(
                f"a Delta table cannot be partitioned by {name!r}, which is not one of its columns",
                "name a column: Delta has no transforms, so that a day needs a column of its own",
            )
        if not can_partition_by(column_type):
            raise ConfigurationError(
                f"a Delta table is not partitioned here by {name!r}, of type {column_type}",
                f"use a column of {', '.join(_PARTITIONS)} or decimal",
            )
    if len(set(partition_by)) == len(columns.fields):
        raise ConfigurationError(
            "a Delta table cannot be partitioned by all of its columns", "leave one out"
        )


def can_partition_by(column_type: Type) -> bool:
    """Return whether a file's value of such a column can be written as text here."""
    return isinstance(column_type, str) and (
        column_type in _PARTITIONS or decimal_precision_and_scale(column_type) is not None
    )


def partition_value_text(column_type: Type, value: Any) -> str | None:
    """Return the text of a partition value.

    Readers take an empty one for null, as Delta specifies.
    """
    if value is None:
        return None
    match column_type:
        case "boolean":
            return "true" if value else "false"
        case "date":
            return _date_of_epoch_days(value).isoformat()
        case "timestamptz":
            return f"{_format_timestamp(value, 'T')}Z"
        case "timestamp":
            return _format_timestamp(value, " ")
        case _:
            return f"{value:f}" if isinstance(value, Decimal) else str(value)


def _date_of_epoch_days(days: int) -> date:
    return (_EPOCH + timedelta(days=days)).date()


def _format_timestamp(microseconds: int, separator: str) -> str:
    """Format the time in UTC; unlike ``strftime`` this gives each year four digits."""
    moment = (_EPOCH + timedelta(microseconds=microseconds)).replace(tzinfo=None)
    return moment.isoformat(separator, "microseconds")


# ------------------------------------------------------------------------------------ Delta to ours


def _parse_struct(table: str, form: Mapping[str, Any], path: tuple[str, ...]) -> Struct:
    return Struct(tuple(_parse_column(table, each, path) for each in form["fields"]))


def _parse_column(table: str, form: Mapping[str, Any], path: tuple[str, ...]) -> Column:
    at = (*path, str(form["name"]))
    for key in form.get("metadata") or {}:
        if key.startswith(_MEANING):
            raise TableUnfit(
                f"{table}: column {'.'.join(at)} has {key}, which a writer would have to heed",
                "fill a table without generated, identity and checked columns",
            )
    column_type = _parse_type(table, form["type"], at)
    return Column(str(form["name"]), column_type, required=not form["nullable"])


def _parse_type(table: str, form: Any, at: tuple[str, ...]) -> Type:
    if isinstance(form, str):
        if parts := decimal_precision_and_scale(form):
            return f"decimal({parts[0]}, {parts[1]})"
        if form in _OURS:
            return _OURS[form]
        raise TableUnfit(
            f"{table}: column {'.'.join(at)} is of Delta's type {form}, which is not written",
            f"known are {', '.join(_OURS)}, decimal, struct, array and map",
        )
    match form["type"]:
        case "struct":
            return _parse_struct(table, form, at)
        case "array":
            item_type = _parse_type(table, form["elementType"], at)
            return ListOf(Column("", item_type, required=not form["containsNull"]))
        case "map":
            item_type = _parse_type(table, form["valueType"], at)
            value = Column("", item_type, required=not form["valueContainsNull"])
            return MapOf(_parse_type(table, form["keyType"], at), value)
        case other:
            raise TableUnfit(f"{table}: column {'.'.join(at)} is of an unknown type {other}")


# ------------------------------------------------------------------------------------ ours to Delta


def _field_json(column: Column, comment: str | None = None) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": _delta_type(column.type, column.name),
        "nullable": not column.required,
        "metadata": {"comment": comment} if comment else {},
    }


def _delta_type(column_type: Type, name: str) -> Any:
    match column_type:
        case Struct(fields):
            return {"type": "struct", "fields": [_field_json(each) for each in fields]}
        case ListOf(element):
            form = {
                "elementType": _delta_type(element.type, name),
                "containsNull": not element.required,
            }
            return {"type": "array", **form}
        case MapOf(key, value):
            inside = {"keyType": _delta_type(key, name), "valueType": _delta_type(value.type, name)}
            return {"type": "map", **inside, "valueContainsNull": not value.required}
        case _ if parts := decimal_precision_and_scale(column_type):
            return f"decimal({parts[0]},{parts[1]})"
        case _ if column_type in _DELTAS:
            return _DELTAS[column_type]
    raise ConfigurationError(
        f"column {name!r}: Delta has no type for {column_type}",
        f"use one of {', '.join(_DELTAS)}, decimal(p,s), list, map or struct",
    )


def single_valued_leaf_types(columns: Struct, path: Path = ()) -> Iterator[tuple[Path, Type]]:
    """Yield every column that has one value per row, with its path."""
    for column in columns.fields:
        at = (*path, column.name)
        if isinstance(column.type, Struct):
            yield from single_valued_leaf_types(column.type, at)
        elif isinstance(column.type, str):
            yield at, column.type
