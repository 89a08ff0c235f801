"""Storage in memory for real manifests and metadata, beside the data files of the simulation."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import IcebergBaseModel

from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.testing import FakeStorage, SourceRecord
from headgate.tables.iceberg.data_file import FileDetail

Strike = Callable[[str], None]
"""Called before a file is written, read or deleted; raises what storage raises."""


@dataclass(slots=True)
class MemoryStorage(FakeStorage):
    """``blobs``: manifests and their lists; ``versions``: metadata files, written when read."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    versions: dict[str, TableMetadata] = field(default_factory=dict)
    deleted: int = 0
    written: int = 0

    def write(self, prefix: str, records: list[SourceRecord]) -> WrittenFile:
        """Under a name that no file ever had."""
        self.written += 1
        path = f"{prefix}{self.written:05}.parquet"
        self.files[path] = records
        size_bytes = 100 * len(records)
        return FileDetail().to_written_file(path, len(records), size_bytes)

    def holds(self, path: str) -> bool:
        return path in self.blobs or path in self.files or path in self.versions

    def content(self, path: str) -> bytes:
        if path in self.versions:
            # pyiceberg reads version 3, and does not write it
            whole = IcebergBaseModel.model_dump_json(self.versions[path], exclude_none=True)
            return whole.encode()
        if path not in self.blobs:
            raise FileNotFoundError(path)
        return self.blobs[path]

    def delete(self, path: str) -> None:
        if not self.holds(path):
            raise FileNotFoundError(path)
        self.deleted += 1
        for files in (self.blobs, self.files, self.versions):
            files.pop(path, None)  # type: ignore[attr-defined]


class MemoryIO(FileIO):
    def __init__(self, storage: MemoryStorage, strike: Strike = lambda _: None) -> None:
        super().__init__({})
        self._storage, self._strike = storage, strike

    def new_input(self, location: str) -> InputFile:
        return _Input(location, self._storage, self._strike)

    def new_output(self, location: str) -> OutputFile:
        return _Output(location, self._storage, self._strike)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._strike("storage delete")
        self._storage.delete(location if isinstance(location, str) else location.location)


class _Input(InputFile):
    def __init__(self, location: str, storage: MemoryStorage, strike: Strike) -> None:
        super().__init__(location)
        self._storage, self._strike = storage, strike

    def __len__(self) -> int:
        return len(self._storage.content(self.location))

    def exists(self) -> bool:
        return self._storage.holds(self.location)

    def open(self, seekable: bool = True) -> Any:
        self._strike("storage read")
        return io.BytesIO(self._storage.content(self.location))


class _Output(OutputFile):
    def __init__(self, location: str, storage: MemoryStorage, strike: Strike) -> None:
        super().__init__(location)
        self._storage, self._strike = storage, strike

    def __len__(self) -> int:
        return len(self._storage.content(self.location))

    def exists(self) -> bool:
        return self._storage.holds(self.location)

    def to_input_file(self) -> InputFile:
        return _Input(self.location, self._storage, self._strike)

    def create(self, overwrite: bool = False) -> Any:
        self._strike("storage write")
        return _Stream(self.location, self._storage)


class _Stream(io.BytesIO):
    """What is written is there when it is closed."""

    def __init__(self, location: str, storage: MemoryStorage) -> None:
        super().__init__()
        self._location, self._storage = location, storage

    def close(self) -> None:
        if not self.closed:
            self._storage.blobs[self._location] = self.getvalue()
        super().close()
