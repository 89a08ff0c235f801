"""Adds columns with rules (``column_options``) to any record format.

The format is asked for the records' own fields: a path becomes nested structs, which are taken
apart again. If two columns want one field in two ways, values are decoded once for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pyarrow as pa

from headgate.data_plane.formats import column_options, field_names
from headgate.data_plane.formats.casting.cast_to_table import require_no_faults
from headgate.data_plane.formats.casting.relabel import array_from_python
from headgate.data_plane.formats.column_options import ColumnRule
from headgate.data_plane.formats.record_format import (
    NOTHING,
    Faults,
    RecordFormat,
    RuledFormat,
    UndecodableRecords,
)
from headgate.native.byte_arrays import Packed

_NONE = ColumnRule()

Path = tuple[pa.Field, ...]
"""From the outermost field of a record to the one that holds the value."""


@dataclass(slots=True)
class _Layer:
    """Collects what one call of the format reads: fields by name, nested structs as mappings."""

    fields: dict[str, pa.Field | dict[str, object]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def add_path_if_possible(self, path: Path) -> bool:
        """Put the path in, unless another column wants one of its fields as something else."""
        known = self.fields
        if len(path) == 1 or path[0].name not in known:
            forms = _lowered_lookup_names(path[0])
            if forms & self.used:
                return False
            self.used |= forms
        for depth, step in enumerate(path[:-1], start=1):
            inside = known.setdefault(step.name, {})
            if not isinstance(inside, dict) or _has_name_in_other_case(inside, path[depth].name):
                return False
            known = cast("dict[str, pa.Field | dict[str, object]]", inside)
        if path[-1].name in known:
            return False
        known[path[-1].name] = path[-1]
        return True

    def build_schema(self, roots: Mapping[str, pa.Field]) -> pa.Schema:
        return pa.schema(
            [_build_field(name, inside, roots) for name, inside in self.fields.items()]
        )


def _lowered_lookup_names(root: pa.Field) -> set[str]:
    """Return every name by which the root is found, in one case: layers err on the safe side."""
    return {form.lower() for form in field_names.lookup_names_of(root)} | {root.name.lower()}


def _has_name_in_other_case(known: Mapping[str, object], name: str) -> bool:
    return any(other != name and other.lower() == name.lower() for other in known)


def _build_field(name: str, inside: object, steps: Mapping[str, pa.Field]) -> pa.Field:
    if isinstance(inside, pa.Field):
        return inside
    assert isinstance(inside, dict), "a field, or what is in a struct"
    fields = [_build_field(child, below, steps) for child, below in inside.items()]
    return pa.field(name, pa.struct(fields), metadata=steps[name].metadata)


@dataclass(frozen=True, slots=True)
class Inside:
    """Locates a nested column: ``field`` inside the path ``front``; its options start there."""

    front: tuple[str, ...]
    field: pa.Field


class RuledColumns:
    """Reads one schema by its column rules, over a format that supports them.

    ``inside`` tells, by column name, where such columns are.
    """

    def __init__(
        self,
        inner: RecordFormat,
        rules: Mapping[str, ColumnRule],
        schema: pa.Schema,
        *,
        caseless: bool = False,
        inside: Mapping[str, Inside] | None = None,
    ) -> None:
        """Raises ``ValueError`` for a constant that its column cannot hold."""
        self._inside = inside or {}
        self._inner = inner
        self._rules = {column.name: rules.get(column.name, _NONE) for column in schema}
        self._caseless = caseless
        self._constants = {
            column.name: array_from_python([rule.convert_constant(value, column)], column.type)
            for column in schema
            for rule in [self._rules[column.name]]
            for value in [rule.default if rule.value is None else rule.value]
            if value is not None
        }
        self._paths = {
            column.name: self._path_in_value(column, self._rules[column.name])
            for column in schema
            if self._rules[column.name].value is None
        }
        self._layers, self._layer_of = self._group_paths_by_decode()

    def _path_in_value(self, column: pa.Field, rule: ColumnRule) -> Path:
        place = self._inside.get(column.name)
        if place is None:
            return self._path_by_rule(column, rule)
        below = self._path_by_rule(place.field, rule)
        steps = (pa.field(step, pa.null()) for step in place.front)
        front = (
            steps
            if all(map(field_names.is_found_by_exact_names, below))
            else map(field_names.with_own_lookup_name, steps)
        )
        return (*front, *below)

    def _path_by_rule(self, column: pa.Field, rule: ColumnRule) -> Path:
        if not rule.path:
            nullable = column.nullable or rule.default is not None
            return (column_options.with_read_options_of_rule(column.with_nullable(nullable), rule),)
        *steps, last = rule.path
        leaf = field_names.with_lookup_case(pa.field(last, column.type), caseless=self._caseless)
        return (
            *(
                field_names.with_lookup_case(pa.field(step, pa.null()), caseless=self._caseless)
                for step in steps
            ),
            column_options.with_read_options_of_rule(leaf, rule),
        )

    def _group_paths_by_decode(self) -> tuple[list[pa.Schema], dict[str, int]]:
        layers: list[_Layer] = []
        layer_of = {}
        for name, path in self._paths.items():
            place = next(
                (at for at, layer in enumerate(layers) if layer.add_path_if_possible(path)), None
            )
            if place is None:
                place = len(layers)
                layers.append(_Layer())
                is_added = layers[place].add_path_if_possible(path)
                assert is_added, "there is nothing else in it"
            layer_of[name] = place
        steps = {step.name: step for path in self._paths.values() for step in path[:-1]}
        schemas = [layer.build_schema(steps) for layer in layers]
        if not schemas and self._rules and column_options.FROM in getattr(self._inner, "rules", ()):
            # Beside constants alone: what is no record must not become a row.
            schemas.append(NOTHING)
        return schemas, layer_of

    def decode(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        packed = Packed.pack(values)
        bad: dict[int, str] = {}
        read: list[tuple[pa.RecordBatch, np.ndarray[tuple[int], np.dtype[np.int64]]]] = []
        for layer in self._layers:
            everything = np.arange(len(packed), dtype=np.int64)
            try:
                read.append((self._inner.decode(packed, layer), everything))
            except UndecodableRecords as error:
                left = everything[~np.isin(everything, list(error.bad))]
                read.append((error.rest, left))
                bad = {**error.bad, **bad}
        good = np.ones(len(packed), np.bool_)
        good[list(bad)] = False
        parts = [rows.filter(pa.array(good[left])) if bad else rows for rows, left in read]
        left = np.flatnonzero(good)
        faults = Faults()
        result = self._assemble_columns(
            packed.filter(good) if bad else packed, parts, schema, faults
        )
        if not bad:
            return require_no_faults(result, faults)
        if faults.reasons:
            bad.update({int(left[row]): reason for row, reason in faults.reasons.items()})
            sound = ~np.isin(np.arange(len(left)), list(faults.reasons))
            result = result.filter(pa.array(sound))
        raise UndecodableRecords(bad, result)

    def _assemble_columns(
        self, values: Packed, parts: list[pa.RecordBatch], schema: pa.Schema, faults: Faults
    ) -> pa.RecordBatch:
        columns = []
        for column in schema:
            rule = self._rules[column.name]
            if rule.value is not None:
                columns.append(_repeat(self._constants[column.name], len(values)))
                continue
            path = self._paths[column.name]
            result = _column_at(parts[self._layer_of[column.name]], path)
            if rule.default is not None and result.null_count:
                result = self._fill_default(values, result, path, self._constants[column.name])
            if not column.nullable and result.null_count:
                what = ".".join(step.name for step in path)
                nulls = np.flatnonzero(np.asarray(result.is_null()))
                faults.note(nulls, f"{what}: a required value is missing")
            columns.append(result)
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _fill_default(
        self, values: Packed, found: pa.Array, path: Path, constant: pa.Array
    ) -> pa.Array:
        """Fill in the default for records without such a field."""
        nulls = np.flatnonzero(np.asarray(found.is_null()))
        asked = values.take(nulls)
        absent = nulls[cast("RuledFormat", self._inner).flag_absent_field(asked, path)]
        if not len(absent):
            return found
        places = np.arange(len(found), dtype=np.int64)
        places[absent] = len(found)
        return _concat(found, constant).take(pa.array(places))


def _column_at(rows: pa.RecordBatch, path: Path) -> pa.Array:
    result = rows.column(rows.schema.get_field_index(path[0].name))
    for step in path[1:]:
        # A flattened field is null if its parent is.
        result = result.flatten()[result.type.get_field_index(step.name)]
    return result


def _repeat(constant: pa.Array, count: int) -> pa.Array:
    return constant.take(pa.array(np.zeros(count, np.int64)))


def _concat(first: pa.Array, second: pa.Array) -> pa.Array:
    if isinstance(first, pa.ExtensionArray):
        storage = pa.concat_arrays([first.storage, second.storage])
        return pa.ExtensionArray.from_storage(first.type, storage)
    return pa.concat_arrays([first, second])
