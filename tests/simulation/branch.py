"""Tracks a table's branch, as the checkers saw it last."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from support.verdicts import Kind, Violation

from headgate.control_protocol import commit_record_codec
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.testing import FakeCatalog


class Branch:
    def __init__(self, sink: SinkName, catalog: FakeCatalog) -> None:
        self._sink = sink
        self._catalog = catalog
        self._head: int | None = None

    def moved(self) -> bool:
        """Whether it has since the last look. TABLE-3: on from where it was, whoever moved it
        there."""
        head, before = self._catalog.branches.get("main"), self._head
        if head == before:
            return False
        self._head = head
        if before not in self._catalog.snapshots:
            return True
        if all(s.snapshot_id != before for s in self._catalog.ancestry(head)):
            raise Violation(Kind.LOSS, f"the branch has left snapshot {before}, for {head}")
        return True

    def stored(self) -> tuple[CommitRecord | None, int | None]:
        """The newest commit record on it, and the snapshot that carries it."""
        return next(self._newest_first(), (None, None))

    def stored_since(self, snapshot: int | None) -> list[tuple[CommitRecord, int]]:
        """The records behind this snapshot's, the oldest first."""
        since = takewhile(lambda found: found[1] != snapshot, self._newest_first())
        return list(since)[::-1]

    def _newest_first(self) -> Iterator[tuple[CommitRecord, int]]:
        for snapshot in self._catalog.ancestry(self._head):
            record = commit_record_codec.decode_record(self._sink, snapshot.summary)
            if record is not None:
                yield record, snapshot.snapshot_id

    def was_set(self) -> None:
        """By hand, to another snapshot."""
        self._head = self._catalog.branches.get("main")

    def forget(self) -> None:
        """The table was dropped and created again."""
        self._head = None


def fell(before: CommitRecord, record: CommitRecord) -> None:
    """Epochs and offsets never do. Raises ``Violation``."""
    if record.transaction <= before.transaction:
        raise Violation(
            Kind.DISORDER, f"transaction {record.transaction} landed after {before.transaction}"
        )
    same = [t for t, id_ in record.topic_ids.items() if before.topic_ids.get(t) == id_]
    stored = before.offsets.restricted_to(at for at in before.offsets if at.topic in same)
    behind = record.offsets.partitions_behind(stored)
    if behind:
        raise Violation(Kind.DOUBLE, f"stored offsets went back: {behind}")
