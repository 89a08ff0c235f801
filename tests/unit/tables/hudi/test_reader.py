"""What a reader tells of the commits of others, from Hudi's own statistics."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headgate.control_protocol.table_history import LiveFile, empty_history
from headgate.operations.audit.files import check_row_count
from headgate.tables.hudi.reader import foreign_snapshot_of
from headgate.tables.hudi.write_client import Instant, Statistics

STORED = Statistics("a.parquet", rows=60, inserted=60, deleted=0)


def instant(number: int, operation: str) -> Instant:
    return Instant(f"2026010100000{number}000", number, operation, replaces=False, metadata={})


@pytest.mark.parametrize(
    ("operation", "inserted", "deleted"), [("DELETE", 0, 3), ("UPSERT", 5, 3), ("UPSERT", 1, 3)]
)
def test_rows_that_others_delete_are_in_no_file_any_more(
    operation: str, inserted: int, deleted: int
) -> None:
    rows = STORED.rows + inserted - deleted
    changed = Statistics("a.parquet", rows, inserted, deleted)
    told = (
        foreign_snapshot_of(instant(1, "INSERT"), [STORED]),
        foreign_snapshot_of(instant(2, operation), [changed]),
    )
    assert [each.removed_row_count for each in told] == [0, deleted]
    live = LiveFile(changed.path, rows, 100, parquet=True, deletes=False, added_by=2)
    history = replace(empty_history("db.trips", "main"), foreign=told)
    assert check_row_count(history, [live]).findings == []
