"""The page's folder as a target to be broken: read beside others, with stamps, with new columns."""

from __future__ import annotations

import shutil
import uuid
import weakref
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from contract.test_folder_table import ROWS_PER_FILE, FolderWorld
from support import able_folder, folder_kind

from headgate.control_protocol.commit_tokens import ANY
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.ports import CommitAttempt, CommitOutcome, Refused
from headgate.control_protocol.table_history import LiveFile, ReportedState

PAGE = folder_kind.load()
STAMPED = folder_kind.load()
EVOLVING = able_folder.enable(folder_kind.load())
Folder = PAGE.Folder
EvolvingTable = EVOLVING.FolderTable


class FolderReader(PAGE.FolderReader):  # type: ignore[misc, name-defined]
    """A version may have replaced the files of all before."""

    def told(self, numbered: tuple[int, dict[str, Any]]) -> ReportedState:
        told: ReportedState = super().told(numbered)
        if not numbered[1].get("replaces"):
            return told
        return replace(told, foreign=lambda: replace(_set(told.foreign()), operation="replace"))

    def live_files(self) -> list[LiveFile]:
        replaced = [n for n, version in enumerate(self.versions) if version.get("replaces")]
        first = max(replaced, default=0)
        return [file for file in super().live_files() if file.added_by >= first]


def _set(value: Any) -> Any:
    assert value is not None
    return value


class StampedTable(STAMPED.FolderTable):  # type: ignore[misc, name-defined]
    """Its files bear the mark of their commit (rule TOKEN-2)."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.given: list[str] = []

    def new_token(self) -> str:
        self.given.append(uuid.uuid4().hex)
        return f"{self.folder.root}/{ANY}_{self.given[-1]}.parquet"

    def admits(self, marks: set[str]) -> bool:
        landed = {mark_of(path) for each in self.folder.versions() for path, *_ in each["files"]}
        return len(marks) <= 1 and not marks & landed

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        if not self.admits({mark_of(file.path) for file in attempt.files}):
            return Refused("files of another commit", for_good=True)
        outcome: CommitOutcome = super().commit(attempt)
        return outcome


def mark_of(path: str) -> str:
    return Path(path).stem.rpartition("_")[2]


PAGE.FolderReader = FolderReader
STAMPED.FolderTable = StampedTable


class SmallFolderWorld(FolderWorld):
    """A folder that is gone with the world."""

    def __init__(self, module: Any = PAGE) -> None:
        folder = Path(mkdtemp())
        weakref.finalize(self, shutil.rmtree, folder)
        super().__init__(folder, module)

    def append_foreign(self, number: int) -> None:
        self._put(self.write_file(number))

    def compact(self) -> None:
        path = Path(self._wanted.location) / f"{uuid.uuid4()}.parquet"
        whole = [n for n in self.visible_file_numbers() for _ in range(ROWS_PER_FILE)]
        pq.write_table(pa.table({"number": whole}), path)
        merged = WrittenFile(path.as_uri(), len(whole), path.stat().st_size)
        self._put(merged, replaces=True)

    def _put(self, file: WrittenFile, **more: Any) -> None:
        folder = PAGE.Folder(self._wanted)
        files = [[file.path, file.records, file.size_bytes]]
        folder.put(len(folder.versions()), {"files": files, "record": {}, **more})


class StampedWorld(SmallFolderWorld):
    def __init__(self) -> None:
        super().__init__(STAMPED)

    def write_marked_file(self, token: str, number: int) -> WrittenFile:
        path = Path(token.replace(ANY, f"{number}-{uuid.uuid4()}"))
        pq.write_table(pa.table({"number": [number] * ROWS_PER_FILE}), path)
        return WrittenFile(str(path), ROWS_PER_FILE, path.stat().st_size)


def evolving() -> SmallFolderWorld:
    return SmallFolderWorld(EVOLVING)
