"""Tells where a branch stands to the sink's tag, from table metadata alone (rule TABLE-4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef
from pyiceberg.table.snapshots import Snapshot

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.commit_record_codec import (
    claim_marker_property,
    decode_record,
    deleted_row_count,
    holds_record,
    topic_ids_if_readable,
)
from headgate.control_protocol.identifiers import SinkName, TopicId, sink_of_tag, tag_name
from headgate.control_protocol.ports import Lineage
from headgate.control_protocol.rows_deleted_by_people import (
    DeletedRecords,
    deleted_records_in_properties,
)


def compare_branch_with_tag(metadata: TableMetadata, branch: str, sink: SinkName) -> Lineage:
    """Compare the branch with the tag; it walks only while sequence numbers are above the tag's.

    A table whose tag is gone must not pass for a fresh one: to begin again would double its rows.
    """
    refs, tag = metadata.refs, tag_name(sink, branch)
    if tag not in refs:
        return Lineage.TAG_MISSING if _was_claimed(metadata, sink) else Lineage.FRESH
    if branch not in refs:
        return Lineage.ROLLED_BACK
    snapshots = snapshots_by_id(metadata)
    tagged = snapshots[refs[tag].snapshot_id]
    for snapshot in ancestors_of(snapshots, refs[branch]):
        if snapshot.snapshot_id == tagged.snapshot_id:
            return Lineage.CONTAINS_TAG
        if sequence_number_of(snapshot) <= sequence_number_of(tagged):
            return Lineage.ROLLED_BACK
    # Expired: Java leaves the id of a missing parent, pyiceberg leaves a root without one.
    return Lineage.UNDECIDABLE


def _was_claimed(metadata: TableMetadata, sink: SinkName) -> bool:
    """Return whether a claim was made; without the property a snapshot of the sink shows it."""
    return claim_marker_property(sink) in metadata.properties or any(
        holds_record(sink, summary_properties_of(snapshot)) for snapshot in metadata.snapshots
    )


def newest_record_on_branch(
    metadata: TableMetadata, branch: str, sink: SinkName
) -> CommitRecord | None:
    """Return the sink's newest commit record that the branch itself still holds."""
    ref = next_parent_ref(metadata, branch)
    if ref is None:
        return None
    for snapshot in ancestors_of(snapshots_by_id(metadata), ref):
        if record := decode_record(sink, summary_properties_of(snapshot)):
            return record
    return None


def find_topics_of_other_sinks(
    metadata: TableMetadata, branch: str, sink: SinkName
) -> dict[SinkName, Mapping[str, TopicId]]:
    """Return the other sinks with a tag for this branch, and the topics that they read
    (TABLE-5)."""
    snapshots = snapshots_by_id(metadata)
    topics: dict[SinkName, Mapping[str, TopicId]] = {}
    for name, ref in metadata.refs.items():
        other = sink_of_tag(name, branch)
        if other not in (None, sink) and ref.snapshot_id in snapshots:
            assert other is not None  # checked above
            topics[other] = topic_ids_if_readable(
                other, summary_properties_of(snapshots[ref.snapshot_id])
            )
    return topics


def has_only_tags_above(metadata: TableMetadata, branch: str, sink: SinkName) -> bool:
    """Return whether each snapshot from the branch's head down to the sink's tag is under another
    sink's: nobody expires those, so that the way from the head to the tag stays (TABLE-4)."""
    refs = metadata.refs
    tagged = {ref.snapshot_id for name, ref in refs.items() if sink_of_tag(name, branch)}
    tag, head = refs.get(tag_name(sink, branch)), refs.get(branch)
    if tag is None or head is None:
        return False
    for snapshot in ancestors_of(snapshots_by_id(metadata), head):
        if snapshot.snapshot_id == tag.snapshot_id:
            return True
        if snapshot.snapshot_id not in tagged:
            return False
    return False


def deleted_records_of(sink: SinkName, properties: Mapping[str, str]) -> DeletedRecords:
    """Return what people deleted from the table (COMPACTION-1)."""
    return deleted_records_in_properties(sink, deleted_row_count(sink, properties), properties)


def next_parent_ref(metadata: TableMetadata, branch: str) -> SnapshotRef | None:
    """Return what the branch's next snapshot builds on: its head; a new branch begins at main's."""
    return metadata.refs.get(branch) or metadata.refs.get(MAIN_BRANCH)


def snapshots_by_id(metadata: TableMetadata) -> dict[int, Snapshot]:
    return {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}


def ancestors_of(snapshots: Mapping[int, Snapshot], ref: SnapshotRef) -> Iterator[Snapshot]:
    """Yield the ref's snapshot, its parent and so on, as far as they have not expired."""
    snapshot = snapshots.get(ref.snapshot_id)
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else snapshots.get(parent)


def summary_properties_of(snapshot: Snapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary else {}


def sequence_number_of(snapshot: Snapshot) -> int:
    """Return a snapshot's sequence number; 0 in a table of format version 1, which has none."""
    return snapshot.sequence_number or 0
