"""Tells a table's own history as one sink sees it, in plain values of no table format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.commit_record_codec import decode_record
from headgate.control_protocol.errors import RecordUnreadable
from headgate.control_protocol.identifiers import SinkName, TopicId, TopicPartition
from headgate.control_protocol.ports import Lineage, TableView
from headgate.control_protocol.rows_deleted_by_people import DeletedRecords

ONLY_BRANCH = "main"
"""The branch of every table of a kind without branches."""


@dataclass(frozen=True, slots=True)
class SinkCommit:
    """Describes one commit of this sink. ``added_records`` and ``added_files`` are from its
    summary.
    """

    snapshot_id: int
    committed_ms: int
    record: CommitRecord
    added_records: int
    added_files: int

    @property
    def description(self) -> str:
        return f"transaction {self.record.transaction}, snapshot {self.snapshot_id}"


@dataclass(frozen=True, slots=True)
class ForeignSnapshot:
    """Describes a snapshot on the branch that is no commit of this sink, which may have compacted
    (COMPACTION-1).

    ``sink``: another sink's name, if it is one's, and ``topic_ids`` those that it reads.

    ``deleted_records`` went with their files; ``row_deletes`` are marked in delete files (below 0:
    so many of ``deleted_records`` had been marked before).
    ``upkeep``: it is this sink's own doing, a compaction or what a person deleted by it;
    ``expired_rows``: how many had reached their age (EXPIRY-1).
    """

    snapshot_id: int
    operation: str
    added_records: int
    deleted_records: int
    row_deletes: int
    sink: SinkName | None
    topic_ids: Mapping[str, TopicId] = field(default_factory=dict)
    upkeep: bool = False
    expired_rows: int = 0

    @property
    def removed_row_count(self) -> int:
        """Return how many rows it took away: rewritten files delete and add the rows that they
        keep.

        What people deleted by the sink is counted for the table as a whole.
        """
        if self.operation == "replace" or self.upkeep:
            return 0
        return max(0, self.deleted_records - self.added_records) + self.row_deletes


@dataclass(frozen=True, slots=True)
class History:
    """Tells of a branch from its oldest retained snapshot to its head, as one sink sees it.

    ``complete``: nothing before ``commits`` and ``foreign`` has expired. ``tag_on_branch`` is
    ``None`` without a tag, and if nothing tells (TABLE-4). ``unreadable``: this sink's records that
    could not be decoded; ``filled``: of a ledger, the UUIDs of the tables that it has filled;
    ``deleted``: the rows that people have deleted by the sink; ``others``: the sinks with a tag on
    the branch, and the topics that they read (TABLE-5). ``expired_rows``: those that have reached
    their age, all of them below ``expired_before_ms`` (EXPIRY-1).
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
    deleted: DeletedRecords = field(default_factory=DeletedRecords)
    others: Mapping[SinkName, Mapping[str, TopicId]] = field(default_factory=dict)
    expired_rows: int = 0
    expired_before_ms: int | None = None

    @property
    def deleted_row_count(self) -> int:
        """Return how many rows people deleted by the sink (``headgate delete``)."""
        return self.deleted.rows

    @property
    def foreign_removed_row_count(self) -> int:
        """Return how many rows others took away, as far as their snapshots are left."""
        return sum(snapshot.removed_row_count for snapshot in self.foreign)

    @property
    def offsets_with_full_history_above(self) -> Mapping[TopicPartition, int]:
        """Return the offsets above which every commit, of whomever, is still there.

        What is missing below them may have been deleted, or passed over, by one that has expired.
        """
        if self.complete:
            return {}
        oldest = self.commits[0].record if self.commits else self.tagged
        return oldest.offsets if oldest else {}

    @property
    def current_record(self) -> CommitRecord | None:
        """Return the sink's state: under its tag, else the newest that the branch holds."""
        return self.tagged or (self.commits[-1].record if self.commits else None)


@dataclass(frozen=True, slots=True)
class ReportedState:
    """Describes one state of a branch, as the table's log reports it. ``name`` is for people.

    ``commit`` is set where it is the sink's, ``foreign`` where it is not (``None`` for one that
    brought nothing to speak of).
    """

    name: str
    properties: Mapping[str, str]
    commit: Callable[[CommitRecord], SinkCommit]
    foreign: Callable[[], ForeignSnapshot | None]


def build_history(
    view: TableView,
    sink: SinkName,
    states: Iterable[ReportedState],
    *,
    complete: bool,
    branch: str = ONLY_BRANCH,
) -> History:
    """Build the branch's history from its states, oldest first. Raises what the states raise."""
    commits: list[SinkCommit] = []
    foreign: list[ForeignSnapshot] = []
    unreadable: list[str] = []
    for state in states:
        try:
            record = decode_record(sink, state.properties)
        except RecordUnreadable as error:
            unreadable.append(f"{state.name}: {error.message}")
            continue
        if record is not None:
            commits.append(state.commit(record))
        elif (other := state.foreign()) is not None:
            foreign.append(other)
    return History(
        table=view.table,
        uuid=view.uuid,
        branch=branch,
        head=view.head,
        tag=view.tag,
        tag_on_branch=None if view.tag is None else view.lineage is Lineage.CONTAINS_TAG,
        claimed=view.tag is not None,
        complete=complete,
        commits=tuple(commits),
        foreign=tuple(foreign),
        unreadable=tuple(unreadable),
        tagged=view.record,
        filled=view.filled,
        others=view.others,
    )


@dataclass(frozen=True, slots=True)
class Newest:
    """Selects the last so many snapshots, and those since a time (epoch ms) with one before it."""

    snapshots: int
    since_ms: int

    def is_satisfied_by(self, examined: int, oldest_ms: int) -> bool:
        """Return whether so many, newest first, are enough; the last one is of that time."""
        return examined >= self.snapshots and oldest_ms <= self.since_ms

    def count_to_examine(self, times_ms: Sequence[int]) -> int:
        """Return how many of the snapshots with these times, oldest first, to examine; may be more
        than there are."""
        newest_first = enumerate(reversed(times_ms), 1)
        recent = next((n for n, at_ms in newest_first if at_ms <= self.since_ms), len(times_ms))
        return max(self.snapshots, recent)


def empty_history(table: str, branch: str) -> History:
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


@dataclass(frozen=True, slots=True)
class LiveFile:
    """Describes a file that the branch's head refers to. ``added_by``: the snapshot that brought
    it.

    ``vector``: a deletion vector in it; it may hold several.
    """

    path: str
    records: int
    size_bytes: int
    parquet: bool
    deletes: bool
    added_by: int
    vector: bool = False


@dataclass(frozen=True, slots=True)
class FencedConnector:
    """Names a connector of Kafka Connect that a sink took the table over from, in the last seven
    days.

    ``commits``: snapshots that it added since, newest first.
    """

    group: str
    commits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FileRows:
    """Reads the live rows of one file: ``batches`` yields Arrow record batches.

    ``at_once`` does the same with few requests, and may hold the whole file: for small ones.
    """

    path: str
    size_bytes: int
    batches: Callable[[], Iterator[Any]]
    at_once: Callable[[], Iterator[Any]]


class TableReader(Protocol):
    """Reads a table as it was when it was opened, for audit, status and check."""

    def view(self) -> TableView:
        """Return what ``SinkTable.read`` does, without asking the table again where possible."""

    def history(self, newest: Newest | None = None) -> History:
        """Return the sink's commits and what others did between, oldest first.

        ``newest``: how much of it to examine; the rest is left out.
        """

    def has_table_changed(self) -> bool:
        """Return whether anybody has committed to the table since it was opened."""

    def columns(self) -> Sequence[str]:
        """Return the names of the table's columns."""

    def live_files(self) -> list[LiveFile]:
        """Return every file of the head; one that is referred to twice comes twice."""

    def added_files(self, commit: SinkCommit) -> list[tuple[str, int]] | None:
        """Return the commit's files and the rows of each; ``None`` when that is no longer known."""

    def stored_size_and_rows(self, file: LiveFile) -> tuple[int, int]:
        """Return the size and the rows of a file as it lies on storage.

        Raises ``FileNotFoundError``, ``PermissionError``, ``OSError``; ``ValueError`` for one that
        cannot be read.
        """

    def scan(self, columns: Sequence[str]) -> tuple[int, Iterator[FileRows]]:
        """Return how many files the head has, and the live rows of each, with these columns.

        A dot leads into a struct. Raises ``ValueError`` or ``NotImplementedError`` where rows
        cannot be read.
        """

    def close(self) -> None:
        """Release whatever keeps the table as it was."""
