"""What a reader tells of the commits of others, from Hudi's own statistics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import Lineage, TableView
from headgate.control_protocol.table_history import LiveFile, empty_history
from headgate.operations.audit.files import check_row_count
from headgate.tables.hudi.file_slices import Slice
from headgate.tables.hudi.reader import HudiReader, foreign_snapshot_of
from headgate.tables.hudi.table_properties import HudiLocation
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


@dataclass
class FakeTimeline:
    """Commits with what they brought, and the file groups that they replaced, oldest first."""

    told: list[tuple[Instant, list[Statistics], list[str]]]

    def completed_commits(self, meta: Any) -> list[Instant]:
        return [done for done, _, _ in reversed(self.told)]

    def file_statistics(self, meta: Any, requested: str) -> list[Statistics]:
        return next(files for done, files, _ in self.told if done.requested == requested)

    def replaced_groups(self, meta: Any, requested: str) -> list[str]:
        return next(groups for done, _, groups in self.told if done.requested == requested)

    def has_archived_commits(self, meta: Any) -> bool:
        return False


def test_rows_of_replaced_groups_are_deleted_rows_unless_a_clustering_moves_them() -> None:
    def file(group: str, rows: int) -> Statistics:
        return Statistics(f"city=a/{group}_0-0-0_2.parquet", rows, inserted=rows, deleted=0)

    def replacing(number: int, operation: str) -> Instant:
        return replace(instant(number, operation), replaces=True)

    log = Statistics("city=a/.c-0_3.log.1_0-0-0", rows=6, inserted=4, deleted=2)
    reader = HudiReader.__new__(HudiReader)
    reader._sink, reader._meta = SinkName("sink"), None
    reader._view = TableView("db.trips", "", "", 0, 0, None, None, None, Lineage.FRESH)
    reader._java = FakeTimeline(  # type: ignore[assignment]
        [
            (instant(1, "INSERT"), [file("a-0", 60), file("b-0", 5), file("c-0", 7)], []),
            (replacing(2, "CLUSTER"), [file("d-0", 65)], ["a-0", "b-0"]),
            (instant(3, "UPSERT"), [log], []),
            (replacing(4, "DELETE_PARTITION"), [], ["c-0"]),
            (replacing(5, "INSERT_OVERWRITE"), [file("e-0", 40)], ["d-0"]),
            (replacing(6, "INSERT_OVERWRITE_TABLE"), [file("f-0", 41)], ["e-0", "archived-0"]),
        ]
    )
    history = reader.history()
    assert [each.removed_row_count for each in history.foreign] == [0, 0, 2, 9, 65, 40]
    live = LiveFile("f-0", 41, 100, parquet=True, deletes=False, added_by=6)
    assert check_row_count(history, [live]).findings == []


def test_files_of_old_instants_and_of_hudi_s_bootstrap_are_live_files_of_unknown_commits(
    tmp_path: Path,
) -> None:
    """Before 0.10 an instant had 14 digits, and a table keeps such files when it is upgraded."""
    names = [f"a-0_0-0-0_{at}.parquet" for at in ("20260101000001000", "20210101000000")]
    names.append("a-0_0-0-0_00000000000001.parquet")
    for name in names:
        pq.write_table(pa.table({"id": [1, 2]}), tmp_path / name)
    reader = HudiReader.__new__(HudiReader)
    reader._place = HudiLocation("db.trips", f"file://{tmp_path}")
    reader._commits_oldest_first = [instant(1, "INSERT")]
    reader._live_slices = [
        Slice("a-0", name, (tmp_path / name).stat().st_size, False) for name in names
    ]
    assert [(file.records, file.added_by) for file in reader.live_files()] == [
        (2, 1),
        (2, 0),
        (2, 0),
    ]
