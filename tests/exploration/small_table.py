"""A table of a small world, and the quarantine beside it: what is in it, and what must be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from verdicts import Kind, Violation

from headgate.control_protocol.ports import CommitAttempt, Lineage, TableView
from headgate.control_protocol.record import CommitRecord

TABLE, QUARANTINE = "lake.t", "lake.q"

Place = tuple[int, int]
"""Partition and offset of a record."""


@dataclass(frozen=True, slots=True)
class Table:
    """``rows``: how often each record of each partition is in it. Ids are fresh per snapshot.

    ``bad`` are the records that belong into the quarantine; ``timed``: the others have timestamps.
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

    def view(self) -> TableView:
        lineage = Lineage.FRESH if self.tag is None else Lineage.CONTAINS_TAG
        ids = (self.name, self.uuid, self.location, 0, 0, self.head, self.tag)
        return TableView(*ids, self.record, lineage, self.record)

    def takes(self, attempt: CommitAttempt) -> bool:
        return (attempt.base.tag, attempt.base.head) == (self.tag, self.head)

    def with_(self, attempt: CommitAttempt, snapshot_id: int) -> Table:
        """The table after the attempt. Raises ``Violation`` when it has a row twice."""
        rows = [list(counts) for counts in self.rows]
        for file in attempt.files:
            for partition, offset in written_in(file.path):
                rows[partition][offset] += 1
                if rows[partition][offset] > 1:
                    what = f"{self.name} has offset {offset} of partition {partition} twice"
                    raise Violation(Kind.DOUBLE, what)
        return replace(
            self,
            rows=tuple(map(tuple, rows)),
            tag=snapshot_id,
            head=snapshot_id,
            record=attempt.record,
        )

    def held(self) -> frozenset[Place]:
        return frozenset(
            (partition, offset)
            for partition, counts in enumerate(self.rows)
            for offset, times in enumerate(counts)
            if times
        )


def rows_are_the_source(table: Table, aside: Table | None) -> None:
    assert table.record is not None
    for at, following in table.record.offsets.items():
        for offset, times in enumerate(table.rows[at.partition]):
            bad, settled = (at.partition, offset) in table.bad, offset < following
            kept = aside.rows[at.partition][offset] if aside else 0
            wrong = times != (settled and not bad) or (settled and kept != bad)
            if wrong:
                kind = Kind.DOUBLE if times > (settled and not bad) or kept > bad else Kind.LOSS
                beside = f" and {kept} times beside it" if aside else ""
                raise Violation(
                    kind,
                    f"{at}: offset {offset} is {times} times there{beside}, {following} is next",
                )


def nothing_falls(before: CommitRecord | None, after: CommitRecord) -> None:
    if before is not None and after.transaction <= before.transaction:
        raise Violation(
            Kind.DISORDER, f"transaction {after.transaction} landed after {before.transaction}"
        )
    if before is not None and after.offsets.behind(before.offsets):
        raise Violation(Kind.DOUBLE, f"offsets went back from {before.offsets} to {after.offsets}")


def timestamp_ms(partition: int, offset: int) -> int:
    """The first partition's records are newer than those of all others."""
    return (100 if partition == 0 else 1) + offset


def nothing_older_comes(table: Table) -> None:
    """Valid-through passes nothing that waits in the source (C10)."""
    assert table.record is not None
    through = table.record.valid_through_ms
    if not table.timed or through is None:
        return
    for at, following in table.record.offsets.items():
        left = range(following, len(table.rows[at.partition]))
        if any(timestamp_ms(at.partition, offset) < through for offset in left):
            raise Violation(Kind.UNTRUTH, f"valid-through {through}, but {at} has older ones")


def file_path(prefix: str, member: str, held: Iterable[Place]) -> str:
    """A file is named for what it holds, so that no registry of files is needed."""
    names = (f"{partition}-{offset}" for partition, offset in sorted(held))
    return f"{prefix}/{member}.{'.'.join(names)}"


def written_in(path: str) -> list[Place]:
    """Partition and offset of every record in the file."""
    names = (name.split("-") for name in path.rsplit("/", 1)[1].split(".")[1:])
    return [(int(partition), int(offset)) for partition, offset in names]
