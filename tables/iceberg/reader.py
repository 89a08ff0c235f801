"""Implements ``TableReader`` over a loaded Iceberg table: its metadata, its manifests, and its
rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.manifest import FileFormat, ManifestContent, ManifestEntryStatus, ManifestFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot

from headgate.control_protocol.commit_record_codec import on_delete_property
from headgate.control_protocol.identifiers import SinkName, tag_name
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import TableView
from headgate.control_protocol.table_format import Anywhere
from headgate.control_protocol.table_history import (
    FencedConnector,
    FileRows,
    History,
    LiveFile,
    Newest,
    SinkCommit,
)
from headgate.tables.iceberg.catalog import translating_table_errors
from headgate.tables.iceberg.connector_fence import find_fenced_connector
from headgate.tables.iceberg.history import read_history
from headgate.tables.iceberg.pending_manifests import read_staged_files
from headgate.tables.iceberg.read_manifest_entries import read_live_entries
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.tag_lineage import (
    ancestors_of,
    next_parent_ref,
    snapshots_by_id,
    summary_properties_of,
)
from headgate.tables.iceberg.upsert.on_delete_property import DeleteChoice
from headgate.tables.storage.file_io import SCHEMES, is_s3_files, with_whole_reads
from headgate.tables.storage.parquet_integrity import (
    decode_row_count,
    footer_size,
    read_batches_detecting_damage,
    read_row_count,
    read_whole_file,
)
from headgate.tables.storage.read_ahead import read_ahead_in_order

if TYPE_CHECKING:
    from headgate.tables.iceberg.rollback import IcebergSnapshots

# The files to read for an audit of records, one manifest after the other.
#
# A plan of the whole table holds every file's statistics at once: three kilobytes each and more.
# Only a table with delete files needs one, since matching these takes the whole table.


_MANIFESTS_AHEAD = 2


def plan_scan_tasks(
    table: Table, snapshot_id: int, scan: Any
) -> tuple[int, Iterator[FileScanTask]]:
    """Return how many files the snapshot has, and the scan tasks that read them."""
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    manifests = snapshot.manifests(table.io) if snapshot is not None else []
    if any(manifest.content == ManifestContent.DELETES for manifest in manifests):
        tasks = list(scan.plan_files())
        return len(tasks), iter(tasks)
    count = sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in manifests)
    entries = read_ahead_in_order(
        lambda m: read_live_entries(table.io, m), manifests, _MANIFESTS_AHEAD
    )
    return count, (FileScanTask(entry.data_file) for live in entries for entry in live)


_FOOTER_BYTES = 64 * 1024


class IcebergReader:
    """The branch as it was when ``table`` was loaded."""

    def __init__(self, table: Table, sink: SinkName, branch: str) -> None:
        self.table = table
        self._sink = sink
        self._branch = branch

    @property
    def uuid(self) -> str:
        return str(self.table.metadata.table_uuid)

    @property
    def schema_id(self) -> int:
        """Return the id of the current schema, which the view has, too, but after more reading."""
        return self.table.schema().schema_id

    @property
    def has_sink_tag(self) -> bool:
        """Return whether the table carries the sink's tag."""
        return tag_name(self._sink, self._branch) in self.table.metadata.refs

    def view(self) -> TableView:
        identifier = ".".join(self.table.name())
        sink = IcebergTable(self.table.catalog, identifier, self._sink, self._branch)
        return sink.view_of_loaded(self.table)

    def open_reader_as_of_now(self) -> IcebergReader:
        """Return a reader of the branch as it is now."""
        table = self.table.catalog.load_table(self.table.name())
        return IcebergReader(table, self._sink, self._branch)

    def snapshots(self) -> IcebergSnapshots:
        """Return the table's snapshots."""
        from headgate.tables.iceberg.rollback import IcebergSnapshots  # of rollbacks only

        return IcebergSnapshots(self.table, self._sink, self._branch)

    def history(self, newest: Newest | None = None) -> History:
        with self._naming_table_in_errors():
            return read_history(self.table, self._sink, self._branch, newest)

    def fenced_connector(self) -> FencedConnector | None:
        metadata = self.table.metadata
        ref = next_parent_ref(metadata, self._branch)
        line = ancestors_of(snapshots_by_id(metadata), ref) if ref else ()
        return find_fenced_connector(
            self._sink,
            ((snapshot.snapshot_id, summary_properties_of(snapshot)) for snapshot in line),
        )

    def has_table_changed(self) -> bool:
        now = self.table.catalog.load_table(self.table.name())  # refresh() would move this one, too
        return now.metadata_location != self.table.metadata_location

    def columns(self) -> Sequence[str]:
        return self.table.schema().column_names

    def columns_added_after_creation(self) -> frozenset[str]:
        """Return columns that some of the table's schemas lack: older rows have no value in
        them."""
        schemas = self.table.schemas().values()
        everywhere = set.intersection(*({each.field_id for each in s.fields} for s in schemas))
        now = self.table.schema().fields
        return frozenset(each.name for each in now if each.field_id not in everywhere)

    def live_files(self) -> list[LiveFile]:
        """Return every live entry of the head's manifests, delete files among them."""
        io, head = self.table.io, self._head
        with self._naming_table_in_errors():
            manifests = head.manifests(io) if head else []
            return [
                file
                for live in read_ahead_in_order(lambda m: _read_live_files(io, m), manifests)
                for file in live
            ]

    def added_files(self, commit: SinkCommit) -> list[tuple[str, int]] | None:
        snapshot = self.table.metadata.snapshot_by_id(commit.snapshot_id)
        with self._naming_table_in_errors():
            return _read_added_files(self.table.io, snapshot) if snapshot else None

    def removed_row_count_of_commit(self, commit: SinkCommit) -> int | None:
        """Return how many rows the commit's delete files marked as dead that were not dead before.

        ``None``: no longer known.
        """
        snapshot = self.table.metadata.snapshot_by_id(commit.snapshot_id)
        with self._naming_table_in_errors():
            return _newly_dead_row_count(self.table.io, snapshot) if snapshot else None

    def stored_size_and_rows(self, file: LiveFile) -> tuple[int, int]:
        """By one request on S3, which includes the footer, unless that is unusually long."""
        io = self.table.io
        if is_s3_files(io) and file.path.startswith(tuple(f"{scheme}://" for scheme in SCHEMES)):
            end, size = io.read_tail(file.path, _FOOTER_BYTES if file.parquet else 1)
            if not file.parquet or size != file.size_bytes:
                return size, file.records
            if len(end) == size or footer_size(end) <= len(end):
                return size, decode_row_count(end)
        size = len(io.new_input(file.path))
        whole = file.parquet and size == file.size_bytes
        return size, _row_count_in_footer(io, file) if whole else file.records

    def scan(self, columns: Sequence[str]) -> tuple[int, Iterator[FileRows]]:
        """Read one file at a time, with its deletes applied; no other file's rows are in memory."""
        if self._head is None:
            return 0, iter(())
        head = self._head.snapshot_id
        scan = self.table.scan(snapshot_id=head, selected_fields=tuple(columns))
        with self._naming_table_in_errors():
            count, tasks = plan_scan_tasks(self.table, head, scan)
        return count, (self._file_rows(task, columns) for task in tasks)

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def staged_rows(self, manifest: str, columns: Sequence[str]) -> Iterator[FileRows]:
        """Read a manifest that no snapshot lists yet. Raises ``FileNotFoundError``."""
        with self._naming_table_in_errors():
            files = read_staged_files(self.table.io, manifest)
        return (self._file_rows(FileScanTask(file), columns) for file in files)

    def end_offsets_of_former_on_delete(self) -> Offsets | Anywhere:
        name = on_delete_property(self._sink)
        before = DeleteChoice.from_property(self.table.metadata.properties.get(name)).before
        return Anywhere.ANYWHERE if before is None else before

    def missing_staged_files(self, manifest: str) -> list[str]:
        io = self.table.io
        paths = [file.file_path for file in read_staged_files(io, manifest)]
        return [path for path in paths if not io.new_input(path).exists()]

    @contextmanager
    def _naming_table_in_errors(self) -> Iterator[None]:
        """Name the table in what goes wrong with its metadata.

        A file that is missing may have been removed in order: callers look again.
        """
        name = ".".join(self.table.name())
        missing = None
        with translating_table_errors(name):
            try:
                yield
            except FileNotFoundError as error:
                missing = error
        if missing:
            raise FileNotFoundError(f"table {name}: {missing}") from missing

    @cached_property
    def _head(self) -> Snapshot | None:
        ref = self.table.metadata.refs.get(self._branch)
        return self.table.metadata.snapshot_by_id(ref.snapshot_id) if ref else None

    @cached_property
    def _whole_file_io(self) -> FileIO:
        return with_whole_reads(self.table.io)

    def _file_rows(self, task: FileScanTask, columns: Sequence[str]) -> FileRows:
        path = task.file.file_path

        def read_with(io: FileIO) -> Iterator[pa.RecordBatch]:
            batches = partial(live_batches_of_file, self.table, task, columns, io)
            if task.file.file_format != FileFormat.PARQUET:
                return batches()
            return read_batches_detecting_damage(
                path, batches, lambda: read_whole_file(self.table.io, path)
            )

        return FileRows(
            path,
            task.file.file_size_in_bytes,
            lambda: read_with(self.table.io),
            lambda: read_with(self._whole_file_io),
        )


def live_batches_of_file(
    table: Table, task: FileScanTask, columns: Sequence[str], io: FileIO
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in order, without those that the task's delete files name."""
    from pyiceberg.io.pyarrow import ArrowScan  # brings pandas: not for every command

    from headgate.tables.iceberg.avro_data_file_columns import read_avro_columns

    if task.file.file_format == FileFormat.AVRO:
        return read_avro_columns(io, task, table.schema(), tuple(columns))
    projection = table.scan(selected_fields=tuple(columns)).projection()
    reader = ArrowScan(table.metadata, io, projection, AlwaysTrue())
    return reader.to_record_batches([task])


def _read_added_files(io: FileIO, snapshot: Snapshot) -> list[tuple[str, int]]:
    """Return the files of rows that came with the snapshot, and how many rows each has."""
    return [
        (entry.data_file.file_path, entry.data_file.record_count)
        for manifest in snapshot.manifests(io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        and manifest.content is ManifestContent.DATA
        for entry in read_live_entries(io, manifest)
        if entry.status == ManifestEntryStatus.ADDED
    ]


def _newly_dead_row_count(io: FileIO, snapshot: Snapshot) -> int:
    """Return the rows of its delete files, less those of the files that they replace (rule
    KEY-6)."""
    signs = {ManifestEntryStatus.ADDED: 1, ManifestEntryStatus.DELETED: -1}
    return sum(
        signs.get(entry.status, 0) * entry.data_file.record_count
        for manifest in snapshot.manifests(io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        and manifest.content is ManifestContent.DELETES
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=False)
    )


def _read_live_files(io: FileIO, manifest: ManifestFile) -> list[LiveFile]:
    return [
        LiveFile(
            path=entry.data_file.file_path,
            records=entry.data_file.record_count,
            size_bytes=entry.data_file.file_size_in_bytes,
            parquet=entry.data_file.file_format == FileFormat.PARQUET,
            deletes=entry.data_file.content.value != 0,
            added_by=entry.snapshot_id or 0,
            vector=entry.data_file.file_format == FileFormat.PUFFIN,
        )
        for entry in read_live_entries(io, manifest)
    ]


def _row_count_in_footer(io: FileIO, file: LiveFile) -> int:
    with io.new_input(file.path).open() as stream:
        return read_row_count(stream)
