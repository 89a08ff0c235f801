"""Makes the statistics of a data file in a manifest, equal to those of Iceberg's own writers.

Most of them are in the file's footer. It lacks: NaN, which Parquet does not count; the sign of a
zero, since Parquet widens a bound of zero to both; bounds of values beyond ``_FOOTER_VALUE_MAX``.
These are taken from the rows on their way into the file, as are all of them for formats whose
footers cannot be read for them. Columns inside of lists and maps have only a size.

Which of them a table wants of each column its properties say (``write.metadata.metrics.*``). Where
Iceberg's documentation leaves details open (which columns come first, what a wrong value means) its
Java library decides.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pa_types
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    MapType,
    PrimitiveType,
    StringType,
    StructType,
)

from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.data_plane.files.partitioning import column_at_path

log = redacted_logger(__name__)


# ------------------------------------------------------------------------------- what a table wants


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
    default = _parse_mode(properties, _DEFAULT)
    eligible = list(_leaf_ids_of(schema.as_struct()))
    if default is None:
        count = _inferred_columns_max(properties)
        modes = {
            field_id: TRUNCATE_16 if place < count else NONE
            for place, field_id in enumerate(eligible)
        }
    else:
        modes = dict.fromkeys(eligible, default)
    sorted_mode = TRUNCATE_16 if default in (None, NONE, COUNTS) else default
    for by in order.fields:
        if by.transform.preserves_order and by.source_id in modes:
            modes[by.source_id] = sorted_mode
    for field_id in eligible:
        own = _parse_mode(properties, f"{_COLUMN}{schema.find_column_name(field_id)}")
        if own is not None:
            modes[field_id] = own
    return modes


def _leaf_ids_of(iceberg_type: IcebergType, field_id: int = 0) -> Iterator[int]:
    """Yield columns with values: of a struct first its own, then those within its fields."""
    if isinstance(iceberg_type, PrimitiveType):
        yield field_id
        return
    children = _child_types(iceberg_type)
    yield from (child for child, inner in children if isinstance(inner, PrimitiveType))
    for child, inner in children:
        if not isinstance(inner, PrimitiveType):
            yield from _leaf_ids_of(inner, child)


def _child_types(iceberg_type: IcebergType) -> list[tuple[int, IcebergType]]:
    if isinstance(iceberg_type, StructType):
        return [(field.field_id, field.field_type) for field in iceberg_type.fields]
    if isinstance(iceberg_type, ListType):
        return [(iceberg_type.element_id, iceberg_type.element_type)]
    if isinstance(iceberg_type, MapType):
        return [
            (iceberg_type.key_id, iceberg_type.key_type),
            (iceberg_type.value_id, iceberg_type.value_type),
        ]
    return []


def _parse_mode(properties: Mapping[str, str], name: str) -> MetricsMode | None:
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


def _inferred_columns_max(properties: Mapping[str, str]) -> int:
    text = properties.get(_INFERRED_MAX, "")
    return int(text) if text.isdecimal() else _INFERRED_MAX_DEFAULT


# ------------------------------------------------------------------------------------- upper bounds


_LAST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
"""Not characters, and not in UTF-8: U+D7FF is followed by U+E000."""


def truncated_text_upper_bound(value: str, length: int) -> str | None:
    """Return at most ``length`` characters, not below ``value``; ``None`` if there are none."""
    if len(value) <= length:
        return value
    begin = value[:length].rstrip(chr(_LAST))
    if not begin:
        return None
    following = ord(begin[-1]) + 1
    if following in _SURROGATES:
        following = _SURROGATES.stop
    return begin[:-1] + chr(following)


def truncated_bytes_upper_bound(value: bytes, length: int) -> bytes | None:
    """Return at most ``length`` bytes, not below ``value``; ``None`` if there are no such bytes."""
    if len(value) <= length:
        return value
    begin = value[:length].rstrip(b"\xff")
    return begin[:-1] + bytes([begin[-1] + 1]) if begin else None


# ------------------------------------------------------------------------------------------ footers


_FOOTER_VALUE_MAX = 4096
"""In bytes; pyarrow leaves out both bounds when one of them is longer."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column that holds values. ``steps`` to it in the Parquet file, ``name`` in the table."""

    field_id: int
    steps: tuple[str, ...]
    name: str
    kind: PrimitiveType
    mode: MetricsMode
    repeated: bool

    @property
    def path(self) -> str:
        """Return the path in the Parquet file as Arrow writes it: a step, too, may have dots."""
        return ".".join(self.steps)

    @property
    def is_floating(self) -> bool:
        return isinstance(self.kind, FloatType | DoubleType)

    @property
    def has_bounds(self) -> bool:
        return self.mode.counts and self.mode.length != 0 and not self.repeated


def leaves_of(schema: Schema, modes: Mapping[int, MetricsMode]) -> tuple[Leaf, ...]:
    """Return all columns that hold values, in the order of the file."""
    return tuple(
        Leaf(field_id, steps, str(schema.find_column_name(field_id)), kind, modes[field_id], many)
        for field_id, steps, kind, many in _walk_leaves(schema.as_struct(), 0, (), repeated=False)
    )


def _walk_leaves(
    iceberg_type: IcebergType, field_id: int, steps: tuple[str, ...], *, repeated: bool
) -> Iterator[tuple[int, tuple[str, ...], PrimitiveType, bool]]:
    inner: list[tuple[int, tuple[str, ...], IcebergType]] = []
    if isinstance(iceberg_type, PrimitiveType):
        yield field_id, steps, iceberg_type, repeated
    elif isinstance(iceberg_type, StructType):
        inner = [(f.field_id, (f.name,), f.field_type) for f in iceberg_type.fields]
    elif isinstance(iceberg_type, ListType):
        inner = [(iceberg_type.element_id, ("list", "element"), iceberg_type.element_type)]
    elif isinstance(iceberg_type, MapType):
        inner = [
            (iceberg_type.key_id, ("key_value", "key"), iceberg_type.key_type),
            (iceberg_type.value_id, ("key_value", "value"), iceberg_type.value_type),
        ]
    repeated = repeated or isinstance(iceberg_type, ListType | MapType)
    for child_id, more, child in inner:
        yield from _walk_leaves(child, child_id, (*steps, *more), repeated=repeated)


@dataclass(slots=True)
class _Range:
    """Keeps the least and the greatest value so far; ``None`` before there was one."""

    low: Any = None
    high: Any = None

    def widen(self, low: Any, high: Any) -> None:
        if low is not None and (self.low is None or _is_before(low, self.low)):
            self.low = low
        if high is not None and (self.high is None or _is_before(self.high, high)):
            self.high = high


def _is_before(one: Any, other: Any) -> bool:
    if one == other == 0 and isinstance(one, float):
        return math.copysign(1, one) < math.copysign(1, other)
    return bool(one < other)


@dataclass(slots=True)
class FileMetrics:
    """Collects the statistics of one file. ``add_rows`` every row that goes into it."""

    leaves: tuple[Leaf, ...]
    nan_counts: dict[int, int] = field(default_factory=dict)
    ranges: dict[int, _Range] = field(default_factory=dict)

    def add_rows(self, rows: pa.Table) -> None:
        for leaf in self.leaves:
            if leaf.repeated or not leaf.mode.counts:
                continue
            if leaf.is_floating:
                self._count_nans_and_widen(leaf, column_at_path(rows, leaf.steps))
            elif leaf.has_bounds and isinstance(leaf.kind, StringType | BinaryType):
                self._widen_by_long_texts(leaf, column_at_path(rows, leaf.steps))

    def statistics_with_footer(self, footer: pq.FileMetaData) -> dict[str, Any]:
        """Return the statistics fields of ``FileDetail``."""
        groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
        sizes, values, nulls = {}, {}, {}
        for place, leaf in enumerate(self.leaves):
            chunks = [group.column(place) for group in groups]
            if leaf.mode.counts:
                sizes[leaf.field_id] = sum(chunk.total_compressed_size for chunk in chunks)
            if not leaf.mode.counts or leaf.repeated:
                continue
            statistics = [chunk.statistics for chunk in chunks]
            if all(found is not None and found.has_null_count for found in statistics):
                values[leaf.field_id] = sum(chunk.num_values for chunk in chunks)
                nulls[leaf.field_id] = sum(found.null_count for found in statistics)
            if leaf.has_bounds and not leaf.is_floating:
                self._widen_by_statistics(leaf, statistics)
        return {
            "column_sizes": sizes,
            "value_counts": values,
            "null_value_counts": nulls,
            "nan_value_counts": self.nan_counts,
            **self._encode_bounds(),
            "split_offsets": tuple(sorted(_row_group_offset(group) for group in groups)),
        }

    def _get_or_add_range(self, leaf: Leaf) -> _Range:
        return self.ranges.setdefault(leaf.field_id, _Range())

    def _count_nans_and_widen(self, leaf: Leaf, column: pa.Array) -> None:
        numbers = column.drop_null().to_numpy(zero_copy_only=False)
        nan = np.isnan(numbers)
        count = int(np.count_nonzero(nan))
        self.nan_counts[leaf.field_id] = self.nan_counts.get(leaf.field_id, 0) + count
        if count:
            numbers = numbers[~nan]
        if leaf.has_bounds and len(numbers):
            low, high = float(numbers.min()), float(numbers.max())
            if low == 0 or high == 0:
                negative = np.signbit(numbers[numbers == 0])
                low = (-0.0 if negative.any() else 0.0) if low == 0 else low
                high = (-0.0 if negative.all() else 0.0) if high == 0 else high
            self._get_or_add_range(leaf).widen(low, high)

    def _widen_by_long_texts(self, leaf: Leaf, column: pa.Array) -> None:
        """Widen the bounds by texts too long for the footer; those of shorter ones are read from
        it."""
        if column.nbytes <= _FOOTER_VALUE_MAX:
            return
        longest = pc.max(pc.binary_length(column)).as_py()
        if longest is not None and longest > _FOOTER_VALUE_MAX:
            result = pc.min_max(column.cast(pa.large_binary()))
            self._get_or_add_range(leaf).widen(result["min"].as_py(), result["max"].as_py())

    def _widen_by_statistics(self, leaf: Leaf, statistics: list[pq.Statistics | None]) -> None:
        for result in statistics:
            if result is not None and result.has_min_max:
                low, high = result.min_raw, result.max_raw
                if isinstance(leaf.kind, DecimalType):
                    low, high = _unscaled_integer(low), _unscaled_integer(high)
                self._get_or_add_range(leaf).widen(low, high)

    def _encode_bounds(self) -> dict[str, dict[int, bytes]]:
        lower: dict[int, bytes] = {}
        upper: dict[int, bytes] = {}
        for leaf in self.leaves:
            result = self.ranges.get(leaf.field_id)
            if result is None or result.low is None:
                continue
            lower[leaf.field_id] = _lower_bound_bytes(leaf, result.low)
            above = _upper_bound_bytes(leaf, result.high)
            if above is not None:
                upper[leaf.field_id] = above
        return {"lower_bounds": lower, "upper_bounds": upper}


def _row_group_offset(group: pq.RowGroupMetaData) -> int:
    first = group.column(0)
    begins = [first.data_page_offset]
    if first.has_dictionary_page:
        begins.append(first.dictionary_page_offset)
    return int(min(begins))


def _unscaled_integer(raw: bytes | int) -> int:
    return raw if isinstance(raw, int) else int.from_bytes(raw, "big", signed=True)


def _lower_bound_bytes(leaf: Leaf, value: Any) -> bytes:
    length = leaf.mode.length
    if length is not None and isinstance(leaf.kind, StringType):
        return bytes(value.decode()[:length].encode())
    if length is not None and isinstance(leaf.kind, BinaryType):
        return bytes(value[:length])
    return _single_value_bytes(leaf.kind, value)


def _upper_bound_bytes(leaf: Leaf, value: Any) -> bytes | None:
    length = leaf.mode.length
    if length is not None and isinstance(leaf.kind, StringType):
        text = truncated_text_upper_bound(value.decode(), length)
        return None if text is None else text.encode()
    if length is not None and isinstance(leaf.kind, BinaryType):
        return truncated_bytes_upper_bound(value, length)
    return _single_value_bytes(leaf.kind, value)


def _single_value_bytes(iceberg_type: PrimitiveType, value: Any) -> bytes:
    """Return Iceberg's single-value serialisation of a value as Parquet stores it."""
    if isinstance(value, bytes):
        return value
    if isinstance(iceberg_type, BooleanType):
        return b"\x01" if value else b"\x00"
    if isinstance(iceberg_type, DecimalType):
        return int(value).to_bytes(_byte_count(value), "big", signed=True)
    if isinstance(iceberg_type, FloatType):
        return struct.pack("<f", value)
    if isinstance(iceberg_type, DoubleType):
        return struct.pack("<d", value)
    return struct.pack("<i" if isinstance(iceberg_type, IntegerType | DateType) else "<q", value)


def _byte_count(value: int) -> int:
    """Return the fewest bytes that hold the number and its sign."""
    return ((value if value >= 0 else ~value).bit_length() // 8) + 1


# --------------------------------------------------------------------------------------------- rows


@dataclass(slots=True)
class RowMetrics(FileMetrics):
    """Does as ``FileMetrics``, without the sizes of columns, which only a footer knows."""

    rows: int = 0
    null_counts: dict[int, int] = field(default_factory=dict)

    def add_rows(self, rows: pa.Table) -> None:
        self.rows += rows.num_rows
        for leaf in self.leaves:
            if leaf.repeated or not leaf.mode.counts:
                continue
            column = column_at_path(rows, leaf.steps)
            nulls = self.null_counts.get(leaf.field_id, 0)
            self.null_counts[leaf.field_id] = nulls + column.null_count
            if leaf.is_floating:
                self._count_nans_and_widen(leaf, column)
            elif leaf.has_bounds:
                result = pc.min_max(_as_comparable(column))
                low, high = (
                    _unscaled_value(result[end].as_py(), column.type) for end in ("min", "max")
                )
                self._get_or_add_range(leaf).widen(low, high)

    def statistics_without_footer(self) -> dict[str, Any]:
        """Return the statistics fields of ``FileDetail``."""
        return {
            "value_counts": dict.fromkeys(self.null_counts, self.rows),
            "null_value_counts": self.null_counts,
            "nan_value_counts": self.nan_counts,
            **self._encode_bounds(),
        }


def _as_comparable(column: pa.Array) -> pa.Array:
    """Return the values in a form with Iceberg's order: numbers, or bytes."""
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        return column.storage
    if pa_types.is_date32(kind):
        return column.view(pa.int32())
    if pa_types.is_temporal(kind):
        return column.view(pa.int64())
    if pa_types.is_string(kind) or pa_types.is_large_string(kind):
        return column.cast(pa.large_binary())
    return column


def _unscaled_value(value: Any, data_type: pa.DataType) -> Any:
    """Return a decimal as its unscaled number, and anything else as it is."""
    if not isinstance(value, Decimal):
        return value
    sign, digits, exponent = value.as_tuple()
    number = int("".join(map(str, digits))) * 10 ** (int(exponent) + data_type.scale)
    return -number if sign else number
