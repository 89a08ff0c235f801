"""Derives the columns that a Protobuf message type asks for."""

from __future__ import annotations

from headgate.control_protocol.columns import Column, ListOf, MapOf, Struct, Type
from headgate.data_plane.formats.protobuf.descriptors import (
    TIMESTAMP,
    WRAPPERS,
    Field,
    Message,
    Types,
)

_PLAIN = {
    "double": "double",
    "float": "float",
    "bool": "boolean",
    "string": "string",
    "bytes": "binary",
    "enum": "string",
    **dict.fromkeys(("int32", "sint32", "sfixed32"), "int"),
    **dict.fromkeys(("int64", "sint64", "sfixed64", "uint32", "fixed32"), "long"),
    **dict.fromkeys(("uint64", "fixed64"), "decimal(20, 0)"),
}
_DEPTH_MAX = 8


def columns_of(types: Types, message_type: Message) -> Struct:
    """Return a message's columns; recursive types, groups and unknown types propose none."""
    return _infer_columns(types, message_type, ()) or Struct()


def _infer_columns(types: Types, message_type: Message, above: tuple[str, ...]) -> Struct | None:
    if message_type.name in above or len(above) >= _DEPTH_MAX:
        return None
    above = (*above, message_type.name)
    columns = [
        Column(field.name, result, required=not field.presence)
        for field in message_type.fields
        if (result := _infer_type(types, field, above)) is not None
    ]
    return Struct(tuple(columns)) if columns else None


def _infer_type(types: Types, field: Field, above: tuple[str, ...]) -> Type | None:
    if field.repeated and field.type == "message":
        entry = types.messages.get(field.type_name)
        if entry is not None and entry.entry:
            return _infer_map_type(types, entry, above)
    result = _infer_single_type(types, field, above)
    if result is None or not field.repeated:
        return result
    return ListOf(Column("", result))


def _infer_single_type(types: Types, field: Field, above: tuple[str, ...]) -> Type | None:
    if field.type != "message":
        return _PLAIN.get(field.type)
    kind = types.messages.get(field.type_name)
    if kind is None:
        return None
    if kind.name == TIMESTAMP:
        return "timestamptz"
    if kind.name in WRAPPERS:
        return _PLAIN[kind.fields[0].type]
    return _infer_columns(types, kind, above)


def _infer_map_type(types: Types, entry: Message, above: tuple[str, ...]) -> Type | None:
    parts = {part.number: _infer_single_type(types, part, above) for part in entry.fields}
    key, value = parts.get(1), parts.get(2)
    if not isinstance(key, str) or value is None:
        return None
    return MapOf(key, Column("", value))
