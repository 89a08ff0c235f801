"""Reads and writes files below one place by their names, on this machine and on S3 alike.

A file that was put is whole, and immediately visible to everyone who reads or lists.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pyiceberg.io import FileIO

from headgate.tables.storage.file_io import (
    delete_quietly,
    is_s3_files,
    open_file_io,
    unwrapped_file_io,
)
from headgate.tables.storage.local_file_io import local_path_of_encoded_uri
from headgate.tables.storage.read_ahead import read_ahead_in_order
from headgate.tables.storage.stored_file import StoredFile

if TYPE_CHECKING:
    from headgate.tables.storage.s3_file_io import S3Files


_BEING_WRITTEN = ".headgate-"
"""The prefix of incomplete files on this machine, which are never listed."""


class Folder(Protocol):
    """A folder. Names are relative to ``location``.

    Raises ``OSError``, and ``FileNotFoundError`` if the file to read does not exist.
    """

    @property
    def location(self) -> str: ...

    def read(self, name: str) -> bytes: ...

    def put(self, name: str, data: bytes) -> None:
        """Replace a file: a reader finds all of it, or the former content."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Put it unless one exists, and return whether it was put."""

    def probe_conditional_puts(self, below: str) -> bool:
        """Try, below a folder, whether the store does that and never overwrites a file."""

    def file_sizes(self, names: Sequence[str]) -> Iterator[int | None]:
        """Yield each file's size, ``None`` if it does not exist."""

    def files_below(self, name: str) -> list[StoredFile]:
        """Return the names of all files below a folder, and when they were written."""

    def remove_quietly(self, names: Collection[str]) -> None:
        """Remove files; one that cannot be removed stays."""

    def arrow_source(self, name: str) -> Any:
        """Return what Arrow reads a file from."""

    def open_output(self, name: str) -> AbstractContextManager[Any]:
        """Return a stream to write a file.

        On S3 the file exists once the stream has ended; on this machine from the beginning on,
        incomplete.
        """


def new_unique_name(name: str) -> str:
    """Return the name with an end that no other attempt gives it: one that timed out may write its
    file yet, and not every store can be asked not to overwrite."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def open_folder(location: str, storage: Mapping[str, str]) -> Folder:
    """Return what is at ``file:///...`` or ``s3://...``; ``storage`` has the keys of the store."""
    if (path := local_path_of_encoded_uri(location)) is not None:
        return _LocalFolder(location, path)
    files = open_file_io(storage, location)
    assert is_s3_files(files), f"{location} is neither on this machine nor on S3"
    return _S3Folder(location, files)


def name_relative_to(location: str, address: str) -> str:
    """Return the name of a file below the location; the whole address of any other file."""
    return address.removeprefix(f"{location}/")


class _LocalFolder:
    def __init__(self, location: str, path: Path) -> None:
        self.location = location
        self._path = path

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def put(self, name: str, data: bytes) -> None:
        self._write_temporary(name, data).replace(self._path / name)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        mine = self._write_temporary(name, data)
        try:
            os.link(mine, self._path / name)
        except FileExistsError:
            return False
        finally:
            mine.unlink()
        return True

    def probe_conditional_puts(self, below: str) -> bool:  # noqa: ARG002 - links always do
        return True

    def file_sizes(self, names: Sequence[str]) -> Iterator[int | None]:
        for name in names:
            try:
                yield (self._path / name).stat().st_size
            except FileNotFoundError:
                yield None

    def files_below(self, name: str) -> list[StoredFile]:
        listed = []
        for folder, _, files in os.walk(self._path / name):
            for path in (Path(folder, file) for file in files):
                with suppress(FileNotFoundError):
                    if not path.name.startswith(_BEING_WRITTEN):
                        at_ms = path.stat().st_mtime_ns // 1_000_000
                        listed.append(StoredFile(str(path.relative_to(self._path)), at_ms))
        return listed

    def remove_quietly(self, names: Collection[str]) -> None:
        for name in names:
            with suppress(OSError):
                (self._path / name).unlink()

    def arrow_source(self, name: str) -> Any:
        return self._path / name

    def open_output(self, name: str) -> AbstractContextManager[Any]:
        return self._path_with_parents_made(name).open("wb")

    def _write_temporary(self, name: str, data: bytes) -> Path:
        mine = self._path_with_parents_made(name).with_name(f"{_BEING_WRITTEN}{uuid.uuid4()}")
        mine.write_bytes(data)
        return mine

    def _path_with_parents_made(self, name: str) -> Path:
        path = self._path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


class _S3Folder:
    def __init__(self, location: str, files: S3Files) -> None:
        self.location = location
        self._files = files
        # The prefix of a bucket itself is empty: with a slash it would be another key.
        self._bucket, _, self._prefix = f"{location}/".partition("://")[2].partition("/")
        self._store = files.open_store(self._bucket)

    def read(self, name: str) -> bytes:
        return self._store.get(*self._bucket_and_key(name))

    def put(self, name: str, data: bytes) -> None:
        self._store.put(*self._bucket_and_key(name), data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self._store.put_if_absent(*self._bucket_and_key(name), data)

    def probe_conditional_puts(self, below: str) -> bool:
        return self._files.probe_conditional_puts(self._address(below))

    def file_sizes(self, names: Sequence[str]) -> Iterator[int | None]:
        return read_ahead_in_order(self._size, names)

    def files_below(self, name: str) -> list[StoredFile]:
        listed = self._files.list_files(self._address(name))
        return [
            StoredFile(name_relative_to(self.location, address), at_ms) for address, at_ms in listed
        ]

    def remove_quietly(self, names: Collection[str]) -> None:
        delete_quietly(self._files, [self._address(name) for name in names])

    def arrow_source(self, name: str) -> Any:
        return self._files.new_input(self._address(name)).open()

    def open_output(self, name: str) -> AbstractContextManager[Any]:
        stream: AbstractContextManager[Any] = self._files.new_output(self._address(name)).create()
        return stream

    def _size(self, name: str) -> int | None:
        try:
            return self._store.object_size(*self._bucket_and_key(name))
        except FileNotFoundError:
            return None

    def _address(self, name: str) -> str:
        return f"{self.location}/{name}"

    def _bucket_and_key(self, name: str) -> tuple[str, str]:
        return self._bucket, f"{self._prefix}{name}"


# Lists what a store holds below a folder.


def folder_names_in(files: FileIO, root: str) -> list[str]:
    """Return the names of the folders directly below this one, on S3 and on this machine."""
    if is_s3_files(files):
        return files.list_folder_names(root)
    folder = local_path_of_encoded_uri(root)
    if folder is None or not folder.is_dir():
        return []
    return [each.name for each in folder.iterdir() if each.is_dir()]


def files_below(files: FileIO, root: str) -> list[StoredFile]:
    """Return each file's location, and when it was written by the store's clock.

    Empty if the store cannot be listed.
    """
    if is_s3_files(files) and root.startswith("s3"):
        return files.list_files(root)
    from pyarrow.fs import FileSelector, FileType
    from pyiceberg.io.pyarrow import PyArrowFileIO  # imports pandas: not for every command

    client = unwrapped_file_io(files)
    if not isinstance(client, PyArrowFileIO):
        return []
    scheme, netloc, path = PyArrowFileIO.parse_location(root)
    selector = FileSelector(path, allow_not_found=True, recursive=True)
    listed = client.fs_by_scheme(scheme, netloc).get_file_info(selector)
    return [
        StoredFile(root + info.path[len(path) :], info.mtime_ns // 1_000_000)
        for info in listed
        if info.type is FileType.File and info.mtime_ns is not None
    ]
