"""Which rows are the sink's own, by their coordinates."""

from __future__ import annotations

import pyarrow as pa

from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.table_history import FileRows
from headgate.operations.audit.table_records import TableRecords, scan_staged_files

COLUMNS = ("topic", "partition", "offset")


def test_a_row_that_lacks_any_coordinate_is_nobodys() -> None:
    rows = pa.record_batch(
        {
            "topic": ["t", None, "t", "t", None],
            "partition": pa.array([0, 0, None, 0, None], pa.int32()),
            "offset": pa.array([1, 2, 3, None, None], pa.int64()),
        }
    )
    found = TableRecords()
    file = FileRows("file:///t/1.parquet", 1, lambda: iter([rows]), lambda: iter([rows]))
    scan_staged_files([file], COLUMNS, found)
    assert found.foreign_rows == 4
    assert {at: list(seen.offsets) for at, seen in found.partitions.items()} == {
        TopicPartition("t", 0): [1]
    }


def test_a_row_at_a_negative_offset_is_nobodys() -> None:
    """A backfill by others may write -1 for a row that comes from no record."""
    rows = pa.record_batch(
        {
            "topic": ["t"] * 4,
            "partition": pa.array([0] * 4, pa.int32()),
            "offset": pa.array([-1, 5, -2, -1], pa.int64()),
        }
    )
    found = TableRecords()
    file = FileRows("file:///t/1.parquet", 1, lambda: iter([rows]), lambda: iter([rows]))
    scan_staged_files([file], COLUMNS, found)
    assert found.foreign_rows == 3
    seen = found.partitions[TopicPartition("t", 0)]
    assert (list(seen.offsets), seen.twice) == ([5], 0)
