"""Chooses the statistics that a table wants of each column, by the rules of Iceberg's own writers.

The properties are ``write.metadata.metrics.*``. Where Iceberg's documentation leaves details open
(which columns come first, what a wrong value means) its Java library decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder
from pyiceberg.types import IcebergType, ListType, MapType, PrimitiveType, StructType

from headgate.control_protocol.redacted_log import redacted_logger

log = redacted_logger(__name__)

_DEFAULT = "write.metadata.metrics.default"
_COLUMN = "write.metadata.metrics.column."
_INFERRED_MAX = "write.metadata.metrics.max-inferred-column-defaults"
_INFERRED_MAX_DEFAULT = 100


@dataclass(frozen=True, slots=True)
class MetricsMode:
    """``length``: the limit of text and bytes bounds; 0: no bounds, ``None``: whole values."""

    counts: bool = True
    length: int | None = 16


NONE = MetricsMode(counts=False, length=0)
COUNTS = MetricsMode(length=0)
FULL = MetricsMode(length=None)
TRUNCATE_16 = MetricsMode()


def metrics_modes(
    schema: Schema, properties: Mapping[str, str], order: SortOrder
) -> dict[int, MetricsMode]:
    """Return the mode of every column that holds values, nested ones included, by field id.

    A column's own property comes first; then columns of the sort order, which have bounds; then the
    table's default; without one only the first hundred columns have statistics.
    """
    default = _mode(properties, _DEFAULT)
    eligible = list(_leaves(schema.as_struct()))
    if default is None:
        count = _inferred_max(properties)
        modes = {
            field_id: TRUNCATE_16 if place < count else NONE
            for place, field_id in enumerate(eligible)
        }
    else:
        modes = dict.fromkeys(eligible, default)
    sorted_mode = TRUNCATE_16 if default in (None, NONE, COUNTS) else default
    for field in order.fields:
        if field.transform.preserves_order and field.source_id in modes:
            modes[field.source_id] = sorted_mode
    for field_id in eligible:
        own = _mode(properties, f"{_COLUMN}{schema.find_column_name(field_id)}")
        if own is not None:
            modes[field_id] = own
    return modes


def _leaves(kind: IcebergType, field_id: int = 0) -> Iterator[int]:
    """Yield columns with values: of a struct first its own, then those within its fields."""
    if isinstance(kind, PrimitiveType):
        yield field_id
        return
    children = _children(kind)
    yield from (child for child, inner in children if isinstance(inner, PrimitiveType))
    for child, inner in children:
        if not isinstance(inner, PrimitiveType):
            yield from _leaves(inner, child)


def _children(kind: IcebergType) -> list[tuple[int, IcebergType]]:
    if isinstance(kind, StructType):
        return [(field.field_id, field.field_type) for field in kind.fields]
    if isinstance(kind, ListType):
        return [(kind.element_id, kind.element_type)]
    if isinstance(kind, MapType):
        return [(kind.key_id, kind.key_type), (kind.value_id, kind.value_type)]
    return []


def _mode(properties: Mapping[str, str], name: str) -> MetricsMode | None:
    """Return the mode that the property names; one that does not exist counts as not set."""
    text = properties.get(name)
    if text is None:
        return None
    word = text.strip().lower()
    known = {"none": NONE, "counts": COUNTS, "full": FULL}
    if word in known:
        return known[word]
    truncate = re.fullmatch(r"truncate\((\d+)\)", word)
    if truncate and int(truncate[1]) > 0:
        return MetricsMode(length=int(truncate[1]))
    log.warning("the table's property %s = %s names no metrics mode: it is ignored", name, text)
    return None


def _inferred_max(properties: Mapping[str, str]) -> int:
    text = properties.get(_INFERRED_MAX, "")
    return int(text) if text.isdecimal() else _INFERRED_MAX_DEFAULT
