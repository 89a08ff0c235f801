"""Stores whose clients would wait forever: calls end in time, and their properties arrive."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io import FileIO
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.storage.bounded_file_io import (
    RETRIES_S,
    SLOWEST_BYTES_S,
    BoundedFiles,
    BoundedInput,
    GcsFiles,
    call_with_timeout,
)
from headgate.tables.storage.file_io import needs_timeouts, open_file_io, unwrapped_file_io
from headgate.tables.storage.object_stores import file_io_properties

SOON_S = 0.05


class Hanging(PyArrowFileIO):
    """Files on this machine, of which the call that is named hangs until the test ends."""

    def __init__(self) -> None:
        super().__init__({})
        self.hangs = ""
        self.released = threading.Event()
        self.asked: list[str] = []

    def at(self, name: str) -> None:
        self.asked.append(name)
        if name == self.hangs:
            self.released.wait()

    def new_output(self, location: str) -> Any:
        return _File(self, super().new_output(location))

    new_input = new_output

    def delete(self, location: Any) -> None:
        self.at("delete")
        super().delete(location)


class _File:
    def __init__(self, files: Hanging, file: Any) -> None:
        self.files, self.file, self.location = files, file, file.location

    def __len__(self) -> int:
        self.files.at("len")
        return len(self.file)

    def exists(self) -> bool:
        self.files.at("exists")
        return bool(self.file.exists())

    def create(self, overwrite: bool = False) -> Any:
        self.files.at("create")
        return _Stream(self.files, self.file.create(overwrite))

    def open(self, seekable: bool = True) -> Any:
        self.files.at("open")
        return _Stream(self.files, self.file.open(seekable))


class _Stream:
    def __init__(self, files: Hanging, stream: Any) -> None:
        self.files, self.stream = files, stream

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.files.at(name)
            return getattr(self.stream, name)(*arguments)

        return call


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    files = Hanging()
    yield files
    files.released.set()


def written(files: FileIO, path: str) -> None:
    with files.new_output(path).create(overwrite=True) as stream:
        stream.write(b"data")


CALLS: dict[str, Callable[[FileIO, str], object]] = {
    "create": written,
    "write": written,
    "close": written,
    "open": lambda files, path: files.new_input(path).open(),
    "read": lambda files, path: files.new_input(path).open().read(),
    "len": lambda files, path: len(files.new_input(path)),
    "exists": lambda files, path: files.new_input(path).exists(),
    "delete": lambda files, path: files.delete(path),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_hangs_is_given_up(hanging: Hanging, tmp_path: Path, name: str) -> None:
    path = f"{tmp_path}/file"
    files = BoundedFiles(hanging, SOON_S)
    written(BoundedFiles(hanging), path)
    hanging.hangs = name
    with pytest.raises(TimeoutError, match=f"{path}: no answer within"):
        CALLS[name](files, path)


def test_nothing_more_is_asked_of_a_stream_that_was_given_up(
    hanging: Hanging, tmp_path: Path
) -> None:
    stream = BoundedFiles(hanging, SOON_S).new_output(f"{tmp_path}/file").create()
    hanging.hangs = "write"
    for _ in range(2):
        with pytest.raises(TimeoutError):
            stream.write(b"data")
    stream.close()
    assert hanging.asked == ["create", "write"]


def test_what_was_written_may_take_its_time(hanging: Hanging, tmp_path: Path) -> None:
    """A quarter of a second for each 64 kB, beside what each call has."""
    stream = BoundedFiles(hanging, 60.0).new_output(f"{tmp_path}/file").create()
    stream.write(bytes(SLOWEST_BYTES_S))
    assert stream._extra_timeout_s == 1.0
    assert stream.tell() == SLOWEST_BYTES_S


class FailsAtItsEnd(io.BytesIO):
    """As a client does that asks the store for the rest of the file at each seek."""

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == os.SEEK_END or offset >= len(self.getvalue()):
            raise OSError("the requested range cannot be satisfied")
        return super().seek(offset, whence)


def test_a_file_is_read_whose_client_fails_at_its_end(tmp_path: Path) -> None:
    rows = pa.table({"n": range(1000)})
    pq.write_table(rows, tmp_path / "x.parquet")
    data = (tmp_path / "x.parquet").read_bytes()
    file = BoundedFiles(PyArrowFileIO({})).new_input(f"{tmp_path}/x.parquet")
    stream = BoundedInput(FailsAtItsEnd(data), file, 60.0)
    assert pq.read_table(stream) == rows
    assert stream.seek(0, os.SEEK_END) == len(data)
    assert stream.read() == b""
    assert (stream.seek(-4, os.SEEK_CUR), stream.read()) == (len(data) - 4, b"PAR1")


def test_answers_and_failures_are_the_clients_own(tmp_path: Path) -> None:
    files = BoundedFiles(PyArrowFileIO({"some": "property"}))
    path, rows = f"{tmp_path}/x.parquet", pa.table({"n": range(1000)})
    with files.new_output(path).create() as stream, pq.ParquetWriter(stream, rows.schema) as writer:
        writer.write_table(rows)
    with files.new_input(path).open() as stream:
        assert pq.read_table(stream) == rows
    assert len(files.new_input(path)) == Path(path).stat().st_size
    files.delete(path)
    assert not files.new_input(path).exists()
    with pytest.raises(FileNotFoundError):
        files.new_input(path).open()
    assert files.properties == {"some": "property"}
    with pytest.raises(ZeroDivisionError):
        call_with_timeout(1.0, "a call", lambda: 1 / 0)


@pytest.mark.parametrize(
    ("location", "client"),
    [
        ("gs://lake/a", GcsFiles),
        ("abfss://lake@account.dfs.core.windows.net/a", FsspecFileIO),
        ("hdfs://lake/a", PyArrowFileIO),
    ],
)
def test_files_elsewhere_are_bounded_wherever_they_are_opened(
    tmp_path: Path, location: str, client: type[FileIO]
) -> None:
    assert needs_timeouts(location)
    sql = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    with load_catalog("lake", sql) as catalog:
        opened = catalog._load_file_io({}, location)
    for files in (opened, open_file_io({}, location)):
        assert isinstance(files, BoundedFiles)
        assert type(unwrapped_file_io(files)) is client


@pytest.mark.parametrize("location", ["s3://lake/a", "file:///lake/a", "/lake/a", None])
def test_others_are_what_they_are(location: str | None) -> None:
    files = open_file_io({}, location)
    assert not isinstance(files, BoundedFiles)
    assert unwrapped_file_io(files) is files


def test_gcs_is_told_when_to_give_up_and_all_that_it_takes() -> None:
    told = {
        "gcs.oauth2.token": "token",
        "gcs.oauth2.token-expires-at": "1900000000000",
        "gcs.service.host": "http://127.0.0.1:4443",
        "gcs.default-bucket-location": "EU",
    }
    files: Any = unwrapped_file_io(open_file_io({**told, "uri": "sqlite://"}, "gs://lake/a"))
    _, (arguments,) = files.fs_by_scheme("gs", "lake").__reduce__()
    assert arguments["retry_time_limit"] == timedelta(seconds=RETRIES_S)
    assert arguments["access_token"] == "token"
    assert arguments["scheme"] == "http"
    assert arguments["endpoint_override"] == "127.0.0.1:4443"
    assert arguments["default_bucket_location"] == "EU"
    assert file_io_properties({**told, "uri": "secret"}) == told, "and executors are told the same"


def test_adls_is_told_all_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow's client and adlfs each have names of their own for the same properties."""
    import pyarrow.fs

    heard: dict[str, Any] = {}
    monkeypatch.setattr(pyarrow.fs, "AzureFileSystem", lambda **told: heard.update(told))
    told = {
        "adls.account-name": "account",
        "adls.account-key": "key",
        "adls.blob-storage-authority": "127.0.0.1:10000",
        "adls.dfs-storage-authority": "127.0.0.1:10000",
        "adls.blob-storage-scheme": "http",
        "adls.dfs-storage-scheme": "http",
        "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
    }
    location = "abfss://lake@account.dfs.core.windows.net/a"
    files: Any = unwrapped_file_io(open_file_io(told, location))
    files.fs_by_scheme("abfss", "lake@account.dfs.core.windows.net")
    names = {name.removeprefix("adls.").replace("-", "_") for name in told} - {"py_io_impl"}
    assert set(heard) == names
    assert file_io_properties(told) == told
