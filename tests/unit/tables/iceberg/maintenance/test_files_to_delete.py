"""Deletes unreferenced files: in bounded portions, and never another table's."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from support.local_catalog import LocalCatalog, local_catalog

from headgate.tables.iceberg.commit_request import AssertSequenceNumberFree
from headgate.tables.iceberg.maintenance import files_to_delete
from headgate.tables.iceberg.maintenance.files_to_delete import Condemned
from headgate.tables.iceberg.maintenance.snapshot_removal import _AssertRefsAsRead

NAME = "db.t"


@pytest.fixture
def local(tmp_path: Path) -> LocalCatalog:
    made = local_catalog(tmp_path)
    made.catalog.create_table(NAME, Schema(NestedField(1, "id", LongType())))
    return made


def files(local: LocalCatalog, count: int) -> list[Path]:
    folder = Path(local.catalog.load_table(NAME).location().removeprefix("file://"))
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number}.parquet" for number in range(count)]
    for path in paths:
        path.touch()
    return paths


def judged(local: LocalCatalog, paths: list[Path]) -> Condemned:
    waiting = Condemned(local.catalog)
    assert not waiting.has_files
    table = local.catalog.load_table(NAME)
    waiting.add([f"file://{path}" for path in paths], table.metadata)
    assert waiting.has_files
    return waiting


def test_what_was_condemned_goes(local: LocalCatalog) -> None:
    paths = files(local, 200)
    waiting = judged(local, paths)
    waiting.delete_unreferenced_for_seconds(local.catalog.load_table(NAME))
    assert not any(path.exists() for path in paths)
    assert not waiting.has_files


def test_of_a_table_created_anew_nothing_goes(
    local: LocalCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    """Its files may lie where the old one's lay, under the same names."""
    paths = files(local, 3)
    waiting = judged(local, paths)
    schema = local.catalog.load_table(NAME).schema()
    local.catalog.drop_table(NAME)
    anew = local.catalog.create_table(NAME, schema)
    waiting.delete_unreferenced_for_seconds(anew)
    assert "another one now; 3 files" in caplog.text
    assert not waiting.has_files
    waiting.delete_unreferenced_for_seconds(anew)
    assert all(path.exists() for path in paths)


def test_deleting_takes_so_long_and_goes_on_the_next_time(
    local: LocalCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = files(local, 5)
    waiting = judged(local, paths)
    monkeypatch.setattr(files_to_delete, "_DELETED_AT_ONCE", 2)
    passing = iter(range(0, 1_000, 3))
    monkeypatch.setattr(files_to_delete, "boottime_s", lambda: float(next(passing)))
    table = local.catalog.load_table(NAME)
    waiting.delete_unreferenced_for_seconds(table)
    left = [path for path in paths if path.exists()]
    assert left
    assert waiting.has_files
    for _ in paths:
        waiting.delete_unreferenced_for_seconds(table)
    assert not waiting.has_files
    assert not any(path.exists() for path in paths)


def test_a_file_that_waits_is_kept_by_what_refers_to_it_before_others_join_it(
    local: LocalCatalog,
) -> None:
    """Some wait for their turn; then a person adds one of them again, and more snapshots expire."""
    first, other = files(local, 2)
    pq.write_table(pa.table({"id": [1]}), first)
    waiting = judged(local, [first])
    table = local.catalog.load_table(NAME)
    table.add_files([f"file://{first}"])
    waiting.add([f"file://{other}"], table.metadata)
    waiting.delete_unreferenced_for_seconds(table)
    assert first.exists()
    assert not other.exists()


def test_where_pyiceberg_checks_itself_it_checks_all_that_is_asked(
    local: LocalCatalog,
) -> None:
    """A server is told the UUID; a SQL catalog asks the requirements themselves."""
    catalog = local.catalog
    table = catalog.load_table(NAME)
    table.append(pa.table({"id": [1]}))
    before = table.metadata
    for requirement in (_AssertRefsAsRead(before), AssertSequenceNumberFree(before)):
        requirement.validate(before)
    table.append(pa.table({"id": [2]}))
    for requirement in (_AssertRefsAsRead(before), AssertSequenceNumberFree(before)):
        with pytest.raises(CommitFailedException):
            requirement.validate(table.metadata)
    snapshot = table.metadata.snapshots[0].snapshot_id
    requirement = _AssertRefsAsRead(table.metadata)
    table.manage_snapshots().create_tag(snapshot, "new").commit()
    with pytest.raises(CommitFailedException, match="a branch or tag is new"):
        requirement.validate(table.metadata)
    other = table.metadata.model_copy(update={"table_uuid": before.table_uuid.__class__(int=1)})
    for made in (_AssertRefsAsRead(table.metadata), AssertSequenceNumberFree(table.metadata)):
        with pytest.raises(CommitFailedException, match="UUID"):
            made.validate(other)
        with pytest.raises(CommitFailedException):
            made.validate(None)
