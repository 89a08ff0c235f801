"""Writes the statistics of a file for Delta's log; readers skip files by them.

Readers of several makes must find every row by them. Delta's own kernel, in DuckDB for example,
orders a zero below zero before zero. delta-rs's ``to_pyarrow_dataset`` finds no row of a file by a
column that has values there but lacks a bound: so bounds are left out only if there is no text for
them, or with NaN, which some readers take for the highest value.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from headgate.control_protocol.columns import Path, Type, decimal_precision_and_scale
from headgate.tables.delta.columns import SUPPORTED_TIMES, partition_value_text
from headgate.tables.neutral_schema import FileFacts

_BOUNDED = ("string", "long", "int", "float", "double", "boolean")
_MARK = uuid.uuid4().hex
_MARKED = re.compile(f'"{_MARK}([-0-9.]+)"')
"""A number with all of its digits, while it is a text that no value can be."""


def statistics_json(row_count: int, file_facts: FileFacts, types: Mapping[Path, Type]) -> str:
    nested: dict[str, Any] = {"numRecords": row_count, "minValues": {}, "maxValues": {}}
    nested["nullCount"] = {}
    bounds = (("minValues", file_facts.minimum, -0.0), ("maxValues", file_facts.maximum, 0.0))
    for key, known, zero in bounds:
        for path, value in known.items():
            bound = bound_as_json(types[path], value)
            if bound is not None:
                _put_nested(nested[key], path, zero if _is_float_zero(bound) else bound)
    for path, nulls in file_facts.nulls.items():
        _put_nested(nested["nullCount"], path, nulls)
    return _MARKED.sub(r"\1", json.dumps(nested, default=_decimal_as_marked_text))


def bound_as_json(column_type: Type, value: Any) -> Any:
    """Return a minimum or maximum as in statistics; ``None`` for types and values without."""
    if column_type in SUPPORTED_TIMES:
        bound = (
            partition_value_text(column_type, value)
            if value in SUPPORTED_TIMES[column_type]
            else None
        )
        return bound and bound.replace(" ", "T")
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return (
        value
        if column_type in _BOUNDED
        or (isinstance(column_type, str) and decimal_precision_and_scale(column_type))
        else None
    )


def _is_float_zero(bound: Any) -> bool:
    return isinstance(bound, float) and bound == 0


def _decimal_as_marked_text(value: Decimal) -> str:
    """Return the digits with a mark by which ``statistics_json`` takes their quotes away."""
    return f"{_MARK}{value:f}"


def _put_nested(into: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *outer, last = path
    for name in outer:
        into = into.setdefault(name, {})
    into[last] = value
