"""Builds the content of one catalog call: the requirements that fence it, and its updates."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile as ManifestDataFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.commit_record_codec import (
    claim_marker_property,
    encode_record,
    filled_properties_to_remove,
    filled_properties_to_set,
    key_columns_property,
    on_delete_property,
)
from headgate.control_protocol.ports import TableView
from headgate.control_protocol.table_format import RollbackSnapshot
from headgate.tables.iceberg.manifests import ManifestList
from headgate.tables.iceberg.pending_manifests import StagedManifest
from headgate.tables.iceberg.tag_lineage import next_parent_ref, summary_properties_of
from headgate.tables.iceberg.upsert.delete_manifests import Deletions

_FOREVER_MS = 2**63 - 1


class AssertSequenceNumberFree(AssertTableUUID):
    """For a REST server the UUID; where pyiceberg itself checks, also that no other snapshot has
    the next sequence number. Servers check that themselves, pyiceberg in version 3 does not."""

    _next: int

    def __init__(self, metadata: TableMetadata) -> None:
        super().__init__(uuid=metadata.table_uuid)
        self._next = metadata.next_sequence_number()

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        super().validate(base_metadata)
        if base_metadata is not None and base_metadata.next_sequence_number() != self._next:
            raise CommitFailedException("another snapshot has taken the sequence number")


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """One snapshot that moves ``branch`` and ``tag`` from where ``base`` found them.

    ``metadata`` is the table as ``base`` shows it. ``rollback_target``: the snapshot that it
    continues instead of the head. ``key``: a keyed table's, which the first claim stores.
    ``read_once``: paths of key files. ``fence``: what else the summary carries (TAKEOVER-11).
    ``deletes``: what they do from now on, if that is to be stored (KEY-13).
    """

    base: TableView
    metadata: TableMetadata
    branch: str
    tag: str
    record: CommitRecord
    files: list[ManifestDataFile]
    snapshot_id: int
    staged: list[StagedManifest] = field(default_factory=list)
    rollback_target: RollbackSnapshot | None = None
    forgets: frozenset[str] = frozenset()
    deletions: Deletions = field(default_factory=Deletions)
    key: str | None = None
    read_once: list[str] = field(default_factory=list)
    fence: Mapping[str, str] = field(default_factory=dict)
    deletes: str = ""

    @property
    def parent_snapshot(self) -> Snapshot | None:
        if self.rollback_target is not None:
            kept = self.rollback_target.snapshot_id
            return None if kept is None else self.metadata.snapshot_by_id(kept)
        start = next_parent_ref(self.metadata, self.branch)
        return self.metadata.snapshot_by_id(start.snapshot_id) if start else None

    @property
    def sequence_number(self) -> int:
        return self.metadata.next_sequence_number()

    def requirements(self) -> tuple[TableRequirement, ...]:
        """Rule TABLE-3: require UUID, tag and branch head as ``base`` was read."""
        same_table = AssertSequenceNumberFree(self.metadata)
        if not self.metadata.snapshots:
            # Catalogs accept no ref but main here. That is enough: a faster writer, on whatever
            # branch, has set main too.
            return (same_table, AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=None))
        return (
            same_table,
            AssertRefSnapshotId(ref=self.tag, snapshot_id=self.base.tag),
            AssertRefSnapshotId(ref=self.branch, snapshot_id=self.base.head),
        )

    def updates(self, manifest_list: ManifestList) -> tuple[TableUpdate, ...]:
        branches = {self.branch} if self.metadata.snapshots else {self.branch, MAIN_BRANCH}
        return (
            AddSnapshotUpdate(
                snapshot=next_snapshot(
                    self.metadata,
                    self.parent_snapshot,
                    manifest_list,
                    snapshot_id=self.snapshot_id,
                    summary=self._snapshot_summary(),
                )
            ),
            *(
                branch_update(self.metadata, branch, self.snapshot_id)
                for branch in sorted(branches)
            ),
            SetSnapshotRefUpdate(
                ref_name=self.tag,
                type=SnapshotRefType.TAG,
                snapshot_id=self.snapshot_id,
                max_ref_age_ms=_FOREVER_MS,  # or a table-wide age would drop the sink's state
                max_snapshot_age_ms=None,
                min_snapshots_to_keep=None,
            ),
            *self._property_updates(),
            *self._tag_updates_keeping_old_head(),
        )

    def _property_updates(self) -> Iterator[TableUpdate]:
        """Store that the tag existed (TABLE-4), the table's key (KEY-1), what deletes do (KEY-13),
        a ledger's filled tables (LEDGER-2)."""
        known = self.metadata.properties
        filled = filled_properties_to_set(self.record, known)
        marker = claim_marker_property(self.record.sink)
        deletes = {on_delete_property(self.record.sink): self.deletes} if self.deletes else {}
        claimed = {} if marker in known else self._table_properties_of_first_claim(marker)
        if properties := {**filled, **claimed, **deletes}:
            yield SetPropertiesUpdate(updates=properties)
        if gone := filled_properties_to_remove(self.record.sink, self.forgets, filled, known):
            yield RemovePropertiesUpdate(removals=gone)

    def _table_properties_of_first_claim(self, marker: str) -> dict[str, str]:
        key = {} if self.key is None else {key_columns_property(self.record.sink): self.key}
        return {marker: "true", **key}

    def _tag_updates_keeping_old_head(self) -> tuple[TableUpdate, ...]:
        if self.rollback_target is None:
            return ()
        kept = SetSnapshotRefUpdate(
            ref_name=self.rollback_target.kept_as,
            type=SnapshotRefType.TAG,
            snapshot_id=self.base.head or 0,
            max_ref_age_ms=self.rollback_target.kept_ms,
            max_snapshot_age_ms=None,
            min_snapshots_to_keep=None,
        )
        return (kept,)

    def _snapshot_summary(self) -> Summary:
        added = [*self.files, *(file for staging in self.staged for file in staging.files)]
        removed: list[ManifestDataFile] = []
        operation = Operation.APPEND
        if self.deletions.added:
            operation = Operation.OVERWRITE
            added += self.deletions.added
            removed += (entry.data_file for entry in self.deletions.retired)
        counts = summary_counts_of_files(self.metadata, added, removed)
        summary = Summary(operation, **counts, **encode_record(self.record), **self.fence)
        return with_totals_after(self.parent_snapshot, summary)


def branch_update(metadata: TableMetadata, branch: str, snapshot_id: int) -> SetSnapshotRefUpdate:
    """Move the branch to the new snapshot, with the retention that its owner gave it."""
    ref = metadata.refs.get(branch)
    return SetSnapshotRefUpdate(
        ref_name=branch,
        type=SnapshotRefType.BRANCH,
        snapshot_id=snapshot_id,
        max_ref_age_ms=ref.max_ref_age_ms if ref else None,
        max_snapshot_age_ms=ref.max_snapshot_age_ms if ref else None,
        min_snapshots_to_keep=ref.min_snapshots_to_keep if ref else None,
    )


def next_snapshot(
    metadata: TableMetadata,
    parent: Snapshot | None,
    listed: ManifestList,
    *,
    snapshot_id: int,
    summary: Summary,
) -> Snapshot:
    """Build the snapshot that follows all that the table has."""
    return Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent.snapshot_id if parent else None,
        sequence_number=metadata.next_sequence_number(),
        # Catalogs refuse timestamps that run backwards, and clocks of two machines differ.
        timestamp_ms=max(int(time.time() * 1000), metadata.last_updated_ms),
        manifest_list=listed.path,
        summary=summary,
        schema_id=metadata.current_schema_id,
        first_row_id=listed.first_row_id,
        added_rows=listed.added_rows,
    )


def with_totals_after(parent: Snapshot | None, summary: Summary) -> Summary:
    """Add the totals that follow from the parent's and the summary's counts."""
    before = summary_properties_of(parent) if parent else {}
    # A writer may leave the totals out; pyiceberg takes an empty summary for a table's beginning.
    known = {"operation": "known", **before} if parent else None
    return update_snapshot_summaries(summary, known)


def summary_counts_of_files(
    metadata: TableMetadata,
    added: Iterable[ManifestDataFile],
    removed: Iterable[ManifestDataFile] = (),
) -> dict[str, str]:
    """Return a summary's counts for a snapshot's files."""
    collector = SnapshotSummaryCollector()
    schema, specs = metadata.schema(), {spec.spec_id: spec for spec in metadata.partition_specs}
    for file in added:
        collector.add_file(file, schema, specs[file.spec_id])
    for file in removed:
        collector.remove_file(file, schema, specs[file.spec_id])
    return collector.build()
