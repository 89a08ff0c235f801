"""Translates JSON Schemas into Kafka Connect's, as far as tables have columns for them.

Connect's own converter says in annotations what a type was: ``connect.type``, ``title``,
``connect.parameters``. Of all others a subset is read: objects, arrays, maps by
``additionalProperties``, plain types, each nullable by a list of types or ``oneOf``, and ``$ref``.
What is beyond that has no type here: its values show what they are, as without a schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headgate.control_protocol.columns import Struct
from headgate.data_plane.formats.avro.schema import UnfitSchema
from headgate.data_plane.formats.casting.counted_time_types import debezium_time_type
from headgate.data_plane.formats.connect import schema_inference

_DEPTH_MAX = 64
_NODES_MAX = 20_000
"""References let a short text describe a tree without end."""

_PLAIN = {"boolean": "boolean", "string": "string"}
_NUMBERS = {
    "integer": frozenset({"int64", "int8", "int16", "int32"}),
    "number": frozenset({"double", "float32", "float64"}),
}
_FIRST = {"integer": "int64", "number": "double"}
_FLOATS = {"float32": "float", "float64": "double"}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_TEXTS = frozenset({"bytes", "string"})

_Form = dict[str, Any]


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """What a JSON Schema says of columns. ``connect``: the schema as Connect's, if values cannot be
    read without; else empty. ``counted``: whether it has numbers that count in a unit of their own.
    """

    columns: Struct
    connect: str = ""
    counted: bool = False


def translate_json_schema(text: str, references: Mapping[str, str]) -> JsonSchema:
    """Return what the text says. Raises ``UnfitSchema`` if it is no JSON Schema.

    ``references``: further schemas, by the names that it uses.
    """
    try:
        parsed = json.loads(text)
        others = {name: json.loads(other) for name, other in references.items()}
        reading = _Reading(parsed, others)
        form = reading.connect_schema_of(parsed, _Place(refs=("#",)))
    except UnfitSchema:
        raise
    except (ValueError, RecursionError) as error:
        raise UnfitSchema(f"the schema is not JSON: {type(error).__name__}") from error
    if not isinstance(parsed, dict | bool):
        raise UnfitSchema("the schema is no JSON Schema")
    if form is None or form["type"] != "struct":
        return JsonSchema(Struct())
    connect = json.dumps(form) if reading.decimals or reading.counted else ""
    return JsonSchema(schema_inference.columns_of(form), connect, reading.counted)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a schema stands. ``document``: what ``#`` means; ``refs``: the references that led
    here."""

    document: str = ""
    depth: int = 0
    refs: tuple[str, ...] = ()

    def one_level_deeper(self) -> _Place:
        return replace(self, depth=self.depth + 1)


class _Reading:
    """Reads one schema with what it refers to. ``decimals`` and ``counted``: whether it has values
    whose text alone would mislead."""

    def __init__(self, root: Any, others: Mapping[str, Any]) -> None:
        self._documents = {"": root, **others}
        self._nodes = 0
        self.decimals = self.counted = False

    def connect_schema_of(self, json_schema: Any, place: _Place) -> _Form | None:
        """Return Connect's schema; ``None`` where values must show what they are."""
        self._nodes += 1
        if self._nodes > _NODES_MAX:
            raise UnfitSchema(f"the schema describes more than {_NODES_MAX} types")
        if not isinstance(json_schema, dict) or place.depth > _DEPTH_MAX:
            return None
        if "$ref" in json_schema:
            return self._connect_schema_of_reference(json_schema["$ref"], place)
        for word in ("oneOf", "anyOf", "allOf"):
            if word in json_schema:
                return self._connect_schema_of_only_branch(json_schema[word], place)
        kinds = json_schema.get("type")
        if isinstance(kinds, list):
            left = [kind for kind in kinds if kind != "null"]
            kinds = left[0] if len(left) == 1 else None
        return self._connect_schema_of_type(str(kinds), json_schema, place)

    def _connect_schema_of_only_branch(self, branches: Any, place: _Place) -> _Form | None:
        if not isinstance(branches, list):
            return None
        left = [b for b in branches if not (isinstance(b, dict) and b.get("type") == "null")]
        return self.connect_schema_of(left[0], place.one_level_deeper()) if len(left) == 1 else None

    def _connect_schema_of_reference(self, name: Any, place: _Place) -> _Form | None:
        if not isinstance(name, str):
            return None
        at, _, pointer = name.partition("#")
        at = at or place.document
        full = f"{at}#{pointer}"
        if full in place.refs:
            return None  # it contains itself
        target = self._documents.get(at)
        for step in filter(None, pointer.split("/")):
            key = step.replace("~1", "/").replace("~0", "~")
            target = target.get(key) if isinstance(target, dict) else None
        return self.connect_schema_of(target, _Place(at, place.depth + 1, (*place.refs, full)))

    def _connect_schema_of_type(self, kind: str, json_schema: _Form, place: _Place) -> _Form | None:
        if kind == "object":
            return self._connect_schema_of_object(json_schema, place)
        if kind == "array":
            items = self.connect_schema_of(json_schema.get("items"), place.one_level_deeper())
            return None if items is None else {"type": "array", "items": items}
        title, connect = json_schema.get("title"), str(json_schema.get("connect.type"))
        if title == _DECIMAL and connect == "bytes":
            self.decimals = True
            parameters = json_schema.get("connect.parameters")
            return {
                "type": "bytes",
                "name": _DECIMAL,
                "parameters": parameters if isinstance(parameters, dict) else {},
            }
        if kind == "string":
            connect = connect if connect in _TEXTS else "string"
            return {"type": connect}
        if kind in _NUMBERS:
            chosen = connect if connect in _NUMBERS[kind] else _FIRST[kind]
            named = {"name": title} if isinstance(title, str) else {}
            if debezium_time_type(str(title)) and chosen in ("int32", "int64"):
                self.counted = True  # Debezium's times count in the unit of their name
            return {"type": _FLOATS.get(chosen, chosen), **named}
        return {"type": "boolean"} if kind == "boolean" else None

    def _connect_schema_of_object(self, json_schema: _Form, place: _Place) -> _Form | None:
        properties, more = json_schema.get("properties"), json_schema.get("additionalProperties")
        if json_schema.get("patternProperties"):
            return None
        if not properties and isinstance(more, dict):
            values = self.connect_schema_of(more, place.one_level_deeper())
            keys = {"type": "string"}
            if values is None:
                return None
            return {"type": "map", "keys": keys, "values": values}
        if not isinstance(properties, dict):
            return None
        ordered = sorted(properties.items(), key=lambda pair: _connect_index_of(pair[1]))
        made = [
            (name, self.connect_schema_of(inner, place.one_level_deeper()))
            for name, inner in ordered
        ]
        fields = [{**form, "field": name} for name, form in made if form is not None]
        return {"type": "struct", "fields": fields} if fields else None


def _connect_index_of(json_schema: Any) -> int:
    """Return a property's place among its like, if Connect's converter wrote it."""
    place = json_schema.get("connect.index") if isinstance(json_schema, dict) else None
    if (
        place is None
        and isinstance(json_schema, dict)
        and isinstance(json_schema.get("oneOf"), list)
    ):
        places = [
            each.get("connect.index") for each in json_schema["oneOf"] if isinstance(each, dict)
        ]
        place = next((each for each in places if isinstance(each, int)), None)
    return place if isinstance(place, int) else 0
