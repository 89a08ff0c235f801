"""Parses an Avro writer schema into a tree: names resolved, logical types checked.

Follows the Avro 1.12 specification. A logical type that is unknown, or that does not fit what it
annotates, is ignored, as the specification requires; Debezium's times have a name instead. A schema
that contains itself is refused: no table has a column for it, and its values nest without limit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.data_plane.formats.casting.counted_time_types import debezium_time_type

_PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
_LOGICAL = {
    "int": {"date", "time-millis"},
    "long": {
        *("time-micros", "timestamp-millis", "timestamp-micros", "timestamp-nanos"),
        *("local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos"),
    },
    "bytes": {"decimal"},
    "fixed": {"decimal", "uuid"},
    "string": {"uuid"},
}
_DIGITS_MAX = 38
_FIXED_BYTES_MAX = 64 * 1024 * 1024
_DEPTH_MAX = 64
_TYPES_MAX = 50_000
"""A schema of a few lines could have any number of them, and each record is read by all."""


class UnfitSchema(ValueError):
    """Says that a schema is not Avro, or describes what no table can hold."""


@dataclass(frozen=True, slots=True)
class Avro:
    """Describes one type.

    ``children``: a union's branches, the items of an array, the values of a map.

    ``size``: of a fixed, in bytes; ``names``: a record's fields (as its ``children``, in order) or
    an enum's symbols; ``defaulted``: a record's fields that may be null and have a default other
    than null; ``scale`` and ``precision``: of a decimal; ``called``: the full name of a record, or
    Connect's name for a number that counts time.
    """

    type: str
    logical: str = ""
    children: tuple[Avro, ...] = ()
    names: tuple[str, ...] = ()
    size: int = 0
    scale: int = 0
    precision: int = 0
    called: str = ""
    defaulted: tuple[str, ...] = ()
    bytes_min: int = field(init=False, repr=False, compare=False)
    """The minimum size of a value."""
    fixed_max: int = field(init=False, repr=False, compare=False)
    """The size of the largest fixed in it."""
    type_count: int = field(init=False, repr=False, compare=False)
    """How many types are in it, a named one as often as it is used."""

    def __post_init__(self) -> None:
        """Compute what is asked for often: a walk would enter shared types again and again."""
        count = 1 + sum(child.type_count for child in self.children)
        largest = max([self.size, *(child.fixed_max for child in self.children)])
        object.__setattr__(self, "type_count", count)
        object.__setattr__(self, "fixed_max", largest)
        object.__setattr__(self, "bytes_min", self._compute_bytes_min())

    def _compute_bytes_min(self) -> int:
        if self.type in ("null", "fixed"):
            return self.size
        if self.type == "record":
            return sum(child.bytes_min for child in self.children)
        if self.type == "union":
            return 1 + min((child.bytes_min for child in self.children), default=0)
        return {"float": 4, "double": 8}.get(self.type, 1)


def parse_schema(text: str, references: Sequence[str] = ()) -> Avro:
    """Return the type that the JSON text describes. Raises ``UnfitSchema``.

    ``references``: further schemas, each after those that it uses; the text may use their types.
    """
    reading = _Reading()
    for other in references:
        reading.parse_type(_parse_json(other), "", 0)
    result = reading.parse_type(_parse_json(text), "", 0)
    if result.type_count > _TYPES_MAX:
        raise UnfitSchema(f"the schema has more than {_TYPES_MAX} types where they are used")
    return result


def nullable_fields_with_default(writer: Avro) -> tuple[str, ...]:
    """Return a row's fields that may be null and have a default other than null.

    Unless told otherwise, Kafka Connect's converters write the default instead of their nulls.
    """
    fields = dict(zip(writer.names, writer.children, strict=True))
    if writer.type == "record" and {"op", "after"} <= fields.keys():  # Debezium's envelope
        after = fields["after"]
        return tuple(name for branch in (after, *after.children) for name in branch.defaulted)
    return writer.defaulted


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if text in _PRIMITIVES:  # registries may hold a primitive without its quotes
            return text
        raise UnfitSchema(f"the schema is not JSON: {error}") from error


class _Reading:
    def __init__(self) -> None:
        self.known: dict[str, Avro | None] = {}

    def parse_type(self, found: Any, namespace: str, depth: int) -> Avro:
        if depth > _DEPTH_MAX:
            raise UnfitSchema(f"the schema nests deeper than {_DEPTH_MAX}")
        if isinstance(found, str):
            return self._resolve_name(found, namespace)
        if isinstance(found, list):
            branches = tuple(self.parse_type(branch, namespace, depth + 1) for branch in found)
            if not branches or any(branch.type == "union" for branch in branches):
                raise UnfitSchema("a union is empty, or holds another union")
            return Avro("union", children=branches)
        if not isinstance(found, dict):
            raise UnfitSchema(f"the schema holds {found!r} where a type should be")
        return self._parse_complex(found, namespace, depth)

    def _resolve_name(self, name: str, namespace: str) -> Avro:
        if name in _PRIMITIVES:
            return Avro(name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        for candidate in (full, name):
            if candidate in self.known:
                kind = self.known[candidate]
                if kind is None:
                    raise UnfitSchema(f"the record {candidate} contains itself")
                return kind
        raise UnfitSchema(f"the schema uses the type {name!r}, which it does not define")

    def _parse_complex(self, found: dict[str, Any], namespace: str, depth: int) -> Avro:
        kind = found.get("type")
        if kind == "array":
            return Avro(
                "array", children=(self.parse_type(found.get("items"), namespace, depth + 1),)
            )
        if kind == "map":
            return Avro(
                "map", children=(self.parse_type(found.get("values"), namespace, depth + 1),)
            )
        if kind in ("record", "error", "enum", "fixed"):
            return self._define_named_type(str(kind), found, namespace, depth)
        plain = self.parse_type(kind, namespace, depth + 1)
        return _with_logical_type(plain, found)

    def _define_named_type(
        self, kind: str, found: dict[str, Any], namespace: str, depth: int
    ) -> Avro:
        name = found.get("name")
        if not isinstance(name, str) or not name:
            raise UnfitSchema(f"a type {kind} has no name")
        if "." not in name:
            space = found.get("namespace", namespace)
            name = f"{space}.{name}" if space else name
        inside = name.rpartition(".")[0]
        if name in self.known:
            raise UnfitSchema(f"the schema defines {name} twice")
        self.known[name] = None
        made = self._named_type_contents(kind, found, inside, depth)
        if kind == "record":
            made = replace(made, called=name)
        self.known[name] = made
        return made

    def _named_type_contents(
        self, kind: str, found: dict[str, Any], namespace: str, depth: int
    ) -> Avro:
        if kind == "enum":
            symbols = found.get("symbols")
            if not isinstance(symbols, list) or not all(isinstance(s, str) for s in symbols):
                raise UnfitSchema(f"the enum {found.get('name')} has no list of symbols")
            return Avro("enum", names=tuple(symbols))
        if kind == "fixed":
            size = found.get("size")
            if type(size) is not int or not 0 <= size <= _FIXED_BYTES_MAX:
                raise UnfitSchema(f"the fixed {found.get('name')} has the size {size!r}")
            return _with_logical_type(Avro("fixed", size=size), found)
        fields = found.get("fields")
        if not isinstance(fields, list) or not all(isinstance(f, dict) for f in fields):
            raise UnfitSchema(f"the record {found.get('name')} has no list of fields")
        names = tuple(str(field.get("name")) for field in fields)
        if len(set(names)) < len(names):
            raise UnfitSchema(f"the record {found.get('name')} has a field twice")
        types = tuple(self.parse_type(field.get("type"), namespace, depth + 1) for field in fields)
        defaulted = tuple(
            name
            for name, kind, field in zip(names, types, fields, strict=True)
            if "default" in field
            and kind.type == "union"
            # A default is of the first branch.
            and any(branch.type == "null" for branch in kind.children[1:])
        )
        return Avro("record", children=types, names=names, defaulted=defaulted)


def _with_logical_type(plain: Avro, found: dict[str, Any]) -> Avro:
    logical = found.get("logicalType")
    called = found.get("connect.name")
    if logical is None and plain.type in ("int", "long") and debezium_time_type(str(called)):
        return Avro(plain.type, called=str(called))
    if not isinstance(logical, str) or logical not in _LOGICAL.get(plain.type, set()):
        return plain
    scale = found.get("scale", 0)
    if logical == "decimal":
        precision = found.get("precision")
        fits = type(precision) is int and type(scale) is int and 0 <= scale <= precision
        # Wider decimals stay bytes: Arrow computes exactly with 38 digits, and tables keep no more.
        if not fits or not precision or precision > _DIGITS_MAX:
            return plain
    if logical == "uuid" and plain.type == "fixed" and plain.size != 16:
        return plain
    is_decimal = logical == "decimal"
    scale, precision = (scale, found["precision"]) if is_decimal else (0, 0)
    made = (plain.type, logical, plain.children, plain.names)
    return Avro(*made, size=plain.size, scale=scale, precision=precision)
