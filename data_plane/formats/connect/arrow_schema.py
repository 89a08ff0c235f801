"""Translates the schemas that Kafka Connect's JSON converter embeds into Arrow types.

Logical types are Connect's own Decimal, Date, Time and Timestamp, and Debezium's, which count in
other units or write a decimal's scale next to it. Other names are ignored: the value is then what
its physical type says. A field that cannot be read only affects a column that needs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from headgate.data_plane.formats import field_names as names
from headgate.data_plane.formats.casting.counted_time_types import Counted, debezium_time_type
from headgate.data_plane.formats.casting.decimals import (
    VARIABLE_SCALE,
    Unscaled,
    VariableScale,
)
from headgate.data_plane.formats.column_options import ColumnRule, with_read_options_of_rule

_DEPTH_MAX = 64
_PLAIN = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.large_string(),
    "bytes": pa.large_binary(),
}
_LOGICAL = {
    ("int32", "org.apache.kafka.connect.data.Date"): pa.date32(),
    ("int32", "org.apache.kafka.connect.data.Time"): pa.time64("us"),
    ("int64", "org.apache.kafka.connect.data.Timestamp"): pa.timestamp("us", tz="UTC"),
}
_DECIMAL = ("bytes", "org.apache.kafka.connect.data.Decimal")
_SCALE = re.compile(r"-?[0-9]{1,4}", re.ASCII)


class Unread(pa.ExtensionType):  # type: ignore[misc] # pyarrow has no types
    """Types any JSON in a field whose schema cannot be read, for this ``reason``."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(pa.large_string(), "headgate.unread")

    def __arrow_ext_serialize__(self) -> bytes:
        return self.reason.encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, _: pa.DataType, serialized: bytes) -> Unread:
        return cls(serialized.decode())


def arrow_type_of_schema(schema: Any, depth: int = 0) -> pa.DataType:
    """Return the Arrow type of a schema's values. Raises ``ValueError``."""
    if not isinstance(schema, dict) or depth > _DEPTH_MAX:
        raise ValueError("the schema is none of Connect's")
    kind, name = str(schema.get("type")), str(schema.get("name"))  # a list cannot be looked up
    if kind == "struct":
        fields = schema.get("fields")
        if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
            raise ValueError("a struct of the schema has no list of fields")
        names = [str(field.get("field")) for field in fields]
        if len(set(names)) < len(names):
            raise ValueError("a struct of the schema has a field twice")
        types = [_arrow_type_or_placeholder(field, depth + 1) for field in fields]
        made = pa.struct(list(zip(names, types, strict=True)))
        return VariableScale() if (name, made) == (VARIABLE_SCALE, VariableScale.stored) else made
    if kind == "array":
        return pa.large_list(arrow_type_of_schema(schema.get("items"), depth + 1))
    if kind == "map":
        keys = schema.get("keys")
        if not isinstance(keys, dict) or keys.get("type") != "string":
            raise ValueError("the schema has a map whose keys are not strings")
        return pa.map_(pa.large_string(), arrow_type_of_schema(schema.get("values"), depth + 1))
    if (kind, name) == _DECIMAL:
        return _decimal_type(schema.get("parameters"))
    counted = debezium_time_type(name)
    if counted and kind in ("int32", "int64"):
        return counted
    if (kind, name) in _LOGICAL:
        return _LOGICAL[kind, name]
    if kind not in _PLAIN:
        said = schema.get("type")
        raise ValueError(f"the schema has the type {said!r}, which is none of Connect's")
    return _PLAIN[kind]


def _arrow_type_or_placeholder(schema: Any, depth: int) -> pa.DataType:
    try:
        return arrow_type_of_schema(schema, depth)
    except ValueError as error:
        return Unread(str(error))


def nullable_fields_with_default(schema: Any) -> list[str]:
    """Return a row's fields that may be null and have a default other than null.

    Unless told otherwise, Kafka Connect's converters write the default instead of their nulls.
    """
    fields = _fields_if_struct(schema)
    names = {str(field.get("field")) for field in fields}
    if {"op", "after"} <= names:  # Debezium's envelope
        fields = next(_fields_if_struct(field) for field in fields if field.get("field") == "after")
    return [
        str(field.get("field"))
        for field in fields
        if field.get("optional") is True and field.get("default") is not None
    ]


def _fields_if_struct(schema: Any) -> list[dict[str, Any]]:
    fields = schema.get("fields") if isinstance(schema, dict) else None
    return (
        [field for field in fields if isinstance(field, dict)] if isinstance(fields, list) else []
    )


def _decimal_type(parameters: Any) -> pa.DataType:
    scale = parameters.get("scale") if isinstance(parameters, dict) else None
    if not _SCALE.fullmatch(str(scale)):
        raise ValueError(f"a decimal of the schema has the scale {scale!r}")
    return Unscaled(int(str(scale)))


def pruned_type(data_type: pa.DataType, wanted_fields: Iterable[pa.Field]) -> pa.DataType:
    """Return a struct without what no wanted field looks for: no value there can be bad.

    A struct of which nothing is left stays whole, because it also says how many values there are.
    """
    if not pa.types.is_struct(data_type):
        return data_type
    wanted: dict[str, list[pa.Field]] = {}
    for field in wanted_fields:
        for form in names.lookup_names_of(field):
            wanted.setdefault(form, []).append(field)
    kept = []
    for child in data_type:
        lower = [field for field in wanted.get(child.name.lower(), ()) if names.is_caseless(field)]
        inside = [field.type for field in (*wanted.get(child.name, ()), *lower)]
        if inside and all(map(pa.types.is_struct, inside)):
            below = [field for struct in inside for field in struct]
            kept.append(child.with_type(pruned_type(child.type, below)))
        elif inside:
            kept.append(child)
    return pa.struct(kept) if kept else data_type


def json_storage_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type as JSON spells it: decimals are base64, Debezium's times are numbers."""
    if isinstance(data_type, Unscaled | VariableScale | Counted | Unread):
        return data_type.storage_type
    if pa.types.is_struct(data_type):
        return pa.struct([_json_storage_field(child) for child in data_type])
    if pa.types.is_large_list(data_type):
        return pa.large_list(json_storage_type(data_type.value_type))
    if pa.types.is_map(data_type):
        return pa.map_(data_type.key_type, json_storage_type(data_type.item_type))
    return data_type


def _json_storage_field(child: pa.Field) -> pa.Field:
    """Mark unread fields, so that any JSON value passes as text."""
    field = pa.field(child.name, json_storage_type(child.type))
    return (
        with_read_options_of_rule(field, ColumnRule(as_text=True))
        if isinstance(child.type, Unread)
        else field
    )
