"""Writes rows into ORC files by Iceberg's specification: types carry the field ids as labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pa_types
from pyarrow import orc
from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import FixedType, NestedField, PrimitiveType, TimeType, UUIDType

from headgate.data_plane.files.file_format import (
    STORED_BYTES_MAX,
    Encoder,
    read_choice,
    read_positive_number,
)
from headgate.data_plane.files.metrics import Leaf, RowMetrics
from headgate.data_plane.files.physical_types import (
    Stored,
    TypeMapping,
    large_types_as_small,
    times_as_numbers,
)

_ORC = "write.orc."
_CODECS = {"zlib": "zlib", "snappy": "snappy", "lz4": "lz4", "zstd": "zstd", "none": "uncompressed"}
_STRATEGIES = {"speed": "speed", "compression": "compression"}


class OrcEncoding:
    """Makes the files of one table. Raises ``ConfigurationError`` for impossible options."""

    name = "orc"
    write_rows_max = 1024 * 1024

    def __init__(
        self, schema: Schema, properties: Mapping[str, str], leaves: Sequence[Leaf]
    ) -> None:
        self._schema = schema
        columns = schema_to_pyarrow(schema).types
        self._timed = [place for place, kind in enumerate(columns) if _has_timestamps(kind)]
        self._leaves = tuple(leaves)
        stripe_bytes = read_positive_number(
            properties, f"{_ORC}stripe-size-bytes", STORED_BYTES_MAX
        )
        self.write_bytes_max = min(stripe_bytes, STORED_BYTES_MAX)
        strategy = read_choice(properties, f"{_ORC}compression-strategy", _STRATEGIES, "speed")
        self._options = {
            "compression": read_choice(properties, f"{_ORC}compression-codec", _CODECS, "zlib"),
            "compression_strategy": strategy,
            "stripe_size": self.write_bytes_max,
        }

    def can_hold_rows(self, rows: pa.Table) -> bool:
        """Return whether no time before 1970 has a fraction of a second.

        For these Arrow's writer stores a negative fraction, which Java's readers subtract twice.
        """
        return not any(
            _has_fraction_before_1970(moments)
            for place in self._timed
            for moments in _find_timestamps(rows.column(place).combine_chunks())
        )

    def begin_file(self, stream: OutputStream, rows: pa.Table) -> Encoder:  # noqa: ARG002
        return _OrcFile(self._schema, orc.ORCWriter(stream, **self._options), self._leaves)


class _OrcFile:
    def __init__(self, schema: Schema, writer: orc.ORCWriter, leaves: tuple[Leaf, ...]) -> None:
        self._struct = schema.as_struct()
        self._writer = writer
        self._metrics = RowMetrics(leaves)

    def write(self, rows: pa.Table) -> None:
        self._writer.write(_TYPE_MAPPING.stored_rows(rows, self._struct))
        self._metrics.add_rows(rows)

    def close(self) -> None:
        self._writer.close()

    def row_count_and_statistics(self) -> tuple[int, dict[str, Any]]:
        return self._metrics.rows, self._metrics.statistics_without_footer()


def _iceberg_attributes(field: NestedField) -> dict[str, str]:
    """Return the attributes that Iceberg's own writers add to ORC's type."""
    result = {"iceberg.id": str(field.field_id), "iceberg.required": str(field.required).lower()}
    kind = field.field_type
    if isinstance(kind, TimeType):
        result["iceberg.long-type"] = "TIME"
    elif isinstance(kind, UUIDType):
        result["iceberg.binary-type"] = "UUID"
    elif isinstance(kind, FixedType):
        result |= {"iceberg.binary-type": "FIXED", "iceberg.length": str(len(kind))}
    return result


def _has_timestamps(data_type: pa.DataType) -> bool:
    if pa_types.is_timestamp(data_type):
        return True
    inside = [data_type.field(at).type for at in range(data_type.num_fields)]
    return any(map(_has_timestamps, inside))


def _find_timestamps(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the timestamps in a column, those inside of structs, lists and maps too."""
    if pa_types.is_timestamp(array.type):
        yield array
    elif pa_types.is_struct(array.type):
        for inside in array.flatten():
            yield from _find_timestamps(inside)
    elif pa_types.is_map(array.type):
        yield from _find_timestamps(array.keys)
        yield from _find_timestamps(array.items)
    elif pa_types.is_list(array.type) or pa_types.is_large_list(array.type):
        yield from _find_timestamps(array.flatten())


def _has_fraction_before_1970(moments: pa.Array) -> bool:
    earliest = pc.min(moments.view(pa.int64())).as_py()
    if earliest is None or earliest >= 0:
        return False
    numbers = moments.drop_null().view(pa.int64()).to_numpy(zero_copy_only=False)
    return bool((numbers[numbers < 0] % 1_000_000).any())


def _storage_conversion(iceberg_type: PrimitiveType) -> Stored:
    return times_as_numbers if isinstance(iceberg_type, TimeType) else large_types_as_small


_TYPE_MAPPING = TypeMapping(_storage_conversion, lambda field: field.name, _iceberg_attributes)
