"""What a snapshot's manifest list names."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from support.iceberg_files import write_files
from support.local_catalog import LocalCatalog

from headgate.tables.iceberg.manifests import SnapshotFiles, to_manifest_data_files
from headgate.tables.iceberg.manifests_v3 import read_manifest_list
from headgate.tables.iceberg.table_creation import TableDeclaration, create_table_if_missing


@pytest.mark.parametrize("version", ["2", "3"])
def test_files_and_staged_manifests_of_one_commit_are_all_listed(
    sqlite_catalog: LocalCatalog, version: str
) -> None:
    declared = TableDeclaration({"id": "long"}, properties={"format-version": version})
    create_table_if_missing(sqlite_catalog.catalog, "db.t", declared)
    table = sqlite_catalog.catalog.load_table("db.t")

    alone, (staged,) = _list_one_row(table, 1, None)
    assert staged in _list_one_row(table, 2, alone)[1]
    assert len(_list_one_row(table, 3, alone)[1]) == 2


def _list_one_row(table: Table, number: int, staged: str | None) -> tuple[str, list[str]]:
    """Write the manifest list of a snapshot with one row, and what another list names as staged.

    Return its path, and the paths of the manifests in it.
    """
    rows = pa.table({"id": [number]}, schema=table.schema().as_arrow())
    files = to_manifest_data_files(table, write_files(table, rows))
    known = read_manifest_list(table.io, staged) if staged else []
    made = SnapshotFiles(table, number).write_manifest_list(files, None, number, known)
    return made.path, [found.manifest_path for found in read_manifest_list(table.io, made.path)]
