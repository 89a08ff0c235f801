"""Reads files of tables on this machine with Python itself, for commands that only read.

pyiceberg reads them with pyarrow's dataset, which imports pandas: half a second of a command.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from pyiceberg.io import FileIO, InputFile, OutputFile, load_file_io
from pyiceberg.typedef import Properties

DESCRIBES = (".avro", ".metadata.json", ".metadata.json.gz")
_READ_HERE = (*DESCRIBES, ".parquet")


class LocalFiles(FileIO):
    """Reads metadata and Parquet files; ``files``, pyiceberg's own, does all else."""

    def __init__(self, properties: Properties, location: str) -> None:
        super().__init__(properties)
        self._location = location

    @cached_property
    def files(self) -> FileIO:
        return load_file_io(self.properties, self._location)

    def new_input(self, location: str) -> InputFile:
        path = local_file_path(location) if location.endswith(_READ_HERE) else None
        return LocalFile(location, path) if path else self.files.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        return self.files.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self.files.delete(location)


class LocalFile(InputFile):
    """One file of ``LocalFiles``."""

    def __init__(self, location: str, path: Path) -> None:
        super().__init__(location)
        self._path = path

    def __len__(self) -> int:
        return self._path.stat().st_size

    def exists(self) -> bool:
        return self._path.exists()

    def open(self, seekable: bool = True) -> Any:  # noqa: ARG002, FBT001, FBT002 - pyiceberg's
        return self._path.open("rb")


def local_file_path(location: str) -> Path | None:
    """Return the path as pyiceberg finds it (``%20`` is kept), ``None`` if it is not local."""
    parsed = urlparse(location)
    if not parsed.scheme and location.startswith("/"):
        return Path(location)
    return Path(parsed.path) if parsed.scheme == "file" and not parsed.netloc else None


# Tells which locations of tables are folders of this machine.


def local_path_of_encoded_uri(location: str) -> Path | None:
    """Return the folder of a location on this machine, ``None`` for any other."""
    if location.startswith("/"):
        return Path(location)
    parsed = urlparse(location)
    return Path(unquote(parsed.path)) if parsed.scheme == "file" and parsed.path else None
