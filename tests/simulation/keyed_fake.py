"""The fake table with a key: what a commit replaces and deletes, by a dictionary of its head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from simulation.keys import Keys

from headgate.control_protocol import commit_record_codec
from headgate.control_protocol.commit_record import KeyCounts, cohort_of_partition
from headgate.control_protocol.errors import KeyInTwoPartitions
from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.control_protocol.ports import CommitAttempt
from headgate.control_protocol.testing import FakeCatalog, FakeTable, SourceRecord
from headgate.control_protocol.testing.catalog import MAIN, FakeSnapshot, Request

Position = tuple[str, int]
"""A data file, and the place of a row in it."""


@dataclass(frozen=True, slots=True)
class KeyedSnapshot(FakeSnapshot):
    """``dead``: the rows of its files that were replaced or deleted."""

    dead: frozenset[Position] = frozenset()


@dataclass(slots=True)
class KeyedCatalog(FakeCatalog):
    """``keys`` is set by the world that makes it."""

    keys: Keys | None = None
    _none: frozenset[Position] = field(default_factory=frozenset)

    def visible_rows(self, branch: str = MAIN) -> list[SourceRecord]:
        return [record for _, record in self.live(branch)]

    def live(self, branch: str = MAIN) -> Iterator[tuple[Position, SourceRecord]]:
        """The branch's rows that are not dead, and where they are."""
        dead = self.dead(branch)
        for file in self.files(branch):
            for place, record in enumerate(self.storage.files[file.path]):
                if (file.path, place) not in dead:
                    yield (file.path, place), record

    def dead(self, branch: str = MAIN) -> frozenset[Position]:
        head = self.head(branch)
        return head.dead if isinstance(head, KeyedSnapshot) else self._none

    def new_snapshot(
        self, branch: str, files: tuple[WrittenFile, ...], summary: object
    ) -> FakeSnapshot:
        made = FakeCatalog.new_snapshot(self, branch, files, summary)  # type: ignore[arg-type]
        return _with_dead(made, self.dead(branch))

    def compact(self, branch: str = MAIN) -> int:
        """All live rows in one new file: nothing in it is dead."""
        records = self.visible_rows(branch)
        merged = self.storage.write(f"{self.table}/compacted-", records)
        made = FakeCatalog.new_snapshot(self, branch, (), {})
        made = replace(made, rewrites=True, files=(merged,) if records else ())
        return self._add_snapshot(_with_dead(made, self._none), branch)


def _with_dead(made: FakeSnapshot, dead: frozenset[Position]) -> KeyedSnapshot:
    return KeyedSnapshot(
        made.snapshot_id,
        made.parent_id,
        made.sequence_number,
        made.files,
        made.summary,
        made.rewrites,
        dead,
    )


class KeyedFakeTable(FakeTable):
    """Resolves the keys of an attempt on the head that its request requires (KEY-3)."""

    _catalog: KeyedCatalog

    def _prepare_request(self, attempt: CommitAttempt) -> Request | None:
        rows = tuple(file for file in attempt.files if file.kind is FileKind.ROWS)
        request = super()._prepare_request(replace(attempt, files=rows))
        if request is None or not attempt.files:
            return request
        self._refuse_two_partitions(attempt)
        dead, counts = self.resolved(attempt.files)
        summary = commit_record_codec.encode_record(replace(attempt.record, keys=counts))
        snapshot = replace(request.snapshot, summary=summary)
        return replace(request, snapshot=_with_dead(snapshot, dead | self._catalog.dead()))

    def resolved(self, files: tuple[WrittenFile, ...]) -> tuple[frozenset[Position], KeyCounts]:
        """The rows that die, and what the records come to."""
        catalog = self._catalog
        assert catalog.keys is not None
        live = {catalog.keys.key(record): at for at, record in catalog.live()}
        changes = [
            (record.offset, catalog.keys.key(record), (file.path, place), file.kind)
            for file in files
            for place, record in enumerate(catalog.storage.files[file.path])
        ]
        last = {key: (at, kind) for _, key, at, kind in self.in_order(changes)}
        rows = {at for _, _, at, kind in changes if kind is FileKind.ROWS}
        winners = {at for at, _ in last.values()}
        replaced = {live[key] for key in last if key in live}
        counts = KeyCounts(superseded=len(changes) - len(last))
        for key, (_, kind) in last.items():
            name = _become(there=key in live, stays=kind is FileKind.ROWS)
            counts = replace(counts, **{name: getattr(counts, name) + 1})
        return frozenset(replaced | (rows - winners)), counts

    def _refuse_two_partitions(self, attempt: CommitAttempt) -> None:
        """KEY-8: a key's row and its records, of which there is one transaction's."""
        catalog, cohorts = self._catalog, attempt.record.cohorts
        assert catalog.keys is not None
        live = {catalog.keys.key(record): record for _, record in catalog.live()}
        there: dict[int, SourceRecord] = {}
        for record in (r for file in attempt.files for r in catalog.storage.files[file.path]):
            key = catalog.keys.key(record)
            beside, before = there.setdefault(key, record), live.get(key, record)
            now, then = (
                cohort_of_partition(cohorts, r.topic, r.partition) for r in (record, before)
            )
            other = before.partition != record.partition and now <= then
            if beside.partition != record.partition or other:
                raise KeyInTwoPartitions(f"{record} has the key of {beside} or {before}")

    @staticmethod
    def in_order(
        changes: list[tuple[int, int, Position, FileKind]],
    ) -> list[tuple[int, int, Position, FileKind]]:
        """By offsets: of one key they are all of one partition."""
        return sorted(changes)


def _become(*, there: bool, stays: bool) -> str:
    if stays:
        return "updated" if there else "inserted"
    return "deleted" if there else "absent"
