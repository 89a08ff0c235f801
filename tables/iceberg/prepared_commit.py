"""Holds a catalog call that is ready to be sent: by itself, or with those of other tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate

from headgate.control_protocol.commit_record import PendingCommit
from headgate.control_protocol.errors import KeyChanged, TagsDropped
from headgate.control_protocol.ports import CommitAttempt, Unknown
from headgate.tables.iceberg.commit_request import CommitRequest
from headgate.tables.iceberg.maintenance.compaction_plan import sink_data_folder
from headgate.tables.iceberg.manifests import SnapshotFiles
from headgate.tables.iceberg.pending_manifests import read_key_files_of, read_staged_manifest

if TYPE_CHECKING:
    from headgate.tables.iceberg.upsert.upsert_commit import KeyedRows


OVERTAKEN = Unknown("it landed, and others went on from there")


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """The proposal to the catalog, and the files that were ``written`` for it."""

    table: Table
    proposal: CommitRequest
    written: SnapshotFiles
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]

    def holds_sink_tag(self, metadata: TableMetadata) -> bool:
        """Return whether the tag stands on this call's snapshot."""
        ref = metadata.refs.get(self.proposal.tag)
        return ref is not None and ref.snapshot_id == self.proposal.snapshot_id

    def has_landed(self, metadata: TableMetadata) -> bool:
        """Return whether its snapshot is there."""
        return metadata.snapshot_by_id(self.proposal.snapshot_id) is not None

    def require_first_claim_tag_kept(self, metadata: TableMetadata) -> None:
        """Raise ``TagsDropped`` if a first claim's snapshot has landed, and its tag has not.

        A catalog that kept an earlier tag keeps this one: somebody else removed it just now.
        """
        tag = self.proposal.tag
        if (
            self.has_landed(metadata)
            and self.proposal.base.tag is None
            and tag not in metadata.refs
        ):
            raise TagsDropped(
                f"table {self.proposal.base.table}: its catalog took the first claim, and dropped "
                f"the tag {tag} that was in it",
                "this catalog keeps no tags, and nothing would fence a second coordinator: use one "
                "that does (docs/guides/catalogs.md); the claim holds no rows",
            )


# What a commit adds besides its own files: drafts that are delivered, and the effects of keys.
#
# A delivery adds all that its pending commits name, even of several transactions, and resolves all
# keys at once, on the head that its call requires (rules PENDING-5, KEY-3).


def with_staged_manifests_and_deletions(
    table: Table, proposal: CommitRequest, attempt: CommitAttempt, keyed: KeyedRows | None
) -> CommitRequest:
    """Add the drafts of the pending commits and, in a keyed table, the rows that die to the
    proposal.

    Raises ``KeyChanged`` for keys that are pending for a table without a key, what
    ``KeyedRows.build_deletions_by_key`` raises, and what storage raises.
    """
    staged = [
        read_staged_manifest(table, pending_commit, proposal.snapshot_id)
        for pending_commit in _pending_commits_without_deletes(attempt)
    ]
    proposal = replace(proposal, staged=staged)
    if keyed is not None:
        return _with_deletions_by_key(table, proposal, attempt, keyed)
    if any(pending_commit.deletes for pending_commit in attempt.pending_commits):
        raise KeyChanged(
            f"records are pending for table {attempt.base.table} that delete rows by their key, "
            "and the settings name no key",
            "put the key back: what was decided is delivered by it",
        )
    return proposal


def _with_deletions_by_key(
    table: Table, proposal: CommitRequest, attempt: CommitAttempt, keyed: KeyedRows
) -> CommitRequest:
    """KEY-3: add what the files' records replace and delete on the head that the call requires."""
    brought = [(file, 0) for file in attempt.files]
    order = {
        each: n for n, each in enumerate(sorted({d.transaction for d in attempt.pending_commits}))
    }
    for pending_commit, staging in zip(
        _pending_commits_without_deletes(attempt), proposal.staged, strict=True
    ):
        brought += [(file, order[pending_commit.transaction]) for file in staging.written_files]
    keys = read_key_files_of(table.io, attempt.pending_commits)
    brought += [(file, order[pending_commit.transaction]) for pending_commit, file in keys]
    if not brought:
        return proposal
    record, number = attempt.record, attempt.record.transaction
    own = f"{number.epoch}-{record.coordinator.incarnation}/{number.number}"
    folder = f"{sink_data_folder(table, record.sink)}/{own}"
    row_files = [*proposal.files, *(file for staging in proposal.staged for file in staging.files)]
    deletions = keyed.build_deletions_by_key(
        table,
        proposal.parent_snapshot,
        brought,
        row_files=row_files,
        folder=folder,
        cohorts=record.cohorts,
    )
    counted = proposal.record.with_key_counts(deletions.counts)
    return replace(proposal, record=counted, deletions=deletions)


def _pending_commits_without_deletes(attempt: CommitAttempt) -> list[PendingCommit]:
    return [
        pending_commit
        for pending_commit in attempt.pending_commits
        if pending_commit.manifest and not pending_commit.deletes
    ]
