"""Tables of this machine are looked at without pyarrow's client; all else goes by it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog import load_catalog as load_theirs
from pyiceberg.io.pyarrow import PyArrowFileIO
from unit.operations.filled_table import FilledTable, catalog_properties

from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.storage.file_io import unwrapped_file_io
from headgate.tables.storage.local_file_io import LocalFiles, local_file_path


@pytest.fixture
def filled(tmp_path: Path) -> FilledTable:
    return FilledTable(load_theirs("default", **catalog_properties(tmp_path)))


def looking(home: Path) -> Catalog:
    return load_catalog("default", catalog_properties(home), read_only=True)


def test_what_describes_a_table_is_read_and_rows_and_writes_go_by_pyarrow(
    filled: FilledTable, tmp_path: Path
) -> None:
    filled.commit(filled.record(1, 0, {0: 2}, records=2), filled.files([(0, 0), (0, 1)]))
    table = looking(tmp_path).load_table("db.trips")
    assert isinstance(table.io, LocalFiles)
    assert "files" not in vars(table.io), "nothing was opened that brings pandas"
    assert table.scan().to_arrow().num_rows == 2
    assert isinstance(unwrapped_file_io(table.io), PyArrowFileIO)
    with table.transaction() as transaction:
        transaction.set_properties({"by": "an operator"})
    assert looking(tmp_path).load_table("db.trips").properties["by"] == "an operator"


def test_who_names_files_of_its_own_keeps_them(tmp_path: Path, filled: FilledTable) -> None:
    named = {**catalog_properties(tmp_path), "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
    catalog = load_catalog("default", named, read_only=True)
    assert type(catalog.load_table("db.trips").io) is PyArrowFileIO
    assert (
        type(load_catalog("default", catalog_properties(tmp_path))._load_file_io())
        is not LocalFiles
    )


@pytest.mark.parametrize(
    "location", ["file:///lake/a%20b", "/lake/a b", "file:///lake/a#b", "s3://lake/a", "file://h/a"]
)
def test_a_path_is_what_pyiceberg_takes_it_for(location: str) -> None:
    scheme, netloc, path = PyArrowFileIO.parse_location(location)
    expected = Path(path) if scheme == "file" and not netloc else None
    assert local_file_path(location) == expected


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    files = LocalFiles({}, tmp_path.as_uri())
    missing = files.new_input(f"{tmp_path.as_uri()}/v1.metadata.json")
    assert not missing.exists()
    with pytest.raises(FileNotFoundError, match=r"v1\.metadata"):
        missing.open()
