"""Describes what a sink file says about a column: where its value comes from, and how to read it.

A rule is a plain value that travels in the plan. What a format must know about it (the unit of a
number, whether anything becomes text) travels as a mark in the metadata of the Arrow field, so that
a format only needs the schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

FROM, UNIT, AS_TEXT, DEFAULT = "from", "unit", "as_text", "default"
EVERY = frozenset({FROM, UNIT, AS_TEXT, DEFAULT})
"""What a format can be asked for. A constant needs no format."""

Constant = str | int | float | bool | None

_UNIT, _AS_TEXT = b"headgate.unit", b"headgate.as_text"
_STEP = re.compile(r'"([^"]+)"|([^".]+)')


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """Says how one column is read.

    ``path``: the names of the fields down to the value; empty: the column's own name."""

    path: tuple[str, ...] = ()
    unit: str = ""
    as_text: bool = False
    value: Constant = None
    default: Constant = None

    def options_needing_format(self) -> frozenset[str]:
        """Return what the format must support."""
        wanted = {
            FROM: bool(self.path),
            UNIT: bool(self.unit),
            AS_TEXT: self.as_text,
            DEFAULT: self.default is not None,
        }
        return frozenset(name for name, asked in wanted.items() if asked)

    def convert_constant(self, value: Constant, column: pa.Field) -> Any:
        """Return the value as ``pa.array`` takes it for the column, by JSON's rules.

        Raises ``ValueError``.
        """
        from headgate.data_plane.formats.casting import epoch_times
        from headgate.data_plane.formats.json import values

        if self.unit and isinstance(value, int | float) and not isinstance(value, bool):
            return epoch_times.count_in_target_unit(
                epoch_times.shortest_decimal(value), self.unit, column.type
            )
        exact = epoch_times.shortest_decimal(value) if isinstance(value, float) else value
        return values.convert_value(column, exact, column.name)


def parse_path(text: str) -> tuple[str, ...]:
    """Return the names in ``a.b."c.d"``. Raises ``ValueError``."""
    names, at = [], 0
    while True:
        result = _STEP.match(text, at)
        if result is None:
            raise ValueError(f"{text!r} is not a path of field names separated by dots")
        names.append(result[1] or result[2])
        at = result.end()
        if at == len(text):
            return tuple(names)
        if text[at] != ".":
            raise ValueError(f"{text!r} is not a path of field names separated by dots")
        at += 1


def is_time_or_timestamp(data_type: pa.DataType) -> bool:
    """Return whether a number in the column counts units of time since some beginning."""
    import pyarrow.types as pa_types

    return bool(pa_types.is_timestamp(data_type) or pa_types.is_time(data_type))


def is_text_type(data_type: pa.DataType) -> bool:
    import pyarrow.types as pa_types

    return bool(pa_types.is_string(data_type) or pa_types.is_large_string(data_type))


# ------------------------------------------------------------------------------- the marks


def with_read_options_of_rule(field: pa.Field, rule: ColumnRule) -> pa.Field:
    """Return the field marked with what a format must know about the rule."""
    known = dict(field.metadata or {})
    if rule.unit:
        known[_UNIT] = rule.unit.encode()
    if rule.as_text:
        known[_AS_TEXT] = b"true"
    return field.with_metadata(known) if known else field


def unit_of(field: pa.Field) -> str:
    """Return the unit of the field's numbers; empty if none is set."""
    if not field.metadata:
        return ""
    return str(field.metadata.get(_UNIT, b"").decode())


def has_as_text_option(field: pa.Field) -> bool:
    return bool(field.metadata) and _AS_TEXT in field.metadata


def has_read_option(field: pa.Field) -> bool:
    """Return whether the field's metadata carry a mark of its rule: a unit, or ``as_text``."""
    return bool(field.metadata) and (_UNIT in field.metadata or _AS_TEXT in field.metadata)


def read_options_of(field: pa.Field) -> dict[bytes, bytes] | None:
    """Return unit and ``as_text`` alone, for a field that stands for this one."""
    result = field.metadata or {}
    return {name: result[name] for name in (_UNIT, _AS_TEXT) if name in result} or None


def any_field_has_read_option(fields: Iterable[pa.Field]) -> bool:
    """Return whether one of the fields, or one inside a struct among them, is marked."""
    import pyarrow.types as pa_types

    return any(
        has_read_option(field)
        or (pa_types.is_struct(field.type) and any_field_has_read_option(field.type))
        for field in fields
    )
