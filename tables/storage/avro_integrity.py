"""Reads Avro files only whole: pyiceberg's decoder would read past the end of one that is cut off.

It is written in C and checks no bounds: half a manifest ends the process, or seems to list fewer
files, which a commit would then leave out. So the file's blocks are walked before it gets them.
"""

from __future__ import annotations

import io
from functools import partial
from typing import Any, Protocol, runtime_checkable

from pyiceberg.io import FileIO, InputFile

from headgate.tables.storage.damaged_file_error import FileDamaged

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_TRIES = 3
_VARINT_BYTES_MAX = 10


@runtime_checkable
class Kept(Protocol):
    """A file whose bytes this process may keep."""

    def forget_content(self) -> None: ...


def check_avro_files_of(files: FileIO) -> FileIO:
    """Let these files raise ``FileDamaged`` when an Avro file that is not whole is opened."""
    theirs = files.new_input
    if not isinstance(theirs, partial):
        files.new_input = partial(_new_input_with_avro_check, theirs)  # type: ignore[method-assign]  # this object's only
    return files


def _new_input_with_avro_check(new_input: Any, location: str) -> Any:
    file = new_input(location)
    return _WholeAvro(file) if location.endswith(".avro") else file


class _WholeAvro(InputFile):
    """An Avro file that is read at once, and again where it seems to be damaged."""

    def __init__(self, file: InputFile) -> None:
        super().__init__(file.location)
        self._file = file

    def __len__(self) -> int:
        return len(self._file)

    def exists(self) -> bool:
        return self._file.exists()

    def open(self, seekable: bool = True) -> Any:  # noqa: FBT001, FBT002 - pyiceberg's
        for _ in range(_TRIES):
            with self._file.open(seekable) as stream:
                data = bytes(stream.read())
            why = describe_avro_damage(data)
            if not why:
                return io.BytesIO(data)
            if isinstance(self._file, Kept):
                self._file.forget_content()
        raise FileDamaged(self.location, why)


def describe_avro_damage(data: bytes) -> str:
    """Return why these bytes are no whole Avro file; empty if they are one."""
    if not data:
        return "it is empty"
    if not data.startswith(_MAGIC):
        return "it is no Avro file"
    walk = _Walk(data, len(_MAGIC))
    try:
        walk.skip_header_metadata()
        sync = walk.take_bytes(_SYNC_BYTES)
        while walk.at < len(data):
            if walk.read_number() < 0:
                return f"a block before byte {walk.at} has no number of records"
            walk.take_bytes(walk.read_number())
            if walk.take_bytes(_SYNC_BYTES) != sync:
                return f"a block ends wrongly at byte {walk.at}"
    except EOFError:
        return f"it is cut off, or overwritten, at byte {walk.at}"
    return ""


class _Walk:
    """A place in the bytes. Its methods raise ``EOFError`` beyond their end."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self.at = data, at

    def skip_header_metadata(self) -> None:
        while count := self.read_number():
            if count < 0:
                self.read_number()
            for _ in range(2 * abs(count)):
                self.take_bytes(self.read_number())

    def read_number(self) -> int:
        value = shift = 0
        while True:
            byte = self.take_bytes(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            if shift >= 7 * _VARINT_BYTES_MAX:
                raise EOFError

    def take_bytes(self, count: int) -> bytes:
        end = self.at + count
        if not 0 <= count <= len(self._data) - self.at:
            raise EOFError
        part, self.at = self._data[self.at : end], end
        return part
