"""Stages lists of files for secondary tables of formats without manifests of their own (PENDING-2).

For each transaction and table, a small file lies below the table's location until some time after
its delivery: a table that lost its newest deliveries has to receive them again. Whoever delivers
adds the files to the table like those of any commit.
"""

from __future__ import annotations

import json
import re
import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyiceberg.io import FileIO

from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.control_protocol.identifiers import (
    Epoch,
    SinkName,
    TransactionId,
    sink_staging_folder,
    staging_folder,
    table_staging_folder,
)
from headgate.control_protocol.ports import Staging, TableView
from headgate.control_protocol.table_history import FileRows
from headgate.tables.storage.file_io import (
    delete_in_background,
    delete_quietly,
    open_file_io,
    store_files,
)
from headgate.tables.storage.file_store import files_below, new_unique_name

KEPT_MS = 3_600_000
_NAMED = re.compile(r"(\d+)-[^/]*/(\d+)(?:-[^/]+)?\.json")


class StagedFileLists:
    """The staged lists of one sink for one table; it raises what storage raises.

    ``kept_ms``: how long they are kept after their delivery, and after their epoch.
    """

    def __init__(
        self,
        storage: Mapping[str, str],
        location: str,
        sink: SinkName,
        *,
        kept_ms: int = KEPT_MS,
    ) -> None:
        self._files: FileIO = open_file_io(storage, location)
        self._sink = sink
        self._kept_ms = kept_ms
        self._delivered: deque[tuple[float, Collection[str]]] = deque()

    def stage_pending_commits(self, staging: Staging) -> tuple[PendingCommit, ...]:
        """Write what the secondary table has to receive, and return what names it: a pending commit
        for its rows, and another for the keys to delete (KEY-2)."""
        keys = [file for file in staging.files if file.kind is FileKind.KEYS]
        pending_commits = []
        if rows := [file for file in staging.files if file.kind is FileKind.ROWS]:
            pending_commit = self._stage_pending_commit(staging, rows, "rows")
            pending_commits.append(replace(pending_commit, rows=sum(file.records for file in rows)))
        if keys:
            pending_commit = self._stage_pending_commit(staging, keys, "keys")
            pending_commits.append(
                replace(pending_commit, deletes=sum(file.records for file in keys))
            )
        return tuple(pending_commits)

    def _stage_pending_commit(
        self, staging: Staging, files: Sequence[WrittenFile], what: str
    ) -> PendingCommit:
        table, transaction = staging.table, staging.transaction
        folder = staging_folder(self._folder_of(table), transaction.epoch, staging.coordinator)
        path = f"{folder}/{new_unique_name(f'{transaction.number}-{what}')}.json"
        text = json.dumps([_written_file_json(file) for file in files]).encode()
        store_files(self._files, {path: text})
        return PendingCommit(
            transaction=transaction,
            coordinator=staging.coordinator,
            secondary=table.uuid,
            table=table.table,
            manifest=path,
            size_bytes=len(text),
            since_ms=staging.since_ms,
        )

    def read_list(self, path: str) -> list[WrittenFile]:
        """Read a list. Raises ``FileNotFoundError``; ``ValueError`` for any other file."""
        with self._files.new_input(path).open() as stream:
            return [_parse_written_file(form) for form in json.loads(stream.read())]

    def read_rows(self, path: str, columns: Sequence[str]) -> Iterator[FileRows]:
        """Read the rows of a list's files, which hold all columns. Raises as ``read_list``."""
        return (self._file_rows(file, columns) for file in self.read_list(path))

    def delete_delivered_after_grace(self, paths: Collection[str]) -> None:
        """Delete lists of old deliveries, which nobody asks for any more; these follow later."""
        now_s = time.monotonic()
        while self._delivered and self._delivered[0][0] <= now_s - self._kept_ms / 1000:
            delete_in_background(self._files, self._delivered.popleft()[1])
        self._delivered.append((now_s, paths))

    def delete_old_unpending_lists(
        self,
        table: TableView,
        before_epoch: Epoch,
        pending_lists: frozenset[str],
        newest_delivered: TransactionId | None = None,
    ) -> None:
        """Delete old ones of earlier epochs that are pending nowhere: delivered ones, or never
        decided.

        In the epoch of the ``newest_delivered`` only later ones are deleted. Of other tables in the
        same location none are.
        """
        until_ms = time.time() * 1000 - self._kept_ms
        loose = [
            path
            for path, epoch, number in self._old_lists(table, until_ms)
            if epoch < before_epoch
            and path not in pending_lists
            and not (
                newest_delivered
                and epoch == newest_delivered.epoch
                and number <= newest_delivered.number
            )
        ]
        delete_quietly(self._files, loose)

    def _old_lists(self, table: TableView, until_ms: float) -> Iterator[tuple[str, int, int]]:
        """Yield those that are so old, with the epoch and the number of their transactions.

        Those staged before each table had a folder are beside it. No table refers to a list, so
        they can go whichever table they were for.
        """
        own, root = self._folder_of(table), sink_staging_folder(table.location, self._sink)
        for path, at_ms in files_below(self._files, root):
            named = _NAMED.fullmatch(path.removeprefix(f"{own}/").removeprefix(f"{root}/"))
            if named and at_ms <= until_ms:
                yield path, int(named[1]), int(named[2])

    def _folder_of(self, table: TableView) -> str:
        return table_staging_folder(table.location, self._sink, table.uuid)

    def _file_rows(self, file: WrittenFile, columns: Sequence[str]) -> FileRows:
        def read_batches() -> Iterator[Any]:
            import pyarrow.parquet as pq  # slow to import, and not needed by every command

            with self._files.new_input(file.path).open() as stream:
                yield from pq.ParquetFile(stream).iter_batches(columns=list(columns))

        return FileRows(file.path, file.size_bytes, read_batches, read_batches)


def _written_file_json(file: WrittenFile) -> Mapping[str, Any]:
    return {
        "path": file.path,
        "records": file.records,
        "size_bytes": file.size_bytes,
        "kind": file.kind.value,
        "detail": b64encode(file.detail).decode(),
    }


def _parse_written_file(form: Mapping[str, Any]) -> WrittenFile:
    return WrittenFile(
        path=form["path"],
        records=form["records"],
        size_bytes=form["size_bytes"],
        kind=FileKind(form["kind"]),
        detail=b64decode(form["detail"]),
    )
