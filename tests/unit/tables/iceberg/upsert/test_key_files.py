"""Key files: what a participant wrote, the coordinator reads, whatever columns are called."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from headgate.control_protocol.events import FileKind
from headgate.tables.iceberg.parquet_column_reader import read_column_batches
from headgate.tables.iceberg.upsert.key_files import (
    OFFSET,
    PARTITION,
    TOPIC,
    key_file_schema,
    write_key_file,
)

SCHEMA = Schema(
    NestedField(4, "id", LongType(), required=True),
    NestedField(7, "zone", StringType(), required=True),
    NestedField(9, "tip", LongType()),
)


def test_key_2_a_key_file_is_read_back_by_field_ids(tmp_path: Path) -> None:
    io, path = PyArrowFileIO(), f"file://{tmp_path}/keys.parquet"
    columns = key_file_schema(SCHEMA, [7, 4], with_topic=False)
    assert columns.names == ["zone", "id", PARTITION, OFFSET]
    rows = pa.Table.from_pylist(
        [
            {"zone": "a", "id": 1, PARTITION: 0, OFFSET: 7},
            {"zone": "b", "id": 2} | {PARTITION: 1, OFFSET: 3},
        ],
        schema=columns,
    )

    written = write_key_file(io, path, rows)

    assert (written.kind, written.records) == (FileKind.KEYS, 2)
    assert written.size_bytes == (tmp_path / "keys.parquet").stat().st_size
    ((ids, zones, tips, offsets),) = read_column_batches(io, path, [4, 7, 9, OFFSET], {9})
    assert (ids.to_pylist(), zones.to_pylist(), offsets.to_pylist()) == ([1, 2], ["a", "b"], [7, 3])
    assert tips.null_count == 2
    with pytest.raises(KeyError):
        list(read_column_batches(io, path, [9]))


def test_key_2_deletes_carry_their_topic_where_rows_do() -> None:
    assert key_file_schema(SCHEMA, [4], with_topic=True).names == ["id", TOPIC, PARTITION, OFFSET]
