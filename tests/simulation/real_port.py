"""The real table adapter of one node, over a catalog and storage in memory that fail under it."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar
from unittest.mock import patch

from pyiceberg.exceptions import CommitFailedException, ServiceUnavailableError
from pyiceberg.manifest import clear_manifest_cache
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import RemoveSnapshotsUpdate
from simulation.faulty import Struck
from simulation.keeper import timed
from simulation.keyed_real import BY, DELETED_AT, NAMES
from simulation.memory_io import MemoryIO
from simulation.real_catalog import Call, RealCatalog

from headgate.control_protocol.identifiers import tag_name
from headgate.control_protocol.testing import CommitFault
from headgate.tables.iceberg import pending_manifests
from headgate.tables.iceberg.maintenance import (
    files_of_expired_snapshots,
    files_to_delete,
    snapshot_expiry,
)
from headgate.tables.iceberg.table import IcebergTable
from headgate.tables.iceberg.upsert.upsert_commit import KeyedRows
from headgate.tables.storage import file_io, read_ahead

if TYPE_CHECKING:
    from simulation.node import Node
    from simulation.world import World

_Item = TypeVar("_Item")
_Read = TypeVar("_Read")


class CatalogPort(Struck):
    """What pyiceberg's ``Catalog`` is to the adapter. ``called`` tells the quarantine's calls."""

    def __init__(self, world: World, node: Node, catalog: RealCatalog, called: str = "") -> None:
        self._of(world, node)
        self._catalog, self._called = catalog, called
        self._tag = tag_name(world.sink)
        self.closed = False

    def load_table(self, _: object) -> Table:
        self._reach()
        return self._catalog.loaded(self, MemoryIO(self._catalog.storage, self._storage_strikes))

    def commit_table(self, _: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        self._reach()
        call = (requirements, updates)
        if any(isinstance(update, RemoveSnapshotsUpdate) for update in updates):
            return self._remove(call)
        if self._may_be_overtaken(updates):
            self._overtaken()
        return self._sent(call, self._fault())

    @property
    def is_accountable(self) -> bool:
        """Whether its coordinator lives, or had the time to end in good order: it was not killed.

        A later life of the node does not know what an earlier one removed.
        """
        return self.closed or (not self._node.gone and self in self._node.ports)

    def _reach(self) -> None:
        if not self._catalog.reachable:
            self._catalog.out_of_reach.add(self)
            raise ServiceUnavailableError("the catalog in memory is not reachable")

    def _fault(self) -> CommitFault | None:
        return self._catalog.faults.popleft() if self._catalog.faults else None

    def _sent(self, call: Call, fault: CommitFault | None) -> CommitTableResponse:
        catalog, world = self._catalog, self._world
        match fault:
            case CommitFault.REFUSED:
                raise CommitFailedException("the catalog was told to refuse")
            case CommitFault.LOST_UNKNOWN:
                raise ConnectionError("the call was lost")
            case CommitFault.LATE_UNKNOWN:
                catalog.in_the_air.append((call, self))
                raise ConnectionError("the call takes its time")
        response = catalog.call(call, self)
        if fault is CommitFault.LANDED_UNKNOWN:
            self._others()
            raise ConnectionError("the answer was lost")
        if world.chance(world.rates.commit / 2):
            world.struck[f"{self._called}commit sent twice"] += 1
            self._heirs()
            catalog.call(call)  # refused, for its own first copy has moved the tag
        self._strike(f"{self._called}commit answered")
        return response

    def _may_be_overtaken(self, updates: Any) -> bool:
        commits = any(getattr(update, "ref_name", "") == self._tag for update in updates)
        return commits and self._world.has_key(self._catalog)

    def _overtaken(self) -> None:
        """KEY-5: what was resolved for a head is sent when that may be none any more."""
        world = self._world
        world.somebody_compacts(self._catalog)
        if world.keys and world.deep == 0 and world.chance(5 * world.rates.stall):
            world.stall(self._node, "resolved and not sent")
            self._strike("resolution")

    def _others(self) -> None:
        """The answer is long in coming; others go on."""
        self._world.catalog_is_slow()

    def _heirs(self) -> None:
        """The answer is so long in coming that others may have taken over meanwhile."""
        world = self._world
        if world.rates.kill or world.rates.stall:
            world.stall(self._node, f"{self._called}commit sent twice")
        else:
            self._others()

    def _remove(self, call: Call) -> CommitTableResponse:
        """Retention's call; somebody may set a tag on what is just being removed."""
        catalog, world = self._catalog, self._world
        world.struck[f"{self._called}snapshots removed"] += 1
        self._strike(f"{self._called}removal")
        (removed,) = (u for u in call[1] if isinstance(u, RemoveSnapshotsUpdate))
        if world.chance(world.rates.event):
            there = [i for i in removed.snapshot_ids if i in catalog.snapshots]
            if there:
                world.struck["due snapshot tagged"] += 1
                world.note("somebody tags a snapshot that is being removed")
                catalog.tag_foreign(world.random.choice(there))
        fault = world.random.choice(list(CommitFault)) if world.chance(world.rates.commit) else None
        world.note("  removal of snapshots: {}", fault.name if fault else "sent")
        response = self._sent(call, fault)
        self._strike(f"{self._called}removed")
        return response

    def _storage_strikes(self, what: str) -> None:
        world = self._world
        if world.chance(world.rates.batch / 20):
            world.struck[f"{what} fails"] += 1
            raise OSError(f"{what} fails")
        if what == "storage delete" and world.rates.stall:
            self._strike(what)


def real_table(world: World, node: Node, catalog: RealCatalog, called: str) -> IcebergTable:
    port = CatalogPort(world, node, catalog, called)
    node.ports.append(port)
    return IcebergTable(
        port,  # type: ignore[arg-type]
        catalog.table,
        world.sink,
        threads=False,
        keyed=KeyedRows(BY) if world.has_key(catalog) else None,
        deleted_at=NAMES[DELETED_AT] if world.marks_rows(catalog) else None,
    )


# --------------------------------------------------------------------------------------- determined


class _Serial:
    """Threads that take turns."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @staticmethod
    def map(read: Callable[[_Item], _Read], items: Iterable[_Item]) -> Iterator[_Read]:
        return iter([read(item) for item in items])

    @staticmethod
    def submit(read: Callable[..., _Read], *arguments: Any) -> Future[_Read]:
        answer: Future[_Read] = Future()
        try:
            answer.set_result(read(*arguments))
        except Exception as error:  # noqa: BLE001 - whoever asks for the result gets it
            answer.set_exception(error)
        return answer


_WITH_THREADS = (
    read_ahead,
    files_to_delete,
    pending_manifests,
    file_io,
    files_of_expired_snapshots,
)


@contextmanager
def determined(world: World) -> Iterator[None]:
    """One seed, one course: ids, threads and retention's clock and patience are the world's.

    pyiceberg remembers manifests by their paths, which are those of the seed: another course of it
    would find what this one had there.
    """
    clear_manifest_cache()
    dice = random.Random(f"names in {world.seed}")

    def named() -> uuid.UUID:
        return uuid.UUID(int=dice.getrandbits(128), version=4)

    with ExitStack() as patches:
        for place, name, value in (
            (uuid, "uuid4", named),
            *((place, "ThreadPoolExecutor", _Serial) for place in _WITH_THREADS),
            (file_io, "storage_thread_pool", _Serial),
            (files_to_delete, "boottime_s", lambda: world.clock.now_ms / 1_000),
            (files_to_delete, "READ_BACK_MAX_S", 1.0),
            (files_to_delete, "_DELETED_AT_ONCE", 2),
            (snapshot_expiry, "DUE_MIN", 3),
            (snapshot_expiry, "_PAUSE_S", 0.0),
        ):
            patches.enter_context(patch.object(place, name, value))
        if world.keeper:
            patches.enter_context(timed(world))
        yield
