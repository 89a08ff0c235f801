"""Adds columns' former names to those by which a name mapping finds them now (S6)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from headgate.control_protocol.columns import Column, ListOf, MapOf, Struct
from headgate.control_protocol.schema_evolution import Former


def with_former_names(mapping: str | None, columns: Struct, past: Former) -> str | None:
    """Return a name mapping in which former names also lead to the columns, if there are any."""
    if not past.renamed:
        return mapping
    known = dict(_listed(json.loads(mapping))) if mapping is not None else {}
    entries = []
    for inside, column in _fields(columns, 0):
        once = [old for old, now in past.renamed.get(inside, {}).items() if now == column.name]
        listed = known.get(column.field_id, [column.name])
        entries.append({"field-id": column.field_id, "names": [*listed, *once]})
    beside = known.keys() - {entry["field-id"] for entry in entries}
    entries += [{"field-id": field_id, "names": known[field_id]} for field_id in sorted(beside)]
    return json.dumps(entries)


def _listed(entries: Any) -> Iterator[tuple[int, list[str]]]:
    for entry in entries:
        if "field-id" in entry:
            yield entry["field-id"], entry.get("names", [])
        yield from _listed(entry.get("fields") or [])


def _fields(columns: Struct, inside: int) -> Iterator[tuple[int, Column]]:
    for column in columns.fields:
        yield inside, column
        yield from _inside(column)


def _inside(column: Column) -> Iterator[tuple[int, Column]]:
    match column.type:
        case Struct() as struct:
            yield from _fields(struct, column.field_id)
        case ListOf(element=item) | MapOf(value=item):
            yield from _inside(item)
