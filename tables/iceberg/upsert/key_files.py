"""Key files: the deleting records of a keyed table, from participants to the coordinator (KEY-2).

A key file is Parquet beside the row files of its status. Its columns are those of the table's key,
found by their field ids, and the coordinates of the record by their names. No snapshot ever refers
to one: the coordinator reads it once, and a commit turns it into positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from headgate.control_protocol.events import FileKind, WrittenFile

TOPIC, PARTITION, OFFSET = "_topic", "_partition", "_offset"


def key_file_schema(schema: Schema, key: Sequence[int], *, with_topic: bool) -> pa.Schema:
    """Return the columns of a key file of a table with this schema; ``key`` are field ids.

    ``with_topic``: whether the table's rows carry their topic, so that deletes have to.
    """
    columns = schema_to_pyarrow(Schema(*(schema.find_field(field_id) for field_id in key)))
    coordinates = [
        *([pa.field(TOPIC, pa.string(), nullable=False)] if with_topic else []),
        pa.field(PARTITION, pa.int32(), nullable=False),
        pa.field(OFFSET, pa.int64(), nullable=False),
    ]
    # Parquet gives columns without an id one of their own; these are found by name and need none.
    return pa.schema([*columns, *coordinates])


def write_key_file(io: FileIO, path: str, rows: pa.Table) -> WrittenFile:
    """Write rows of a ``key_file_schema`` to one file. Raises what storage raises."""
    with io.new_output(path).create() as stream:
        with pq.ParquetWriter(stream, rows.schema, compression="zstd") as writer:
            writer.write_table(rows)
        size_bytes = stream.tell()
    return WrittenFile(path, rows.num_rows, size_bytes, FileKind.KEYS)
