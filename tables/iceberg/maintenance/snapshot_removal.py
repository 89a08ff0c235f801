"""Removes snapshots from a table by one catalog call, and proves what it was applied to
(RETENTION-1).

A server has no requirement "no ref is new", and a removal silently drops a tag that was set on a
due snapshot a moment ago. So the table's metadata log is read afterwards: it names the version that
the removal was applied to. Files may be deleted only if that is the version by which they were
judged. Otherwise refs that were dropped are set again, on a snapshot of the same files.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.tables.iceberg.commit_request import AssertSequenceNumberFree
from headgate.tables.iceberg.maintenance.files_of_expired_snapshots import has_all_files

_TRIES = 5
_LOOKING_MAX_S = 20.0

_log = redacted_logger(__name__)


class SnapshotRemoval:
    """The removal of these snapshots from ``table``, as it was read and judged."""

    def __init__(self, catalog: Catalog, table: Table, removed: Sequence[Snapshot]) -> None:
        self._catalog = catalog
        self._identifier = table.name()
        self._before = table.metadata
        self._location = table.metadata_location
        self._removed = {snapshot.snapshot_id: snapshot for snapshot in removed}
        self.overtaken = False
        """Others changed the table before the call: nothing was sent."""

    def try_removal_and_prove_exact(self, table: Table) -> bool:
        """Return whether it has landed, provably on the very version of the table that was judged.

        ``table`` holds the newest metadata afterwards. Raises what loading a table raises.
        """
        self._refresh_table_in_place(table)
        if table.metadata_location != self._location:
            self.overtaken = True
            _log.info("%s: no snapshot expired this time: others were faster", self._table_name)
            return False
        try:
            updates = _updates(self._before, set(self._removed))
            response = self._catalog.commit_table(table, _requirements(self._before), updates)
            table.metadata, table.metadata_location = response.metadata, response.metadata_location
        except Exception as error:  # noqa: BLE001 - refused or unknown: the table itself tells
            self._refresh_table_in_place(table)
            if not self.has_landed(table.metadata):
                _log.info("%s: no snapshot expired this time: %r", self._table_name, error)
                return False
        if self._is_exact_successor(table.metadata):
            return True
        _log.warning(
            "%s: snapshots expired while others changed the table; files that only they referred "
            "to are left to the table's own orphan clean-up",
            self._table_name,
        )
        self.restore_lost_refs(table)
        return False

    def has_landed(self, metadata: TableMetadata) -> bool:
        """Return whether the table is the same and holds none of the snapshots any more."""
        same = metadata.table_uuid == self._before.table_uuid
        return same and not self._removed.keys() & snapshot_ids_of(metadata)

    def is_decided(self, metadata: TableMetadata) -> bool:
        """Return whether it has landed, or never will, because a ref that it requires has moved.

        A new ref stops nothing: no server can be asked for that.
        """
        required = self._before.refs.items()
        moved = any(
            name not in metadata.refs or metadata.refs[name].snapshot_id != ref.snapshot_id
            for name, ref in required
        )
        return self.has_landed(metadata) or moved

    def log_endangered_refs(self, metadata: TableMetadata) -> None:
        """Log the refs that it would drop if it landed after nobody looks any more."""
        endangered = sorted(n for n, r in metadata.refs.items() if r.snapshot_id in self._removed)
        if endangered:
            _log.error(
                "%s: it is not known whether the catalog will still remove snapshots on which %s "
                "stands since; this sink does not look any more: set it again if it is gone",
                self._table_name,
                ", ".join(endangered),
            )

    def restore_lost_refs(self, table: Table) -> None:
        """Set those refs again that somebody had set on a removed snapshot just before."""
        for name, ref in self._find_refs_dropped_by_removal(table).items():
            if not self._has_all_files(table, ref):
                _log.error(
                    "%s: %s was set on snapshot %d while that expired, and is gone; of its files "
                    "some are gone too, by an orphan clean-up, or cannot be looked for",
                    self._table_name,
                    name,
                    ref.snapshot_id,
                )
                continue
            for _ in range(_TRIES):
                if name in table.metadata.refs or self._try_restore_ref(table, name, ref):
                    break
                self._refresh_table_in_place(table)
            else:
                _log.error(
                    "%s: %s was set on snapshot %d while that expired, and is gone; its files are "
                    "kept: set it again from the metadata files of this minute",
                    self._table_name,
                    name,
                    ref.snapshot_id,
                )

    @property
    def _table_name(self) -> str:
        return ".".join(self._identifier)

    def _refresh_table_in_place(self, table: Table) -> None:
        again = self._catalog.load_table(self._identifier)
        table.metadata, table.metadata_location = again.metadata, again.metadata_location

    def _is_exact_successor(self, after: TableMetadata) -> bool:
        # The log's last entry is the version before: whoever came in between stands there instead.
        log = after.metadata_log
        on_what_was_judged = bool(log) and log[-1].metadata_file == self._location
        same_refs = after.refs == self._before.refs
        same_snapshots = (
            snapshot_ids_of(after) == snapshot_ids_of(self._before) - self._removed.keys()
        )
        return on_what_was_judged and same_refs and same_snapshots

    def _find_refs_dropped_by_removal(self, table: Table) -> dict[str, SnapshotRef]:
        """Return refs to the snapshots in the version that the removal was applied to."""
        newer = table.metadata
        for older in self._newer_metadata_newest_first(table):
            if snapshot_ids_of(older) - snapshot_ids_of(newer) == self._removed.keys():
                refs = older.refs.items()
                return {name: ref for name, ref in refs if ref.snapshot_id in self._removed}
            newer = older
        if all(entry.metadata_file != self._location for entry in table.metadata.metadata_log):
            _log.warning(
                "%s: the table has changed so often since snapshots expired that its metadata log "
                "does not tell any more whether somebody had just set a ref on one of them: if one "
                "is missing, set it again",
                self._table_name,
            )
        return {}

    def _newer_metadata_newest_first(self, table: Table) -> Iterator[TableMetadata]:
        """Yield the newest first."""
        for entry in reversed(table.metadata.metadata_log):
            if entry.metadata_file == self._location:
                return
            try:
                yield FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
            except FileNotFoundError:
                return  # it fell out of the log, and was deleted in its turn

    def _has_all_files(self, table: Table, ref: SnapshotRef) -> bool:
        """Return whether its files are still there: an orphan clean-up may have run meanwhile."""
        try:
            return has_all_files(table.io, self._removed[ref.snapshot_id], _LOOKING_MAX_S)
        except Exception as error:  # noqa: BLE001 - a ref to what is not there is worse than none
            _log.info("%s: files of a snapshot cannot be looked for: %r", self._table_name, error)
            return False

    def _try_restore_ref(self, table: Table, name: str, ref: SnapshotRef) -> bool:
        metadata = table.metadata
        again = _snapshot_of_same_files(self._removed[ref.snapshot_id], metadata)
        updates = (
            AddSnapshotUpdate(snapshot=again),
            SetSnapshotRefUpdate(
                ref_name=name,
                type=ref.snapshot_ref_type,
                snapshot_id=again.snapshot_id,
                max_ref_age_ms=ref.max_ref_age_ms,
                max_snapshot_age_ms=ref.max_snapshot_age_ms,
                min_snapshots_to_keep=ref.min_snapshots_to_keep,
            ),
        )
        absent = AssertRefSnapshotId(ref=name, snapshot_id=None)
        requirements = (AssertSequenceNumberFree(metadata), absent)
        try:
            response = self._catalog.commit_table(table, requirements, updates)
        except Exception as error:  # noqa: BLE001 - it is tried again on what is there then
            _log.info("%s: %s could not be set again yet: %r", self._table_name, name, error)
            return False
        table.metadata, table.metadata_location = response.metadata, response.metadata_location
        _log.warning(
            "%s: %s was set on snapshot %d while that expired; it is set again, on snapshot %d "
            "with the same files",
            self._table_name,
            name,
            ref.snapshot_id,
            again.snapshot_id,
        )
        return True


def _snapshot_of_same_files(snapshot: Snapshot, metadata: TableMetadata) -> Snapshot:
    """Build another snapshot of the same files; a table accepts no former id or number again."""
    copied = {
        "snapshot_id": metadata.new_snapshot_id(),
        "parent_snapshot_id": None,
        "sequence_number": metadata.next_sequence_number(),
        "timestamp_ms": max(int(time.time() * 1000), metadata.last_updated_ms),
    }
    if isinstance(metadata, TableMetadataV3):
        copied |= {"first_row_id": metadata.next_row_id, "added_rows": 0}
    return snapshot.model_copy(update=copied)


class _AssertRefsAsRead(AssertTableUUID):
    """For a REST server the UUID; if pyiceberg itself checks, also that no ref is new or changed.

    What a server cannot be asked is proven afterwards, from its metadata log.
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
    """Require that every ref still stands where it was read; our tag fences a zombie, too
    (TABLE-3)."""
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
        # Other statistics are dropped with their snapshots, these only by Java.
        *(
            RemovePartitionStatisticsUpdate(snapshot_id=snapshot_id)
            for snapshot_id in sorted(with_statistics & gone)
        ),
        RemoveSnapshotsUpdate(snapshot_ids=sorted(gone)),
    )


def snapshot_ids_of(metadata: TableMetadata) -> set[int]:
    return {snapshot.snapshot_id for snapshot in metadata.snapshots}
