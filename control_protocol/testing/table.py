"""Shows the fake catalog's table as a sink sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from headgate.control_protocol import commit_record_codec
from headgate.control_protocol.columns import Struct, describe_schema_growth
from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.commit_record_codec import (
    filled_properties_to_remove,
    filled_properties_to_set,
    filled_table_uuids,
)
from headgate.control_protocol.errors import RecordUnreadable, TableMissing, Unreachable
from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.control_protocol.identifiers import (
    Epoch,
    SinkName,
    TopicId,
    sink_of_tag,
    staging_folder,
    table_staging_folder,
    tag_name,
)
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    EvolvedTable,
    Landed,
    Lineage,
    Refused,
    Staging,
    TableView,
    Unknown,
)
from headgate.control_protocol.schema_evolution import collect_former_columns, grow_columns
from headgate.control_protocol.testing.catalog import MAIN, CommitFault, FakeCatalog, Request
from headgate.control_protocol.testing.source import SourceRecord


class FakeTable:
    """Implements ``SecondaryTable``, and so ``PrimaryTable``, over the fake catalog."""

    def __init__(self, catalog: FakeCatalog, sink: SinkName, branch: str = MAIN) -> None:
        self._catalog = catalog
        self._sink = sink
        self._branch = branch
        self._tag = tag_name(sink, branch)
        self._known: tuple[TableView, int] | None = None

    def read(self) -> TableView:
        return self._read_view_and_sequence_number()[0]

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        catalog = self._catalog
        if not catalog.reachable or not catalog.exists:
            return Unknown("nothing was sent: the fake catalog or its table is not there")
        if catalog.forbidden:
            return Unknown(f"{catalog.table} may not be committed to", rights=True)
        missing = [
            d.manifest for d in attempt.pending_commits if not self._has_manifest_or_needs_none(d)
        ]
        if missing:
            return Unknown(f"nothing was sent: {missing[0]} is not there")
        request = self._prepare_request(attempt)
        if request is None:
            return Refused("the table has moved on since it was read; nothing was sent")
        match catalog.faults.popleft() if catalog.faults else None:
            case CommitFault.REFUSED:
                return Refused("the fake catalog was told to refuse")
            case CommitFault.LOST_UNKNOWN:
                return Unknown("the fake catalog was told to lose the call")
            case CommitFault.LATE_UNKNOWN:
                catalog.in_the_air.append(request)
                return Unknown("the fake catalog was told to take its time")
            case CommitFault.LANDED_UNKNOWN:
                catalog.apply_or_return_refusal(request)
                return Unknown("the fake catalog was told to lose the answer")
        refusal = catalog.apply_or_return_refusal(request)
        if refusal is not None:
            return Refused(refusal)
        return Landed(request.snapshot.snapshot_id, self.read())

    def evolve(self, base: TableView, columns: Struct) -> EvolvedTable:
        catalog = self._catalog
        view = self.read()
        if (view.uuid, view.tag) != (base.uuid, base.tag):
            return EvolvedTable(view)
        growth = grow_columns(
            catalog.columns, columns, collect_former_columns(catalog.columns, catalog.schemas)
        )
        done = describe_schema_growth(catalog.columns, growth.columns)
        if done:
            fault = catalog.schema_faults.popleft() if catalog.schema_faults else None
            if fault in (None, CommitFault.LANDED_UNKNOWN):
                catalog.set_columns(growth.columns)
            if fault is not None:
                raise Unreachable("the fake catalog was told to lose the answer, or the call")
        return EvolvedTable(self.read(), done, growth.refused)

    def stage(self, staging: Staging) -> tuple[PendingCommit, ...]:
        catalog = self._catalog
        if not catalog.reachable:
            raise Unreachable("the fake catalog is not reachable")
        if not catalog.exists:
            raise TableMissing(f"the fake catalog has no table {catalog.table}")
        if staging.table.uuid != catalog.uuid:
            raise Unreachable(f"{catalog.table} is another table now")
        folder = staging_folder(
            table_staging_folder(staging.table.location, self._sink, catalog.uuid),
            staging.transaction.epoch,
            staging.coordinator,
        )
        pending_commits = []
        for kind in FileKind:
            files = tuple(file for file in staging.files if file.kind is kind)
            if not files:
                continue
            path = f"{folder}/{staging.transaction.number}-{len(catalog.storage.manifests)}.avro"
            catalog.storage.manifests[path] = files
            records = sum(file.records for file in files)
            pending_commits.append(
                PendingCommit(
                    staging.transaction,
                    staging.coordinator,
                    catalog.uuid,
                    catalog.table,
                    path,
                    size_bytes=len(path),
                    rows=records if kind is FileKind.ROWS else 0,
                    since_ms=staging.since_ms,
                    deletes=records if kind is FileKind.KEYS else 0,
                )
            )
        return tuple(pending_commits)

    def delete_undecided_manifests(
        self, before_epoch: Epoch, pending_manifests: frozenset[str]
    ) -> None:
        """Do nothing: manifests take no room here."""

    def delete_delivered_key_files(self, delivered_commits: Sequence[PendingCommit]) -> None:
        """Do nothing: nor do key files."""

    def close(self) -> None:
        """Nothing is held."""

    def _has_manifest_or_needs_none(self, pending_commit: PendingCommit) -> bool:
        """Return whether its manifest is still stored; a pending commit without one lacks none."""
        manifest = pending_commit.manifest
        return not manifest or manifest in self._catalog.storage.manifests

    def _read_view_and_sequence_number(self) -> tuple[TableView, int]:
        catalog = self._catalog
        if not catalog.reachable:
            raise Unreachable("the fake catalog is not reachable")
        if not catalog.exists:
            raise TableMissing(f"the fake catalog has no table {catalog.table}")
        self._known = (self._current_view(), catalog.sequence_number)
        return self._known

    def _prepare_request(self, attempt: CommitAttempt) -> Request | None:
        """Prepare the call from the last read; ``None`` when that shows another table."""
        catalog, base = self._catalog, attempt.base
        known = self._known
        view, sequence_number = (
            known if known and known[0] == base else self._read_view_and_sequence_number()
        )
        self._known = None
        if (view.uuid, view.tag, view.head) != (base.uuid, base.tag, base.head):
            return None
        summary = commit_record_codec.encode_record(attempt.record)
        staged = (
            catalog.storage.manifests.get(pending_commit.manifest, ())
            for pending_commit in attempt.pending_commits
        )
        files = (*attempt.files, *(file for files in staged for file in files))
        snapshot = catalog.new_snapshot(self._branch, files, summary)
        # a commit to another branch since the read may have taken this number: the call is refused
        snapshot = replace(snapshot, sequence_number=sequence_number + 1)
        filled = filled_properties_to_set(attempt.record, catalog.properties)
        gone = filled_properties_to_remove(self._sink, attempt.forgets, filled, catalog.properties)
        return Request(self._sink, self._branch, base, snapshot, filled, tuple(gone))

    def _current_view(self) -> TableView:
        catalog = self._catalog
        tag = catalog.tags.get(self._tag)
        return TableView(
            table=catalog.table,
            uuid=catalog.uuid,
            location=f"memory://{catalog.table}",
            schema_id=catalog.schema_id,
            spec_id=catalog.spec_id,
            head=catalog.branches.get(self._branch),
            tag=tag,
            record=None if tag is None else self._record_of_snapshot(tag),
            lineage=self._judge_branch_lineage(tag),
            branch_record=self._newest_record_on_branch(),
            others=self._topic_ids_of_other_sinks(),
            data_location=catalog.data_location,
            filled=filled_table_uuids(self._sink, catalog.properties),
        )

    def _topic_ids_of_other_sinks(self) -> dict[SinkName, Mapping[str, TopicId]]:
        """Rule TABLE-5."""
        found = {sink_of_tag(tag, self._branch): id_ for tag, id_ in self._catalog.tags.items()}
        return {
            sink: commit_record_codec.topic_ids_if_readable(
                sink, self._catalog.snapshots[id_].summary
            )
            for sink, id_ in found.items()
            if sink is not None and sink != self._sink
        }

    def _record_of_snapshot(self, snapshot_id: int) -> CommitRecord:
        record = commit_record_codec.decode_record(
            self._sink, self._catalog.snapshots[snapshot_id].summary
        )
        if record is None:
            raise RecordUnreadable(
                f"snapshot {snapshot_id} under tag {self._tag} carries no commit record"
            )
        return record

    def _newest_record_on_branch(self) -> CommitRecord | None:
        head = self._catalog.head(self._branch)
        for snapshot in self._catalog.ancestry(head.snapshot_id if head else None):
            record = commit_record_codec.decode_record(self._sink, snapshot.summary)
            if record is not None:
                return record
        return None

    def _judge_branch_lineage(self, tag: int | None) -> Lineage:
        """Return how the branch relates to the tag's snapshot (rule TABLE-4)."""
        catalog = self._catalog
        if tag is None:
            return Lineage.TAG_MISSING if self._was_ever_claimed_by_this_sink() else Lineage.FRESH
        if self._branch not in catalog.branches:
            return Lineage.ROLLED_BACK
        tagged = catalog.snapshots[tag]
        head = catalog.branches[self._branch]
        for snapshot in catalog.ancestry_in_metadata_log(head):
            if snapshot.snapshot_id == tag:
                return Lineage.CONTAINS_TAG
            if snapshot.sequence_number <= tagged.sequence_number:
                return Lineage.ROLLED_BACK
        now = catalog.snapshots[head]
        newest = {file.path for file in tagged.files[-1:]} <= {file.path for file in now.files}
        kept = newest or self._rows_in_files(tagged.files) == self._rows_in_files(now.files)
        return Lineage.CONTAINS_TAG if kept else Lineage.UNDECIDABLE

    def _was_ever_claimed_by_this_sink(self) -> bool:
        catalog, sink = self._catalog, self._sink
        return commit_record_codec.claim_marker_property(sink) in catalog.properties or any(
            commit_record_codec.holds_record(sink, snapshot.summary)
            for snapshot in catalog.snapshots.values()
        )

    def _rows_in_files(self, files: tuple[WrittenFile, ...]) -> Counter[SourceRecord]:
        stored = self._catalog.storage.files
        return Counter(row for file in files for row in stored[file.path])
