"""``TableReader`` over a Delta table: its log, its live files, and their rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import TableView
from headgate.control_protocol.record import CommitRecord
from headgate.control_protocol.record_codec import sink_of, topics_of
from headgate.control_protocol.table_history import (
    FileRows,
    ForeignSnapshot,
    History,
    LiveFile,
    Newest,
    SinkCommit,
    Told,
    history_of,
)
from headgate.tables.delta.log import LogEntry
from headgate.tables.delta.opened import DeltaPlace, columns_of
from headgate.tables.delta.table import DeltaSinkTable
from headgate.tables.layouts import with_absent
from headgate.tables.stores.files import open_files

_NOTHING_CHANGES = "replace"


class DeltaReader:
    """The table as it was when this was made."""

    def __init__(self, place: DeltaPlace, sink: SinkName) -> None:
        self._place = place
        self._sink = sink
        self._table: DeltaTable = place.load()
        self._log = place.log()
        self._view = DeltaSinkTable(place, sink).seen(self._table)
        self._files = open_files(place.storage, place.location)

    def view(self) -> TableView:
        return self._view

    def moved(self) -> bool:
        return self._place.load().version() != self._table.version()

    def columns(self) -> Sequence[str]:
        return [field.name for field in self._table.schema().fields]

    def history(self, newest: Newest | None = None) -> History:
        line, complete = self._read_line(newest) if newest else self._line
        return history_of(self._view, self._sink, map(self._told, line), complete=complete)

    def live_files(self) -> list[LiveFile]:
        columns = (self._adds[name].to_pylist() for name in ("path", "num_records", "size_bytes"))
        brought = {path: entry.version for entry in self._line[0] for path in _paths(entry.added)}
        return [
            LiveFile(
                path=self._address(path),
                records=records or 0,
                size_bytes=size,
                parquet=records is not None,
                deletes=False,
                added_by=brought.get(path, 0),
            )
            for path, records, size in zip(*columns, strict=True)
        ]

    def added(self, commit: SinkCommit) -> list[tuple[str, int]] | None:
        entry = self._entries.get(commit.snapshot_id)
        if entry is None:
            return None
        return [(self._address(unquote(add["path"])), _rows_of(add)) for add in entry.added]

    def size_and_rows(self, file: LiveFile) -> tuple[int, int]:
        size = len(self._files.new_input(file.path))
        if not file.parquet or size != file.size_bytes:
            return size, file.records
        with self._files.new_input(file.path).open() as stream:
            return size, int(pq.read_metadata(stream).num_rows)

    def scan(self, columns: Sequence[str]) -> tuple[int, Iterator[FileRows]]:
        if self._table.deletion_vectors().read_all().num_rows:
            raise NotImplementedError("the table has deletion vectors, which are not read here")
        files = self.live_files()
        every = zip(files, self._partitions, strict=True)
        return len(files), (self._rows(file, columns, values) for file, values in every)

    def close(self) -> None:
        """Nothing is held."""

    def _rows(self, file: LiveFile, columns: Sequence[str], values: Mapping[str, Any]) -> FileRows:
        of = columns_of(self._place.name, self._table)

        def batches() -> Iterator[Any]:
            with self._files.new_input(file.path).open() as stream:
                for batch in pq.ParquetFile(stream).iter_batches(columns=list(columns)):
                    yield with_absent(batch, columns, of, values)

        return FileRows(file.path, file.size_bytes, batches, batches)

    @cached_property
    def _adds(self) -> pa.Table:
        return pa.table(self._table.get_add_actions())

    @property
    def _partitions(self) -> list[Mapping[str, Any]]:
        """The values that the log says for each live file; its columns may lack in the file."""
        if "partition" not in self._adds.column_names:
            return [{}] * len(self._adds)
        return [values or {} for values in self._adds["partition"].to_pylist()]

    # -------------------------------------------------------------------------------------- the log

    @cached_property
    def _line(self) -> tuple[list[LogEntry], bool]:
        return self._read_line()

    def _read_line(self, newest: Newest | None = None) -> tuple[list[LogEntry], bool]:
        """Oldest first, and whether the first one is the table's. Each is a request of its own."""
        found: list[LogEntry] = []
        for entry in self._log.line(self._table.version()):
            if entry is None:
                break
            found.append(entry)
            if newest and newest.ends(len(found), entry.committed_ms):
                break
        return found[::-1], bool(found) and not found[-1].version

    @cached_property
    def _entries(self) -> Mapping[int, LogEntry]:
        return {entry.version: entry for entry in self._line[0]}

    def _address(self, path: str) -> str:
        return path if "://" in path else f"{self._place.location}/{path}"

    def _told(self, entry: LogEntry) -> Told:
        made = not entry.version  # the first one makes the table
        return Told(
            f"version {entry.version}",
            entry.properties,
            lambda record: _commit(entry, record),
            lambda: None if made else self._foreign(entry),
        )

    def _foreign(self, entry: LogEntry) -> ForeignSnapshot:
        sink = sink_of(entry.properties)
        sink = None if sink == self._sink else sink
        changes = [a for a in (*entry.added, *entry.removed) if a.get("dataChange", True)]
        replaces = entry.restores or not changes
        return ForeignSnapshot(
            snapshot_id=entry.version,
            operation=_NOTHING_CHANGES if replaces else entry.operation,
            added_records=0 if replaces else sum(map(_rows_of, entry.added)),
            deleted_records=0 if replaces else sum(self._removed_rows(r) for r in entry.removed),
            row_deletes=0 if replaces else sum(_row_deletes(add) for add in entry.added),
            sink=sink,
            topic_ids=topics_of(sink, entry.properties) if sink else {},
        )

    def _removed_rows(self, removed: Mapping[str, Any]) -> int:
        """A remove need not say how many rows go with the file: the add did."""
        return _rows_of(removed) or self._known_rows.get(removed["path"], 0)

    @cached_property
    def _known_rows(self) -> Mapping[str, int]:
        return {add["path"]: _rows_of(add) for entry in self._line[0] for add in entry.added}


def _commit(entry: LogEntry, record: CommitRecord) -> SinkCommit:
    return SinkCommit(
        snapshot_id=entry.version,
        committed_ms=entry.committed_ms,
        record=record,
        added_records=sum(map(_rows_of, entry.added)),
        added_files=len(entry.added),
    )


def _paths(actions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    return (unquote(action["path"]) for action in actions)


def _rows_of(action: Mapping[str, Any]) -> int:
    """What its statistics say."""
    return int(json.loads(action.get("stats") or "{}").get("numRecords", 0))


def _row_deletes(added: Mapping[str, Any]) -> int:
    return int((added.get("deletionVector") or {}).get("cardinality", 0))
