"""What a table's own history says of a sink, as plain values of no table format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headgate.control_protocol.errors import RecordUnreadable
from headgate.control_protocol.identifiers import SinkName, TopicId
from headgate.control_protocol.ports import Lineage, TableView
from headgate.control_protocol.record import CommitRecord
from headgate.control_protocol.record_codec import decode

ONLY_BRANCH = "main"
"""Of kinds of tables that have no branches."""


@dataclass(frozen=True, slots=True)
class SinkCommit:
    """One commit of this sink. ``added_records`` and ``added_files``: what its summary says."""

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
    ``upkeep``: it is this sink's own doing, a compaction or what a person deleted by it.
    """

    snapshot_id: int
    operation: str
    added_records: int
    deleted_records: int
    row_deletes: int
    sink: SinkName | None
    topic_ids: Mapping[str, TopicId] = field(default_factory=dict)
    upkeep: bool = False

    @property
    def removed_rows(self) -> int:
        """How many rows it took away: rewritten files delete and add the rows that they keep.

        What persons deleted by the sink is counted for the table as a whole.
        """
        if self.operation == "replace" or self.upkeep:
            return 0
        return max(0, self.deleted_records - self.added_records) + self.row_deletes


@dataclass(frozen=True, slots=True)
class History:
    """A branch from its oldest retained snapshot to its head, as one sink sees it.

    ``complete``: nothing before ``commits`` and ``foreign`` has expired. ``tag_on_branch`` is
    ``None`` without a tag. ``unreadable``: this sink's records that could not be decoded;
    ``filled``: of a ledger, the UUIDs of the tables that it has filled; ``deleted_rows``: how many
    persons have deleted by the sink.
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
    deleted_rows: int = 0

    @property
    def record(self) -> CommitRecord | None:
        """The sink's state: under its tag, else the newest that the branch holds."""
        return self.tagged or (self.commits[-1].record if self.commits else None)


@dataclass(frozen=True, slots=True)
class Told:
    """One state of a table of one branch, as its log tells of it. ``name`` is for people.

    ``commit`` says what came with it where it is the sink's, ``foreign`` where it is not (``None``
    for one that brought nothing to speak of).
    """

    name: str
    properties: Mapping[str, str]
    commit: Callable[[CommitRecord], SinkCommit]
    foreign: Callable[[], ForeignSnapshot | None]


def history_of(
    view: TableView, sink: SinkName, states: Iterable[Told], *, complete: bool
) -> History:
    """Sort the states out, the oldest first. Raises what the states raise."""
    commits: list[SinkCommit] = []
    foreign: list[ForeignSnapshot] = []
    unreadable: list[str] = []
    for state in states:
        try:
            record = decode(sink, state.properties)
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
        branch=ONLY_BRANCH,
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
    )


@dataclass(frozen=True, slots=True)
class Newest:
    """The last so many snapshots, and those since a time with the one before it (epoch ms)."""

    snapshots: int
    since_ms: int

    def ends(self, looked: int, at_ms: int) -> bool:
        """Whether so many, newest first, are enough; the last one is of that time."""
        return looked >= self.snapshots and at_ms <= self.since_ms

    def count(self, times_ms: Sequence[int]) -> int:
        """How many of the snapshots of these times, oldest first, are to be looked into."""
        newest_first = enumerate(reversed(times_ms), 1)
        recent = next((n for n, at_ms in newest_first if at_ms <= self.since_ms), len(times_ms))
        return max(self.snapshots, recent)


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


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file that the branch's head refers to. ``added_by``: the snapshot that brought it.

    ``vector``: a deletion vector in it, which it may hold several of.
    """

    path: str
    records: int
    size_bytes: int
    parquet: bool
    deletes: bool
    added_by: int
    vector: bool = False


@dataclass(frozen=True, slots=True)
class FileRows:
    """The live rows of one file, which ``batches`` reads as Arrow record batches.

    ``at_once`` does the same with few requests, and may hold the whole file: for small ones.
    """

    path: str
    size_bytes: int
    batches: Callable[[], Iterator[Any]]
    at_once: Callable[[], Iterator[Any]]


class TableReader(Protocol):
    """A table as it was when it was opened, for those who examine it."""

    def view(self) -> TableView:
        """As ``SinkTable.read``, without asking the table again where that can be avoided."""

    def history(self, newest: Newest | None = None) -> History:
        """The sink's commits and what others did between, oldest first.

        ``newest``: how much of it to look into; the rest is not in the answer.
        """

    def moved(self) -> bool:
        """Whether anybody has committed to the table since it was opened."""

    def columns(self) -> Sequence[str]:
        """The names of the table's columns."""

    def live_files(self) -> list[LiveFile]:
        """Every file of the head; one that is referred to twice comes twice."""

    def added(self, commit: SinkCommit) -> list[tuple[str, int]] | None:
        """The files that came with the commit and the rows of each; ``None``: nobody knows now."""

    def size_and_rows(self, file: LiveFile) -> tuple[int, int]:
        """The size and the rows of a file as it lies on storage.

        Raises ``FileNotFoundError``, ``PermissionError``, ``OSError``; ``ValueError`` for one that
        cannot be read.
        """

    def scan(self, columns: Sequence[str]) -> tuple[int, Iterator[FileRows]]:
        """How many files the head has, and the live rows of each, with these columns.

        A dot leads into a struct. Raises ``ValueError`` or ``NotImplementedError`` where rows
        cannot be read.
        """

    def close(self) -> None:
        """Let go of what shows the table as it was."""
