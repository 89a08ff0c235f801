"""Protobuf written and read by Google's library, which shares no code with what reads it here."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from unit.data_plane.formats.json_tables import plain_rows

from headgate.data_plane.formats.protobuf.format import ProtobufRecords
from headgate.data_plane.formats.record_format import UndecodableRecords

_TYPE = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "double": _TYPE.TYPE_DOUBLE,
    "float": _TYPE.TYPE_FLOAT,
    "int64": _TYPE.TYPE_INT64,
    "uint64": _TYPE.TYPE_UINT64,
    "int32": _TYPE.TYPE_INT32,
    "fixed64": _TYPE.TYPE_FIXED64,
    "fixed32": _TYPE.TYPE_FIXED32,
    "bool": _TYPE.TYPE_BOOL,
    "string": _TYPE.TYPE_STRING,
    "bytes": _TYPE.TYPE_BYTES,
    "uint32": _TYPE.TYPE_UINT32,
    "sfixed32": _TYPE.TYPE_SFIXED32,
    "sfixed64": _TYPE.TYPE_SFIXED64,
    "sint32": _TYPE.TYPE_SINT32,
    "sint64": _TYPE.TYPE_SINT64,
}
COLUMN_OF: dict[str, pa.DataType] = {
    "double": pa.float64(),
    "float": pa.float32(),
    "int64": pa.int64(),
    "uint64": pa.decimal128(20, 0),
    "int32": pa.int32(),
    "fixed64": pa.decimal128(20, 0),
    "fixed32": pa.int64(),
    "bool": pa.bool_(),
    "string": pa.large_string(),
    "bytes": pa.large_binary(),
    "uint32": pa.int64(),
    "sfixed32": pa.int32(),
    "sfixed64": pa.int64(),
    "sint32": pa.int32(),
    "sint64": pa.int64(),
}
MOMENT = pa.timestamp("us", tz="UTC")
INNER = pa.struct([("x", pa.int64()), ("y", pa.large_string())])


def field(message: Any, name: str, number: int, kind: Any, **more: Any) -> Any:
    """Add a field; ``kind``: a scalar's name, or a type's full name with a dot in front."""
    made = message.field.add(name=name, number=number, **more)
    if "label" not in more:
        made.label = _TYPE.LABEL_OPTIONAL
    if kind in SCALARS:
        made.type = SCALARS[kind]
    elif kind.startswith("enum:"):
        made.type, made.type_name = _TYPE.TYPE_ENUM, kind.removeprefix("enum:")
    else:
        made.type, made.type_name = _TYPE.TYPE_MESSAGE, kind
    return made


def map_field(message: Any, name: str, number: int, key: str, value: str) -> None:
    entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
    entry.options.map_entry = True
    field(entry, "key", 1, key)
    field(entry, "value", 2, value)
    kind = f".t.{message.name}.{entry.name}"
    field(message, name, number, kind, label=_TYPE.LABEL_REPEATED)


def file(syntax: str) -> Any:
    """A file with a message ``t.Row`` that has something of everything."""
    made = descriptor_pb2.FileDescriptorProto(name=f"{syntax}.proto", package="t")
    if syntax == "proto3":
        made.syntax = syntax
    made.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    color = made.enum_type.add(name="Color")
    for number, name in enumerate(["RED", "GREEN", "BLUE"]):
        color.value.add(name=name, number=number * 7)
    inner = made.message_type.add(name="Inner")
    field(inner, "x", 1, "int64")
    field(inner, "y", 2, "string")
    row = made.message_type.add(name="Row")
    for number, kind in enumerate(SCALARS, start=1):
        field(row, f"f_{kind}", number, kind)
        field(row, f"r_{kind}", number + 40, kind, label=_TYPE.LABEL_REPEATED)
        if syntax == "proto3":
            oneof = len(row.oneof_decl)
            row.oneof_decl.add(name=f"_o_{kind}")
            field(row, f"o_{kind}", number + 20, kind, oneof_index=oneof, proto3_optional=True)
    field(row, "color", 70, "enum:.t.Color")
    field(row, "colors", 71, "enum:.t.Color", label=_TYPE.LABEL_REPEATED)
    field(row, "inner", 72, ".t.Inner")
    field(row, "inners", 73, ".t.Inner", label=_TYPE.LABEL_REPEATED)
    field(row, "at", 74, ".google.protobuf.Timestamp")
    field(row, "wrapped", 75, ".google.protobuf.Int64Value")
    map_field(row, "counts", 76, "string", "int64")
    map_field(row, "byid", 77, "int32", ".t.Inner")
    oneof = len(row.oneof_decl)
    row.oneof_decl.add(name="choice")
    field(row, "either", 78, "string", oneof_index=oneof)
    field(row, "other", 79, ".t.Inner", oneof_index=oneof)
    field(row, "third", 80, "int32", oneof_index=oneof)
    field(row, "far", 536_870_911, "int32")
    field(row, "next", 81, ".t.Row")
    if syntax == "proto3":  # synthetic oneofs stand behind the real ones
        _synthetic_last(row)
    return made


def _synthetic_last(row: Any) -> None:
    names = [decl.name for decl in row.oneof_decl]
    order = [*range(len(names) - 1)]
    place = {old: new + 1 for new, old in enumerate(order)} | {len(names) - 1: 0}
    for each in row.field:
        if each.HasField("oneof_index"):
            each.oneof_index = place[each.oneof_index]
    del row.oneof_decl[:]
    for old in sorted(place, key=lambda at: place[at]):
        row.oneof_decl.add(name=names[old])


class World:
    """One syntax: Google's class, our options, and the columns of everything."""

    def __init__(self, syntax: str) -> None:
        self.syntax = syntax
        self.file = file(syntax)
        pool = descriptor_pool.DescriptorPool()
        for known in (timestamp_pb2, wrappers_pb2):
            pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
        pool.Add(self.file)
        self.row = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Row"))
        both = descriptor_pb2.FileDescriptorSet(file=[self.file])
        octets = base64.b64encode(both.SerializeToString()).decode()
        self.options = {"descriptor": octets, "message": "t.Row"}
        kinds = COLUMN_OF.items()
        columns = [(f"f_{kind}", column) for kind, column in kinds]
        columns += [(f"r_{kind}", pa.large_list(column)) for kind, column in kinds]
        if syntax == "proto3":
            columns += [(f"o_{kind}", column) for kind, column in kinds]
        columns += [
            ("color", pa.large_string()),
            ("colors", pa.large_list(pa.int32())),
            ("inner", INNER),
            ("inners", pa.large_list(INNER)),
            ("at", MOMENT),
            ("wrapped", pa.int64()),
            ("counts", pa.map_(pa.large_string(), pa.int64())),
            ("byid", pa.map_(pa.int32(), INNER)),
            ("either", pa.large_string()),
            ("other", INNER),
            ("third", pa.int32()),
            ("far", pa.int32()),
            ("next", pa.struct([("f_int32", pa.int32()), ("next", pa.struct([("inner", INNER)]))])),
        ]
        self.columns = pa.schema(columns)

    def read(self, values: Sequence[bytes], columns: pa.Schema | None = None) -> Any:
        return read(self.options, values, columns or self.columns)

    def parsed(self, value: bytes) -> dict[str, Any] | None:
        """What Google's library says of it, in the shape of our rows; ``None`` for no message."""
        try:
            found = self.row.FromString(value)
            return {name: self._value(found, name, self.columns.field(name).type)
                    for name in self.columns.names}  # fmt: skip
        except (DecodeError, UnicodeDecodeError):  # text of proto2 is only looked at when read
            return None

    def _value(self, message: Message, name: str, column: pa.DataType) -> Any:
        descriptor = message.DESCRIPTOR.fields_by_name[name]
        if descriptor.message_type and descriptor.message_type.GetOptions().map_entry:
            if any(f.field_number == descriptor.number for f in UnknownFieldSet(message)):
                return ...  # an entry with more than key and value: kept by C++, put aside by upb
            items = getattr(message, name).items()
            return sorted((key, self._plain(item, column.item_type)) for key, item in items)
        value = getattr(message, name)
        if pa.types.is_large_list(column):
            return [self._plain(item, column.value_type) for item in value]
        if descriptor.has_presence and not message.HasField(name):
            return None
        if name == "color":
            known = descriptor.enum_type.values_by_number
            return known[value].name if value in known else ...
        return self._plain(value, column)

    def _plain(self, value: Any, column: pa.DataType) -> Any:
        if type(value).__name__ == "Timestamp":
            return value.seconds * 10**6 + value.nanos // 1000 if not value.nanos % 1000 else ...
        if type(value).__name__ == "Int64Value":
            return value.value
        if isinstance(value, Message):
            return {child.name: self._value(value, child.name, child.type) for child in column}
        return value


def read(
    options: Mapping[str, str], values: Sequence[bytes], columns: pa.Schema
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The rows, maps in the order of their keys, and why the others are none."""
    bad: dict[int, str] = {}
    try:
        rows = ProtobufRecords(options).decode(values, columns)
    except UndecodableRecords as error:
        rows, bad = error.rest, error.bad
        assert rows.num_rows + len(bad) == len(values)
    rows.validate(full=True)
    found = plain_rows(rows)
    for row in found:
        for name in {"counts", "byid"} & set(row):
            row[name] = sorted(row[name]) if row[name] is not None else None
    return found, bad
