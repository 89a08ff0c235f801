"""A keyed table's part of a commit: what its records replace and delete, on the head of the call.

Nothing is rebased: what was found for one head is useless on another, so each call searches again
(rule KEY-5). The index between the calls is a cache.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from tempfile import gettempdir

from pyiceberg.manifest import DataFile as ManifestDataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyroaring import BitMap64

from headgate.control_protocol.call_progress import note_call_progress
from headgate.control_protocol.commit_record import PartitionCohorts
from headgate.control_protocol.current_sink import bound_to_current_sink
from headgate.control_protocol.errors import KeyIndexFull
from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.control_protocol.log_event_names import LogEvent, event_extra
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.control_protocol.table_format import RowKey
from headgate.tables.iceberg.table_creation import require_key_field_ids
from headgate.tables.iceberg.tag_lineage import snapshots_by_id
from headgate.tables.iceberg.upsert.delete_manifests import Deletions
from headgate.tables.iceberg.upsert.index_memory import IndexMemory
from headgate.tables.iceberg.upsert.key_index import FileKeys, KeyIndex
from headgate.tables.iceberg.upsert.key_property import key_property_text
from headgate.tables.iceberg.upsert.key_reader import Columns, KeyReader
from headgate.tables.iceberg.upsert.live_files import Head, Heads
from headgate.tables.iceberg.upsert.position_deletes import (
    Positions,
    Target,
    build_delete_files,
    path_and_content_offset,
    sorted_positions_of,
)
from headgate.tables.iceberg.upsert.position_lookup import Change, resolve_changes
from headgate.tables.storage.read_ahead import read_ahead_in_order

_FILES_AHEAD_MAX = 64
_ROWS_AHEAD = 500_000
"""Storage is slow to answer each request, and memory is bounded (KEY-7)."""

_ENDING_MAX_S = 5.0
_SAID_EACH_S = 10.0
_LOOKS_EACH_S = 1.0

_log = redacted_logger(__name__)


@dataclass(frozen=True, slots=True)
class KeyedBy(RowKey):
    """A table's key, and how much memory its index may take."""

    index_bytes_max: int = 4 * 1024**3


class KeyedRows:
    """Resolves the keys of one table, for as long as one coordinator lives.

    A thread may read the index beside the first transaction, so that its commit need not.
    """

    def __init__(
        self, by: KeyedBy, reader: KeyReader | None = None, memory: IndexMemory | None = None
    ) -> None:
        """``memory``: shared by the indexes of several tables."""
        self._following = threading.Lock()
        self._warming: threading.Thread | None = None
        self._closing = False
        self._files_read = 0
        self._by = by
        self._reader = reader or KeyReader()
        self._heads = Heads()
        self._resize = (memory or IndexMemory(by.index_bytes_max)).new_share_resizer()
        self._index = self._new_index()
        self._stands_at: int | None = None
        self._dead: dict[str, BitMap64] = {}
        self._read: dict[str, FileKeys] = {}

    def key_property_value(self, metadata: TableMetadata) -> str:
        """Return the table property that stores this key. Raises ``KeyUnfit``."""
        return key_property_text(metadata.schema(), self._by.key)

    def start_building_index(self, table: Table, head: Snapshot | None) -> None:
        """Begin to read the index of ``head``, unless it was read or begun (KEY-7). Never
        raises."""
        if self._warming is not None or self._stands_at is not None or head is None:
            return

        def build_index() -> None:
            try:
                with self._following:
                    self._read_head_and_follow(table, head, self._find_columns(table))
            except Exception as error:  # noqa: BLE001 - the commit reads on, and says what is wrong
                _log.debug("the index of %s was not read ahead: %r", table.name(), error)

        name = "headgate-key-index"
        self._warming = threading.Thread(
            target=bound_to_current_sink(build_index), name=name, daemon=True
        )
        self._warming.start()

    @property
    def index_bytes(self) -> int:
        """What the index holds of memory."""
        return self._index.bytes_in_memory

    def close(self) -> None:
        """End the threads; the one that reads waits for one read of storage at most."""
        self._closing = True
        self._index.close()
        if self._warming is not None:
            self._warming.join(_ENDING_MAX_S)

    def build_deletions_by_key(
        self,
        table: Table,
        parent: Snapshot | None,
        files_with_transactions: Sequence[tuple[WrittenFile, int]],
        *,
        row_files: Sequence[ManifestDataFile],
        folder: str,
        cohorts: PartitionCohorts,
    ) -> Deletions:
        """Build the delete files that the keys of these files need on ``parent``.

        Each file comes with the ordinal of its transaction. ``row_files`` are those with rows, as
        a manifest holds them. The caller stores the delete files, which are for ``folder``.
        ``cohorts`` say which partitions are younger than others. Raises the ``StopSink`` of KEY-7
        and KEY-8, and what storage raises.
        """
        with self._hold_index_noting_progress():
            self._reader.sources.cohorts = cohorts
            columns = self._find_columns(table)
            head = self._read_head_and_follow(table, parent, columns)
            files = [file for file, _ in files_with_transactions]
            read = read_ahead_in_order(
                lambda file: self._read_change(table, columns, file),
                files,
                _read_ahead_count(files),
            )
            changes = [
                replace(change, transaction=number)
                for change, (_, number) in zip(read, files_with_transactions, strict=True)
            ]
            self._read = {change.path: change.keys for change in changes if not change.deletes}

            def dead_positions_in(path: str) -> BitMap64:
                self._dead[path] = found = self._heads.dead_rows.dead_positions_of(
                    table.io, head, path
                )
                return found

            result = resolve_changes(self._index, changes, dead_positions_in, self._reader.sources)
            if result.doubled:
                _log.warning(
                    "%d keys had several rows; they have one, or none, now", result.doubled
                )
            number = table.metadata.next_sequence_number()
            targets = {file.file_path: Target.from_data_file(file, number) for file in row_files}
            pairs = [(targets.get(at) or head.data[at], bits) for at, bits in result.dead.items()]
            made = build_delete_files(table.metadata.format_version, folder, pairs)
            for file, (target, bits) in zip(made.listed, pairs, strict=True):
                self._heads.dead_rows.remember_delete_file(
                    path_and_content_offset(file), target.path, bits
                )
            retired = [entry for at in result.dead for entry in head.deletes.get(at, ())]
            return Deletions(made.listed, tuple(retired), made.bytes_of, head.listed, result.counts)

    # ------------------------------------------------------------------------------- the index

    @contextmanager
    def _hold_index_noting_progress(self) -> Iterator[None]:
        """Wait for the thread that reads ahead; while it goes on, so does the call that waits."""
        noted = 0
        while not self._following.acquire(timeout=_LOOKS_EACH_S):
            if self._files_read > noted:
                noted = self._files_read
                note_call_progress()
        try:
            yield
        finally:
            self._following.release()

    def _new_index(self) -> KeyIndex:
        return KeyIndex(
            self._by.index_bytes_max,
            self._positions_known_dead,
            self._resize,
            lambda: bool(self._dead),
            _folder_for_runs(),
        )

    def _find_columns(self, table: Table) -> Columns:
        schema = table.schema()
        coordinates = (self._by.partition, self._by.offset, self._by.topic)
        return Columns.from_schema(
            schema, sorted(require_key_field_ids(schema, self._by.key)), coordinates
        )

    def _read_head_and_follow(
        self, table: Table, parent: Snapshot | None, columns: Columns
    ) -> Head:
        """Bring the key index to this snapshot: read new files, forget those that are gone."""
        head = self._heads.read_head(table, parent)
        if not _descends_from_ancestor(table.metadata, self._stands_at, parent):
            # Rows that were dead may live again: read again what merges have left out of the index.
            self._index.close()
            self._index = self._new_index()
            self._dead.clear()
        self._dead = {path: dead for path, dead in self._dead.items() if path in head.data}
        for path in [path for path in self._index.numbers if path not in head.data]:
            self._index.forget_file(path)
        new = [target for path, target in head.data.items() if path not in self._index.numbers]

        def read_keys_of(target: Target) -> FileKeys:
            return self._read.get(target.path) or self._reader.read_data_file(
                table.io, columns, target
            )

        progress = _Progress(table.name()[-1], sum(target.records for target in new))
        for target, found in zip(
            new, read_ahead_in_order(read_keys_of, new, _read_ahead_count(new)), strict=True
        ):
            try:
                self._index.add_file(target.path, found)
            except KeyIndexFull:
                self._reset_index_and_free_memory()
                raise
            progress.note_rows_read(len(found))
            self._files_read += 1
            note_call_progress()
            if self._closing:
                raise TimeoutError("the coordinator ends")
        progress.log_end()
        self._stands_at = head.snapshot_id
        return head

    def _reset_index_and_free_memory(self) -> None:
        """Free the memory for other tables: this one is suspended, or the sink stops."""
        self._index.close()
        self._index, self._stands_at = self._new_index(), None
        self._dead.clear()
        self._read.clear()
        self._resize(0)

    def _read_change(self, table: Table, columns: Columns, file: WrittenFile) -> Change:
        is_key_file = file.kind is FileKind.KEYS
        keys = self._read.get(file.path)
        if keys is None:
            keys = self._reader.read_keys_of_added_file(
                table.io, columns, file.path, is_key_file=is_key_file
            )
        return Change(file.path, keys, is_key_file)

    def _positions_known_dead(self, path: str) -> Positions:
        return sorted_positions_of(self._dead.get(path, BitMap64()))


class _Progress:
    """Says how long a cold coordinator still reads, where that takes more than some seconds."""

    def __init__(self, table: str, rows: int) -> None:
        self._table = table
        self._rows = rows
        self._read = 0
        self._began_s = self._said_s = time.monotonic()

    def note_rows_read(self, rows: int) -> None:
        self._read += rows
        now_s = time.monotonic()
        if now_s - self._said_s >= _SAID_EACH_S and self._read:
            self._said_s = now_s
            left = self._rows - self._read
            left_s = left * (now_s - self._began_s) / self._read
            text = "%s: its keys are being read, %d of %d rows so far; the others take about %.0f s"
            self._log(text, self._read, self._rows, left_s)

    def log_end(self) -> None:
        if self._said_s > self._began_s:
            took_s = time.monotonic() - self._began_s
            self._log("%s: the keys of its %d rows are read, in %.0f s", self._read, took_s)

    def _log(self, text: str, *numbers: float) -> None:
        extra = event_extra(LogEvent.KEYS_READ, records=self._read)
        _log.info(text, self._table, *numbers, extra=extra)


def _folder_for_runs() -> str | None:
    """Return where files may be, as ``TMPDIR`` says; ``None`` where there is no such place."""
    try:
        return gettempdir()
    except FileNotFoundError:
        return None


def _read_ahead_count(files: Iterable[Target | WrittenFile]) -> int:
    """Return how many files to read ahead: many small ones, or few large ones."""
    return min(_FILES_AHEAD_MAX, _ROWS_AHEAD // max((1, *(file.records for file in files))))


def _descends_from_ancestor(
    metadata: TableMetadata, ancestor_id: int | None, snapshot: Snapshot | None
) -> bool:
    """Return whether the line of ``snapshot`` is known to lead over ``ancestor_id``."""
    snapshots = snapshots_by_id(metadata)
    while snapshot is not None and ancestor_id is not None and snapshot.snapshot_id != ancestor_id:
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else snapshots.get(parent)
    return ancestor_id is None or snapshot is not None
