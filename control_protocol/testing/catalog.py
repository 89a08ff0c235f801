"""Keeps an Iceberg table's history in memory: a catalog's checks, and ways to lose an answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from headgate.control_protocol import commit_record_codec
from headgate.control_protocol.columns import Column, Struct, Type
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import SinkName, tag_name
from headgate.control_protocol.ports import TableView
from headgate.control_protocol.testing.source import SourceRecord
from headgate.control_protocol.testing.writer import FakeStorage

MAIN = "main"


class CommitFault(Enum):
    """Says what happens to one commit call."""

    REFUSED = auto()
    LANDED_UNKNOWN = auto()
    """It takes effect if it may, and the answer is lost."""

    LOST_UNKNOWN = auto()
    """It never reaches the catalog, and nobody knows."""

    LATE_UNKNOWN = auto()
    """It stays under way until ``FakeCatalog.land_or_return_refusal`` lets it arrive."""


@dataclass(frozen=True, slots=True)
class FakeSnapshot:
    """``files``: all that are live in it, not just its own; ``summary``: the properties;
    ``rewrites``: it has the rows of its parent."""

    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    files: tuple[WrittenFile, ...] = ()
    summary: Mapping[str, str] = field(default_factory=dict)
    rewrites: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """Holds one commit call under way: the snapshot to add, and what must still hold when it
    arrives.

    The snapshot's sequence number is part of it: a catalog refuses one that is taken. ``filled``
    are properties to set, ``forgotten`` those to remove.
    """

    sink: SinkName
    branch: str
    base: TableView
    snapshot: FakeSnapshot
    filled: Mapping[str, str] = field(default_factory=dict)
    forgotten: tuple[str, ...] = ()


@dataclass(slots=True)
class FakeCatalog:
    """Keeps one table, its snapshots and references; many ``FakeTable`` share it.

    ``faults`` hit the next commit calls of any sink, in order, one each; ``schema_faults`` the next
    updates of its columns. ``schemas`` by their ids.
    """

    storage: FakeStorage = field(default_factory=FakeStorage)
    table: str = "lake.records"
    uuid: str = "uuid-1"
    schema_id: int = 0
    schemas: list[Struct] = field(default_factory=lambda: [Struct()])
    spec_id: int = 0
    snapshots: dict[int, FakeSnapshot] = field(default_factory=dict)
    branches: dict[str, int] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    sequence_number: int = 0
    exists: bool = True
    reachable: bool = True
    forbidden: bool = False
    """Reads are answered, commits are not allowed."""
    faults: deque[CommitFault] = field(default_factory=deque)
    schema_faults: deque[CommitFault] = field(default_factory=deque)
    in_the_air: list[Request] = field(default_factory=list)
    data_location: str = ""
    """Where its owner wants its data, if not in its own folder."""
    log_lost: bool = False
    """Old versions of the table's metadata were deleted: nobody knows what expired."""
    _ids: int = 0
    _column_ids: int = 0
    _ever: dict[int, FakeSnapshot] = field(default_factory=dict)

    # ---------------------------------------------------------------------- what others do to it

    def append_foreign(self, files: Iterable[WrittenFile] = (), branch: str = MAIN) -> int:
        """Append files as a foreign writer."""
        return self._add_snapshot(self.new_snapshot(branch, tuple(files), {}), branch)

    def compact(self, branch: str = MAIN) -> int:
        """Rewrite all live files as one, as a foreign writer."""
        records = self.visible_rows(branch)
        merged = self.storage.write(f"{self.table}/compacted-", records)
        rewritten = replace(self.new_snapshot(branch, (), {}), rewrites=True)
        return self._add_snapshot(replace(rewritten, files=(merged,) if records else ()), branch)

    def expire_snapshots(self, keep: int = 1) -> None:
        """Keep only the newest snapshots of each branch, and whatever a tag holds."""
        kept = set(self.tags.values())
        for head in self.branches.values():
            kept |= {snapshot.snapshot_id for snapshot in list(self.ancestry(head))[:keep]}
        self.snapshots = {id_: self.snapshots[id_] for id_ in self.snapshots if id_ in kept}

    def roll_back(self, snapshot_id: int, branch: str = MAIN) -> None:
        """Set the branch to an older snapshot, as an operator."""
        self.branches[branch] = self.snapshots[snapshot_id].snapshot_id

    def delete_tag(self, tag: str) -> None:
        del self.tags[tag]

    def delete_property(self, name: str) -> None:
        del self.properties[name]

    def drop(self) -> None:
        self.exists = False

    def recreate(self) -> None:
        """Drop the table, and create it again under the same name."""
        self._ids += 1
        self.uuid = f"uuid-{self._ids + 1}"
        self.snapshots, self.branches, self.tags, self.properties = {}, {}, {}, {}
        self._ever = {}
        self.schemas, self.schema_id = [Struct()], 0
        self.sequence_number = 0
        self.exists = True

    @property
    def columns(self) -> Struct:
        return self.schemas[self.schema_id]

    def set_columns(self, columns: Struct) -> None:
        """Set the columns as somebody else; those without an id get one."""
        self.schema_id = len(self.schemas)
        self.schemas.append(Struct(tuple(self._column_with_ids(each) for each in columns.fields)))

    def _column_with_ids(self, column: Column) -> Column:
        kind: Type = column.type
        if isinstance(kind, Struct):
            kind = Struct(tuple(self._column_with_ids(each) for each in kind.fields))
        if not column.field_id:
            self._column_ids += 1
        return replace(column, type=kind, field_id=column.field_id or self._column_ids)

    # ---------------------------------------------------------------------------- what is in it

    def head(self, branch: str = MAIN) -> FakeSnapshot | None:
        """Return what the branch's next snapshot builds on: a new branch begins at main's head."""
        head = self.branches.get(branch, self.branches.get(MAIN))
        return None if head is None else self.snapshots[head]

    def ancestry(self, snapshot_id: int | None) -> Iterator[FakeSnapshot]:
        """Yield the snapshot, its parent and so on, as far as they have not expired."""
        while snapshot_id in self.snapshots:
            snapshot = self.snapshots[snapshot_id]
            yield snapshot
            snapshot_id = snapshot.parent_id

    def ancestry_in_metadata_log(self, snapshot_id: int | None) -> Iterator[FakeSnapshot]:
        """As ``ancestry``, and by the table's metadata log beyond what has expired."""
        known = self.snapshots if self.log_lost else self._ever
        while snapshot_id in known:
            snapshot = known[snapshot_id]
            yield snapshot
            snapshot_id = snapshot.parent_id

    def files(self, branch: str = MAIN) -> tuple[WrittenFile, ...]:
        head = self.head(branch)
        return head.files if head else ()

    def visible_rows(self, branch: str = MAIN) -> list[SourceRecord]:
        """Return what a reader of the branch sees, doubles included."""
        return [row for file in self.files(branch) for row in self.storage.files[file.path]]

    # ------------------------------------------------------------------------------- commit calls

    def new_snapshot(
        self, branch: str, files: tuple[WrittenFile, ...], summary: Mapping[str, str]
    ) -> FakeSnapshot:
        """Return a snapshot on top of the branch, not yet in it, with these additional files."""
        self._ids += 1
        head = self.head(branch)
        parent_id = head.snapshot_id if head else None
        files = (*self.files(branch), *files)
        return FakeSnapshot(self._ids, parent_id, self.sequence_number + 1, files, summary)

    def apply_or_return_refusal(self, request: Request) -> str | None:
        """Commit the request to the table; return why it is refused, or ``None``."""
        base, tag = request.base, tag_name(request.sink, request.branch)
        if not self.exists or base.uuid != self.uuid:
            return "the table has another UUID"
        if base.tag != self.tags.get(tag):
            return f"tag {tag} has moved"
        if base.head != self.branches.get(request.branch):
            return f"branch {request.branch} has moved"
        if request.snapshot.sequence_number <= self.sequence_number:
            return f"sequence number {request.snapshot.sequence_number} is taken"
        if not self.snapshots:
            self.branches[MAIN] = request.snapshot.snapshot_id
        self._add_snapshot(request.snapshot, request.branch)
        self.tags[tag] = request.snapshot.snapshot_id
        self.properties[commit_record_codec.claim_marker_property(request.sink)] = "true"
        self.properties.update(request.filled)
        for name in request.forgotten:
            self.properties.pop(name, None)
        return None

    def land_or_return_refusal(self, in_the_air_index: int = 0) -> str | None:
        """Let a request that is under way arrive; returns as ``apply_or_return_refusal``."""
        return self.apply_or_return_refusal(self.in_the_air.pop(in_the_air_index))

    def _add_snapshot(self, snapshot: FakeSnapshot, branch: str) -> int:
        self.snapshots[snapshot.snapshot_id] = snapshot
        self._ever[snapshot.snapshot_id] = snapshot
        self.branches[branch] = snapshot.snapshot_id
        self.sequence_number = snapshot.sequence_number
        return snapshot.snapshot_id
