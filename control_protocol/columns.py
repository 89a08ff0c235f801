"""A table's columns as plain values: what records propose, and how a table grows by it (S5 to S7).

Proposals join like sets: in any order, any number of times, with the same result. A table only ever
grows: what fitted before fits afterwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

COLUMNS_MAX = 500
"""Fields of all levels; a proposal that would add more is refused as far as it does."""

DEPTH_MAX = 5
NAME_CHARACTERS_MAX = 200
FULL = "the table has as many columns as it may"
"""The reason of a refusal that holds for whatever else the table lacks."""

_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_DIGITS_MAX = 38
_NAME = re.compile(r"[\w$-]+")
_NUMBERS = {"int": 0, "long": 1, "float": 0, "double": 2}
_WIDER = {("int", "long"), ("float", "double")}
_NOWHERE = -1
"""Instead of the id of what is only to be added: no older schema knows it."""

Path = tuple[str, ...]
"""Names from the outermost column inwards; items of lists and maps add none."""


@dataclass(frozen=True, slots=True)
class Column:
    """One field. ``required`` in a proposal: nobody asks that it may be missing.

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
    """``element`` has no name of its own."""

    element: Column


@dataclass(frozen=True, slots=True)
class MapOf:
    key: Type
    value: Column


Type = str | Struct | ListOf | MapOf
"""Text for a primitive type, as the Iceberg specification writes it."""


# ---------------------------------------------------------------------------------------- as JSON


def from_json(text: str) -> Struct:
    """Read Iceberg's JSON of a schema, with or without ids. Raises ``ValueError``."""
    try:
        found = _type_of(json.loads(text), 0)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no columns: {error!r}") from error
    if not isinstance(found, Struct):
        raise ValueError("no columns: not a struct")  # noqa: TRY004 - what was read, not what was given
    return found


def to_json(columns: Struct) -> str:
    """Write the columns as Iceberg's JSON without ids."""
    return json.dumps(_form(columns))


def _type_of(form: Any, depth: int) -> Type:
    if depth > 64:
        raise ValueError("no columns: nested too deeply")
    if isinstance(form, str):
        return form
    kind, depth = form["type"], depth + 1
    if kind == "struct":
        fields = (
            Column(
                str(each["name"]),
                _type_of(each["type"], depth),
                bool(each.get("required", False)),
                int(each.get("id", 0)),
            )
            for each in form["fields"]
        )
        return Struct(tuple(fields))
    if kind == "list":
        required, id_ = bool(form["element-required"]), int(form.get("element-id", 0))
        return ListOf(Column("", _type_of(form["element"], depth), required, id_))
    if kind == "map":
        required, id_ = bool(form["value-required"]), int(form.get("value-id", 0))
        value = Column("", _type_of(form["value"], depth), required, id_)
        return MapOf(_type_of(form["key"], depth), value)
    raise ValueError(f"no columns: {kind!r} is not a type")


def _form(kind: Type) -> Any:
    match kind:
        case Struct(fields):
            named = [
                {"name": c.name, "required": c.required, "type": _form(c.type)} for c in fields
            ]
            return {"type": "struct", "fields": named}
        case ListOf(element):
            form = {"element": _form(element.type), "element-required": element.required}
            return {"type": "list", **form}
        case MapOf(key, value):
            form = {"value": _form(value.type), "value-required": value.required}
            return {"type": "map", "key": _form(key), **form}
        case _:
            return kind


# ------------------------------------------------------------------------------ joining proposals


def joined(one: Struct, other: Struct) -> Struct:
    """Everything that either proposes; the order of the first counts.

    Of two types the narrowest that holds both: long, double, a wider decimal, else text.
    """
    theirs = {column.name: column for column in other.fields}
    both = [
        _both(column, theirs.pop(column.name)) if column.name in theirs else column
        for column in one.fields
    ]
    return Struct((*both, *theirs.values()))


def _both(one: Column, other: Column) -> Column:
    return Column(one.name, _type(one.type, other.type), one.required and other.required)


def _type(one: Type, other: Type) -> Type:
    match one, other:
        case Struct(), Struct():
            return joined(one, other)
        case ListOf(), ListOf():
            return ListOf(_both(one.element, other.element))
        case MapOf(), MapOf():
            return MapOf(_type(one.key, other.key), _both(one.value, other.value))
        case str(), str():
            return _primitive(one, other)
        case _:
            return "string"


def _primitive(one: str, other: str) -> str:
    if one == other:
        return one
    if one in _NUMBERS and other in _NUMBERS:
        whole = {"int", "long"}
        return "long" if {one, other} <= whole else "double"
    first, second = _digits(one), _digits(other)
    if first and second:
        scale = max(first[1], second[1])
        precision = max(first[0] - first[1], second[0] - second[1]) + scale
        if precision <= _DIGITS_MAX:
            return f"decimal({precision}, {scale})"
    return "string"


def _digits(kind: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal."""
    found = _DECIMAL.fullmatch(kind)
    return (int(found[1]), int(found[2])) if found else None


# -------------------------------------------------------------------------------- growing a table


@dataclass(frozen=True, slots=True)
class Former:
    """What older schemas of a table called its columns (S6), by the id of the struct around them.

    ``renamed``: the name that a column has now; ``dropped``: names whose column is gone. Ids: 0 for
    the table itself, else those of the column, the list's element or the map's value.
    """

    renamed: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    dropped: Mapping[int, frozenset[str]] = field(default_factory=dict)


def former(now: Struct, before: Iterable[Struct]) -> Former:
    """Compare the columns with those of older schemas, the oldest first."""
    alive = {column.field_id: (inside, column.name) for inside, column in _fields(now)}
    taken = {(inside, column.name.lower()) for inside, column in _fields(now)}
    renamed: dict[int, dict[str, str]] = {}
    dropped: dict[int, set[str]] = {}
    for old in before:
        for inside, column in _fields(old):
            if (inside, column.name.lower()) in taken:
                continue
            place = alive.get(column.field_id)
            renamed.get(inside, {}).pop(column.name, None)
            dropped.get(inside, set()).discard(column.name)
            if place is None:
                dropped.setdefault(inside, set()).add(column.name)
            elif place[0] == inside:
                renamed.setdefault(inside, {})[column.name] = place[1]
    return Former(renamed, {inside: frozenset(names) for inside, names in dropped.items()})


def _fields(columns: Struct, inside: int = 0) -> Iterator[tuple[int, Column]]:
    """Every named field, with the id of what it is in."""
    for column in columns.fields:
        yield inside, column
        yield from _fields_of(column)


def _fields_of(column: Column) -> Iterator[tuple[int, Column]]:
    match column.type:
        case Struct() as struct:
            yield from _fields(struct, column.field_id)
        case ListOf(element=item) | MapOf(value=item):
            yield from _fields_of(item)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A field that the table is not going to have, and why."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Growth:
    """The columns as they shall be; new ones have the id 0."""

    columns: Struct
    refused: tuple[Refusal, ...] = ()


def grown(
    table: Struct,
    proposed: Struct,
    past: Former | None = None,
    *,
    columns_max: int = COLUMNS_MAX,
) -> Growth:
    """Add and widen what the proposal needs, and nothing else.

    New columns stand behind the others and may be null. Nothing is dropped, narrowed, renamed or
    reordered.
    """
    growing = _Growing(past or Former(), columns_max - sum(1 for _ in _fields(table)))
    columns = growing.struct(table, proposed, 0, ())
    return Growth(columns, tuple(growing.refused))


class _Growing:
    def __init__(self, past: Former, room: int) -> None:
        self._past = past
        self._room = room
        self.refused: list[Refusal] = []

    def struct(self, table: Struct, proposed: Struct, inside: int, path: Path) -> Struct:
        columns = {column.name: column for column in table.fields}
        folded = {name.lower(): name for name in columns}
        renamed = self._past.renamed.get(inside, {})
        for wanted in proposed.fields:
            name = wanted.name if wanted.name in columns else renamed.get(wanted.name, "")
            if name:
                columns[name] = self._column(columns[name], wanted, (*path, name))
                continue
            at = (*path, wanted.name)
            new = self._new(wanted, folded, inside, at)
            if new is not None:
                folded[wanted.name.lower()] = wanted.name
                columns[wanted.name] = new
        return Struct(tuple(columns.values()))

    def _new(
        self, wanted: Column, folded: Mapping[str, str], inside: int, path: Path
    ) -> Column | None:
        """The column as the table takes it up: nothing in it is required, and it has no ids."""
        why = self._objection(wanted, folded, inside, path)
        kind: Type | None = None
        if not why:
            self._room -= 1
            kind = self._taken_up(wanted.type, path)
            why = "" if kind is not None else "no field of it can be a column"
            self._room += kind is None
        if kind is None:
            self.refused.append(Refusal(path, why))
            return None
        return Column(wanted.name, kind, required=False)

    def _taken_up(self, kind: Type, path: Path) -> Type | None:
        match kind:
            case Struct():
                fields = self.struct(Struct(), kind, _NOWHERE, path)
                return fields if fields.fields else None
            case ListOf(element):
                item = self._taken_up(element.type, path)
                return None if item is None else ListOf(Column("", item, required=False))
            case MapOf(key, value):
                item = self._taken_up(value.type, path)
                return None if item is None else MapOf(key, Column("", item, required=False))
            case _:
                return kind

    def _objection(self, wanted: Column, folded: Mapping[str, str], inside: int, path: Path) -> str:
        """S6, S7 and the bounds; empty when there is none."""
        if wanted.name in self._past.dropped.get(inside, ()):
            return "its column was dropped"
        if wanted.name.lower() in folded:
            return f"differs from the column {folded[wanted.name.lower()]} only in case"
        if not _NAME.fullmatch(wanted.name) or len(wanted.name) > NAME_CHARACTERS_MAX:
            return "no column can have this name"
        if len(path) > DEPTH_MAX:
            return f"lies deeper than {DEPTH_MAX} levels"
        if self._room < 1:
            return FULL
        return ""

    def _column(self, column: Column, wanted: Column, path: Path) -> Column:
        required = column.required and wanted.required
        kind = self._type(column, wanted.type, path)
        return replace(column, type=kind, required=required)

    def _type(self, column: Column, wanted: Type, path: Path) -> Type:
        match column.type, wanted:
            case Struct() as struct, Struct():
                return self.struct(struct, wanted, column.field_id, path)
            case ListOf(element), ListOf(item):
                return ListOf(self._column(element, item, path))
            case MapOf(key, value), MapOf(_, item):
                return MapOf(key, self._column(value, item, path))
            case str() as kind, str():
                return wanted if widens(kind, wanted) else kind
            case kind, _:
                return kind


def widens(kind: str, wanted: str) -> bool:
    """Whether a column of this type may become one of the other, whose values include its own."""
    if (kind, wanted) in _WIDER:
        return True
    now, then = _digits(kind), _digits(wanted)
    return bool(now and then and now[1] == then[1] and now[0] < then[0] <= _DIGITS_MAX)


# ---------------------------------------------------------------------------------------- in words


def changes(before: Struct, after: Struct) -> tuple[str, ...]:
    """What is different, for a person: ``+pax``, ``fare: long``, ``zone: optional``."""
    return tuple(_changes(before, after, ()))


def _changes(before: Struct, after: Struct, path: Path) -> Iterator[str]:
    known = {column.name: column for column in before.fields}
    for column in after.fields:
        at = (*path, column.name)
        if column.name not in known:
            yield f"+{dotted(at)}"
        else:
            yield from _changed(known[column.name], column, at)


def _changed(before: Column, after: Column, path: Path) -> Iterator[str]:
    if before.required and not after.required:
        yield f"{dotted(path)}: optional"
    match before.type, after.type:
        case Struct() as one, Struct() as other:
            yield from _changes(one, other, path)
        case (ListOf(one), ListOf(other)) | (MapOf(_, one), MapOf(_, other)):
            yield from _changed(one, other, path)
        case str() as one, str() as other if one != other:
            yield f"{dotted(path)}: {other}"


def dotted(path: Sequence[str]) -> str:
    return ".".join(path)
