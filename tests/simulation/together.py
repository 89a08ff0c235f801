"""The product's joint deliveries (PENDING-5), on a server that fails in the ways of one: also by
halves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException
from simulation.faulty import FaultyTable, Struck
from simulation.real_catalog import RealCatalog

from headgate.control_protocol.ports import CommitOutcome
from headgate.control_protocol.table_format import Calls, Delivery, DeliveryOutcome
from headgate.tables.iceberg.atomic_deliveries import AtomicDeliveries

if TYPE_CHECKING:
    from simulation.node import Node
    from simulation.world import World


class JointFault(Enum):
    """What becomes of a joint call, and of its answer."""

    REFUSED = auto()
    LOST = auto()
    ANSWER_LOST = auto()
    LATE = auto()
    """Each table's part arrives when it likes."""
    HALF_REFUSED = auto()
    """The first table's part lands, though the answer is that none did."""


@dataclass(frozen=True, slots=True)
class _Either(Delivery):
    """A delivery that is prepared by the real table, and made alone by the one that fails."""

    faulty: FaultyTable

    def deliver(self) -> CommitOutcome:
        return self.faulty.commit(self.attempt)


class FaultyJointDeliveries(AtomicDeliveries):
    """The product's, over the catalogs in memory."""

    def __init__(self, world: World, node: Node) -> None:
        self._catalog: Any = _JointCatalog(world, node)
        self._apart = False

    def deliver(self, deliveries: Sequence[Delivery], calls: Calls) -> list[DeliveryOutcome]:
        either = []
        for delivery in deliveries:
            assert isinstance(delivery.table, FaultyTable)
            either.append(_Either(delivery.table.bare, delivery.attempt, delivery.table))
        return super().deliver(either, calls)


class _JointCatalog(Struck):
    """The server's end of a joint call."""

    name = "lake"

    def __init__(self, world: World, node: Node) -> None:
        self._of(world, node)

    def commit_tables(self, changes: Sequence[Any]) -> None:
        world = self._world
        self._strike("joint commit")
        world.catalog_is_slow()
        parts = [
            (self._catalog(change), (change.requirements, change.updates)) for change in changes
        ]
        fault = world.random.choice(list(JointFault)) if world.chance(world.rates.commit) else None
        world.struck[f"joint commit {fault.name if fault else 'sent'}"] += 1
        world.note("  joint commit of {} tables: {}", len(parts), fault.name if fault else "sent")
        if fault is JointFault.REFUSED:
            raise CommitFailedException("the catalog was told to refuse")
        if fault is JointFault.LOST:
            raise ConnectionError("the call was lost")
        if fault is JointFault.LATE:
            for catalog, part in parts:
                catalog.in_the_air.append((part, self))
            raise ConnectionError("the call takes its time")
        for catalog, _ in parts:
            world.somebody_compacts(catalog)
        for catalog, part in parts:
            catalog.check(part)
        for catalog, part in parts[: 1 if fault is JointFault.HALF_REFUSED else None]:
            catalog.call(part, self)
        if fault is JointFault.HALF_REFUSED:
            raise CommitFailedException("nothing of it was done")
        if fault is JointFault.ANSWER_LOST:
            world.catalog_is_slow()
            raise ConnectionError("the answer was lost")
        self._strike("joint committed")

    def _catalog(self, change: Any) -> RealCatalog:
        named = change.identifier
        catalog: RealCatalog = self._world.secondaries[
            ".".join((*named.namespace.root, named.name))
        ]
        if not catalog.reachable:
            raise ConnectionError("the catalog in memory is not reachable")
        return catalog
