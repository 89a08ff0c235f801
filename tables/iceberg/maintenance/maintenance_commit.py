"""A catalog call beside a sink's commits: it moves the branch, and the sink's tag stays
(COMPACTION-1).

It has a commit's requirements, so the faster one wins; to the sink it is a foreign commit
(OUTCOME-2).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import Generic, TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
)
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    TableRequirement,
    TableUpdate,
)
from pyroaring import BitMap64

from headgate.control_protocol.errors import CatalogRefused, type_and_first_line_of
from headgate.control_protocol.identifiers import SinkName, tag_name
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.tables.iceberg.catalog import translate_catalog_error
from headgate.tables.iceberg.commit_request import (
    AssertSequenceNumberFree,
    branch_update,
    next_snapshot,
)
from headgate.tables.iceberg.maintenance.compaction_plan import sink_data_folder
from headgate.tables.iceberg.manifests import SnapshotFiles
from headgate.tables.iceberg.upsert.delete_manifests import Deletions
from headgate.tables.iceberg.upsert.live_files import Head
from headgate.tables.iceberg.upsert.position_deletes import Target, build_delete_files

_TRIES = 6
_PAUSE_S = 1.0

_log = redacted_logger(__name__)

_Sent = TypeVar("_Sent")


class Settled(StrEnum):
    """The result of a try. ``GONE``: it can never land, for what it stood on is gone."""

    LANDED = "landed"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    GONE = "gone"


class MaintenanceCommit(Generic[_Sent]):
    """Makes such calls for one sink's table and branch.

    ``_doubtful`` is set once one of them may have landed although it was not confirmed. ``_sent``:
    what each call was to do, by its snapshot's id. ``_last_error``: why it is not known what became
    of the last one.
    """

    def __init__(
        self,
        catalog: Catalog,
        identifier: str,
        of: tuple[SinkName, str],
        calling: AbstractContextManager[object] | None = None,
    ) -> None:
        """``calling`` is held during the catalog's call only: a commit may wait for it."""
        self._catalog = catalog
        self._identifier = identifier
        self._sink, self._branch = of
        self._tag = tag_name(self._sink, self._branch)
        self._calling = calling or nullcontext()
        self._doubtful = False
        self._sent: dict[int, _Sent] = {}
        self._last_error: Exception | None = None

    def describe_outcome(self, outcome: Settled) -> str:
        """Return the outcome of the last try in words."""
        if outcome is not Settled.UNKNOWN or self._last_error is None:
            return str(outcome)
        return f"{outcome}: {type_and_first_line_of(self._last_error)}"

    def _find_landed_earlier(self, metadata: TableMetadata) -> _Sent | None:
        """Return what has landed of what was sent before: an answer may have been lost."""
        there = (
            what for id_, what in self._sent.items() if metadata.snapshot_by_id(id_) is not None
        )
        return next(there, None)

    def _head_if_tag_exists(self, metadata: TableMetadata) -> Snapshot | None:
        """Return the branch's head, if the sink's tag is there too: it is the lock."""
        if self._tag not in metadata.refs or self._branch not in metadata.refs:
            return None
        return metadata.snapshot_by_id(metadata.refs[self._branch].snapshot_id)

    def _build_deletions(
        self,
        table: Table,
        head: Head,
        folder: str,
        *,
        dead: Sequence[tuple[Target, BitMap64]],
        retiring: Iterable[str],
    ) -> Deletions:
        """Return delete files of these positions, below the sink's folder of this name.

        ``retiring``: the data files whose delete files are replaced, or go with them.
        """
        below = f"{sink_data_folder(table, self._sink)}/{folder}"
        made = build_delete_files(table.metadata.format_version, below, dead)
        retired = [entry for path in sorted(retiring) for entry in head.deletes.get(path, ())]
        return Deletions(made.listed, tuple(retired), made.bytes_of, head.listed)

    def _write_snapshot(
        self,
        table: Table,
        parent: Snapshot,
        summary: Summary,
        *,
        deletions: Deletions,
        removed: frozenset[str] = frozenset(),
        added: Sequence[DataFile] = (),
    ) -> tuple[Snapshot, SnapshotFiles]:
        """Write the manifests of the snapshot that follows; of a failure nothing is left."""
        metadata = table.metadata
        snapshot_id, number = metadata.new_snapshot_id(), metadata.next_sequence_number()
        manifests = SnapshotFiles(table, snapshot_id)
        try:
            listed = manifests.write_manifest_list_without(
                removed, added, parent, number, deletions=deletions
            )
        except BaseException:
            manifests.delete_written()
            raise
        snapshot = next_snapshot(metadata, parent, listed, snapshot_id=snapshot_id, summary=summary)
        return snapshot, manifests

    def _commit_snapshot(
        self, table: Table, snapshot: Snapshot, manifests: SnapshotFiles, sends: _Sent
    ) -> Settled:
        """Make the call. Raises ``CatalogRefused`` and ``MissingRights``."""
        metadata, self._last_error = table.metadata, None
        self._sent[snapshot.snapshot_id] = sends
        try:
            with self._calling:
                response = self._catalog.commit_table(
                    table, self._requirements(metadata), self._updates(metadata, snapshot)
                )
        except CatalogRefused:  # before anything was sent
            del self._sent[snapshot.snapshot_id]
            manifests.delete_written()
            raise
        except (CommitFailedException, BadRequestError, ValueError) as error:
            return self._verify_refusal(snapshot, manifests, error)
        except ForbiddenError as error:  # what a token lacks may come back within the tries
            self._doubtful = True
            what = f"table {self._identifier} cannot be committed to"
            raise translate_catalog_error(error, what) from error
        except Exception as error:  # noqa: BLE001 - whatever it is, the call may have landed
            self._doubtful = True
            return self._note_unknown_outcome(error)
        self._doubtful = True
        landed = response.metadata.snapshot_by_id(snapshot.snapshot_id) is not None
        return Settled.LANDED if landed else Settled.UNKNOWN

    def _verify_refusal(
        self, snapshot: Snapshot, manifests: SnapshotFiles, error: Exception
    ) -> Settled:
        """Believe a refusal only if the table shows the same, as for a commit (OUTCOME-1)."""
        doubtful, self._doubtful = self._doubtful, True
        now = self._catalog.load_table(self._identifier).metadata
        if now.snapshot_by_id(snapshot.snapshot_id) is not None:
            return Settled.LANDED
        taken = {other.sequence_number for other in now.snapshots}
        if snapshot.sequence_number in taken:
            manifests.delete_written()
            self._doubtful = doubtful
            return Settled.REFUSED
        return self._note_unknown_outcome(error)

    def _note_unknown_outcome(self, error: Exception) -> Settled:
        self._last_error = error
        _log.info("%s: whether a call landed is not known: %r", self._identifier, error)
        return Settled.UNKNOWN

    def _requirements(self, metadata: TableMetadata) -> tuple[TableRequirement, ...]:
        """Return a commit's requirements (TABLE-3). The tag proves the files young enough
        (ORPHAN-1)."""
        refs = metadata.refs
        return (
            AssertSequenceNumberFree(metadata),
            AssertRefSnapshotId(ref=self._tag, snapshot_id=refs[self._tag].snapshot_id),
            AssertRefSnapshotId(ref=self._branch, snapshot_id=refs[self._branch].snapshot_id),
        )

    def _updates(self, metadata: TableMetadata, snapshot: Snapshot) -> tuple[TableUpdate, ...]:
        """Move the branch; the tag stays."""
        branch = branch_update(metadata, self._branch, snapshot.snapshot_id)
        return (AddSnapshotUpdate(snapshot=snapshot), branch)


def retry_until_settled(
    try_once: Callable[[], Settled], wait_until_quiet: Callable[[], None], ending: threading.Event
) -> Settled:
    """Retry a maintenance call until it lands, can never land, or was refused too often.

    ``wait_until_quiet`` is called before each try: no commit should wait for it. Raises as
    ``try_once``.
    """
    outcome = Settled.GONE
    for tries in range(_TRIES):
        if tries:
            ending.wait(_PAUSE_S * 2 ** (tries - 1))
        wait_until_quiet()
        if ending.is_set():
            break
        outcome = try_once()
        if outcome in (Settled.LANDED, Settled.GONE):
            break
    return outcome
