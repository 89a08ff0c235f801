"""Implements ``TableReader`` for a Delta table: its log, its live files, and their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from headgate.control_protocol.errors import type_and_first_line_of
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import TableView
from headgate.control_protocol.table_history import (
    FileRows,
    History,
    LiveFile,
    Newest,
    ReportedState,
    SinkCommit,
    build_history,
)
from headgate.tables.delta.log import Digest, Walk, row_count_or_zero
from headgate.tables.delta.open_table import DeltaLocation, columns_of
from headgate.tables.delta.table import DeltaSinkTable
from headgate.tables.neutral_schema import with_absent_columns_filled
from headgate.tables.storage.file_io import open_file_io
from headgate.tables.storage.parquet_integrity import (
    read_batches_detecting_damage,
    read_row_count,
    read_whole_file,
)


class DeltaReader:
    """The table as it was when this was created."""

    def __init__(self, place: DeltaLocation, sink: SinkName) -> None:
        self._place = place
        self._sink = sink
        self._table: DeltaTable = place.load_table()
        self._log = place.open_log()
        self._view = DeltaSinkTable(place, sink).view_of_loaded(self._table)
        self._files = open_file_io(place.storage, place.location)

    def view(self) -> TableView:
        return self._view

    def has_table_changed(self) -> bool:
        return self._place.load_table().version() != self._table.version()

    def columns(self) -> Sequence[str]:
        return [field.name for field in self._table.schema().fields]

    def history(self, newest: Newest | None = None) -> History:
        walk = self._walk_log(newest) if newest else self._walk_of_whole_log
        states = map(self._to_reported_state, reversed(walk.digests))
        return build_history(
            self._view, self._sink, states, complete=walk.has_reached_first_version
        )

    def live_files(self) -> list[LiveFile]:
        records, sizes = (
            self._live_add_actions[name].to_pylist() for name in ("num_records", "size_bytes")
        )
        brought = self._walk_of_whole_log.brought
        return [
            LiveFile(
                path=self._address_of(path),
                records=count or 0,
                size_bytes=size,
                parquet=count is not None,
                deletes=False,
                added_by=brought.get(path, 0),
            )
            for path, count, size in zip(self._live_paths, records, sizes, strict=True)
        ]

    def added_files(self, commit: SinkCommit) -> list[tuple[str, int]] | None:
        entry = self._log.read_entry(commit.snapshot_id)
        if entry is None:
            return None
        return [
            (self._address_of(unquote(add["path"])), row_count_or_zero(add))
            for add in entry.add_actions
        ]

    def stored_size_and_rows(self, file: LiveFile) -> tuple[int, int]:
        size = len(self._files.new_input(file.path))
        if not file.parquet or size != file.size_bytes:
            return size, file.records
        with self._files.new_input(file.path).open() as stream:
            return size, read_row_count(stream)

    def scan(self, columns: Sequence[str]) -> tuple[int, Iterator[FileRows]]:
        try:
            vectors = self._table.deletion_vectors().read_all()
        except DeltaError as error:  # the file of one is gone, for example
            why = type_and_first_line_of(error)
            raise ValueError(f"the table's deletion vectors cannot be read: {why}") from error
        if vectors.num_rows:
            raise NotImplementedError("the table has deletion vectors, which are not read here")
        files = self.live_files()
        every = zip(files, self._partition_values_of_live_files, strict=True)
        return len(files), (self._file_rows(file, columns, values) for file, values in every)

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _file_rows(
        self, file: LiveFile, columns: Sequence[str], values: Mapping[str, Any]
    ) -> FileRows:
        of = columns_of(self._place.name, self._table)

        def read_batches() -> Iterator[Any]:
            with self._files.new_input(file.path).open() as stream:
                for batch in pq.ParquetFile(stream).iter_batches(columns=list(columns)):
                    yield with_absent_columns_filled(batch, columns, of, values)

        read_whole = partial(read_whole_file, self._files, file.path)
        read = partial(read_batches_detecting_damage, file.path, read_batches, read_whole)
        return FileRows(file.path, file.size_bytes, read, read)

    @cached_property
    def _live_add_actions(self) -> pa.Table:
        return pa.table(self._table.get_add_actions())

    @cached_property
    def _live_paths(self) -> list[str]:
        """Return the files' names on storage: delta-rs gives them as the log has them, escaped."""
        return [unquote(path) for path in self._live_add_actions["path"].to_pylist()]

    @property
    def _partition_values_of_live_files(self) -> list[Mapping[str, Any]]:
        """Return the log's values for each live file, whose columns the file may lack."""
        if "partition" not in self._live_add_actions.column_names:
            return [{}] * len(self._live_add_actions)
        return [values or {} for values in self._live_add_actions["partition"].to_pylist()]

    # -------------------------------------------------------------------------------------- the log

    @cached_property
    def _walk_of_whole_log(self) -> Walk:
        return self._walk_log()

    def _walk_log(self, newest: Newest | None = None) -> Walk:
        """Walk the versions; each takes a request, and only its digest is kept."""
        walk = Walk(self._live_paths if newest is None else ())
        for entry in self._log.walk_effective_versions_back(self._table.version()):
            if entry is None:
                break
            walk.add_next_older_entry(entry)
            if newest and newest.is_satisfied_by(len(walk.digests), entry.committed_ms_or_zero):
                break
        return walk

    def _address_of(self, path: str) -> str:
        return path if "://" in path else f"{self._place.location}/{path}"

    def _to_reported_state(self, digest: Digest) -> ReportedState:
        made = not digest.version  # the first one creates the table
        return ReportedState(
            f"version {digest.version}",
            digest.properties,
            digest.to_sink_commit,
            lambda: None if made else digest.to_foreign_snapshot(self._sink),
        )
