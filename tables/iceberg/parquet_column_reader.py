"""Reads columns of Parquet files by their field ids, and imports no more than that needs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO

FIELD_ID = b"PARQUET:field_id"
_ROWS_AT_ONCE = 1_000_000


def read_column_batches(
    io: FileIO,
    path: str,
    columns: Sequence[int | str],
    null_if_missing: Collection[int | None] = (),
    *,
    rows_at_once: int = _ROWS_AT_ONCE,
) -> Iterator[list[pa.Array]]:
    """Read columns of a Parquet file, by field ids and by names, in the order asked for.

    A row's place is its position in the file. A missing optional column is null. Raises
    ``KeyError`` for any other, and what storage raises.
    """
    with io.new_input(path).open() as stream:
        file = pq.ParquetFile(stream)
        names = _column_names_by_id_or_name(file.schema_arrow)
        missing = [of for of in columns if of not in names and of not in null_if_missing]
        if missing:
            raise KeyError(f"it has no column {missing[0]}")
        chosen = [names.get(of) for of in columns]
        there = list(dict.fromkeys(name for name in chosen if name is not None))
        for batch in file.iter_batches(rows_at_once, columns=there):
            none = pa.nulls(batch.num_rows, pa.int64())
            yield [none if name is None else batch.column(name) for name in chosen]


def _column_names_by_id_or_name(columns: pa.Schema) -> dict[int | str, str]:
    """Return the names, by field id and by name."""
    names: dict[int | str, str] = {column.name: column.name for column in columns}
    for column in columns:
        if column.metadata and FIELD_ID in column.metadata:
            names[int(column.metadata[FIELD_ID])] = column.name
    return names
