"""Models the primary table and the secondary tables of a small world: content, pending commits, and
what must hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from support.verdicts import Kind, Violation

from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.ports import CommitAttempt, Lineage, Staging, TableView

TABLE = "lake.t"

Place = tuple[int, int]
"""Partition and offset of a record."""


@dataclass(frozen=True, slots=True)
class Update:
    """The call that gives the primary table the columns of ``schema`` (SCHEMA-3); ``base``: as it
    was read."""

    base: TableView
    schema: int = 1


Call = CommitAttempt | Update


@dataclass(frozen=True, slots=True)
class Table:
    """``rows``: how often each record of each partition is in it. Ids are fresh per snapshot.

    ``bad`` are the records that belong into secondary tables; ``timed``: the others have
    timestamps.
    """

    rows: tuple[tuple[int, ...], ...]
    name: str = TABLE
    uuid: str = "uuid"
    location: str = "w"
    tag: int | None = None
    head: int | None = None
    record: CommitRecord | None = None
    bad: frozenset[Place] = frozenset()
    timed: bool = False
    schema: int = 0
    deletes: frozenset[Place] = frozenset()
    """Records that delete; with any, all records of a partition share a key."""
    live: frozenset[Place] = frozenset()
    """Of a table with a key: the rows that no later record has replaced or deleted."""

    def view(self) -> TableView:
        lineage = Lineage.FRESH if self.tag is None else Lineage.CONTAINS_TAG
        ids = (self.name, self.uuid, self.location, self.schema, 0, self.head, self.tag)
        return TableView(*ids, self.record, lineage, self.record)

    def takes(self, call: Call) -> bool:
        stands = (call.base.tag, call.base.head) == (self.tag, self.head)
        return stands and (isinstance(call, CommitAttempt) or call.base.schema_id == self.schema)

    def with_(self, attempt: CommitAttempt, snapshot_id: int) -> Table:
        """The table after the attempt. Raises ``Violation`` when it has a row twice."""
        rows = [list(counts) for counts in self.rows]
        paths = [file.path for file in attempt.files]
        for path in (
            *paths,
            *(
                path
                for pending_commit in attempt.pending_commits
                for path in drafted_in(pending_commit)
            ),
        ):
            if schema_of(path) > self.schema:
                raise Violation(Kind.UNTRUTH, f"{self.name} has not the columns of a file's rows")
            for partition, offset in written_in(path):
                rows[partition][offset] += 1
                if rows[partition][offset] > 1:
                    what = f"{self.name} has offset {offset} of partition {partition} twice"
                    raise Violation(Kind.DOUBLE, what)
        return replace(
            self,
            rows=tuple(map(tuple, rows)),
            live=self._after(paths) if self.deletes else frozenset(),
            tag=snapshot_id,
            head=snapshot_id,
            record=attempt.record,
        )

    def _after(self, paths: list[str]) -> frozenset[Place]:
        """KEY-3: of each key the last record wins, in whatever file it is."""
        written = sorted(place for path in paths for place in written_in(path))
        return frozenset(dict([*self.live, *written]).items() - self.deletes)

    def grown(self, update: Update) -> Table:
        """The table after the update (SCHEMA-5): one that changes nothing is none."""
        return replace(self, schema=update.schema)

    def held(self) -> frozenset[Place]:
        return frozenset(
            (partition, offset)
            for partition, counts in enumerate(self.rows)
            for offset, times in enumerate(counts)
            if times
        )

    def owes(self, pending_commit: PendingCommit, primary: str) -> bool:
        """PENDING-6, in the checker's own words."""
        delivered = self.record
        return (
            delivered is None
            or delivered.primary != primary
            or delivered.transaction < pending_commit.transaction
        )


def rows_are_the_source(table: Table, secondaries: tuple[Table, ...]) -> None:
    """Each record is in one place: the primary table, a secondary table, or what a secondary table
    is pending."""
    assert table.record is not None
    kept = [place for secondary in secondaries for place in secondary.held()]
    kept += [
        place for pending_commit in pending(table, secondaries) for place in held_by(pending_commit)
    ]
    for at, following in table.record.offsets.items():
        for offset, times in enumerate(table.rows[at.partition]):
            place, settled = (at.partition, offset), offset < following
            beside, bad = kept.count(place), place in table.bad
            if (times, beside) != (settled and not bad, settled and bad):
                more = times > (settled and not bad) or beside > (settled and bad)
                raise Violation(
                    Kind.DOUBLE if more else Kind.LOSS,
                    f"{at}: offset {offset} is {times} times there and {beside} times in "
                    "or pending "
                    f"to secondary tables, {following} is next",
                )
    if table.deletes:
        _live_rows_are_the_fold(table)


def _live_rows_are_the_fold(table: Table) -> None:
    """KEY-1: of each key the row of its last record, unless that deletes."""
    assert table.record is not None
    last = {(at.partition, end - 1) for at, end in table.record.offsets.items() if end}
    if table.live != last - table.deletes:
        wrong = sorted(table.live ^ (last - table.deletes))
        raise Violation(Kind.LOSS, f"these rows live, or are missing, wrongly: {wrong}")


def pending(table: Table, secondaries: tuple[Table, ...]) -> list[PendingCommit]:
    named = {secondary.name: secondary for secondary in secondaries}
    pending_commits = table.record.pending_commits if table.record else ()
    return [
        pending_commit
        for pending_commit in pending_commits
        if named[pending_commit.table].owes(pending_commit, table.uuid)
    ]


def held_by(pending_commit: PendingCommit) -> list[Place]:
    return [place for path in drafted_in(pending_commit) for place in written_in(path)]


def drafted(draft: Staging) -> PendingCommit:
    """A manifest is named for the files in it, as these are for their records."""
    return PendingCommit(
        draft.transaction,
        draft.coordinator,
        draft.table.uuid,
        draft.table.table,
        "|".join(file.path for file in draft.files),
        rows=sum(file.records for file in draft.files),
    )


def drafted_in(pending_commit: PendingCommit) -> list[str]:
    return pending_commit.manifest.split("|") if pending_commit.manifest else []


def nothing_falls(before: CommitRecord | None, after: CommitRecord) -> None:
    if before is not None and after.transaction <= before.transaction:
        raise Violation(
            Kind.DISORDER, f"transaction {after.transaction} landed after {before.transaction}"
        )
    if before is not None and after.offsets.partitions_behind(before.offsets):
        raise Violation(Kind.DOUBLE, f"offsets went back from {before.offsets} to {after.offsets}")


def timestamp_ms(partition: int, offset: int) -> int:
    """The first partition's records are newer than those of all others."""
    return (100 if partition == 0 else 1) + offset


def nothing_older_comes(table: Table) -> None:
    """Valid-through passes nothing that waits in the source (COMMIT-4)."""
    assert table.record is not None
    through = table.record.valid_through_ms
    if not table.timed or through is None:
        return
    for at, following in table.record.offsets.items():
        left = range(following, len(table.rows[at.partition]))
        if any(timestamp_ms(at.partition, offset) < through for offset in left):
            raise Violation(Kind.UNTRUTH, f"valid-through {through}, but {at} has older ones")


def file_path(prefix: str, member: str, held: Iterable[Place]) -> str:
    """A file is named for what it holds, so that no registry of files is needed; behind the
    member's name stands the schema of its rows, unless it is the first."""
    names = (f"{partition}-{offset}" for partition, offset in sorted(held))
    return f"{prefix}/{member}.{'.'.join(names)}"


def schema_of(path: str) -> int:
    return int(path.rsplit("/", 1)[1].split(".", maxsplit=1)[0].partition("~")[2] or 0)


def written_in(path: str) -> list[Place]:
    """Partition and offset of every record in the file."""
    names = (name.split("-") for name in path.rsplit("/", 1)[1].split(".")[1:])
    return [(int(partition), int(offset)) for partition, offset in names]
