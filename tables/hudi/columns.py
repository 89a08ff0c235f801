"""Translates columns of Hudi tables between neutral ones and the Avro schema at creation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headgate.control_protocol.columns import (
    Column,
    ListOf,
    MapOf,
    Path,
    Struct,
    Type,
    decimal_precision_and_scale,
    dotted_path,
)
from headgate.control_protocol.errors import ConfigurationError, TableUnfit
from headgate.tables.hudi.base_files import COLUMNS, KEY_TYPES, PARTITION_TYPES

_PLAIN = {
    "string": "string",
    "long": "long",
    "int": "int",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "binary": "bytes",
}
_LOGICAL = {
    "date": ("int", "date"),
    "timestamptz": ("long", "timestamp-micros"),
    "timestamp": ("long", "local-timestamp-micros"),
}
_SPARK = {"timestamptz": "timestamp", "timestamp": "timestamp_ntz"}
"""Types that have another name in Spark."""

_MEANING = ("_hoodie_is_deleted", "_hoodie_operation")
"""Columns with a meaning for Hudi if a table has them: they can mark a row as deleted."""

_INSIDE = "columns"
"""Nested types are named within this namespace, so that no two of them collide."""

_OURS = {avro: ours for ours, avro in _PLAIN.items()}
_OURS_LOGICAL = {logical: ours for ours, (_, logical) in _LOGICAL.items()}


def avro_schema_of(name: str, columns: Struct, comments: Mapping[str, str]) -> str:
    """Return a new table's Avro schema. Raises ``ConfigurationError`` naming the column."""
    if own := _find_reserved_name(columns, (*COLUMNS, *_MEANING)):
        raise ConfigurationError(f"{own} is a column of Hudi's own", "name it otherwise")
    fields = [_avro_field(column, (), comments.get(column.name)) for column in columns.fields]
    return json.dumps({"type": "record", "name": name, "namespace": "hoodie", "fields": fields})


def columns_of(table: str, schema: str) -> Struct:
    """Return a table's columns. Raises ``TableUnfit`` for those that our files cannot hold."""
    fields = json.loads(schema)["fields"]
    return Struct(
        tuple(_parse_column(table, each) for each in fields if each["name"] not in COLUMNS)
    )


def require_no_reserved_names(table: str, columns: Struct) -> None:
    """Raise ``TableUnfit`` for a column by which Hudi would take rows for deleted ones."""
    if own := _find_reserved_name(columns, _MEANING):
        raise TableUnfit(
            f"Hudi table {table} has a column {own}, by which Hudi tells rows that go",
            "fill a table without it; rows go by table.key and the records of the topic",
        )


def _find_reserved_name(columns: Struct, names: Sequence[str]) -> str | None:
    """Return the first column with one of these names, ignoring case as Spark does."""
    return next((each.name for each in columns.fields if each.name.lower() in names), None)


def spark_ddl_of(columns: Sequence[Column]) -> str:
    """Return Spark's DDL for columns with these names and types."""
    return ", ".join(
        f"{quote_column(column.name)} {_spark_type(column.type)}" for column in columns
    )


def quote_column(name: str) -> str:
    """Quote a column's name for Spark, whatever characters it contains."""
    return "`{}`".format(name.replace("`", "``"))


def require_partitionable(columns: Struct, partition_by: Sequence[str]) -> None:
    """Raise ``ConfigurationError`` for columns whose folder names are not certain."""
    types = {column.name: column.type for column in columns.fields}
    for name in partition_by:
        if types.get(name) not in PARTITION_TYPES:
            raise ConfigurationError(
                f"a Hudi table is not partitioned here by {name!r}, "
                + (
                    f"of type {types[name]}" if name in types else "which is not one of its columns"
                ),
                f"use a column of {', '.join(PARTITION_TYPES)}",
            )


def require_supported_record_key(columns: Struct, key: str, partition_by: Sequence[str]) -> None:
    """Raise ``ConfigurationError`` for a record key that the table could not be filled with."""
    key_column = next((column for column in columns.fields if column.name == key), None)
    if key_column is None or key_column.type not in KEY_TYPES or not key_column.required:
        raise ConfigurationError(
            f"no record key of a Hudi table is made of {key!r} here",
            f"name one required column of {', '.join(KEY_TYPES)}, or none",
        )
    if len(partition_by) > 1:
        raise ConfigurationError(
            f"a Hudi table with the record key {key!r} has one partition column at most here",
            "leave partition columns out of table.partition_by, or the key out",
        )


def find_changed_column(columns: Struct, schema: str) -> str | None:
    """Return a column that a commit's Avro schema has changed, if any.

    Whether values may be missing is not compared: Spark's writers declare all columns optional.
    """
    now = {column.name: _spark_type(column.type) for column in columns_of("", schema).fields}
    known = {column.name: _spark_type(column.type) for column in columns.fields}
    return next((name for name in {**known, **now} if known.get(name) != now.get(name)), None)


def _spark_type(column_type: Type) -> str:
    match column_type:
        case Struct(fields):
            inner = (f"{quote_column(field.name)}: {_spark_type(field.type)}" for field in fields)
            return f"struct<{', '.join(inner)}>"
        case ListOf(element):
            return f"array<{_spark_type(element.type)}>"
        case MapOf(key, value):
            return f"map<{_spark_type(key)}, {_spark_type(value.type)}>"
        case _:
            return _SPARK.get(column_type, column_type)


def _avro_field(column: Column, inside: Path, comment: str | None = None) -> dict[str, Any]:
    if not column.name.isidentifier():
        raise ConfigurationError(
            f"column {dotted_path((*inside, column.name))!r}: Avro, which says the columns of a "
            "Hudi table, has no such name",
            "letters, digits and _ make one, and no digit begins it; `from` reads another field",
        )
    form = {"name": column.name, "type": _avro_value_type(column, (*inside, column.name))}
    if not column.required:
        form["default"] = None
    return {**form, "doc": comment} if comment else form


def _avro_value_type(column: Column, path: Path) -> Any:
    avro_type = _avro_type(column.type, path)
    return avro_type if column.required else ["null", avro_type]


def _avro_type(column_type: Type, path: Path) -> Any:
    match column_type:
        case Struct(fields):
            form = {"type": "record", **_unique_name_and_namespace(path[-1], path)}
            return {**form, "fields": [_avro_field(each, path) for each in fields]}
        case ListOf(element):
            return {"type": "array", "items": _avro_value_type(element, (*path, "element"))}
        case MapOf("string", value):
            return {"type": "map", "values": _avro_value_type(value, (*path, "value"))}
        case str() if column_type in _PLAIN:
            return _PLAIN[column_type]
        case str() if column_type in _LOGICAL:
            physical, logical = _LOGICAL[column_type]
            return {"type": physical, "logicalType": logical}
        case str() if parts := decimal_precision_and_scale(column_type):
            return _avro_decimal(path, *parts)
    raise ConfigurationError(
        f"column {dotted_path(path)!r}: no column of a Hudi table is made of "
        f"{_refused_type_name(column_type)} here",
        f"use one of {', '.join((*_PLAIN, *_LOGICAL))}, decimal(p,s), and structs, lists and maps "
        "from string of them",
    )


def _unique_name_and_namespace(name: str, path: Path) -> dict[str, str]:
    """Name a type within its column, since no two types may have one name."""
    return {"name": name, "namespace": dotted_path((_INSIDE, *path[:-1]))}


def _avro_decimal(path: Path, precision: int, scale: int) -> dict[str, Any]:
    size = next(n for n in range(1, 17) if 10**precision <= 2 ** (8 * n - 1))
    name = f"fixed_{path[-1]}"
    named = _unique_name_and_namespace(name, path) if len(path) > 1 else {"name": name}
    form = {"type": "fixed", **named, "size": size, "logicalType": "decimal"}
    return {**form, "precision": precision, "scale": scale}


def _refused_type_name(column_type: Type) -> str:
    return column_type if isinstance(column_type, str) else "a map from other keys than text"


def _parse_column(table: str, form: Mapping[str, Any]) -> Column:
    return _parse_field_or_item(table, form["name"], form["type"], form["name"])


def _parse_field_or_item(table: str, column: str, avro_type: Any, name: str = "") -> Column:
    """Read the item of a list or map, which has no name; ``column``: the column it belongs to."""
    required = True
    if isinstance(avro_type, list):
        others = [each for each in avro_type if each != "null"]
        if len(others) != 1:
            raise _unsupported_type_error(table, column, avro_type)
        avro_type, required = others[0], len(others) == len(avro_type)
    return Column(name, _parse_type(table, column, avro_type), required)


def _parse_type(table: str, name: str, form: Any) -> Type:
    if isinstance(form, Mapping):
        logical = form.get("logicalType")
        if logical == "decimal" and form["type"] == "fixed":
            return f"decimal({form['precision']}, {form.get('scale', 0)})"
        if logical in _OURS_LOGICAL:
            return _OURS_LOGICAL[logical]
        match form["type"] if logical is None else None:
            case "record":
                return Struct(tuple(_parse_column(table, each) for each in form["fields"]))
            case "array":
                return ListOf(_parse_field_or_item(table, name, form["items"]))
            case "map":
                return MapOf("string", _parse_field_or_item(table, name, form["values"]))
            case str() as plain if plain in _OURS:
                return _OURS[plain]
    elif form in _OURS:
        return _OURS[form]
    raise _unsupported_type_error(table, name, form)


def _unsupported_type_error(table: str, name: str, form: Any) -> TableUnfit:
    type_text = form.get("logicalType") or form.get("type") if isinstance(form, Mapping) else form
    return TableUnfit(
        f"Hudi table {table}: column {name} is of type {type_text}, which is not written",
        f"known are {', '.join((*_PLAIN, *_LOGICAL))} and decimal; docs/table-formats/hudi.md has "
        "more",
    )
