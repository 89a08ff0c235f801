"""Reads Protocol Buffers' types from descriptors as ``protoc`` and registries write them.

Descriptors are messages themselves; only what reading needs is looked at. Text (``.proto``) is not
read, since that takes a compiler. The types that come with every compiler are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from headgate.data_plane.formats.protobuf.decoder import BYTES, VARINT, Broken, read_fields

_KINDS = (
    "", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string",
    "group", "message", "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64",
)  # fmt: skip
_DEPTH_MAX = 64
_REQUIRED, _REPEATED = 2, 3
_UNKNOWN_SYNTAX = "editions"


class UnfitTypes(ValueError):
    """Says that the descriptor is invalid, or describes what headgate does not read."""


@dataclass(frozen=True, slots=True)
class Field:
    """``type`` as in ``.proto``. ``presence``: whether absence is distinguished from zero."""

    name: str
    number: int
    type: str
    type_name: str = ""
    repeated: bool = False
    required: bool = False
    presence: bool = False
    oneof: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """Describes a message type; ``entry``: whether it stands for a map's entries on the wire."""

    name: str
    fields: tuple[Field, ...]
    entry: bool = False
    nested: tuple[str, ...] = ()


@dataclass(slots=True)
class Types:
    """Types by full name. ``files``: the messages at the top of each file, by the file's name."""

    messages: dict[str, Message] = field(default_factory=dict)
    enums: dict[str, dict[int, str]] = field(default_factory=dict)
    files: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def require_message(self, name: str) -> Message:
        """Raises ``UnfitTypes``."""
        if name not in self.messages:
            raise UnfitTypes(f"the descriptor has no message {name!r}")
        return self.messages[name]

    def require_enum(self, name: str) -> dict[int, str]:
        if name not in self.enums:
            raise UnfitTypes(f"the descriptor has no enum {name!r}")
        return self.enums[name]

    def message_by_indexes(self, file: str, message_indexes: Iterable[int]) -> Message:
        """Return the message that a record's indexes name. Raises ``UnfitTypes``."""
        level = self.files.get(file, ())
        name = ""
        for index in message_indexes:
            if not 0 <= index < len(level):
                raise UnfitTypes("its message indexes lead to no message of the schema")
            name = level[index]
            level = self.messages[name].nested
        return self.require_message(name)

    def message_by_sorted_index(self, file: str, number: int) -> Message:
        """Return the message of this number among all of the file, by full name.

        Raises ``UnfitTypes``.
        """
        names, level = list[str](), list(self.files.get(file, ()))
        while level:
            name = level.pop()
            names.append(name)
            level.extend(self.messages[name].nested)
        if number >= len(names):
            raise UnfitTypes("its message number leads to no message of the schema")
        return self.require_message(sorted(names)[number])


def parse_types(files: Iterable[bytes]) -> Types:
    """Return the types in descriptors of single files. Raises ``UnfitTypes``."""
    result = well_known_types()
    for raw in files:
        try:
            _add_file(raw, result)
        except (Broken, UnicodeDecodeError) as error:
            raise UnfitTypes("it is not a descriptor, or is cut off") from error
    for name, message in result.messages.items():
        read = tuple(_with_resolved_type(part, name, result) for part in message.fields)
        result.messages[name] = replace(message, fields=read)
    return result


def _with_resolved_type(field: Field, scope: str, types: Types) -> Field:
    """Return the field with the full name of its type.

    Descriptors may use the relative name from the text, and leave open whether it is a message or
    an enum.
    """
    if not field.type_name:
        return field
    scopes = [scope.rsplit(".", up)[0] for up in range(scope.count(".") + 1)]
    wanted = field.type_name
    names = [wanted] if wanted.startswith(".") else [*(f"{at}.{wanted}" for at in scopes), wanted]
    for name in (name.removeprefix(".") for name in names):
        if name in types.messages and field.type in ("", "message", "group"):
            kind = field.type or "message"
            presence = field.presence or (kind == "message" and not field.repeated)
            return replace(field, type=kind, type_name=name, presence=presence)
        if name in types.enums and field.type in ("", "enum"):
            return replace(field, type="enum", type_name=name)
    return replace(field, type=field.type or "message", type_name=wanted.removeprefix("."))


def split_descriptor_set(descriptor_set: bytes) -> list[bytes]:
    """Return the files in the output of ``protoc --descriptor_set_out``. Raises ``UnfitTypes``."""
    try:
        result = list(_read_bytes_fields(descriptor_set, 1))
    except Broken as error:
        raise UnfitTypes("it is not a descriptor set, or is cut off") from error
    if not result:
        raise UnfitTypes("the descriptor set is empty")
    return result


def _read_bytes_fields(raw: bytes, field_number: int) -> Iterator[bytes]:
    for number, wire, begin, size in read_fields(raw, 0, len(raw)):
        if number == field_number and wire == BYTES:
            yield raw[begin : begin + size]


def _read_text_field(raw: bytes, field_number: int) -> str:
    return next(_read_bytes_fields(raw, field_number), b"").decode()


def _read_number_field(raw: bytes, field_number: int, default: int = 0) -> int:
    result = default
    for number, wire, value, _ in read_fields(raw, 0, len(raw)):
        if number == field_number and wire == VARINT:
            result = value
    return result


def file_name_of(file_descriptor: bytes) -> str:
    """Raises ``UnfitTypes``."""
    try:
        return _read_text_field(file_descriptor, 1)
    except (Broken, UnicodeDecodeError) as error:
        raise UnfitTypes("it is not a descriptor, or is cut off") from error


def _add_file(raw: bytes, into: Types) -> None:
    name, package, syntax = (
        _read_text_field(raw, 1),
        _read_text_field(raw, 2),
        _read_text_field(raw, 12),
    )
    if syntax == _UNKNOWN_SYNTAX:
        raise UnfitTypes(f"{name} is written in an edition; proto2 and proto3 are read")
    scope = f"{package}." if package else ""
    for enum in _read_bytes_fields(raw, 5):
        _add_enum(enum, scope, into)
    into.files[name] = tuple(
        _add_message(message, scope, (into, syntax == "proto3"), 0)
        for message in _read_bytes_fields(raw, 4)
    )


def _add_enum(raw: bytes, scope: str, into: Types) -> None:
    names: dict[int, str] = {}
    for value in _read_bytes_fields(raw, 2):
        number = _read_number_field(value, 2)
        names.setdefault(number - 2**64 if number >= 2**63 else number, _read_text_field(value, 1))
    into.enums[scope + _read_text_field(raw, 1)] = names


def _add_message(raw: bytes, scope: str, context: tuple[Types, bool], depth: int) -> str:
    into, proto3 = context
    if depth > _DEPTH_MAX:
        raise UnfitTypes("its messages are declared too deep in one another")
    name = scope + _read_text_field(raw, 1)
    for enum in _read_bytes_fields(raw, 4):
        _add_enum(enum, f"{name}.", into)
    nested = tuple(
        _add_message(m, f"{name}.", context, depth + 1) for m in _read_bytes_fields(raw, 3)
    )
    read = tuple(_read_field(f, proto3=proto3) for f in _read_bytes_fields(raw, 2))
    options = next(_read_bytes_fields(raw, 7), b"")
    # A map's entry counts among the nested messages, as a record's index does.
    into.messages[name] = Message(name, read, bool(_read_number_field(options, 7)), nested)
    return name


def _read_field(raw: bytes, *, proto3: bool) -> Field:
    code, label = _read_number_field(raw, 5), _read_number_field(raw, 4)
    if code >= len(_KINDS) or (not code and not _read_text_field(raw, 6)):
        raise UnfitTypes(f"the field {_read_text_field(raw, 1)!r} has an unknown type")
    kind, oneof = _KINDS[code], _read_number_field(raw, 9, -1)
    implicit = proto3 and oneof < 0 and kind != "message"
    return Field(
        name=_read_text_field(raw, 1),
        number=_read_number_field(raw, 3),
        type=kind,
        type_name=_read_text_field(raw, 6),
        repeated=label == _REPEATED,
        required=label == _REQUIRED,
        presence=label != _REPEATED and not implicit,
        oneof=oneof,
    )


TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPED = {
    "Double": "double",
    "Float": "float",
    "Int64": "int64",
    "UInt64": "uint64",
    "Int32": "int32",
    "UInt32": "uint32",
    "Bool": "bool",
    "String": "string",
    "Bytes": "bytes",
}
WRAPPERS = frozenset(f"google.protobuf.{name}Value" for name in _WRAPPED)


def well_known_types() -> Types:
    """Return the types that a descriptor may name without containing them."""
    moment = (Field("seconds", 1, "int64"), Field("nanos", 2, "int32"))
    result = [Message(name, moment) for name in (TIMESTAMP, "google.protobuf.Duration")]
    result += [
        Message(f"google.protobuf.{name}Value", (Field("value", 1, kind),))
        for name, kind in _WRAPPED.items()
    ]
    any_fields = (Field("type_url", 1, "string"), Field("value", 2, "bytes"))
    paths = (Field("paths", 1, "string", repeated=True),)
    result += [
        Message("google.protobuf.Any", any_fields),
        Message("google.protobuf.Empty", ()),
        Message("google.protobuf.FieldMask", paths),
    ]
    return Types({message.name: message for message in result})
