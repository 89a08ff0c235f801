"""Bounds the calls of stores whose clients may wait for minutes, or forever.

GCS's client retries for a quarter of an hour, ADLS's pauses for 15 s before its first retry, and
neither has a time-out for a request as a whole. So each call is made in a thread of its own, and
given up when its time is over. It may still take effect: names contain UUIDs, and an unreferenced
file is an orphan.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Self, TypeVar

from pyarrow.fs import FileSystem, GcsFileSystem
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO

from headgate.tables.storage.call_with_timeout import call_with_timeout

CALL_S = 30.0
SLOWEST_BYTES_S = 256 * 1024
"""Any later call may send what was written, so each gets additional time for it."""

RETRIES_S = 25
"""How long GCS's client retries; it must not go on for a call that was given up."""

_Answer = TypeVar("_Answer")


class GcsFiles(PyArrowFileIO):
    """Files on GCS through pyarrow's client, which gives up in time."""

    def _initialize_gcs_fs(self) -> FileSystem:
        _, (options,) = super()._initialize_gcs_fs().__reduce__()
        return GcsFileSystem(**{**options, "retry_time_limit": timedelta(seconds=RETRIES_S)})


class BoundedFiles(FileIO):
    """Wraps other files so that each call ends within ``call_s``."""

    def __init__(self, files: FileIO, call_s: float = CALL_S) -> None:
        super().__init__(files.properties)
        self.files = files
        self._call_s = call_s

    def new_input(self, location: str) -> Any:
        return BoundedFile(self.files.new_input(location), self._call_s)

    def new_output(self, location: str) -> Any:
        return BoundedFile(self.files.new_output(location), self._call_s)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        path = location if isinstance(location, str) else location.location
        call_with_timeout(self._call_s, path, lambda: self.files.delete(path))


class BoundedFile(InputFile, OutputFile):
    """One file of ``BoundedFiles``."""

    def __init__(self, file: Any, call_s: float) -> None:
        super().__init__(location=file.location)
        self._file = file
        self._call_s = call_s

    def __len__(self) -> int:
        return self._call_within_timeout(lambda: len(self._file))

    def exists(self) -> bool:
        return self._call_within_timeout(lambda: bool(self._file.exists()))

    def open(self, seekable: bool = True) -> Any:  # noqa: FBT001, FBT002 - pyiceberg's
        opened = self._call_within_timeout(lambda: self._file.open(seekable))
        return BoundedInput(opened, self, self._call_s)

    def create(self, overwrite: bool = False) -> Any:  # noqa: FBT001, FBT002 - pyiceberg's
        created = self._call_within_timeout(lambda: self._file.create(overwrite))
        return BoundedOutput(created, self, self._call_s)

    def to_input_file(self) -> Any:
        return BoundedFile(self._file.to_input_file(), self._call_s)

    def _call_within_timeout(self, call: Callable[[], _Answer]) -> _Answer:
        return call_with_timeout(self._call_s, self.location, call)


class _Bounded:
    """A stream, which is not used any more after a call that was given up."""

    def __init__(self, stream: Any, file: BoundedFile, call_s: float) -> None:
        self._stream = stream
        self._file = file
        self._call_s = call_s
        self._given_up = False
        self._closed = False

    def close(self) -> None:
        if not self._closed and not self._given_up:
            self._call_within_timeout(self._stream.close)
        self._closed = True

    @property
    def closed(self) -> bool:
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call_within_timeout(self, call: Callable[[], _Answer], more_s: float = 0.0) -> _Answer:
        if self._given_up:
            raise TimeoutError(f"{self._file.location}: an earlier call was given up")
        try:
            return call_with_timeout(self._call_s + more_s, self._file.location, call)
        except TimeoutError:
            self._given_up = True
            raise


class BoundedInput(_Bounded):
    """A stream to read, which keeps the position itself.

    GCS's client asks the store at each ``seek``, and fails at the end of a file, where others look
    for its size.
    """

    def __init__(self, stream: Any, file: BoundedFile, call_s: float) -> None:
        super().__init__(stream, file, call_s)
        self._at = self._client_at = 0
        self._size: int | None = None

    def read(self, size: int = -1) -> bytes:
        if self._size is not None and self._at >= self._size:
            return b""
        data = self._call_within_timeout(lambda: self._read(size))
        self._at = self._client_at = self._at + len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END and self._size is None:
            self._size = len(self._file)
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size or 0}[whence]
        self._at = begin + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return bool(self._stream.seekable())

    def _read(self, size: int) -> bytes:
        if self._at != self._client_at:
            self._stream.seek(self._at)
        return bytes(self._stream.read() if size < 0 else self._stream.read(size))


class BoundedOutput(_Bounded):
    """A stream to write."""

    _written = 0

    def write(self, data: bytes) -> int:
        whole = bytes(data)  # a late call may read it after its owner has reused the memory
        self._written += len(whole)
        self._call_within_timeout(lambda: self._stream.write(whole), self._extra_timeout_s)
        return len(whole)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        self._call_within_timeout(self._stream.flush, self._extra_timeout_s)

    def close(self) -> None:
        self._call_s += self._extra_timeout_s
        super().close()

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    @property
    def _extra_timeout_s(self) -> float:
        return self._written / SLOWEST_BYTES_S
