"""Worlds whose table has a key: which records share a row, and what the table must be, the fold.

``run.py --keyed`` makes any seed such a world, over the fake table or (``--real``) the adapter.
Everything that concerns keys is drawn from dice of its own. Over the adapter, in seeds of
``payday.ROUTED_KEYS``, the sink's secondary tables have the key.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace

from simulation.climate import EXPECTED, Climate
from simulation.quarantine import OTHER, THIRD
from support.verdicts import Kind, Violation

from headgate.control_protocol.commit_record import CommitRecord, cohort_of_partition
from headgate.control_protocol.testing import SourceRecord
from headgate.coordinator.settings import RollbackPolicy

KEYS_PER_PARTITION = 1_000
PRIMARY = "lake.records"
BOTH_SHARE = 0.6
CONTENTS_SHARE = 0.5


LAGS = (0.0, 0.5, 0.95)
"""How late a producer may learn of a new partition, in parts of ``growth_ms``."""


class Keys:
    """A key lives in one partition (KEY-8); some records delete their key's row.

    Where partitions are added under ``wait``, half of an older one's keys move to each: when its
    producer learns of it, which is less than ``growth_ms`` after that.
    """

    def __init__(self, seed: int, climate: Climate) -> None:
        dice = random.Random(f"keys in {seed}")
        self._seed = seed
        self._count = dice.choice((1, 3, 8, 30))
        self._deleting = dice.choice((0.0, 0.2, 0.5))
        self.version = dice.choice((2, 3))
        self.upgraded = dice.random() < 0.5
        """Whether the first compaction brings a table of version 2 to version 3."""
        self.moves = dice.choice((0.0, 0.05, 0.4))
        """How likely somebody compacts the table between two steps of a commit."""
        share = dice.random()
        self.grows = share < 0.05
        """Whether partitions are added, which stops the sink (HG-242)."""
        calm_enough = climate.upheaval in (None, "roll back", "delete tag")
        self.growth_ms = (
            dice.choice((300, 2_000, 4_000)) if 0.05 <= share < 0.3 and calm_enough else None
        )
        """How long partitions that are added are held; ``None``: not at all."""
        self._lag = dice.choice(LAGS)
        self._move_again = climate.upheaval is None
        """A table that goes back may make the sink hold together what was added one by one."""
        self._first = climate.partitions
        self._homes: dict[int, list[int]] = {}
        self._moves: list[tuple[int, int, int]] = []
        self._of: dict[SourceRecord, int] = {}
        self.tables: frozenset[str] = frozenset({PRIMARY})
        """Those that have a key."""
        self._by_contents = False
        self.marks = False
        """Whether deletes mark rows (KEY-13)."""
        coordinators = climate.coordinators
        if coordinators.on_rollback is RollbackPolicy.KEEP_OFFSETS:  # KEY-12
            kept = replace(coordinators, on_rollback=RollbackPolicy.FOLLOW_TABLE)
            climate.coordinators = kept
        if climate.upheaval:
            climate.expected = EXPECTED[climate.upheaval](climate.coordinators)

    @property
    def busy(self) -> bool:
        """Whether rows are often replaced and deleted, while somebody compacts the table."""
        return self._count < 30 and self._deleting > 0 and self.moves > 0.3

    def key(self, record: SourceRecord) -> int:
        own = hash((self._seed, record.partition, record.offset, 7)) % self._count
        return self._of.get(record, KEYS_PER_PARTITION * record.partition + own)

    def added(self, partition: int, now_ms: int) -> None:
        """Keys of an older partition will move to it."""
        if self.growth_ms is None:
            return
        dice = random.Random(f"keys move to {partition} in {self._seed}")
        lag_ms = int(self._lag * self.growth_ms)
        before = dice.randrange(partition if self._move_again else self._first)
        self._moves.append((now_ms + lag_ms, before, partition))

    def moves_due(self, now_ms: int) -> list[tuple[int, int]]:
        """From which partition keys move now, and to which: their producer has learned of it."""
        due = sorted(move for move in self._moves if move[0] <= now_ms)
        self._moves = [move for move in self._moves if move not in due]
        return [(before, after) for _, before, after in due]

    def move(self, before: int, after: int) -> None:
        lived = self._homes_of(before)
        self._homes_of(after).extend(lived[::2])
        new = KEYS_PER_PARTITION * before + self._count + after
        self._homes[before] = [*lived[1::2], new]

    def produced(self, records: Iterable[SourceRecord]) -> None:
        """Each has a key that lives in its partition now."""
        if self.growth_ms is None:
            return
        for record in records:
            homes = self._homes_of(record.partition)
            place = hash((self._seed, record.partition, record.offset, 9)) % len(homes)
            self._of[record] = homes[place]

    def _homes_of(self, partition: int) -> list[int]:
        first = KEYS_PER_PARTITION * partition
        return self._homes.setdefault(partition, list(range(first, first + self._count)))

    def deletes(self, record: SourceRecord) -> bool:
        if PRIMARY not in self.tables and THIRD not in self.tables and self.goes_third(record):
            return False
        coin = hash((self._seed, record.partition, record.offset, 8)) % 1_000 / 1_000
        return coin < self._deleting

    def removes(self, record: SourceRecord) -> bool:
        """Whether the record leaves its key without a row."""
        return not self.marks and self.deletes(record)

    def of_routes(self, seed: int) -> None:
        """Secondary tables have the key, and the primary table, a ledger, has none."""
        self.growth_ms = None  # a partition may stand for a topic of its own
        dice = random.Random(f"keys of routes in {seed}")
        self.tables = frozenset({OTHER, THIRD} if dice.random() < BOTH_SHARE else {OTHER})
        self._by_contents = dice.random() < CONTENTS_SHARE

    def goes_third(self, record: SourceRecord) -> bool:
        """All records of a key go to one table: by what they say, or by their partition, which
        stands for a topic of its own."""
        return (self.key(record) if self._by_contents else record.partition) % 2 == 1

    def replaces_rows_of(self, table: str) -> bool:
        """As the coordinator asks it."""
        return table in self.tables

    def may_feed_keyed_table(self, _: str) -> bool:
        """All tables are of one."""
        return PRIMARY not in self.tables

    def are_folded(
        self,
        rows: Iterable[SourceRecord],
        source: Iterable[SourceRecord],
        excused: Collection[SourceRecord],
        expired: Collection[SourceRecord] = (),
    ) -> None:
        """KEY-1: of each key the row of its last record. Of ``excused`` ones nobody promises
        whether they count; those of ``expired`` ones are gone. Raises ``Violation``."""
        there: dict[int, SourceRecord] = {}
        for row in rows:
            other = there.setdefault(self.key(row), row)
            if other is not row:
                raise Violation(Kind.DOUBLE, f"one key has two rows: {other} and {row}")
            if self.removes(row):
                raise Violation(Kind.UNTRUTH, f"a record that deletes is a row: {row}")
        logs: dict[int, list[SourceRecord]] = defaultdict(list)
        for record in source:
            logs[self.key(record)].append(record)
        for key in there.keys() | logs.keys():
            found, allowed = there.get(key), self._may_be(logs.get(key, []), excused, expired)
            if found not in allowed:
                lost = any(allowed)
                what = f"key {key} has {found}, and its last record is one of {allowed}"
                raise Violation(Kind.LOSS if lost else Kind.DOUBLE, what)

    def _may_be(
        self,
        log: list[SourceRecord],
        excused: Collection[SourceRecord],
        expired: Collection[SourceRecord],
    ) -> list[SourceRecord | None]:
        """The rows that are right for a key with these records."""
        allowed: list[SourceRecord | None] = []
        for record in sorted(log, key=_in_order, reverse=True):
            allowed.append(None if self.removes(record) or record in expired else record)
            if record not in excused:
                return allowed
        return [*allowed, None]


def nothing_is_added(before: CommitRecord, record: CommitRecord) -> None:
    """KEY-8: what is added to a topic's partitions is said to be younger. Raises ``Violation``."""
    known = {at.topic for at in before.offsets}
    ages = {
        at: cohort_of_partition(record.cohorts, at.topic, at.partition) for at in record.offsets
    }
    for at in record.offsets.keys() - before.offsets.keys():
        if at.topic in known and ages[at] <= max(ages[other] for other in before.offsets):
            raise Violation(Kind.UNTRUTH, f"keys may have moved, and {at} is read")


def _in_order(record: SourceRecord) -> tuple[int, int, int]:
    """A topic that was re-created comes behind its older self; of a key, too, the partition that
    was added later."""
    return int(record.topic_id.rpartition("-")[2]), record.partition, record.offset


def live_by_counts(before: int, commits: Iterable[CommitRecord]) -> int:
    """KEY-10: live rows after these commits. Raises ``Violation`` for a commit that does not
    say."""
    live = before
    for record in commits:
        if record.keys is None:
            if record.records:
                raise Violation(Kind.UNTRUTH, f"{record.transaction} does not say what it did")
            continue
        live += record.keys.inserted - record.keys.deleted
    return live
