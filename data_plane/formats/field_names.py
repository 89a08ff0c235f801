"""Decides which field of a record goes into which column.

A field is found by its name, unless the table has a name mapping for the column (then by the names
that it lists), and regardless of case if that was asked for. What is known about a table travels in
the metadata of its Arrow fields, so that a format only needs the schema.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pa_types

from headgate.control_protocol.columns import Column, ListOf, MapOf, Struct
from headgate.control_protocol.schema_evolution import Former

MAPPING_PROPERTY = "schema.name-mapping.default"
_NAMES, _CASELESS = b"headgate.names", b"headgate.caseless"
_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True, eq=False)
class ExactSchema:
    """A schema as a key: Arrow's own are equal whatever their fields are marked with."""

    schema: pa.Schema

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExactSchema) and self.schema.equals(
            other.schema, check_metadata=True
        )

    def __hash__(self) -> int:
        return hash(tuple(self.schema.names))


class TwoFields(ValueError):
    """Says that two fields of a record claim one column: either would silently drop the other."""


def with_lookup_names(schema: pa.Schema, name_mapping: str | None, *, caseless: bool) -> pa.Schema:
    """Return the schema with fields that know the names by which they are found.

    ``name_mapping``: the table's, as JSON. Raises ``ValueError`` if two columns would be found by
    one name, and for text that is not a mapping.
    """
    if name_mapping is None and not caseless:
        return schema
    by_id = _names_by_field_id(json.loads(name_mapping)) if name_mapping is not None else {}
    return pa.schema(
        _require_distinct_names([_with_lookup_names(f, by_id, caseless=caseless) for f in schema])
    )


def _names_by_field_id(mapping: Any) -> dict[bytes, list[str]]:
    result: dict[bytes, list[str]] = {}
    if not isinstance(mapping, list) or not all(isinstance(entry, dict) for entry in mapping):
        raise ValueError("the name mapping is not a list of fields")
    for entry in mapping:
        if "field-id" in entry:
            result[str(entry["field-id"]).encode()] = [str(name) for name in entry.get("names", [])]
        result |= _names_by_field_id(entry.get("fields") or [])
    return result


def _with_lookup_names(
    field: pa.Field, by_id: dict[bytes, list[str]], *, caseless: bool
) -> pa.Field:
    known = dict(field.metadata or {})
    names = by_id.get(known.get(_FIELD_ID, b""), [field.name])
    known[_NAMES] = json.dumps(names).encode()
    if caseless:
        known[_CASELESS] = b"true"
    inside = _child_fields(field.type)
    if inside:
        fields = [_with_lookup_names(child, by_id, caseless=caseless) for child in inside]
        field = field.with_type(_with_child_fields(field.type, fields))
    return field.with_metadata(known)


def _child_fields(data_type: pa.DataType) -> list[pa.Field]:
    if pa_types.is_map(data_type):
        return [data_type.key_field, data_type.item_field]
    return [data_type.field(place) for place in range(data_type.num_fields)]


def _with_child_fields(data_type: pa.DataType, fields: list[pa.Field]) -> pa.DataType:
    if pa_types.is_struct(data_type):
        return pa.struct(_require_distinct_names(fields))
    if pa_types.is_map(data_type):
        return pa.map_(*fields)
    return pa.large_list(fields[0]) if pa_types.is_large_list(data_type) else pa.list_(fields[0])


def _require_distinct_names(fields: list[pa.Field]) -> list[pa.Field]:
    wanted = Counter(form for field in fields for form in lookup_names_of(field))
    twice = sorted(form for form, count in wanted.items() if count > 1)
    if twice:
        raise ValueError(f"more than one column would take the field {twice[0]!r}")
    return fields


def with_lookup_case(field: pa.Field, *, caseless: bool) -> pa.Field:
    """Return a field of a record by its own name, which is not a column of the table."""
    if not caseless:
        return field
    known = {_NAMES: json.dumps([field.name]).encode(), _CASELESS: b"true"}
    return field.with_metadata(known)


def with_own_lookup_name(field: pa.Field) -> pa.Field:
    """Return a field around others, by its own name; those inside may be found by other names."""
    return field.with_metadata({_NAMES: json.dumps([field.name]).encode()})


def is_found_by_exact_names(field: pa.Field) -> bool:
    """Return whether the field and everything in it are found only by their exact names."""
    # A rule's own path has no names, and may lead to columns that have some.
    return not _has_own_lookup_names(field) and all(
        map(is_found_by_exact_names, _child_fields(field.type))
    )


def _has_own_lookup_names(field: pa.Field) -> bool:
    return bool(field.metadata) and _NAMES in field.metadata


def is_caseless(field: pa.Field) -> bool:
    return bool(field.metadata) and _CASELESS in field.metadata


def lookup_names_of(field: pa.Field) -> set[str]:
    """Return the names by which the field is found, in lower case if case does not matter."""
    if not _has_own_lookup_names(field):
        return {field.name}
    names = json.loads(field.metadata[_NAMES])
    return {name.lower() for name in names} if is_caseless(field) else set(names)


def match_fields(fields: Iterable[pa.Field], available: Sequence[str]) -> list[int | None]:
    """Return each field's index among the available names, or ``None``. Raises ``TwoFields``."""
    by_name: dict[str, list[int]] = {}
    by_form: dict[str, list[int]] = {}
    for place, name in enumerate(available):
        by_name.setdefault(name, []).append(place)
        by_form.setdefault(name.lower(), []).append(place)
    result: list[int | None] = []
    for field in fields:
        index = by_form if is_caseless(field) else by_name
        hits = [place for form in lookup_names_of(field) for place in index.get(form, [])]
        if len(hits) > 1:
            both = " and ".join(repr(available[place]) for place in sorted(hits)[:2])
            raise TwoFields(f"the fields {both} both belong into the column {field.name}")
        result.append(hits[0] if hits else None)
    return result


# ------------------------------------------------------------------------------------- former names


def with_former_names(name_mapping: str | None, columns: Struct, past: Former) -> str | None:
    """Return a name mapping in which former names also lead to the columns, if there are any."""
    if not past.renamed:
        return name_mapping
    known = dict(_field_ids_and_names(json.loads(name_mapping))) if name_mapping is not None else {}
    entries = []
    for inside, column in _columns_with_parent_ids(columns, 0):
        once = [old for old, now in past.renamed.get(inside, {}).items() if now == column.name]
        listed = known.get(column.field_id, [column.name])
        entries.append({"field-id": column.field_id, "names": [*listed, *once]})
    others = known.keys() - {entry["field-id"] for entry in entries}
    entries += [{"field-id": field_id, "names": known[field_id]} for field_id in sorted(others)]
    return json.dumps(entries)


def _field_ids_and_names(entries: Any) -> Iterator[tuple[int, list[str]]]:
    for entry in entries:
        if "field-id" in entry:
            yield entry["field-id"], entry.get("names", [])
        yield from _field_ids_and_names(entry.get("fields") or [])


def _columns_with_parent_ids(columns: Struct, parent_id: int) -> Iterator[tuple[int, Column]]:
    for column in columns.fields:
        yield parent_id, column
        yield from _nested_columns_with_parent_ids(column)


def _nested_columns_with_parent_ids(column: Column) -> Iterator[tuple[int, Column]]:
    match column.type:
        case Struct() as struct:
            yield from _columns_with_parent_ids(struct, column.field_id)
        case ListOf(element=item) | MapOf(value=item):
            yield from _nested_columns_with_parent_ids(item)
