"""Decides how a table grows by what records propose (SCHEMA-5 to SCHEMA-7): what fitted before fits
afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from headgate.control_protocol.columns import (
    DIGITS_MAX,
    Column,
    ListOf,
    MapOf,
    Path,
    Struct,
    Type,
    decimal_precision_and_scale,
    named_fields_with_parent_ids,
    struct_as_map,
)

COLUMNS_MAX = 500
"""Fields of all levels; a proposal's columns beyond it are refused."""

DEPTH_MAX = 5
FIELDS_MAX = 200
"""A new object with more keys is taken for a map."""

NAME_CHARACTERS_MAX = 200
FULL = "the table has as many columns as it may"
"""The reason of a refusal that holds for everything else that the table lacks."""

NESTED_MAX = 16
"""The depth of lists, maps and structs in one another, with names or without."""

FIXED_BYTES_MAX = 2**20

RESERVED = frozenset(
    (
        *("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id"),
        *("_last_updated_sequence_number", "_change_type", "_change_ordinal"),
        "_commit_snapshot_id",
    )
)
"""The names that the Iceberg specification reserves, and those of the columns that Spark adds to
each table: a column with such a name cannot be read."""

_NAME = re.compile(r"[\w$-]+")
_PLAIN = frozenset(
    {
        *("boolean", "int", "long", "float", "double", "string", "binary", "uuid"),
        *("date", "time", "timestamp", "timestamptz"),
    }
)
_NANOSECONDS = frozenset(("timestamp_ns", "timestamptz_ns"))
_FIXED = re.compile(r"fixed[(\[]([1-9][0-9]{0,9})[)\]]")
_WIDER = {("int", "long"), ("float", "double")}
_NOWHERE = -1
"""Stands for the id of a column that is only to be added: no older schema knows it."""


@dataclass(frozen=True, slots=True)
class Former:
    """Tells what older schemas of a table called its columns (SCHEMA-6), by the id of the struct
    around them.

    ``renamed``: the name that a column has now; ``dropped``: names whose column is gone. Ids: 0 for
    the table itself, else those of the column, the list's element or the map's value.
    """

    renamed: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    dropped: Mapping[int, frozenset[str]] = field(default_factory=dict)


def collect_former_columns(now: Struct, before: Iterable[Struct]) -> Former:
    """Compare the columns with those of older schemas, the oldest first."""
    alive = {
        column.field_id: (inside, column.name)
        for inside, column in named_fields_with_parent_ids(now)
    }
    taken = {(inside, column.name.lower()) for inside, column in named_fields_with_parent_ids(now)}
    renamed: dict[int, dict[str, str]] = {}
    dropped: dict[int, set[str]] = {}
    for old in before:
        for inside, column in named_fields_with_parent_ids(old):
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


@dataclass(frozen=True, slots=True)
class Refusal:
    """Names a field that the table will not have, and why."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Growth:
    """Holds the columns as they will be; new ones have the id 0."""

    columns: Struct
    refused: tuple[Refusal, ...] = ()


def grow_columns(
    existing: Struct,
    proposed: Struct,
    past: Former | None = None,
    *,
    columns_max: int = COLUMNS_MAX,
    nanoseconds: bool = True,
) -> Growth:
    """Add and widen what the proposal needs, and nothing else.

    New columns stand behind the others and are optional. Nothing is dropped, narrowed, renamed or
    reordered. ``nanoseconds``: whether the table's format version has them.
    """
    kinds = _PLAIN | _NANOSECONDS if nanoseconds else _PLAIN
    room = columns_max - sum(1 for _ in named_fields_with_parent_ids(existing))
    growing = _Growing(past or Former(), room, kinds)
    columns = growing.grow_struct(existing, proposed, 0, ())
    return Growth(columns, tuple(growing.refused))


class _Growing:
    def __init__(self, past: Former, room: int, kinds: frozenset[str]) -> None:
        self._past = past
        self._room = room
        self._kinds = kinds
        self.refused: list[Refusal] = []

    def grow_struct(self, existing: Struct, proposed: Struct, parent_id: int, path: Path) -> Struct:
        columns = {column.name: column for column in existing.fields}
        folded = {name.lower(): name for name in columns}
        renamed = self._past.renamed.get(parent_id, {})
        for wanted in proposed.fields:
            name = wanted.name if wanted.name in columns else renamed.get(wanted.name, "")
            if name:
                columns[name] = self._grow_column(columns[name], wanted, (*path, name))
                continue
            at = (*path, wanted.name)
            new = self._try_new_column(wanted, folded, parent_id, at)
            if new is not None:
                folded[wanted.name.lower()] = wanted.name
                columns[wanted.name] = new
        return Struct(tuple(columns.values()))

    def _try_new_column(
        self, wanted: Column, folded: Mapping[str, str], parent_id: int, path: Path
    ) -> Column | None:
        """Return the column as the table adds it: nothing in it is required, and it has no ids."""
        why = self._objection_to_new_column(wanted, folded, parent_id, path)
        kind: Type | None = None
        if not why:
            self._room -= 1
            kind = self._reduce_to_supported_type(wanted.type, path)
            why = "" if kind is not None else _why_type_fits_no_column(wanted.type)
            self._room += kind is None
        if kind is None:
            self.refused.append(Refusal(path, why))
            return None
        return Column(wanted.name, kind, required=False)

    def _reduce_to_supported_type(self, kind: Type, path: Path) -> Type | None:
        """Return the type without the parts that the table cannot have; refuses these and uses up
        room."""
        match kind:
            case Struct():
                fields = self.grow_struct(Struct(), kind, _NOWHERE, path)
                return fields if fields.fields else None
            case ListOf(element):
                item = self._reduce_to_supported_type(element.type, path)
                return None if item is None else ListOf(Column("", item, required=False))
            case MapOf(key, value):
                item = (
                    self._reduce_to_supported_type(value.type, path)
                    if self._is_supported_primitive(key)
                    else None
                )
                return None if item is None else MapOf(key, Column("", item, required=False))
            case _:
                return kind if self._is_supported_primitive(kind) else None

    def _is_supported_primitive(self, kind: Type) -> bool:
        """Return whether the table can have this primitive type: anybody may have proposed it."""
        if not isinstance(kind, str):
            return False
        number, fixed = decimal_precision_and_scale(kind), _FIXED.fullmatch(kind)
        if number:
            return number[1] <= number[0] <= DIGITS_MAX and number[0] > 0
        return int(fixed[1]) <= FIXED_BYTES_MAX if fixed else kind in self._kinds

    def _objection_to_new_column(
        self, wanted: Column, folded: Mapping[str, str], parent_id: int, path: Path
    ) -> str:
        """Return the objection under SCHEMA-6, SCHEMA-7 or the bounds; empty when there is none."""
        if wanted.name in self._past.dropped.get(parent_id, ()):
            return "its column was dropped"
        if wanted.name.lower() in folded:
            return f"differs from the column {folded[wanted.name.lower()]} only in case"
        if not _NAME.fullmatch(wanted.name) or len(wanted.name) > NAME_CHARACTERS_MAX:
            return "no column can have this name"
        if len(path) == 1 and wanted.name.lower() in RESERVED:
            return "Iceberg keeps this name for itself"
        if len(path) > DEPTH_MAX:
            return f"lies deeper than {DEPTH_MAX} levels"
        if nesting_depth(wanted.type) > NESTED_MAX:
            return f"is nested more than {NESTED_MAX} levels deep"
        if self._room < 1:
            return FULL
        return ""

    def _grow_column(self, column: Column, wanted: Column, path: Path) -> Column:
        required = column.required and wanted.required
        kind = self._grow_type(column, wanted.type, path)
        return replace(column, type=kind, required=required)

    def _grow_type(self, column: Column, wanted: Type, path: Path) -> Type:
        match column.type, wanted:
            case Struct() as struct, Struct():
                return self.grow_struct(struct, wanted, column.field_id, path)
            case ListOf(element), ListOf(item):
                return ListOf(self._grow_column(element, item, path))
            case MapOf(key, value), MapOf(_, item):
                return MapOf(key, self._grow_column(value, item, path))
            case str() as kind, str():
                return wanted if can_widen(kind, wanted) else kind
            case kind, _:
                return kind


def _why_type_fits_no_column(kind: Type) -> str:
    if not isinstance(kind, str):
        return "no field of it can be a column"
    return f"no column here can have the type {kind if len(kind) <= 40 else kind[:40] + '...'}"


def nesting_depth(kind: Type) -> int:
    """Return the nesting depth of lists, maps and structs."""
    match kind:
        case Struct(fields):
            return 1 + max((nesting_depth(column.type) for column in fields), default=0)
        case ListOf(element=item) | MapOf(value=item):
            return 1 + nesting_depth(item.type)
        case _:
            return 0


def wide_structs_as_maps(proposed: Struct, existing: Struct) -> Struct:
    """CREATE-2: turn new objects of more than 200 keys into maps; existing columns stay as they
    are."""
    known = {column.name for column in existing.fields}
    return Struct(
        tuple(
            column
            if column.name in known
            else replace(column, type=_wide_structs_as_maps(column.type))
            for column in proposed.fields
        )
    )


def _wide_structs_as_maps(kind: Type) -> Type:
    match kind:
        case Struct(fields):
            inside = Struct(
                tuple(replace(each, type=_wide_structs_as_maps(each.type)) for each in fields)
            )
            return struct_as_map(inside) if len(fields) > FIELDS_MAX else inside
        case ListOf(element):
            return ListOf(replace(element, type=_wide_structs_as_maps(element.type)))
        case MapOf(key, value):
            return MapOf(key, replace(value, type=_wide_structs_as_maps(value.type)))
        case _:
            return kind


def can_widen(kind: str, wanted: str) -> bool:
    """Return whether a column of this type may become one of the other, which holds its values."""
    if (kind, wanted) in _WIDER:
        return True
    now, then = decimal_precision_and_scale(kind), decimal_precision_and_scale(wanted)
    return bool(now and then and now[1] == then[1] and now[0] < then[0] <= DIGITS_MAX)
