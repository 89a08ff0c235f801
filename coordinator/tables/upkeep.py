"""What a table's owner asked to be cleared away, done now and then after a commit (rule T6).

The order makes every crash harmless: first it is read which files will be unreachable, then one
catalog call removes the snapshots, then the files go. What is not deleted is an orphan.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.catalog import Catalog, delete_files
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.utils.properties import property_as_bool

from headgate.control_protocol.redacted_log import redacted_logger
from headgate.coordinator.tables.retention import expired
from headgate.coordinator.tables.unreachable import STORAGE_THREADS, unreachable_files

DUE_MIN = 25
"""Fewer are not worth a call: the price of one is shared by so many commits."""

REMOVED_MAX = 100
"""At once: a table that was never cleaned gets there in many small steps."""

_READING_MAX_S = 20.0
_DELETING_MAX_S = 5.0
_DELETED_AT_ONCE = 64
_PAUSE_S = 600.0

_log = redacted_logger(__name__)


class Upkeep:
    """For one table as one sink sees it. Files still to delete are known to this object only."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._condemned: deque[str] = deque()
        self._rest_until_s = 0.0

    def after_commit(self, table: Table, before: TableMetadata) -> None:
        """``table`` as the commit left it. Never raises: the commit has landed, whatever happens.

        Takes the time of one catalog call and at most about half a minute of storage's.
        """
        try:
            _drop_old_metadata(table, before)
            if time.monotonic() >= self._rest_until_s:
                self._expire(table)
            self._delete(table.io)
        except Exception as error:  # noqa: BLE001 - storage and catalogs fail in many ways
            self._rest_until_s = time.monotonic() + _PAUSE_S
            _log.warning("%s: not cleaned up for now: %r", _name(table), error)

    def _expire(self, table: Table) -> None:
        due = expired(table.metadata, int(time.time() * 1000))
        if len(due) < DUE_MIN:
            return
        removed = due[:REMOVED_MAX]
        files = unreachable_files(table, removed, _READING_MAX_S)
        if self._remove(table, removed):
            self._condemned.extend(files)
            _log.info("%s: %d snapshots expired", _name(table), len(removed))

    def _remove(self, table: Table, removed: Sequence[Snapshot]) -> bool:
        """Whether the table provably holds all that it was judged by but ``removed``, and no more.

        Only then does nobody refer to the files.
        """
        before, gone = table.metadata, {snapshot.snapshot_id for snapshot in removed}
        try:
            updates = _updates(before, gone)
            response = self._catalog.commit_table(table, _requirements(before), updates)
            after, location = response.metadata, response.metadata_location
        except Exception as error:  # noqa: BLE001 - refused or unknown: the table itself tells
            again = self._catalog.load_table(table.name())
            after, location = again.metadata, again.metadata_location
            if after.table_uuid != before.table_uuid or gone & _ids(after):
                _log.info("%s: no snapshot expired this time: %r", _name(table), error)
                return False
        table.metadata, table.metadata_location = after, location
        _drop_old_metadata(table, before)
        if _ids(after) == _ids(before) - gone:
            return True
        _log.warning(
            "%s: snapshots expired while others changed the table; files that only they referred "
            "to are left to the table's own orphan clean-up",
            _name(table),
        )
        return False

    def _delete(self, io: FileIO) -> None:
        """As much as the time allows; the rest after the next commit."""
        if not self._condemned:
            return
        until_s = time.monotonic() + _DELETING_MAX_S
        with ThreadPoolExecutor(STORAGE_THREADS) as threads:
            while self._condemned and time.monotonic() < until_s:
                count = min(_DELETED_AT_ONCE, len(self._condemned))
                paths = [self._condemned.popleft() for _ in range(count)]
                list(threads.map(lambda path: _delete_one(io, path), paths))


class _AssertRefsAsRead(AssertTableUUID):
    """To a REST server the UUID; where pyiceberg itself checks, also that no ref is new or changed.

    Removing a snapshot silently takes along a tag that was set on it a moment ago.
    """

    _refs: dict[str, SnapshotRef]

    def __init__(self, metadata: TableMetadata) -> None:
        super().__init__(uuid=metadata.table_uuid)
        self._refs = dict(metadata.refs)

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        super().validate(base_metadata)
        if base_metadata is not None and base_metadata.refs != self._refs:
            raise CommitFailedException("a branch or tag is new, or has changed")


def _requirements(metadata: TableMetadata) -> tuple[TableRequirement, ...]:
    """Every ref still stands where it was read; with our tag that fences a zombie, too (C1)."""
    return (
        _AssertRefsAsRead(metadata),
        *(
            AssertRefSnapshotId(ref=name, snapshot_id=ref.snapshot_id)
            for name, ref in metadata.refs.items()
        ),
    )


def _updates(metadata: TableMetadata, gone: set[int]) -> tuple[TableUpdate, ...]:
    with_statistics = {file.snapshot_id for file in metadata.partition_statistics}
    return (
        # Other statistics are forgotten with their snapshots, these only by Java.
        *(
            RemovePartitionStatisticsUpdate(snapshot_id=snapshot_id)
            for snapshot_id in sorted(with_statistics & gone)
        ),
        RemoveSnapshotsUpdate(snapshot_ids=sorted(gone)),
    )


def _drop_old_metadata(table: Table, before: TableMetadata) -> None:
    """Delete metadata files that fell out of the log, where the table's properties ask for it."""
    if property_as_bool(
        table.properties, TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED, default=False
    ):
        old = {entry.metadata_file for entry in before.metadata_log}
        kept = {entry.metadata_file for entry in table.metadata.metadata_log}
        delete_files(table.io, old - kept, "metadata")


def _delete_one(io: FileIO, path: str) -> None:
    try:
        io.delete(path)
    except FileNotFoundError:
        return
    except Exception as error:  # noqa: BLE001 - it stays as an orphan
        _log.warning("%s was not deleted and is an orphan now: %r", path, error)


def _ids(metadata: TableMetadata) -> set[int]:
    return {snapshot.snapshot_id for snapshot in metadata.snapshots}


def _name(table: Table) -> str:
    return ".".join(table.name())
