"""The format of docs/table-formats/writing-a-table-format.md keeps the contract, as it says."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import able_folder, folder_kind

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.table_format import TableSpec
from headgate.control_protocol.testing.contract import (
    CoreContract,
    EvolutionContract,
    ReaderContract,
)

ROWS_PER_FILE = 3
COLUMNS = Struct((Column("number", "long", required=False),))


class FolderWorld:
    """A table of the page's package, and links that fail without an answer."""

    def __init__(self, folder: Path, module: Any) -> None:
        self._module = module
        self._wanted = TableSpec("db.trips", str(folder / "table"), create=True, columns=COLUMNS)
        self._lies: list[bool] = []
        self._files = 0
        self._kind = module.FolderFormat()
        self._kind.create(self._wanted)

    def open(self, sink: str = "sink") -> Any:
        folder = self._module.Folder(self._wanted)
        return self._module.FolderTable(folder, SinkName(sink), self._link)

    def _link(self, draft: Path, version: Path) -> None:
        lie = self._lies.pop() if self._lies else None
        if lie is not False:
            os.link(draft, version)
        if lie is not None:
            raise ConnectionError("the answer was lost")

    def write_file(self, number: int) -> WrittenFile:
        self._files += 1
        path = Path(self._wanted.location) / f"{self._files}.parquet"
        pq.write_table(pa.table({"number": [number] * ROWS_PER_FILE}), path)
        return WrittenFile(path.as_uri(), ROWS_PER_FILE, path.stat().st_size)

    def visible_file_numbers(self) -> list[int]:
        _, files = self._kind.reader(self._wanted, SinkName("sink")).scan(["number"])
        batches = (rows for file in files for rows in file.batches())
        return sorted(n for rows in batches for n in rows["number"].to_pylist())[::ROWS_PER_FILE]

    def reader(self, sink: str = "sink") -> Any:
        return self._kind.reader(self._wanted, SinkName(sink))

    def columns(self) -> list[str]:
        with closing(self.reader()) as reader:
            return list(reader.columns())

    def recreate(self) -> None:
        self.drop()
        self._kind.create(self._wanted)

    def drop(self) -> None:
        shutil.rmtree(self._wanted.location)

    def lose_next_answer(self, *, landed: bool) -> None:
        self._lies.append(landed)


class TestFolderTable(CoreContract, ReaderContract):
    @pytest.fixture
    def world(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderWorld:
        return FolderWorld(tmp_path, folder_kind.install(tmp_path, monkeypatch))


class TestFolderThatGetsColumns(EvolutionContract):
    @pytest.fixture
    def world(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderWorld:
        return FolderWorld(tmp_path, able_folder.install(tmp_path, monkeypatch))
