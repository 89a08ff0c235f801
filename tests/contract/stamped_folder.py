"""The page's folder, whose files bear the mark of their commit (rule P13)."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from contract.test_folder_table import ROWS_PER_FILE, FolderWorld

from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import CommitAttempt, CommitOutcome, Refused
from headgate.control_protocol.stamps import ANY


class StampedWorld(FolderWorld):
    def open(self, sink: str = "sink") -> Any:
        folder = self._module.Folder(self._wanted)
        return _table(self._module)(folder, SinkName(sink), self._link)

    def stamped(self, stamp: str, number: int) -> WrittenFile:
        path = Path(stamp.replace(ANY, f"{number}-{uuid.uuid4()}"))
        pq.write_table(pa.table({"number": [number] * ROWS_PER_FILE}), path)
        return WrittenFile(str(path), ROWS_PER_FILE, path.stat().st_size)


def _table(page: Any) -> Any:
    class StampedTable(page.FolderTable):  # type: ignore[misc]
        def stamp(self) -> str:
            return f"{self.folder.root}/{ANY}_{uuid.uuid4().hex}.parquet"

        def commit(self, attempt: CommitAttempt) -> CommitOutcome:
            own = {mark_of(file.path) for file in attempt.files}
            landed = {
                mark_of(path) for each in self.folder.versions() for path, *_ in each["files"]
            }
            if len(own) > 1 or own & landed:
                return Refused("files of another commit", for_good=True)
            outcome: CommitOutcome = super().commit(attempt)
            return outcome

    return StampedTable


def mark_of(path: str) -> str:
    return path.rpartition("_")[2]
