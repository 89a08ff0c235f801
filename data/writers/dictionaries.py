"""Decides which columns of a file are worth a dictionary.

Arrow's writer begins one for every column, and gives up when it is full: if nearly all values are
distinct, what was written until then is larger, and slower, than plain. Iceberg's Java writer drops
such a dictionary by its size; here a sample of the first rows decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.data.writers.metrics import Leaf

_ROWS_MIN = 50_000
"""For fewer rows, sampling costs more than it saves."""

_SAMPLE = 2048
_NEARLY = 0.992
"""The share of distinct values in a sample above which a dictionary would overflow.

It is that of a million rows with 135,000 distinct values, about as many as a dictionary takes.
"""


def with_dictionary(leaves: Iterable[Leaf], rows: pa.Table) -> list[str]:
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
        path for path in paths if path not in columns or not _nearly_unique(columns[path], chosen)
    ]


def _nearly_unique(column: pa.ChunkedArray, chosen: np.ndarray[Any, Any]) -> bool:
    bounds = np.cumsum([0, *map(len, column.chunks)])
    parts = np.split(chosen, np.searchsorted(chosen, bounds[1:-1]))
    taken = [
        _stored(chunk).take(pa.array(rows - begin))
        for chunk, rows, begin in zip(column.chunks, parts, bounds, strict=False)
    ]
    sample = pa.chunked_array(taken)
    different: int = pc.count_distinct(sample).as_py()
    return different > max(1, _NEARLY * (_SAMPLE - int(sample.null_count)))


def _stored(chunk: pa.Array) -> pa.Array:
    return chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk
