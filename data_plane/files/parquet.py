"""Writes rows into Parquet files, with Iceberg's field ids and statistics.

Names and defaults of options are Iceberg's (``write.parquet.*``). What is not supported is
listed by ``describe_ignored_properties`` and docs/guides/data-files.md.

Arrow's writer begins a dictionary for every column, and gives up when it is full: if nearly all
values are distinct, what was written until then is larger, and slower, than plain. Iceberg's Java
writer drops such a dictionary by its size; here a sample of the first rows decides.

A required field of a null struct has no value, and none is written; but Arrow's writer refuses the
null that stands for it. So a value that nobody ever sees replaces it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pa_types
from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType

from headgate.control_protocol.errors import ConfigurationError
from headgate.data_plane.files.file_format import STORED_BYTES_MAX, Encoder, read_positive_number
from headgate.data_plane.files.metrics import FileMetrics, Leaf
from headgate.data_plane.formats.casting.relabel import array_from_python

# --------------------------------------------------------------------------------- nulls of structs


def columns_with_required_inside_optional(schema: pa.Schema) -> tuple[int, ...]:
    """Return the columns in which a struct that may be null has a required field."""
    return tuple(place for place, field in enumerate(schema) if _can_hide_null(field))


def fill_required_inside_null_structs(table: pa.Table, column_indices: tuple[int, ...]) -> pa.Table:
    """Return the table with values in these columns where a null would be refused."""
    for place in column_indices:
        field = table.schema.field(place)
        column = table.column(place).combine_chunks()
        whole = column.take(pa.array(np.arange(len(column))))  # not a slice: offsets begin at zero
        table = table.set_column(place, field, _fill_hidden(whole, field.type))
    return table


def _can_hide_null(field: pa.Field) -> bool:
    kind = field.type
    if pa_types.is_struct(kind):
        required = any(not child.nullable for child in kind)
        return (field.nullable and required) or any(map(_can_hide_null, kind))
    if pa_types.is_map(kind):
        return _can_hide_null(kind.item_field)
    return _is_list(kind) and _can_hide_null(kind.value_field)


def _fill_hidden(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    mask = array.is_null() if array.null_count else None
    if pa_types.is_struct(data_type):
        children = [
            _child_with_hidden_nulls_filled(array, place, field)
            for place, field in enumerate(data_type)
        ]
        return pa.StructArray.from_arrays(children, fields=list(data_type), mask=mask)
    if pa_types.is_map(data_type):
        items = _fill_hidden(array.items, data_type.item_type)
        return pa.MapArray.from_arrays(array.offsets, array.keys, items, type=data_type, mask=mask)
    if _is_list(data_type):
        made = pa.LargeListArray if pa_types.is_large_list(data_type) else pa.ListArray
        return made.from_arrays(
            array.offsets,
            _fill_hidden(array.values, data_type.value_type),
            type=data_type,
            mask=mask,
        )
    return array


def _child_with_hidden_nulls_filled(
    records: pa.StructArray, place: int, field: pa.Field
) -> pa.Array:
    values = _fill_hidden(records.field(place), field.type)
    if field.nullable or not records.null_count or not values.null_count:
        return values
    # Only what is hidden: a null in a struct that is not null is still refused.
    hidden = np.asarray(records.is_null())
    plain = values.storage if isinstance(values, pa.ExtensionArray) else values
    both = pa.concat_arrays([plain, array_from_python([_filler_value(plain.type)], plain.type)])
    result = both.take(pa.array(np.where(hidden, len(plain), np.arange(len(plain)))))
    return (
        pa.ExtensionArray.from_storage(values.type, result)
        if isinstance(values, pa.ExtensionArray)
        else result
    )


def _filler_value(data_type: pa.DataType) -> Any:
    if pa_types.is_struct(data_type):
        return {field.name: _filler_value(field.type) for field in data_type}
    if pa_types.is_map(data_type) or _is_list(data_type):
        return []
    if pa_types.is_fixed_size_binary(data_type):
        return bytes(data_type.byte_width)
    if isinstance(data_type, pa.BaseExtensionType):
        return _filler_value(data_type.storage_type)
    if pa_types.is_string(data_type) or pa_types.is_large_string(data_type):
        return ""
    if pa_types.is_binary(data_type) or pa_types.is_large_binary(data_type):
        return b""
    return False if pa_types.is_boolean(data_type) else 0


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa_types.is_list(data_type) or pa_types.is_large_list(data_type))


# ------------------------------------------------------------------------------------- dictionaries


_ROWS_MIN = 50_000
"""For fewer rows, sampling costs more than it saves."""

_SAMPLE = 2048
_NEARLY = 0.992
"""The share of distinct values in a sample above which a dictionary would overflow.

It is that of a million rows with 135,000 distinct values, about as many as a dictionary takes.
"""


def columns_for_dictionary(leaves: Iterable[Leaf], rows: pa.Table) -> list[str]:
    """Return the paths of columns to begin a dictionary for; ``rows``: the first of the file."""
    paths = [leaf.path for leaf in leaves]
    if rows.num_rows < _ROWS_MIN:
        return paths
    # Random, but the same every time: rows at regular intervals would never hit the same value
    # twice where values recur at regular intervals.
    chosen = np.random.default_rng(0).choice(rows.num_rows, _SAMPLE, replace=False, shuffle=False)
    chosen.sort()
    columns = dict(zip(rows.column_names, rows.columns, strict=True))  # no structs, lists, maps
    return [
        path
        for path in paths
        if path not in columns or not _is_nearly_unique(columns[path], chosen)
    ]


def _is_nearly_unique(column: pa.ChunkedArray, sampled_rows: np.ndarray[Any, Any]) -> bool:
    bounds = np.cumsum([0, *map(len, column.chunks)])
    parts = np.split(sampled_rows, np.searchsorted(sampled_rows, bounds[1:-1]))
    taken = [
        _without_extension_type(chunk).take(pa.array(rows - begin))
        for chunk, rows, begin in zip(column.chunks, parts, bounds, strict=False)
    ]
    sample = pa.chunked_array(taken)
    different: int = pc.count_distinct(sample).as_py()
    return different > max(1, _NEARLY * (_SAMPLE - int(sample.null_count)))


def _without_extension_type(chunk: pa.Array) -> pa.Array:
    return chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk


# ------------------------------------------------------------------------------------------ options


_LEVELS = {
    "zstd": range(1, 23),
    "gzip": range(1, 10),
    "brotli": range(12),
    "lz4": range(1, 13),
    "snappy": range(0),
    "uncompressed": range(0),
}
"""By codec, as Iceberg names them; ``snappy`` has none."""

_BLOOM_BYTES_MAX = 1024 * 1024
_BLOOM_BYTES_MIN = 32
_BLOOM_FPP = 0.01
_BLOOM_POSSIBLE = "bloom_filter_options" in inspect.signature(pq.ParquetWriter).parameters

_PARQUET = "write.parquet."
_BLOOM_ENABLED = f"{_PARQUET}bloom-filter-enabled.column."
_IGNORED = {
    "write.parquet.page-version": ("v1", "data pages are of version 1"),
    "write.location-provider.impl": (None, "files go under the sink's own prefix"),
}
_IGNORED_PREFIXES = {
    f"{_PARQUET}stats-enabled.column.": ("true", "every column has statistics in its file"),
    f"{_PARQUET}row-group-check-": (None, "row groups are measured before they are written"),
}


class ParquetOptions:
    """The options of every file of a table. Raises ``ConfigurationError`` for impossible values."""

    def __init__(self, properties: Mapping[str, str], leaves: Sequence[Leaf]) -> None:
        self._properties = properties
        self.row_group_rows = self._positive_number_property("row-group-limit", 1024 * 1024)
        wanted_bytes = self._positive_number_property("row-group-size-bytes", STORED_BYTES_MAX)
        self.row_group_bytes = min(wanted_bytes, STORED_BYTES_MAX)
        self._options = {
            **self._compression_options(),
            "data_page_size": self._positive_number_property("page-size-bytes", 1024 * 1024),
            "max_rows_per_page": self._positive_number_property("page-row-limit", 20_000),
            "dictionary_pagesize_limit": self._positive_number_property(
                "dict-size-bytes", 2 * 1024 * 1024
            ),
            # What Iceberg's specification asks for: small decimals as integers.
            "store_decimal_as_integer": True,
        }
        self._bloom = [
            leaf for leaf in leaves if _BLOOM_POSSIBLE and _wants_bloom_filter(leaf, properties)
        ]
        self.writer_options(row_count=1)  # refuses impossible numbers before there is a file

    def writer_options(self, row_count: int) -> dict[str, Any]:
        """Return options of ``pq.ParquetWriter`` for row groups of so many rows."""
        if not self._bloom:
            return dict(self._options)
        filters = {leaf.path: self._bloom_filter_options(leaf, row_count) for leaf in self._bloom}
        return {**self._options, "bloom_filter_options": filters}

    def _compression_options(self) -> dict[str, Any]:
        codec = self._properties.get(f"{_PARQUET}compression-codec", "zstd").lower()
        if codec not in _LEVELS:
            raise ConfigurationError(
                f"the table's {_PARQUET}compression-codec is {codec!r}, which cannot be written",
                f"use one of {', '.join(_LEVELS)}",
            )
        level, levels = self._properties.get(f"{_PARQUET}compression-level"), _LEVELS[codec]
        if level is None or not levels:
            return {"compression": "none" if codec == "uncompressed" else codec}
        if level not in map(str, levels):
            raise ConfigurationError(
                f"the table's {_PARQUET}compression-level is {level!r}",
                f"{codec} has the levels {levels[0]} to {levels[-1]}",
            )
        return {"compression": codec, "compression_level": int(level)}

    def _positive_number_property(self, name: str, default: int) -> int:
        return read_positive_number(self._properties, f"{_PARQUET}{name}", default)

    def _bloom_filter_options(self, leaf: Leaf, row_count: int) -> dict[str, Any]:
        """Size the filter for so many rows, unless the table gives the number of distinct values.

        Never larger than the table wants, at the price of more false positives.
        """
        fpp = self._bloom_filter_fpp(leaf)
        count = self._positive_number_property(f"bloom-filter-ndv.column.{leaf.name}", row_count)
        bytes_max = max(
            _BLOOM_BYTES_MIN,
            self._positive_number_property("bloom-filter-max-bytes", _BLOOM_BYTES_MAX),
        )
        # Filter sizes are rounded up to a power of two.
        bits_max = 8 * 2 ** (bytes_max.bit_length() - 1)
        bits_per_value = -8 / math.log(1 - fpp ** (1 / 8))
        return {"ndv": max(1, min(count, int(bits_max / bits_per_value))), "fpp": fpp}

    def _bloom_filter_fpp(self, leaf: Leaf) -> float:
        name = f"{_PARQUET}bloom-filter-fpp.column.{leaf.name}"
        text = self._properties.get(name, str(_BLOOM_FPP))
        try:
            fpp = float(text)
        except ValueError:
            fpp = 0.0
        if not 0 < fpp < 1:
            raise ConfigurationError(f"the table's {name} is {text!r}", "it is between 0 and 1")
        return fpp


def describe_ignored_properties(properties: Mapping[str, str], leaves: Iterable[Leaf]) -> list[str]:
    """Return one sentence for each property that is not supported."""
    can_bloom = {leaf.name for leaf in leaves if not isinstance(leaf.kind, BooleanType)}
    result = [
        f"{name} = {properties[name]}: {what}"
        for name, (usual, what) in _IGNORED.items()
        if name in properties and properties[name].lower() != usual
    ]
    for name, value in properties.items():
        for prefix, (usual, what) in _IGNORED_PREFIXES.items():
            if name.startswith(prefix) and value.lower() != usual:
                result.append(f"{name} = {value}: {what}")
        if name.startswith(_BLOOM_ENABLED) and value.lower() == "true":
            result.extend(_why_no_bloom_filter(name, name.removeprefix(_BLOOM_ENABLED), can_bloom))
    return result


def _why_no_bloom_filter(name: str, column: str, possible: set[str]) -> list[str]:
    if not _BLOOM_POSSIBLE:
        return [f"{name}: this pyarrow ({pa.__version__}) cannot write Bloom filters"]
    return [] if column in possible else [f"{name}: no such column, or one of booleans"]


def _wants_bloom_filter(leaf: Leaf, properties: Mapping[str, str]) -> bool:
    wanted = properties.get(f"{_BLOOM_ENABLED}{leaf.name}", "").lower() == "true"
    return wanted and not isinstance(leaf.kind, BooleanType)


# -------------------------------------------------------------------------------------------- files


class ParquetEncoding:
    """Makes the files of one table. Raises ``ConfigurationError`` for impossible options.

    ``behind``: columns that the rows have behind the table's, and that have no statistics. Arrow's
    schema is left out of their footers: readers of such files would trust it, and not all know
    large lists.
    """

    name = "parquet"

    def __init__(
        self,
        schema: Schema,
        properties: Mapping[str, str],
        leaves: Sequence[Leaf],
        behind: Sequence[pa.Field] = (),
    ) -> None:
        columns = schema_to_pyarrow(schema)
        self._schema: pa.Schema = pa.schema([*columns, *behind])
        self._hiding = columns_with_required_inside_optional(columns)
        self._leaves = tuple(leaves)
        self._options = ParquetOptions(properties, leaves)
        self._tells_arrow = not behind
        self.write_bytes_max = self._options.row_group_bytes
        self.write_rows_max = self._options.row_group_rows

    def can_hold_rows(self, rows: pa.Table) -> bool:  # noqa: ARG002
        return True

    def begin_file(self, stream: OutputStream, rows: pa.Table) -> Encoder:
        options = self._options.writer_options(rows.num_rows)
        options["use_dictionary"] = columns_for_dictionary(self._leaves, rows)
        writer = pq.ParquetWriter(stream, self._schema, store_schema=self._tells_arrow, **options)
        return _ParquetFile(writer, self._hiding, FileMetrics(self._leaves))


class _ParquetFile:
    def __init__(
        self, writer: pq.ParquetWriter, places: tuple[int, ...], metrics: FileMetrics
    ) -> None:
        self._writer = writer
        self._hiding = places
        self._metrics = metrics

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(
            fill_required_inside_null_structs(rows, self._hiding), row_group_size=rows.num_rows
        )
        self._metrics.add_rows(rows)

    def close(self) -> None:
        self._writer.close()

    def row_count_and_statistics(self) -> tuple[int, dict[str, Any]]:
        footer = self._writer.writer.metadata
        return footer.num_rows, self._metrics.statistics_with_footer(footer)
