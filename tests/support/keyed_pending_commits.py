"""A keyed secondary table under a primary table: what is decided, pending, delivered and
acknowledged, and the fold of it.

The primary table is a list of decisions. Pending commits, deliveries and strike-offs are the
product's own; the oracle is a dictionary for each transaction.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from support.keyed_world import NAME, SINK, Event, KeyedWorld, Row, keyed_table, rows_of

from headgate.control_protocol.commit_record import CommitRecord, PartitionCohorts, PendingCommit
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Lineage,
    Staging,
    TableView,
)
from headgate.coordinator.secondary_pending_commits import (
    build_deliveries,
    find_undelivered_commits,
)
from headgate.tables.concurrent_secondary_tables import SecondaryTables
from headgate.tables.iceberg.table import IcebergTable

PRIMARY = "uuid-of-the-lead"
Fold = dict[tuple[Any, ...], Row]
Delivers = Callable[..., tuple[CommitAttempt, ...]]


class Unfolded(AssertionError):
    """The table is not the fold of what it was delivered to."""


@dataclass
class PendingTable:
    """``delivers`` makes deliveries of pending commits, as the coordinator's own does."""

    world: KeyedWorld
    delivers: Delivers = build_deliveries
    pending_commits: tuple[PendingCommit, ...] = ()
    number: int = 0
    cohorts: PartitionCohorts = field(default_factory=dict)
    folds: dict[int, Fold] = field(default_factory=lambda: {0: {}})

    @classmethod
    def create(cls, catalog: Catalog, version: int = 3, *partition_by: str) -> PendingTable:
        return cls(KeyedWorld.create(catalog, version, partition_by))

    @property
    def table(self) -> IcebergTable:
        return self.world.table

    def primary(self) -> TableView:
        """As a read shows it behind the newest decision."""
        offsets = {TopicPartition("topic", p): at for p, at in self.world.source.offsets.items()}
        record = CommitRecord(
            SINK,
            "group",
            self._transaction(),
            self._sender(),
            Offsets(offsets),
            pending_commits=self.pending_commits,
            cohorts=self.cohorts,
        )
        return TableView("db.ledger", PRIMARY, "", 0, 0, 1, 1, record, Lineage.CONTAINS_TAG)

    def decides(self, *statuses: Sequence[Event]) -> tuple[PendingCommit, ...]:
        """One more transaction, with what these statuses name; what is pending for it."""
        self.number += 1
        files = tuple(file for events in statuses for file in self.world.files(events))
        self.folds[self.number] = dict(self.world.source.fold)
        draft = Staging(self.table.read(), self._transaction(), self._sender(), files)
        pending = self.table.stage(draft)
        self.pending_commits += pending
        return pending

    @property
    def owes(self) -> bool:
        """Whether a read of the table shows that it is pending something."""
        return bool(
            find_undelivered_commits(self.pending_commits, {NAME: self.table.read()}, PRIMARY)
        )

    def delivery(self) -> CommitAttempt:
        """For all that is pending, as a read shows just before."""
        known = {NAME: self.table.read()}
        (attempt,) = self.delivers(
            self.primary(),
            find_undelivered_commits(self.pending_commits, known, PRIMARY),
            known,
            (),
        )
        return attempt

    def deliver(self, table: IcebergTable | None = None) -> CommitOutcome:
        return (table or self.table).commit(self.delivery())

    def reads(self) -> tuple[PendingCommit, ...]:
        """PENDING-7: acknowledge what a read shows as delivered; the pending commits that went."""
        before = self.pending_commits
        self.pending_commits = find_undelivered_commits(before, {NAME: self.table.read()}, PRIMARY)
        struck = tuple(
            pending_commit
            for pending_commit in before
            if pending_commit not in self.pending_commits
        )
        secondaries = SecondaryTables(lambda _: self.table, threads=False)
        secondaries.delete_delivered_key_files(
            [pending_commit for pending_commit in struck if pending_commit.deletes]
        )
        return struck

    def restarts(self, coordinator: str) -> None:
        self.world.restart(coordinator)

    def check(self) -> None:
        """Raises ``Unfolded`` unless the table is the fold up to the transaction of its record."""
        record = self.table.read().record
        assert record is not None
        fold = self.folds[record.transaction.number]
        expected = sorted((tuple(row.values()) for row in fold.values()), key=repr)
        found = rows_of(self.world.load().scan().to_arrow())
        if found != expected:
            raise Unfolded(f"transaction {record.transaction}: {found} is not {expected}")

    def key_files(self, folder: Path) -> set[str]:
        """Names of the key files there are."""
        return {path.name for path in folder.rglob("keys-*.parquet")}

    def _transaction(self) -> TransactionId:
        return TransactionId(Epoch(1), TransactionNumber(self.number))

    def _sender(self) -> Sender:
        return Sender("member", self.world.coordinator)


def walk(
    pending: PendingTable, seed: int, lost: Catalog, *, steps: int = 25, grows_at: int | None = None
) -> None:
    """Decisions, deliveries, zombies, lost answers and restarts at random; all is delivered in the
    end.

    Raises ``Unfolded`` where the table is not the fold then, or on the way. ``lost``: the catalog,
    whose answers do not arrive. From the step ``grows_at`` on, all keys are in two other
    partitions, which are younger (KEY-8).
    """
    chance = random.Random(seed)
    asleep: list[tuple[IcebergTable, CommitAttempt]] = []
    for step in range(steps):
        if step == grows_at:
            pending.cohorts = {"topic": (2,)}
        match chance.choice("ddpplzzwrs"):
            case "d":
                first = 2 if pending.cohorts else 0
                events = [some_event(chance, first) for _ in range(chance.randint(1, 12))]
                cut = chance.randint(0, len(events))
                pending.decides(events[:cut], events[cut:])
            case "p" if pending.owes:
                pending.deliver()
            case "l" if pending.owes:
                pending.deliver(keyed_table(lost, ("id",)))
            case "z" if pending.owes:  # somebody falls asleep before its call
                asleep.append((keyed_table(pending.world.catalog, ("id",)), pending.delivery()))
            case "w" if asleep:
                zombie, attempt = asleep.pop(chance.randrange(len(asleep)))
                zombie.commit(attempt)
            case "r":
                pending.restarts(f"c{step}")
            case "s":
                pending.reads()
        pending.check()
    _settle(pending)
    for zombie, attempt in asleep:
        zombie.commit(attempt)
    pending.check()


def _settle(pending: PendingTable) -> None:
    """Nothing stays pending when nobody disturbs."""
    for _ in range(2):
        pending.reads()
        if pending.pending_commits:
            pending.deliver()
    pending.reads()
    if pending.pending_commits:
        raise Unfolded(f"{pending.pending_commits} cannot be delivered any more")
    pending.check()


def some_event(chance: random.Random, first: int = 0) -> Event:
    """Of a key in one of two partitions, ``first`` or the next."""
    key = chance.randint(0, 9)
    return Event((key,), None if chance.random() < 0.4 else chance.choice("ab"), first + key % 2)
