"""Turns a table's properties for Parquet files into pyarrow's options.

Names and defaults are Iceberg's (``write.parquet.*``). ``unheeded`` and docs/files.md list what is
not supported.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.types import BooleanType

from headgate.control_protocol.errors import ConfigurationError
from headgate.data.writers.encoding import STORED_BYTES_MAX, whole_number
from headgate.data.writers.metrics import Leaf

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
_UNHEEDED = {
    "write.parquet.page-version": ("v1", "data pages are of version 1"),
    "write.location-provider.impl": (None, "files go under the sink's own prefix"),
}
_UNHEEDED_PREFIXES = {
    f"{_PARQUET}stats-enabled.column.": ("true", "every column has statistics in its file"),
    f"{_PARQUET}row-group-check-": (None, "row groups are measured before they are written"),
}


class ParquetOptions:
    """The options of every file of a table. Raises ``ConfigurationError`` for impossible values."""

    def __init__(self, properties: Mapping[str, str], leaves: Sequence[Leaf]) -> None:
        self._properties = properties
        self.row_group_rows = self._number("row-group-limit", 1024 * 1024)
        wanted_bytes = self._number("row-group-size-bytes", STORED_BYTES_MAX)
        self.row_group_bytes = min(wanted_bytes, STORED_BYTES_MAX)
        self._options = {
            **self._compression(),
            "data_page_size": self._number("page-size-bytes", 1024 * 1024),
            "max_rows_per_page": self._number("page-row-limit", 20_000),
            "dictionary_pagesize_limit": self._number("dict-size-bytes", 2 * 1024 * 1024),
            # What Iceberg's specification asks for: small decimals as integers.
            "store_decimal_as_integer": True,
        }
        self._bloom = [leaf for leaf in leaves if _BLOOM_POSSIBLE and _bloomed(leaf, properties)]
        self.of_file(rows=1)  # refuses impossible numbers before there is a file

    def of_file(self, rows: int) -> dict[str, Any]:
        """Return options of ``pq.ParquetWriter``; ``rows``: as many as a row group will hold."""
        if not self._bloom:
            return dict(self._options)
        filters = {leaf.path: self._bloom_filter(leaf, rows) for leaf in self._bloom}
        return {**self._options, "bloom_filter_options": filters}

    def _compression(self) -> dict[str, Any]:
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

    def _number(self, name: str, default: int) -> int:
        return whole_number(self._properties, f"{_PARQUET}{name}", default)

    def _bloom_filter(self, leaf: Leaf, rows: int) -> dict[str, Any]:
        """Size the filter for so many rows, unless the table gives the number of distinct values.

        Never larger than the table wants, at the price of more false positives.
        """
        fpp = self._fpp(leaf)
        count = self._number(f"bloom-filter-ndv.column.{leaf.name}", rows)
        bytes_max = max(_BLOOM_BYTES_MIN, self._number("bloom-filter-max-bytes", _BLOOM_BYTES_MAX))
        # Filter sizes are rounded up to a power of two.
        bits_max = 8 * 2 ** (bytes_max.bit_length() - 1)
        bits_per_value = -8 / math.log(1 - fpp ** (1 / 8))
        return {"ndv": max(1, min(count, int(bits_max / bits_per_value))), "fpp": fpp}

    def _fpp(self, leaf: Leaf) -> float:
        name = f"{_PARQUET}bloom-filter-fpp.column.{leaf.name}"
        text = self._properties.get(name, str(_BLOOM_FPP))
        try:
            fpp = float(text)
        except ValueError:
            fpp = 0.0
        if not 0 < fpp < 1:
            raise ConfigurationError(f"the table's {name} is {text!r}", "it is between 0 and 1")
        return fpp


def unheeded(properties: Mapping[str, str], leaves: Iterable[Leaf]) -> list[str]:
    """Return one sentence for each property that is not supported."""
    can_bloom = {leaf.name for leaf in leaves if not isinstance(leaf.kind, BooleanType)}
    found = [
        f"{name} = {properties[name]}: {what}"
        for name, (usual, what) in _UNHEEDED.items()
        if name in properties and properties[name].lower() != usual
    ]
    for name, value in properties.items():
        for prefix, (usual, what) in _UNHEEDED_PREFIXES.items():
            if name.startswith(prefix) and value.lower() != usual:
                found.append(f"{name} = {value}: {what}")
        if name.startswith(_BLOOM_ENABLED) and value.lower() == "true":
            found.extend(_bloom_unheeded(name, name.removeprefix(_BLOOM_ENABLED), can_bloom))
    return found


def _bloom_unheeded(name: str, column: str, possible: set[str]) -> list[str]:
    if not _BLOOM_POSSIBLE:
        return [f"{name}: this pyarrow ({pa.__version__}) cannot write Bloom filters"]
    return [] if column in possible else [f"{name}: no such column, or one of booleans"]


def _bloomed(leaf: Leaf, properties: Mapping[str, str]) -> bool:
    wanted = properties.get(f"{_BLOOM_ENABLED}{leaf.name}", "").lower() == "true"
    return wanted and not isinstance(leaf.kind, BooleanType)
