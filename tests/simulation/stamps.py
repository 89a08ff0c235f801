"""A table that stamps its files: only one transaction may bring them (rule TOKEN-2).

A world is asked for it by a flag, which is no part of the seed. Whoever is slower than interval and
time-out is never admitted there, so nobody is. Others may roll a stamp back, as a Hudi writer does
with a pending instant: nothing that bears it is ever taken then.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from support.verdicts import Kind, Violation

from headgate.control_protocol.commit_tokens import ANY
from headgate.control_protocol.errors import TableMissing, Unreachable
from headgate.control_protocol.events import Envelope, StartCommit
from headgate.control_protocol.identifiers import TransactionId
from headgate.control_protocol.ports import Batch, CommitAttempt, Refused

if TYPE_CHECKING:
    from simulation.node import Node
    from simulation.world import World


class Stamps:
    """It draws from dice of its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = random.Random(f"stamps {world.seed}")
        self._rolled_back = self._dice.choice((0, 0.05, 0.2))
        self._given = 0
        self._said: dict[TransactionId, set[str]] = defaultdict(set)
        self._gone: set[str] = set()
        world.climate.sluggish = frozenset()

    def giver(self, node: Node) -> Callable[[], str]:
        """What a coordinator of the node asks when it describes the sources."""
        world, life = self._world, node.life

        def stamp() -> str:
            world.strike(node, life, "stamp")
            given = self._next()
            world.strike(node, life, "stamped")
            return given

        return stamp

    def _next(self) -> str:
        catalog = self._world.catalog
        if not catalog.reachable:
            raise Unreachable("the fake catalog is not reachable")
        if not catalog.exists:
            raise TableMissing(f"the fake catalog has no table {catalog.table}")
        self._given += 1
        return f"memory://{catalog.table}/data/{ANY}_{self._given}.parquet"

    def hears(self, said: Envelope) -> None:
        """Which stamp a transaction has is what its START says."""
        if isinstance(said.event, StartCommit):
            transaction = TransactionId(said.epoch, said.transaction)
            self._said[transaction].add(said.event.tables[0].file_prefix)

    def are_of(self, transaction: TransactionId, stamp: str) -> bool:
        return stamp in self._said[transaction]

    def checks_batch(self, batch: Batch) -> None:
        """EPOCH-3, of the primary table: the stamp is that of the transaction that is open."""
        stamp = batch.table.file_prefix
        if not self.are_of(batch.transaction, stamp):
            raise Violation(Kind.WASTE, f"a batch of transaction {batch.transaction} bears {stamp}")

    def checks(self, attempt: CommitAttempt) -> None:
        """TOKEN-2: what a transaction brings was written for it, and for no other."""
        for file in attempt.files:
            if not self.are_of(attempt.record.transaction, stamp_of(file.path)):
                said = f"{attempt.record.transaction} brings a file of another stamp: {file.path}"
                raise Violation(Kind.LOSS, said)

    def refusal(self, attempt: CommitAttempt) -> Refused | None:
        """What was rolled back is refused for good."""
        world, stamps = self._world, {stamp_of(file.path) for file in attempt.files}
        faults = world.rates.event > 0 and not world.calm.on
        if stamps and faults and self._dice.random() < self._rolled_back:
            world.struck["stamp rolled back"] += 1
            self._gone |= stamps
        if stamps & self._gone:
            return Refused("others have rolled it back", for_good=True)
        return None


def stamp_of(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/{ANY}_{name.rpartition('_')[2]}"
