"""Small files beside a table, on this machine and on S3: one contract."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.object_store import BUCKET, ObjectStore

from headgate.tables.storage.file_store import Folder, name_relative_to, open_folder

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture(params=["here", "s3", "bucket"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "here":
        return open_folder(f"file://{tmp_path}", {})
    store: ObjectStore = request.getfixturevalue("object_store")
    if request.param == "bucket":
        bucket = str(uuid.uuid4())
        store.client("s3").create_bucket(Bucket=bucket)
        return open_folder(f"s3://{bucket}", store.s3())
    return open_folder(f"s3://{BUCKET}/{uuid.uuid4()}", store.s3())


def test_what_was_put_is_read_listed_and_removed(folder: Folder) -> None:
    before_ms = time.time_ns() // 1_000_000 - 2_000  # S3 tells seconds
    folder.put("a/b/one", b"1")
    folder.put("a/two", b"")
    folder.put("a/two", b"22")
    folder.put("ab/three", b"3")
    assert folder.read("a/two") == b"22"
    assert list(folder.file_sizes(["a/two", "a/none", "a/b/one"])) == [2, None, 1]
    found = dict(folder.files_below("a"))
    assert sorted(found) == ["a/b/one", "a/two"]
    assert all(at_ms >= before_ms for at_ms in found.values())
    folder.remove_quietly(["a/two", "a/none"])
    folder.remove_quietly([])
    assert [name for name, _ in folder.files_below("a")] == ["a/b/one"]
    assert folder.files_below("none") == []
    with pytest.raises(FileNotFoundError):
        folder.read("a/two")


def test_the_first_who_puts_it_if_absent_has_put_it(folder: Folder) -> None:
    assert folder.probe_conditional_puts("tried")
    assert folder.put_if_absent("x/uuid", b"mine")
    assert not folder.put_if_absent("x/uuid", b"theirs")
    assert folder.read("x/uuid") == b"mine"
    assert [name for name, _ in folder.files_below("x")] == ["x/uuid"]


def test_arrow_writes_and_reads_files_there(folder: Folder) -> None:
    with folder.open_output("x/rows.parquet") as stream:
        pq.write_table(ROWS, stream)
        size = stream.tell()
    assert list(folder.file_sizes(["x/rows.parquet"])) == [size]
    with pq.ParquetFile(folder.arrow_source("x/rows.parquet")) as file:
        assert file.read().equals(ROWS)


def test_nobody_is_shown_what_is_not_whole_yet(tmp_path: Path) -> None:
    folder = open_folder(f"file://{tmp_path}", {})
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / ".headgate-5d2e").write_bytes(b"half")
    assert folder.files_below("x") == []


def test_an_address_is_a_name_below_the_location() -> None:
    assert (
        name_relative_to("s3://lake/trips", "s3://lake/trips/city=%2F/a.parquet")
        == "city=%2F/a.parquet"
    )
