"""Key files: which records of a keyed table delete, as participants tell the coordinator (rule U2).

A key file is Parquet beside the row files of its status. Its columns are those of the table's key,
found by their field ids, and the coordinates of the record by their names. No snapshot ever refers
to one: the coordinator reads it once, and a commit turns it into positions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from headgate.control_protocol.events import FileKind, WrittenFile

TOPIC, PARTITION, OFFSET = "_topic", "_partition", "_offset"
FIELD_ID = b"PARQUET:field_id"
_ROWS_AT_ONCE = 1_000_000


def key_schema(schema: Schema, key: Sequence[int], *, topics: bool) -> pa.Schema:
    """The columns of a key file of a table with this schema; ``key`` are field ids.

    ``topics``: whether the table's rows carry their topic, so that deletes have to.
    """
    columns = schema_to_pyarrow(Schema(*(schema.find_field(field_id) for field_id in key)))
    coordinates = [
        *([pa.field(TOPIC, pa.string(), nullable=False)] if topics else []),
        pa.field(PARTITION, pa.int32(), nullable=False),
        pa.field(OFFSET, pa.int64(), nullable=False),
    ]
    # Parquet gives columns without an id one of their own: found by name, they may not have any
    return pa.schema([*columns, *coordinates])


def write_keys(io: FileIO, path: str, rows: pa.Table) -> WrittenFile:
    """Write rows of a ``key_schema`` in one file. Raises what storage raises."""
    with io.new_output(path).create() as stream:
        with pq.ParquetWriter(stream, rows.schema, compression="zstd") as writer:
            writer.write_table(rows)
        size_bytes = stream.tell()
    return WrittenFile(path, rows.num_rows, size_bytes, FileKind.KEYS)


def batches(
    io: FileIO, path: str, wanted: Sequence[int | str], optional: Collection[int | None] = ()
) -> Iterator[list[pa.Array]]:
    """Columns of a Parquet file, by field ids and by names, in the order asked for.

    A row's place is its position in the file. Where an optional column is not there it is null.
    Raises ``KeyError`` for any other, and what storage raises.
    """
    with io.new_input(path).open() as stream:
        file = pq.ParquetFile(stream)
        names = _names(file.schema_arrow)
        missing = [of for of in wanted if of not in names and of not in optional]
        if missing:
            raise KeyError(f"it has no column {missing[0]}")
        chosen = [names.get(of) for of in wanted]
        there = list(dict.fromkeys(name for name in chosen if name is not None))
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=there):
            none = pa.nulls(batch.num_rows, pa.int64())
            yield [none if name is None else batch.column(name) for name in chosen]


def _names(columns: pa.Schema) -> dict[int | str, str]:
    """By their field ids, and by themselves."""
    names: dict[int | str, str] = {column.name: column.name for column in columns}
    for column in columns:
        if column.metadata and FIELD_ID in column.metadata:
            names[int(column.metadata[FIELD_ID])] = column.name
    return names
