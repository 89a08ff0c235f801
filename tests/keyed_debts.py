"""A keyed follower under a lead: what is decided, owed, paid and struck off, and the fold of it.

The lead is a list of decisions. Debts, payments and strike-offs are the product's own; the oracle
is a dictionary for each transaction.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keyed_world import NAME, SINK, Event, KeyedWorld, Row, keyed_table, shown
from pyiceberg.catalog import Catalog

from headgate.control_protocol.generations import Generations
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
    Draft,
    Lineage,
    TableView,
)
from headgate.control_protocol.record import CommitRecord, Debt
from headgate.coordinator.debts import payments, unpaid
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.secondary_tables import FollowerTables

LEAD = "uuid-of-the-lead"
Fold = dict[tuple[Any, ...], Row]
Pays = Callable[..., tuple[CommitAttempt, ...]]


class Unfolded(AssertionError):
    """The table is not the fold of what it was paid."""


@dataclass
class OwedTable:
    """``pays`` makes payments of debts, as the coordinator's own does."""

    world: KeyedWorld
    pays: Pays = payments
    debts: tuple[Debt, ...] = ()
    number: int = 0
    generations: Generations = field(default_factory=dict)
    folds: dict[int, Fold] = field(default_factory=lambda: {0: {}})

    @classmethod
    def made(cls, catalog: Catalog, version: int = 3, *partition_by: str) -> OwedTable:
        return cls(KeyedWorld.made(catalog, version, partition_by))

    @property
    def table(self) -> IcebergTable:
        return self.world.table

    def lead(self) -> TableView:
        """As a read shows it behind the newest decision."""
        offsets = {TopicPartition("topic", p): at for p, at in self.world.source.offsets.items()}
        record = CommitRecord(
            SINK,
            "group",
            self._transaction(),
            self._sender(),
            Offsets(offsets),
            debts=self.debts,
            generations=self.generations,
        )
        return TableView("db.ledger", LEAD, "", 0, 0, 1, 1, record, Lineage.CONTAINS_TAG)

    def decides(self, *statuses: Sequence[Event]) -> tuple[Debt, ...]:
        """One more transaction, with what these statuses name; what is owed for it."""
        self.number += 1
        files = tuple(file for events in statuses for file in self.world.files(events))
        self.folds[self.number] = dict(self.world.source.fold)
        draft = Draft(self.table.read(), self._transaction(), self._sender(), files)
        owed = self.table.draft(draft)
        self.debts += owed
        return owed

    @property
    def owes(self) -> bool:
        """Whether a read of the table shows that it is owed something."""
        return bool(unpaid(self.debts, {NAME: self.table.read()}, LEAD))

    def payment(self) -> CommitAttempt:
        """For all that is owed, as a read shows just before."""
        known = {NAME: self.table.read()}
        (attempt,) = self.pays(self.lead(), unpaid(self.debts, known, LEAD), known, ())
        return attempt

    def paid(self, table: IcebergTable | None = None) -> CommitOutcome:
        return (table or self.table).commit(self.payment())

    def reads(self) -> tuple[Debt, ...]:
        """D7: strike off what a read shows as paid; the debts that went."""
        before = self.debts
        self.debts = unpaid(before, {NAME: self.table.read()}, LEAD)
        struck = tuple(debt for debt in before if debt not in self.debts)
        followers = FollowerTables(lambda _: self.table, threads=False)
        followers.strike_off([debt for debt in struck if debt.deletes])
        return struck

    def restarts(self, coordinator: str) -> None:
        self.world.restarted(coordinator)

    def check(self) -> None:
        """Raises ``Unfolded`` unless the table is the fold up to the transaction of its record."""
        record = self.table.read().record
        assert record is not None
        fold = self.folds[record.transaction.number]
        expected = sorted((tuple(row.values()) for row in fold.values()), key=repr)
        found = shown(self.world.loaded().scan().to_arrow())
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
    owed: OwedTable, seed: int, lost: Catalog, *, steps: int = 25, grows_at: int | None = None
) -> None:
    """Decisions, payments, zombies, lost answers and restarts at random; all is paid in the end.

    Raises ``Unfolded`` where the table is not the fold then, or on the way. ``lost``: the catalog,
    whose answers do not arrive. From the step ``grows_at`` on, all keys are in two other
    partitions, which are younger (U8).
    """
    chance = random.Random(seed)
    asleep: list[tuple[IcebergTable, CommitAttempt]] = []
    for step in range(steps):
        if step == grows_at:
            owed.generations = {"topic": (2,)}
        match chance.choice("ddpplzzwrs"):
            case "d":
                first = 2 if owed.generations else 0
                events = [some_event(chance, first) for _ in range(chance.randint(1, 12))]
                cut = chance.randint(0, len(events))
                owed.decides(events[:cut], events[cut:])
            case "p" if owed.owes:
                owed.paid()
            case "l" if owed.owes:
                owed.paid(keyed_table(lost, ("id",)))
            case "z" if owed.owes:  # somebody falls asleep before its call
                asleep.append((keyed_table(owed.world.catalog, ("id",)), owed.payment()))
            case "w" if asleep:
                zombie, attempt = asleep.pop(chance.randrange(len(asleep)))
                zombie.commit(attempt)
            case "r":
                owed.restarts(f"c{step}")
            case "s":
                owed.reads()
        owed.check()
    _settled(owed)
    for zombie, attempt in asleep:
        zombie.commit(attempt)
    owed.check()


def _settled(owed: OwedTable) -> None:
    """Nothing stays owed when nobody disturbs."""
    for _ in range(2):
        owed.reads()
        if owed.debts:
            owed.paid()
    owed.reads()
    if owed.debts:
        raise Unfolded(f"{owed.debts} cannot be paid any more")
    owed.check()


def some_event(chance: random.Random, first: int = 0) -> Event:
    """Of a key in one of two partitions, ``first`` or the next."""
    key = chance.randint(0, 9)
    return Event((key,), None if chance.random() < 0.4 else chance.choice("ab"), first + key % 2)
