"""Reads a sink's commits from a table's own metadata, in order, and what others did between.

Everything is read from pyiceberg's metadata of the table; nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.commit_record_codec import (
    claim_marker_property,
    decode_record,
    expired_before_ms,
    expired_row_count,
    filled_table_uuids,
    maintenance_property,
    sink_in_summary,
)
from headgate.control_protocol.errors import RecordUnreadable
from headgate.control_protocol.identifiers import SinkName, tag_name
from headgate.control_protocol.ports import Lineage
from headgate.control_protocol.table_history import (
    ForeignSnapshot,
    History,
    Newest,
    SinkCommit,
)
from headgate.tables.iceberg.expired_lineage import decide_lineage
from headgate.tables.iceberg.tag_lineage import (
    deleted_records_of,
    find_topics_of_other_sinks,
    summary_properties_of,
)


def read_history(
    table: Table, sink: SinkName, branch: str, newest: Newest | None = None
) -> History:
    """Walk the branch from head to root. ``table`` must have been loaded afresh.

    ``newest``: how much of it to examine; the rest is neither decoded nor returned.
    """
    metadata = table.metadata
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    line, complete = _branch_snapshots(metadata, snapshots, branch)
    shown = (
        line[-newest.count_to_examine([each.timestamp_ms for each in line]) :] if newest else line
    )
    commits, foreign, unreadable = _split_into_own_foreign_and_unreadable(shown, sink)
    tag = metadata.refs.get(tag_name(sink, branch))
    tagged, complaint = (
        _decode_record_or_complaint(snapshots[tag.snapshot_id], sink) if tag else (None, None)
    )
    if complaint and complaint not in unreadable:
        unreadable.append(complaint)
    head = metadata.refs.get(branch)
    return History(
        table=".".join(table.name()),
        uuid=str(metadata.table_uuid),
        branch=branch,
        head=head.snapshot_id if head else None,
        tag=tag.snapshot_id if tag else None,
        tag_on_branch=_is_tag_on_branch(table, sink, branch) if tag else None,
        claimed=claim_marker_property(sink) in metadata.properties,
        complete=complete and len(shown) == len(line),
        commits=tuple(commits),
        foreign=tuple(foreign),
        unreadable=tuple(unreadable),
        tagged=tagged,
        filled=filled_table_uuids(sink, metadata.properties),
        others=find_topics_of_other_sinks(metadata, branch, sink),
        deleted=deleted_records_of(sink, metadata.properties),
        expired_rows=expired_row_count(sink, metadata.properties),
        expired_before_ms=expired_before_ms(sink, metadata.properties),
    )


def _is_tag_on_branch(table: Table, sink: SinkName, branch: str) -> bool | None:
    """Return whether the branch contains the sink's tag, by whatever evidence is left (TABLE-4)."""
    lineage = decide_lineage(table, branch, sink)
    return None if lineage is Lineage.UNDECIDABLE else lineage is Lineage.CONTAINS_TAG


class _BranchLine(NamedTuple):
    """A branch's snapshots, oldest first, and whether the oldest is the table's first."""

    snapshots: list[Snapshot]
    is_complete: bool


def _branch_snapshots(
    metadata: TableMetadata, snapshots: Mapping[int, Snapshot], branch: str
) -> _BranchLine:
    """Return the branch's snapshots as far as they have not expired.

    Java leaves the id of an expired parent in place; pyiceberg's expiry leaves a root without a
    parent, which differs from a true root by its sequence number: the table's first snapshot has 1.
    """
    ref = metadata.refs.get(branch)
    line: list[Snapshot] = []
    snapshot = snapshots.get(ref.snapshot_id) if ref else None
    while snapshot is not None:
        line.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else snapshots.get(parent)
    line.reverse()
    if not line:
        return _BranchLine(line, is_complete=True)
    root = line[0]
    is_first = root.parent_snapshot_id is None and (root.sequence_number or 0) <= 1
    return _BranchLine(line, is_first)


def _split_into_own_foreign_and_unreadable(
    line: list[Snapshot], sink: SinkName
) -> tuple[list[SinkCommit], list[ForeignSnapshot], list[str]]:
    commits: list[SinkCommit] = []
    foreign: list[ForeignSnapshot] = []
    unreadable: list[str] = []
    for snapshot in line:
        record, complaint = _decode_record_or_complaint(snapshot, sink)
        if complaint:
            unreadable.append(complaint)
        elif record:
            commits.append(
                SinkCommit(
                    snapshot_id=snapshot.snapshot_id,
                    committed_ms=snapshot.timestamp_ms,
                    record=record,
                    added_records=_summary_count_or_zero(snapshot, "added-records"),
                    added_files=_summary_count_or_zero(snapshot, "added-data-files"),
                )
            )
        else:
            foreign.append(_to_foreign_snapshot(snapshot, sink))
    return commits, foreign, unreadable


def _decode_record_or_complaint(
    snapshot: Snapshot, sink: SinkName
) -> tuple[CommitRecord | None, str | None]:
    try:
        return decode_record(sink, summary_properties_of(snapshot)), None
    except RecordUnreadable as error:
        return None, f"snapshot {snapshot.snapshot_id}: {error.message}"


def _to_foreign_snapshot(snapshot: Snapshot, own: SinkName) -> ForeignSnapshot:
    sink = sink_in_summary(summary_properties_of(snapshot))
    sink = None if sink == own else sink
    record = _decode_record_or_complaint(snapshot, sink)[0] if sink else None
    return ForeignSnapshot(
        snapshot_id=snapshot.snapshot_id,
        operation=snapshot.summary.operation.value if snapshot.summary else "append",
        added_records=_summary_count_or_zero(snapshot, "added-records"),
        deleted_records=_summary_count_or_zero(snapshot, "deleted-records"),
        row_deletes=_summary_count_or_zero(snapshot, "added-position-deletes")
        + _summary_count_or_zero(snapshot, "added-equality-deletes"),
        sink=sink,
        topic_ids=record.topic_ids if record else {},
        upkeep=maintenance_property(own) in summary_properties_of(snapshot),
        expired_rows=expired_row_count(own, summary_properties_of(snapshot)),
    )


def _summary_count_or_zero(snapshot: Snapshot, name: str) -> int:
    text = summary_properties_of(snapshot).get(name, "0")
    return int(text) if text.isdecimal() else 0
