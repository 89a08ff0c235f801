"""The statistics of a data file in a manifest, equal to those of Iceberg's own writers.

Most of them are in the file's footer. It lacks: NaN, which Parquet does not count; the sign of a
zero, since Parquet widens a bound of zero to both; bounds of values beyond ``_FOOTER_VALUE_MAX``.
These are taken from the rows on their way into the file. Columns inside of lists and maps have only
a size.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
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

from headgate.data.writers.metrics_modes import MetricsMode
from headgate.data.writers.transforms import column_at
from headgate.data.writers.truncation import bytes_above, text_above

_FOOTER_VALUE_MAX = 4096
"""In bytes; pyarrow leaves out both bounds when one of them is longer."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column that holds values. ``path`` in the Parquet file, ``name`` in the table."""

    field_id: int
    path: str
    name: str
    kind: PrimitiveType
    mode: MetricsMode
    repeated: bool

    @property
    def floating(self) -> bool:
        return isinstance(self.kind, FloatType | DoubleType)

    @property
    def bounded(self) -> bool:
        return self.mode.counts and self.mode.length != 0 and not self.repeated


def leaves_of(schema: Schema, modes: Mapping[int, MetricsMode]) -> tuple[Leaf, ...]:
    """Return all columns that hold values, in the order of the file."""
    return tuple(
        Leaf(field_id, path, str(schema.find_column_name(field_id)), kind, modes[field_id], many)
        for field_id, path, kind, many in _walk(schema.as_struct(), 0, "", repeated=False)
    )


def _walk(
    kind: IcebergType, field_id: int, path: str, *, repeated: bool
) -> Iterator[tuple[int, str, PrimitiveType, bool]]:
    inner: list[tuple[int, str, IcebergType]] = []
    if isinstance(kind, PrimitiveType):
        yield field_id, path.removeprefix("."), kind, repeated
    elif isinstance(kind, StructType):
        inner = [(f.field_id, f"{path}.{f.name}", f.field_type) for f in kind.fields]
    elif isinstance(kind, ListType):
        inner = [(kind.element_id, f"{path}.list.element", kind.element_type)]
    elif isinstance(kind, MapType):
        inner = [
            (kind.key_id, f"{path}.key_value.key", kind.key_type),
            (kind.value_id, f"{path}.key_value.value", kind.value_type),
        ]
    repeated = repeated or isinstance(kind, ListType | MapType)
    for child_id, child_path, child in inner:
        yield from _walk(child, child_id, child_path, repeated=repeated)


@dataclass(slots=True)
class _Range:
    """The least and the greatest value so far; ``None`` before there was one."""

    low: Any = None
    high: Any = None

    def widen(self, low: Any, high: Any) -> None:
        if low is not None and (self.low is None or _before(low, self.low)):
            self.low = low
        if high is not None and (self.high is None or _before(self.high, high)):
            self.high = high


def _before(one: Any, other: Any) -> bool:
    if one == other == 0 and isinstance(one, float):
        return math.copysign(1, one) < math.copysign(1, other)
    return bool(one < other)


@dataclass(slots=True)
class FileMetrics:
    """Collects the statistics of one file. ``see`` every row that goes into it."""

    leaves: tuple[Leaf, ...]
    nan_counts: dict[int, int] = field(default_factory=dict)
    ranges: dict[int, _Range] = field(default_factory=dict)

    def see(self, rows: pa.Table) -> None:
        for leaf in self.leaves:
            if leaf.repeated or not leaf.mode.counts:
                continue
            if leaf.floating:
                self._see_floats(leaf, column_at(rows, leaf.name))
            elif leaf.bounded and isinstance(leaf.kind, StringType | BinaryType):
                self._see_texts(leaf, column_at(rows, leaf.name))

    def described(self, footer: pq.FileMetaData) -> dict[str, Any]:
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
            if leaf.bounded and not leaf.floating:
                self._take_bounds(leaf, statistics)
        return {
            "column_sizes": sizes,
            "value_counts": values,
            "null_value_counts": nulls,
            "nan_value_counts": self.nan_counts,
            **self._bounds(),
            "split_offsets": tuple(sorted(_begin(group) for group in groups)),
        }

    def _range(self, leaf: Leaf) -> _Range:
        return self.ranges.setdefault(leaf.field_id, _Range())

    def _see_floats(self, leaf: Leaf, column: pa.Array) -> None:
        numbers = column.drop_null().to_numpy(zero_copy_only=False)
        nan = np.isnan(numbers)
        count = int(np.count_nonzero(nan))
        self.nan_counts[leaf.field_id] = self.nan_counts.get(leaf.field_id, 0) + count
        if count:
            numbers = numbers[~nan]
        if leaf.bounded and len(numbers):
            low, high = float(numbers.min()), float(numbers.max())
            if low == 0 or high == 0:
                negative = np.signbit(numbers[numbers == 0])
                low = (-0.0 if negative.any() else 0.0) if low == 0 else low
                high = (-0.0 if negative.all() else 0.0) if high == 0 else high
            self._range(leaf).widen(low, high)

    def _see_texts(self, leaf: Leaf, column: pa.Array) -> None:
        longest = pc.max(pc.binary_length(column)).as_py()
        if longest is not None and longest > _FOOTER_VALUE_MAX:
            found = pc.min_max(column.cast(pa.large_binary()))
            self._range(leaf).widen(found["min"].as_py(), found["max"].as_py())

    def _take_bounds(self, leaf: Leaf, statistics: list[pq.Statistics | None]) -> None:
        for found in statistics:
            if found is not None and found.has_min_max:
                low, high = found.min_raw, found.max_raw
                if isinstance(leaf.kind, DecimalType):
                    low, high = _integer(low), _integer(high)
                self._range(leaf).widen(low, high)

    def _bounds(self) -> dict[str, dict[int, bytes]]:
        lower: dict[int, bytes] = {}
        upper: dict[int, bytes] = {}
        for leaf in self.leaves:
            found = self.ranges.get(leaf.field_id)
            if found is None or found.low is None:
                continue
            lower[leaf.field_id] = _lower(leaf, found.low)
            above = _upper(leaf, found.high)
            if above is not None:
                upper[leaf.field_id] = above
        return {"lower_bounds": lower, "upper_bounds": upper}


def _begin(group: pq.RowGroupMetaData) -> int:
    first = group.column(0)
    begins = [first.data_page_offset]
    if first.has_dictionary_page:
        begins.append(first.dictionary_page_offset)
    return int(min(begins))


def _integer(raw: bytes | int) -> int:
    return raw if isinstance(raw, int) else int.from_bytes(raw, "big", signed=True)


def _lower(leaf: Leaf, value: Any) -> bytes:
    length = leaf.mode.length
    if length is not None and isinstance(leaf.kind, StringType):
        return bytes(value.decode()[:length].encode())
    if length is not None and isinstance(leaf.kind, BinaryType):
        return bytes(value[:length])
    return _single_value(leaf.kind, value)


def _upper(leaf: Leaf, value: Any) -> bytes | None:
    length = leaf.mode.length
    if length is not None and isinstance(leaf.kind, StringType):
        text = text_above(value.decode(), length)
        return None if text is None else text.encode()
    if length is not None and isinstance(leaf.kind, BinaryType):
        return bytes_above(value, length)
    return _single_value(leaf.kind, value)


def _single_value(kind: PrimitiveType, value: Any) -> bytes:
    """Return Iceberg's single-value serialisation of a value as Parquet stores it."""
    if isinstance(value, bytes):
        return value
    if isinstance(kind, BooleanType):
        return b"\x01" if value else b"\x00"
    if isinstance(kind, DecimalType):
        return int(value).to_bytes(_octets(value), "big", signed=True)
    if isinstance(kind, FloatType):
        return struct.pack("<f", value)
    if isinstance(kind, DoubleType):
        return struct.pack("<d", value)
    return struct.pack("<i" if isinstance(kind, IntegerType | DateType) else "<q", value)


def _octets(value: int) -> int:
    """Return the fewest bytes that hold the number and its sign."""
    return ((value if value >= 0 else ~value).bit_length() // 8) + 1
