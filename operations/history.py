"""What a table's own metadata tells of a sink: its commits in order, and what others did between.

The adapter of operations for pyiceberg's table metadata: everything here is read, nothing written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from headgate.control_protocol.errors import RecordUnreadable
from headgate.control_protocol.filled_tables import filled_of
from headgate.control_protocol.identifiers import SinkName, TopicId, tag_name
from headgate.control_protocol.record import CommitRecord
from headgate.control_protocol.record_codec import decode, marker_property


@dataclass(frozen=True, slots=True)
class SinkCommit:
    """One snapshot of this sink. ``added_records`` and ``added_files``: what its summary says."""

    snapshot_id: int
    committed_ms: int
    record: CommitRecord
    added_records: int
    added_files: int

    @property
    def where(self) -> str:
        return f"transaction {self.record.transaction}, snapshot {self.snapshot_id}"


@dataclass(frozen=True, slots=True)
class ForeignSnapshot:
    """A snapshot on the branch that is no commit of this sink, which may have compacted (T8).

    ``sink``: another sink's name, if it is one's, and ``topic_ids`` those that it reads.

    ``deleted_records`` went with their files; ``row_deletes`` are marked in delete files.
    """

    snapshot_id: int
    operation: str
    added_records: int
    deleted_records: int
    row_deletes: int
    sink: SinkName | None
    topic_ids: Mapping[str, TopicId] = field(default_factory=dict)

    @property
    def removed_rows(self) -> int:
        """How many rows it took away: rewritten files delete and add the rows that they keep."""
        if self.operation == "replace":
            return 0
        return max(0, self.deleted_records - self.added_records) + self.row_deletes


@dataclass(frozen=True, slots=True)
class History:
    """A branch from its oldest retained snapshot to its head, as one sink sees it.

    ``complete``: nothing before ``commits`` and ``foreign`` has expired. ``tag_on_branch`` is
    ``None`` without a tag. ``unreadable``: this sink's records that could not be decoded;
    ``filled``: of a ledger, the UUIDs of the tables that it has filled.
    """

    table: str
    uuid: str
    branch: str
    head: int | None
    tag: int | None
    tag_on_branch: bool | None
    claimed: bool
    complete: bool
    commits: tuple[SinkCommit, ...]
    foreign: tuple[ForeignSnapshot, ...]
    unreadable: tuple[str, ...]
    tagged: CommitRecord | None
    filled: Mapping[str, str] = field(default_factory=dict)

    @property
    def record(self) -> CommitRecord | None:
        """The sink's state: under its tag, else the newest that the branch holds."""
        return self.tagged or (self.commits[-1].record if self.commits else None)


@dataclass(frozen=True, slots=True)
class Newest:
    """The last so many snapshots, and those since a time with the one before it (epoch ms)."""

    snapshots: int
    since_ms: int

    def of(self, line: list[Snapshot]) -> list[Snapshot]:
        recent = next(
            (n for n, s in enumerate(reversed(line), 1) if s.timestamp_ms <= self.since_ms),
            len(line),
        )
        return line[-max(self.snapshots, recent) :]


def nothing_of(table: str, branch: str) -> History:
    """Return the history of a table that does not exist yet."""
    return History(
        table=table,
        uuid="",
        branch=branch,
        head=None,
        tag=None,
        tag_on_branch=None,
        claimed=False,
        complete=True,
        commits=(),
        foreign=(),
        unreadable=(),
        tagged=None,
    )


def read_history(
    table: Table, sink: SinkName, branch: str, newest: Newest | None = None
) -> History:
    """Walk the branch from head to root. ``table`` must have been loaded afresh.

    ``newest``: how much of it to look into; the rest is not decoded, and not in the answer.
    """
    metadata = table.metadata
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    line, complete = _line(metadata, snapshots, branch)
    shown = newest.of(line) if newest else line
    commits, foreign, unreadable = _sorted_out(shown, sink)
    tag = metadata.refs.get(tag_name(sink, branch))
    tagged, complaint = _decoded(snapshots[tag.snapshot_id], sink) if tag else (None, None)
    if complaint and complaint not in unreadable:
        unreadable.append(complaint)
    head = metadata.refs.get(branch)
    return History(
        table=".".join(table.name()),
        uuid=str(metadata.table_uuid),
        branch=branch,
        head=head.snapshot_id if head else None,
        tag=tag.snapshot_id if tag else None,
        tag_on_branch=any(s.snapshot_id == tag.snapshot_id for s in line) if tag else None,
        claimed=marker_property(sink) in metadata.properties,
        complete=complete and len(shown) == len(line),
        commits=tuple(commits),
        foreign=tuple(foreign),
        unreadable=tuple(unreadable),
        tagged=tagged,
        filled=filled_of(sink, metadata.properties),
    )


def _line(
    metadata: TableMetadata, snapshots: Mapping[int, Snapshot], branch: str
) -> tuple[list[Snapshot], bool]:
    """The branch's snapshots, oldest first, and whether the oldest is the table's very first.

    Java leaves the id of an expired parent in place; pyiceberg's expiry leaves a root without a
    parent, told from a true root by its sequence number: the table's first snapshot has 1.
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
        return line, True
    root = line[0]
    return line, root.parent_snapshot_id is None and (root.sequence_number or 0) <= 1


def _sorted_out(
    line: list[Snapshot], sink: SinkName
) -> tuple[list[SinkCommit], list[ForeignSnapshot], list[str]]:
    commits: list[SinkCommit] = []
    foreign: list[ForeignSnapshot] = []
    unreadable: list[str] = []
    for snapshot in line:
        record, complaint = _decoded(snapshot, sink)
        if complaint:
            unreadable.append(complaint)
        elif record:
            commits.append(
                SinkCommit(
                    snapshot_id=snapshot.snapshot_id,
                    committed_ms=snapshot.timestamp_ms,
                    record=record,
                    added_records=_count(snapshot, "added-records"),
                    added_files=_count(snapshot, "added-data-files"),
                )
            )
        else:
            foreign.append(_foreign(snapshot, sink))
    return commits, foreign, unreadable


def _decoded(snapshot: Snapshot, sink: SinkName) -> tuple[CommitRecord | None, str | None]:
    try:
        return decode(sink, summary_of(snapshot)), None
    except RecordUnreadable as error:
        return None, f"snapshot {snapshot.snapshot_id}: {error.message}"


def _foreign(snapshot: Snapshot, own: SinkName) -> ForeignSnapshot:
    sink = sink_of(snapshot)
    sink = None if sink == own else sink
    record = _decoded(snapshot, sink)[0] if sink else None
    return ForeignSnapshot(
        snapshot_id=snapshot.snapshot_id,
        operation=snapshot.summary.operation.value if snapshot.summary else "append",
        added_records=_count(snapshot, "added-records"),
        deleted_records=_count(snapshot, "deleted-records"),
        row_deletes=_count(snapshot, "added-position-deletes")
        + _count(snapshot, "added-equality-deletes"),
        sink=sink,
        topic_ids=record.topic_ids if record else {},
    )


def sink_of(snapshot: Snapshot) -> SinkName | None:
    """The name of the sink whose commit record a snapshot carries, or that maintained by it."""
    for key in summary_of(snapshot):
        prefix, _, rest = key.partition(".")
        name, _, property_name = rest.partition(".")
        if prefix == "headgate" and property_name in ("epoch", "maintenance"):
            return SinkName(name)
    return None


def summary_of(snapshot: Snapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary else {}


def _count(snapshot: Snapshot, name: str) -> int:
    text = summary_of(snapshot).get(name, "0")
    return int(text) if text.isdecimal() else 0
