"""Derives the columns that a schema of Kafka Connect asks for.

Its decimals have a scale but no precision, unless it is specified: a new column gets the maximum of
digits, and an existing one is not widened because of that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headgate.control_protocol.columns import DIGITS_MAX, Column, ListOf, MapOf, Struct, Type
from headgate.data_plane.formats.connect.arrow_schema import arrow_type_of_schema

_PLAIN = {
    **dict.fromkeys(("int8", "int16", "int32"), "int"),
    "int64": "long",
    "bytes": "binary",
    **{kind: kind for kind in ("float", "double", "boolean", "string")},
}
_NAMED = "org.apache.kafka.connect.data."
_LOGICAL = {
    ("int32", f"{_NAMED}Date"): "date",
    ("int32", f"{_NAMED}Time"): "time",
    ("int64", f"{_NAMED}Timestamp"): "timestamptz",
}
_DECIMAL = ("bytes", f"{_NAMED}Decimal")
_PRECISION = "connect.decimal.precision"
_NO_PRECISION = "decimal(0, "


def columns_of(schema: Any) -> Struct:
    """Return the columns of a schema that ``arrow_schema`` reads; only a struct proposes any."""
    kind = _infer_type(schema)
    return kind if isinstance(kind, Struct) else Struct()


def with_default_precision(wanted: Struct) -> Struct:
    """Return the wanted columns, with all digits if nobody knows how many."""
    return Struct(tuple(_column_with_default_precision(column) for column in wanted.fields))


def _infer_column(name: str, schema: Any) -> Column | None:
    try:
        arrow_type_of_schema(schema)
    except ValueError:
        return None  # nobody could fill it
    kind = _infer_type(schema)
    return None if kind is None else Column(name, kind, required=not schema.get("optional"))


def _infer_type(schema: Any) -> Type | None:
    kind, name = schema.get("type"), str(schema.get("name"))
    match kind:
        case "struct":
            named = ((str(field.get("field")), field) for field in schema["fields"])
            columns = [column for name_, field in named if (column := _infer_column(name_, field))]
            return Struct(tuple(columns)) if columns else None
        case "array":
            item = _infer_column("", schema["items"])
            return None if item is None else ListOf(item)
        case "map":
            item = _infer_column("", schema["values"])
            return None if item is None else MapOf("string", item)
    if (kind, name) == _DECIMAL:
        return _infer_decimal(schema["parameters"])
    return _LOGICAL.get((kind, name)) or _PLAIN.get(kind)


def _infer_decimal(parameters: dict[str, Any]) -> str | None:
    scale, precision = max(0, int(parameters["scale"])), str(parameters.get(_PRECISION, ""))
    if scale > DIGITS_MAX:
        return None
    known = precision.isdecimal() and max(1, scale) <= int(precision) <= DIGITS_MAX
    return f"decimal({precision}, {scale})" if known else f"{_NO_PRECISION}{scale})"


def _column_with_default_precision(column: Column) -> Column:
    return replace(column, type=_type_with_default_precision(column.type))


def _type_with_default_precision(column_type: Type) -> Type:
    match column_type:
        case Struct():
            return with_default_precision(column_type)
        case ListOf(element):
            return ListOf(_column_with_default_precision(element))
        case MapOf(key, value):
            return MapOf(key, _column_with_default_precision(value))
        case _:
            return column_type.replace(_NO_PRECISION, f"decimal({DIGITS_MAX}, ")
