"""Finds the snapshots that leave a branch when a person rolls it back, and what they added."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.commit_record_codec import decode, deleted_rows, sink_of
from headgate.control_protocol.identifiers import SinkName
from headgate.tables.iceberg.history import summary_of


@dataclass(frozen=True, slots=True)
class RemovedSnapshots:
    """The snapshots that leave a branch, newest first.

    ``target``: where the branch goes; ``None``: to nothing. ``unlisted``: how many rows
    people deleted from the table in all, if some of the snapshots have expired.
    """

    sink: SinkName
    target: int | None
    snapshots: tuple[Snapshot, ...]
    unlisted: int = 0

    @property
    def deleted(self) -> int:
        """Return how many rows that people deleted would be back."""
        return sum(deleted_rows(self.sink, summary_of(snapshot)) for snapshot in self.snapshots)

    @property
    def own(self) -> tuple[CommitRecord, ...]:
        found = (decode(self.sink, summary_of(snapshot)) for snapshot in self.snapshots)
        return tuple(record for record in found if record)

    @property
    def rows(self) -> int:
        return sum(record.records for record in self.own)

    @property
    def foreign(self) -> tuple[str, ...]:
        return tuple(self._foreign())

    def _foreign(self) -> Iterator[str]:
        for snapshot in self.snapshots:
            summary = summary_of(snapshot)
            who = sink_of(summary)
            if rows := deleted_rows(self.sink, summary):
                yield f"snapshot {snapshot.snapshot_id} ({rows} deleted rows would be back)"
            elif who != self.sink:
                operation = snapshot.summary.operation.value if snapshot.summary else "append"
                by = f" of sink {who}" if who else ""
                yield f"snapshot {snapshot.snapshot_id} ({operation}{by})"


def ancestors(metadata: TableMetadata, head: int | None) -> Iterator[Snapshot]:
    """Yield the snapshot and its ancestors, as far as they exist."""
    snapshot = metadata.snapshot_by_id(head) if head is not None else None
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = metadata.snapshot_by_id(parent) if parent is not None else None


def removed_snapshots(
    sink: SinkName, metadata: TableMetadata, head: int | None, target: int
) -> RemovedSnapshots:
    """Return what leaves the branch of this head on the way to the snapshot."""
    kept = {snapshot.snapshot_id for snapshot in ancestors(metadata, target)}
    reached = tuple(ancestors(metadata, head))
    gone = tuple(s for s in reached if s.snapshot_id not in kept)
    gap = len(gone) == len(reached)
    return RemovedSnapshots(
        sink, target, gone, deleted_rows(sink, metadata.properties) if gap else 0
    )
