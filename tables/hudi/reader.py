"""Implements ``TableReader`` for a Hudi table: its timeline, its live files, and their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq

from headgate.control_protocol.commit_record import CommitRecord, KeyCounts
from headgate.control_protocol.commit_record_codec import sink_in_summary, topic_ids_if_readable
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import TableView
from headgate.control_protocol.table_history import (
    FileRows,
    ForeignSnapshot,
    History,
    LiveFile,
    Newest,
    ReportedState,
    SinkCommit,
    build_history,
)
from headgate.tables.hudi.base_files import file_group_id_of, instant_of_any_file, is_base_file
from headgate.tables.hudi.columns import quote_column
from headgate.tables.hudi.file_slices import Slice
from headgate.tables.hudi.open_table import open_table
from headgate.tables.hudi.record_keys import BUCKET, require_supported_index_type
from headgate.tables.hudi.table_properties import HudiLocation
from headgate.tables.hudi.write_client import CLUSTERING, HudiJava, Instant, Statistics
from headgate.tables.neutral_schema import with_absent_columns_filled
from headgate.tables.storage.file_store import name_relative_to
from headgate.tables.storage.parquet_integrity import read_batches_detecting_damage, read_row_count

_ONLY_MOVE_ROWS = (CLUSTERING, "BUCKET_RESCALE", "COMPACT")


class HudiReader:
    """The table as it was when this was created."""

    def __init__(self, place: HudiLocation, sink: SinkName) -> None:
        self._place = place
        self._sink = sink
        self._held = ExitStack()
        self._config = place.read_config_ensuring_uuid(stores_uuid=False)
        self._java = HudiJava(place, self._config.schema)
        self._view = open_table(place, sink).read_without_storing_copy()
        self._meta = self._java.load_meta_client()
        self._meta.getActiveTimeline()  # from here on it stays, however late the history is read

    def view(self) -> TableView:
        return self._view

    def has_table_changed(self) -> bool:
        return (
            open_table(self._place, self._sink).read_without_storing_copy().head != self._view.head
        )

    def columns(self) -> Sequence[str]:
        return [column.name for column in self._config.columns.fields]

    def history(self, newest: Newest | None = None) -> History:
        line = self._commits_oldest_first
        shown = (
            line[-newest.count_to_examine([_completion_ms_of(each) for each in line]) :]
            if newest
            else line
        )
        complete = not self._java.has_archived_commits(self._meta) and len(shown) == len(line)
        return build_history(
            self._view, self._sink, map(self._to_reported_state, shown), complete=complete
        )

    def live_files(self) -> list[LiveFile]:
        if self._has_log_files:
            return [self._pseudo_file_of_whole_table]
        brought = {each.requested: each.completed for each in self._commits_oldest_first}
        slices = [each for each in self._live_slices if each.path]
        sizes = self._place.folder.file_sizes([each.path for each in slices])
        return [
            LiveFile(
                path=self._address_of(each.path),
                records=self._row_count_or_zero(each, size),
                size_bytes=each.size,
                parquet=True,
                deletes=False,
                added_by=brought.get(instant_of_any_file(each.path), 0),
            )
            for each, size in zip(slices, sizes, strict=True)
        ]

    def added_files(self, commit: SinkCommit) -> list[tuple[str, int]] | None:
        instant = next(
            (each for each in self._commits_oldest_first if each.completed == commit.snapshot_id),
            None,
        )
        if instant is None or commit.record.keys is not None:  # rewritten files are not its rows
            return None
        return [
            (self._address_of(path), rows)
            for path, rows in self._paths_and_rows_of_instant(instant)
        ]

    def stored_size_and_rows(self, file: LiveFile) -> tuple[int, int]:
        if self._has_log_files:
            return file.size_bytes, file.records
        name = name_relative_to(self._place.location, file.path)
        size = next(self._place.folder.file_sizes([name]))
        if size is None:
            raise FileNotFoundError(file.path)
        return size, file.records if size != file.size_bytes else self._read_row_count(name)

    def scan(self, columns: Sequence[str]) -> tuple[int, Iterator[FileRows]]:
        if self._has_log_files:
            return 1, iter([self._read_merged(columns)])
        return len(self._live_slices), (
            self._file_rows(each, columns) for each in self._live_slices
        )

    def close(self) -> None:
        self._held.close()

    def _read_merged(self, columns: Sequence[str]) -> FileRows:
        """Return all rows, rewritten by Spark: only Hudi reads the updates in its log files."""
        folder = Path(self._held.enter_context(TemporaryDirectory())) / "rows"
        self._java.read_data_frame().select(*map(quote_column, columns)).write.parquet(str(folder))

        def read_batches() -> Iterator[Any]:
            for path in sorted(folder.glob("*.parquet")):
                with pq.ParquetFile(path) as file:
                    yield from file.iter_batches(columns=list(columns))

        return FileRows(
            self._pseudo_file_of_whole_table.path,
            self._pseudo_file_of_whole_table.size_bytes,
            read_batches,
            read_batches,
        )

    @cached_property
    def _has_log_files(self) -> bool:
        """Return whether updates lie in log files."""
        return any(each.logged for each in self._live_slices)

    @cached_property
    def _puts_inserts_in_logs(self) -> bool:
        """Return whether new rows go to their buckets' logs, where Hudi counts them as updates."""
        index = require_supported_index_type(self._place.name, self._place.settings)
        return self._config.merges_on_read and index == BUCKET

    @cached_property
    def _pseudo_file_of_whole_table(self) -> LiveFile:
        rows, size = (
            int(self._java.read_data_frame().count()),
            sum(each.size for each in self._live_slices),
        )
        path = self._place.location
        return LiveFile(path, rows, size, parquet=False, deletes=False, added_by=0)

    def _row_count_or_zero(self, live: Slice, size: int | None) -> int:
        """Return a file's row count, 0 for a damaged one: examining it reports the damage."""
        with suppress(ValueError):
            return self._read_row_count(live.path) if size == live.size else 0
        return 0

    def _read_row_count(self, name: str) -> int:
        source = self._place.folder.arrow_source(name)
        with source.open("rb") if isinstance(source, Path) else source as stream:
            return read_row_count(stream)

    def _address_of(self, name: str) -> str:
        return f"{self._place.location}/{name}"

    def _file_rows(self, live: Slice, columns: Sequence[str]) -> FileRows:
        def read_batches() -> Iterator[Any]:
            with pq.ParquetFile(self._place.folder.arrow_source(live.path)) as file:
                for batch in file.iter_batches(columns=list(columns)):
                    yield with_absent_columns_filled(batch, columns, self._config.columns, {})

        path = self._address_of(live.path)
        read_whole = partial(self._place.folder.read, live.path)
        read = partial(read_batches_detecting_damage, path, read_batches, read_whole)
        return FileRows(path, live.size, read, read)

    # ---------------------------------------------------------------------------------- timeline

    @cached_property
    def _commits_oldest_first(self) -> list[Instant]:
        """Return the commits, oldest first."""
        return list(reversed(list(self._java.completed_commits(self._meta))))

    @cached_property
    def _live_slices(self) -> list[Slice]:
        return self._java.latest_slices(self._meta)

    def _paths_and_rows_of_instant(self, instant: Instant) -> list[tuple[str, int]]:
        return [
            (each.path, each.rows)
            for each in self._java.file_statistics(self._meta, instant.requested)
        ]

    def _to_reported_state(self, instant: Instant) -> ReportedState:
        return ReportedState(
            f"instant {instant.requested}",
            instant.metadata,
            lambda record: self._to_sink_commit(instant, record),
            lambda: self._to_foreign_snapshot(instant),
        )

    def _to_sink_commit(self, instant: Instant, record: CommitRecord) -> SinkCommit:
        brought = self._java.file_statistics(self._meta, instant.requested)
        rows = sum(each.rows for each in brought)
        if record.keys:  # Hudi also counts rows of rewritten files
            agree = _counts_agree(record.keys, brought, inserts_too=not self._puts_inserts_in_logs)
            rows = record.records if agree else rows
        return SinkCommit(
            snapshot_id=instant.completed,
            committed_ms=_completion_ms_of(instant),
            record=record,
            added_records=rows,
            added_files=len(brought),
        )

    def _to_foreign_snapshot(self, instant: Instant) -> ForeignSnapshot:
        if _only_moves_rows(instant):
            return foreign_snapshot_of(instant, ())
        return foreign_snapshot_of(
            instant,
            self._java.file_statistics(self._meta, instant.requested),
            self._replaced_rows[instant.requested] if instant.replaces else 0,
        )

    @cached_property
    def _replaced_rows(self) -> Mapping[str, int]:
        """Return how many rows the file groups had that each commit replaced.

        Rows that only archived commits tell of are not counted.
        """
        rows, replaced = dict[str, int](), dict[str, int]()
        for instant in self._commits_oldest_first:
            if instant.replaces:
                groups = self._java.replaced_groups(self._meta, instant.requested)
                replaced[instant.requested] = sum(rows.pop(group, 0) for group in groups)
            for each in self._java.file_statistics(self._meta, instant.requested):
                group = file_group_id_of(each.path)
                logged = rows.get(group, 0) + each.inserted - each.deleted
                rows[group] = each.rows if is_base_file(each.path) else logged
        return replaced


def foreign_snapshot_of(
    instant: Instant, statistics: Sequence[Statistics], replaced_rows: int = 0
) -> ForeignSnapshot:
    """Return somebody else's commit. What it deleted is in no live file any more.

    ``replaced_rows``: those of the file groups that it replaced.
    """
    sink = sink_in_summary(instant.metadata)
    inserted = sum(each.inserted for each in statistics)
    deleted = sum(each.deleted for each in statistics) + replaced_rows
    return ForeignSnapshot(
        snapshot_id=instant.completed,
        operation="replace" if _only_moves_rows(instant) else instant.operation.lower(),
        added_records=inserted,
        deleted_records=deleted,
        row_deletes=min(inserted, deleted),  # inserted rows do not make up for deleted ones
        sink=sink,
        topic_ids=topic_ids_if_readable(sink, instant.metadata) if sink else {},
    )


def _only_moves_rows(instant: Instant) -> bool:
    return instant.operation in _ONLY_MOVE_ROWS


def _counts_agree(
    key_counts: KeyCounts, hudi_statistics: list[Statistics], *, inserts_too: bool
) -> bool:
    """Return whether Hudi's counts match the record's key counts.

    ``inserts_too``: including how many of the rows are new.
    """
    inserted = sum(each.inserted for each in hudi_statistics)
    written = inserted + sum(each.updated for each in hudi_statistics)
    return (
        key_counts.inserted + key_counts.updated == written
        and key_counts.deleted == sum(each.deleted for each in hudi_statistics)
        and (key_counts.inserted == inserted or not inserts_too)
    )


def _completion_ms_of(instant: Instant) -> int:
    """Return when it was completed; the table's instants are in UTC."""
    at = datetime.strptime(f"{instant.completed}000", "%Y%m%d%H%M%S%f").replace(tzinfo=UTC)
    return int(at.timestamp() * 1000)
