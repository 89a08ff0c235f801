"""Holds a table's columns as plain values, and joins what records propose.

Joining proposals is a set union: in any order, any number of times, the result is the same.
One case depends on the order: a field that is an object, a map with text as keys, and a map with
other keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

_DECIMAL = re.compile(r"decimal\((\d{1,9}),\s*(\d{1,9})\)", re.ASCII)
DIGITS_MAX = 38
_WHOLE = {"int": (10, 0), "long": (19, 0)}
"""Precision and scale of the decimals that hold all their values."""
_FLOATS = {"float", "double"}

Path = tuple[str, ...]
"""Names from the outermost column inwards; list items and map values add none."""


@dataclass(frozen=True, slots=True)
class Column:
    """Describes one field. ``required`` in a proposal: nobody asks to make it optional.

    ``field_id`` is the table's, and 0 in a proposal.
    """

    name: str
    type: Type
    required: bool = True
    field_id: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Struct:
    fields: tuple[Column, ...] = ()

    def __getitem__(self, name: str) -> Column:
        return next(column for column in self.fields if column.name == name)


@dataclass(frozen=True, slots=True)
class ListOf:
    """Describes a list; its ``element`` has no name of its own."""

    element: Column


@dataclass(frozen=True, slots=True)
class MapOf:
    key: Type
    value: Column


Type = str | Struct | ListOf | MapOf
"""Text for a primitive type, as the Iceberg specification writes it."""


# ---------------------------------------------------------------------------------------- as JSON


def struct_from_json(text: str) -> Struct:
    """Read Iceberg's JSON of a schema, with or without ids. Raises ``ValueError``."""
    try:
        found = _type_from_json(json.loads(text), 0)
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"no columns: {error!r}") from error
    if not isinstance(found, Struct):
        raise ValueError("no columns: not a struct")  # noqa: TRY004 - what was read, not what was given
    return found


def struct_to_json_without_ids(columns: Struct) -> str:
    """Write the columns as Iceberg's JSON without ids."""
    return json.dumps(_type_to_json(columns))


def _type_from_json(form: Any, depth: int) -> Type:
    if depth > 64:
        raise ValueError("no columns: nested too deeply")
    if isinstance(form, str):
        return form
    kind, depth = form["type"], depth + 1
    if kind == "struct":
        fields = (
            Column(
                str(each["name"]),
                _type_from_json(each["type"], depth),
                bool(each.get("required", False)),
                int(each.get("id", 0)),
            )
            for each in form["fields"]
        )
        return Struct(tuple(fields))
    if kind == "list":
        required, id_ = bool(form["element-required"]), int(form.get("element-id", 0))
        return ListOf(Column("", _type_from_json(form["element"], depth), required, id_))
    if kind == "map":
        required, id_ = bool(form["value-required"]), int(form.get("value-id", 0))
        value = Column("", _type_from_json(form["value"], depth), required, id_)
        return MapOf(_type_from_json(form["key"], depth), value)
    raise ValueError(f"no columns: {kind!r} is not a type")


def _type_to_json(kind: Type) -> Any:
    match kind:
        case Struct(fields):
            named = [
                {"name": c.name, "required": c.required, "type": _type_to_json(c.type)}
                for c in fields
            ]
            return {"type": "struct", "fields": named}
        case ListOf(element):
            form = {"element": _type_to_json(element.type), "element-required": element.required}
            return {"type": "list", **form}
        case MapOf(key, value):
            form = {"value": _type_to_json(value.type), "value-required": value.required}
            return {"type": "map", "key": _type_to_json(key), **form}
        case _:
            return kind


# ------------------------------------------------------------------------------ joining proposals


def unify_columns(one: Struct, other: Struct) -> Struct:
    """Return everything that either proposes, in the order of the first.

    Of two types it takes the narrowest that holds both: long, double, a wider decimal, else text.
    """
    theirs = {column.name: column for column in other.fields}
    both = [
        _unify_column(column, theirs.pop(column.name)) if column.name in theirs else column
        for column in one.fields
    ]
    return Struct((*both, *theirs.values()))


def _unify_column(one: Column, other: Column) -> Column:
    return Column(one.name, _unify_types(one.type, other.type), one.required and other.required)


def _unify_types(one: Type, other: Type) -> Type:
    match one, other:
        case Struct(), Struct():
            return unify_columns(one, other)
        case ListOf(), ListOf():
            return ListOf(_unify_column(one.element, other.element))
        case MapOf(), MapOf():
            return MapOf(_unify_types(one.key, other.key), _unify_column(one.value, other.value))
        case (Struct() as struct, MapOf("string") as items) | (
            MapOf("string") as items,
            Struct() as struct,
        ):
            return struct_as_map(struct, items)
        case str(), str():
            return _unify_primitives(one, other)
        case _:
            return "string"


def struct_as_map(struct: Struct, map_to_unify_with: MapOf | None = None) -> Type:
    """Return a map whose values take what all fields hold, and what a map of such objects holds."""
    values = [Column("", column.type, column.required) for column in struct.fields]
    values += [map_to_unify_with.value] if map_to_unify_with else []
    return MapOf("string", reduce(_unify_column, values)) if values else struct


def _unify_primitives(one: str, other: str) -> str:
    if one == other:
        return one
    kinds = {one, other}
    if kinds <= _WHOLE.keys():
        return "long"
    if kinds <= _WHOLE.keys() | _FLOATS:
        return "double"
    first, second = (_WHOLE.get(kind) or decimal_precision_and_scale(kind) for kind in (one, other))
    if first and second:
        scale = max(first[1], second[1])
        precision = max(first[0] - first[1], second[0] - second[1]) + scale
        if precision <= DIGITS_MAX:
            return f"decimal({precision}, {scale})"
    return "string"


def decimal_precision_and_scale(kind: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal."""
    found = _DECIMAL.fullmatch(kind)
    return (int(found[1]), int(found[2])) if found else None


def named_fields_with_parent_ids(
    columns: Struct, parent_id: int = 0
) -> Iterator[tuple[int, Column]]:
    """Yield every named field, with the id of what it is in."""
    for column in columns.fields:
        yield parent_id, column
        yield from fields_inside_with_parent_ids(column)


def fields_inside_with_parent_ids(column: Column) -> Iterator[tuple[int, Column]]:
    match column.type:
        case Struct() as struct:
            yield from named_fields_with_parent_ids(struct, column.field_id)
        case ListOf(element=item) | MapOf(value=item):
            yield from fields_inside_with_parent_ids(item)


def columns_without(
    columns: Struct, paths_to_drop: Collection[Path], own_path: Path = ()
) -> Struct:
    """Return the columns without those at these paths, and without what that leaves empty."""
    if not paths_to_drop:
        return columns
    kept = (
        _column_without(column, paths_to_drop, (*own_path, column.name))
        for column in columns.fields
    )
    return Struct(tuple(column for column in kept if column is not None))


def _column_without(
    column: Column, paths_to_drop: Collection[Path], own_path: Path
) -> Column | None:
    kind = (
        None if own_path in paths_to_drop else _type_without(column.type, paths_to_drop, own_path)
    )
    return None if kind is None else replace(column, type=kind)


def _type_without(kind: Type, paths_to_drop: Collection[Path], own_path: Path) -> Type | None:
    match kind:
        case Struct():
            left = columns_without(kind, paths_to_drop, own_path)
            return left if left.fields else None
        case ListOf(element):
            item = _type_without(element.type, paths_to_drop, own_path)
            return None if item is None else ListOf(replace(element, type=item))
        case MapOf(key, value):
            item = _type_without(value.type, paths_to_drop, own_path)
            return None if item is None else MapOf(key, replace(value, type=item))
        case _:
            return kind


# ---------------------------------------------------------------------------------------- in words


def describe_schema_growth(before: Struct, after: Struct) -> tuple[str, ...]:
    """Return the differences for people: ``+pax``, ``fare: long``, ``zone: optional``."""
    return tuple(_describe_struct_changes(before, after, ()))


def _describe_struct_changes(before: Struct, after: Struct, path: Path) -> Iterator[str]:
    known = {column.name: column for column in before.fields}
    for column in after.fields:
        at = (*path, column.name)
        if column.name not in known:
            yield f"+{dotted_path(at)}"
        else:
            yield from _describe_column_change(known[column.name], column, at)


def _describe_column_change(before: Column, after: Column, path: Path) -> Iterator[str]:
    if before.required and not after.required:
        yield f"{dotted_path(path)}: optional"
    match before.type, after.type:
        case Struct() as one, Struct() as other:
            yield from _describe_struct_changes(one, other, path)
        case (ListOf(one), ListOf(other)) | (MapOf(_, one), MapOf(_, other)):
            yield from _describe_column_change(one, other, path)
        case str() as one, str() as other if one != other:
            yield f"{dotted_path(path)}: {other}"


def dotted_path(path: Sequence[str]) -> str:
    return ".".join(path)
