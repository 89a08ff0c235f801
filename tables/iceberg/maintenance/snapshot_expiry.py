"""Expires snapshots and deletes their files, after some of the commits (rule RETENTION-1).

The order makes every crash harmless: first the files that will be unreachable are determined, then
one catalog call removes the snapshots, then the files are deleted. What is not deleted is an
orphan.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.properties import property_as_bool

from headgate.control_protocol.current_sink import bound_to_current_sink
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.tables.iceberg.commit_mutex import CommitLock
from headgate.tables.iceberg.maintenance.files_of_expired_snapshots import (
    find_files_only_reachable_from,
    find_referenced_files,
    statistics_files_of,
)
from headgate.tables.iceberg.maintenance.files_to_delete import Condemned
from headgate.tables.iceberg.maintenance.snapshot_removal import SnapshotRemoval, snapshot_ids_of
from headgate.tables.iceberg.maintenance.snapshot_selection import select_expirable_snapshots
from headgate.tables.storage.file_io import delete_quietly

DUE_MIN = 25
"""Fewer are not worth a call: many commits share its cost."""

REMOVED_MAX = 100
"""The limit of one call: a table that was never cleaned gets there in many small steps."""

_READING_MAX_S = 20.0
_ENDING_MAX_S = 5.0
_TRIES = 5
_PAUSE_S = 600.0

_log = redacted_logger(__name__)


class SnapshotExpiry:
    """The upkeep of one table as one sink sees it: in a thread, so that no commit waits for it.

    ``calling`` is held during a catalog call that changes the table, so that the sink's own calls
    do not disturb each other. Without ``threads`` whoever commits does all of it.
    ``expire_after_ms``: the age at which snapshots go if the table's owner asks for nothing.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        threads: bool = True,
        commit_lock: CommitLock | None = None,
        expire_after_ms: int | None = None,
    ) -> None:
        self._commit_lock = commit_lock or CommitLock()
        self.calling = self._commit_lock.calling
        self._catalog = catalog
        self._threads = threads
        self._expire_after_ms = expire_after_ms
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._next: Table | None = None
        self._closing = False
        self._old_metadata: set[str] = set()
        self._condemned = Condemned(catalog)
        self._doubted: SnapshotRemoval | None = None
        self._gone: set[int] = set()
        self._rest_until_s = 0.0

    def on_commit(self, table: Table, before: TableMetadata) -> None:
        """Keep up ``table`` as the commit left it. Never raises: the commit has landed.

        Without threads it takes the time of a few catalog calls and at most about half a minute of
        storage's.
        """
        self._commit_lock.note_landing()
        with self._lock:
            self._note_old_metadata_files(table, before)
            self._next = table
            if self._thread is not None or self._closing or not self._is_upkeep_due(table):
                return
            if self._threads:
                name = "headgate-upkeep"
                self._thread = threading.Thread(
                    target=bound_to_current_sink(self._maintain_queued), name=name, daemon=True
                )
                self._thread.start()
                return
        self._maintain_queued()

    def end_and_resolve_removal(self, load: Callable[[], Table]) -> None:
        """Look once more after a removal that nobody confirmed. Never raises.

        A coordinator that loses leadership commits no more, and nobody else knows of the
        removal.
        """
        with self._lock:
            self._closing = True
            thread = self._thread
        if thread is not None:
            thread.join(_ENDING_MAX_S)
        if self._doubted is None:
            return
        try:
            self._resolve_doubted_removal(load())
        except Exception as error:  # noqa: BLE001 - nobody is left who could try again
            _log.error(
                "a removal of snapshots could not be looked after: %r; if a tag or branch that "
                "somebody had just set is gone, set it again",
                error,
            )

    def expirable_snapshots(self, table: Table) -> list[Snapshot]:
        """Return the snapshots that may expire now, oldest first."""
        return select_expirable_snapshots(
            table.metadata, int(time.time() * 1000), self._expire_after_ms
        )

    def expire_now(self, table: Table) -> int:
        """Expire what is due, however few, and delete its files; return how many snapshots went.

        A long history takes its time: nobody waits. Raises what catalogs and storage raise.
        """
        gone = 0
        while self.expirable_snapshots(table):
            before = snapshot_ids_of(table.metadata)
            self._expire_snapshots_if_enough_due(table, due_min=1, reading_max_s=math.inf)
            self._resolve_doubted_removal(table)
            while self._condemned.has_files:
                self._condemned.delete_unreferenced_for_seconds(table)
            went = len(before - snapshot_ids_of(table.metadata))
            if not went:
                break
            gone += went
        return gone

    def _is_upkeep_due(self, table: Table) -> bool:
        if self._doubted is not None or self._old_metadata or self._condemned.has_files:
            return True
        try:
            return self._is_pause_over and len(self.expirable_snapshots(table)) >= DUE_MIN
        except Exception as error:  # noqa: BLE001 - properties are anybody's, and any text
            self._pause_after(table, error)
            return False

    def _note_old_metadata_files(self, table: Table, before: TableMetadata) -> None:
        try:
            self._old_metadata |= _metadata_files_out_of_log(table, before)
        except Exception as error:  # noqa: BLE001 - as above
            self._pause_after(table, error)

    @property
    def _is_pause_over(self) -> bool:
        return time.monotonic() >= self._rest_until_s

    def _maintain_queued(self) -> None:
        while True:
            with self._lock:
                table, self._next = self._next, None
                if table is None or self._closing or not self._is_upkeep_due(table):
                    self._thread = None
                    return
            self._maintain_table(table)

    def _maintain_table(self, table: Table) -> None:
        try:
            if self._doubted is not None or self._gone & snapshot_ids_of(table.metadata):
                # The commit landed before the removal, so its view does not show that.
                table = self._catalog.load_table(table.name())
            self._resolve_doubted_removal(table)
            self._delete_old_metadata_files(table)
            if self._doubted is None and self._is_pause_over:
                self._expire_snapshots_if_enough_due(table)
            self._condemned.delete_unreferenced_for_seconds(table)
        except Exception as error:  # noqa: BLE001 - storage and catalogs fail in many ways
            self._pause_after(table, error)

    def _pause_after(self, table: Table, error: Exception) -> None:
        if self._is_pause_over:  # else it would be said with every commit
            self._rest_until_s = time.monotonic() + _PAUSE_S
            _log.warning("%s: not cleaned up for now: %r", _table_name(table), error)

    def _resolve_doubted_removal(self, table: Table) -> None:
        """Settle a removal that nobody confirmed: it landed, or never will if our tag moved on."""
        doubted = self._doubted
        if doubted is None or not (self._closing or doubted.is_decided(table.metadata)):
            return
        self._doubted = None
        if doubted.has_landed(table.metadata):
            doubted.restore_lost_refs(table)
        elif not doubted.is_decided(table.metadata):
            doubted.log_endangered_refs(table.metadata)

    def _expire_snapshots_if_enough_due(
        self, table: Table, due_min: int | None = None, reading_max_s: float | None = None
    ) -> None:
        due = self.expirable_snapshots(table)
        if len(due) < (due_min or DUE_MIN):
            return
        removed = due[:REMOVED_MAX]
        # Before the call: afterwards nothing tells any more what these snapshots reached.
        files = find_files_only_reachable_from(table, removed, reading_max_s or _READING_MAX_S)
        for _ in range(_TRIES):
            before = table.metadata
            with self.calling:
                self._doubted = removal = SnapshotRemoval(self._catalog, table, removed)
                landed = removal.try_removal_and_prove_exact(table)
            if landed:  # anything else leaves the doubt, and the files, to a later look
                self._doubted = None
                self._gone = {snapshot.snapshot_id for snapshot in removed}
                self._note_old_metadata_files(table, before)
                self._delete_old_metadata_files(table)
                # Only here: on the very version by which snapshot_removal.py judged the files.
                self._condemned.add(files, table.metadata)
                _log.info("%s: %d snapshots expired", _table_name(table), len(removed))
                return
            if not removal.overtaken:
                return
            self._doubted = None
            still_due = {snapshot.snapshot_id for snapshot in self.expirable_snapshots(table)}
            still = _select_still_unreachable(table, before, removed, files)
            if still is None or not {snapshot.snapshot_id for snapshot in removed} <= still_due:
                return
            files = still

    def _delete_old_metadata_files(self, table: Table) -> None:
        """Delete metadata files that fell out of the log."""
        with self._lock:
            old, self._old_metadata = self._old_metadata, set()
        delete_quietly(table.io, old)


def _select_still_unreachable(
    table: Table, before: TableMetadata, removed: Sequence[Snapshot], files: Sequence[str]
) -> list[str] | None:
    """Return those of ``files``, judged by ``before``, that nobody reaches in ``table`` now.

    ``None`` where it is another table.
    """
    gone = {snapshot.snapshot_id for snapshot in removed}
    if table.metadata.table_uuid != before.table_uuid:
        return None
    known = {snapshot.snapshot_id for snapshot in before.snapshots}
    new = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in known]
    used = find_referenced_files(table, new, _READING_MAX_S) - statistics_files_of(
        table.metadata, gone
    )
    return [path for path in files if path not in used]


def _metadata_files_out_of_log(table: Table, before: TableMetadata) -> set[str]:
    """Return metadata files that fell out of the log, if the table's properties have them go."""
    if not property_as_bool(
        table.properties, TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED, default=False
    ):
        return set()
    old = {entry.metadata_file for entry in before.metadata_log}
    return old - {entry.metadata_file for entry in table.metadata.metadata_log}


def _table_name(table: Table) -> str:
    return ".".join(table.name())
