"""Maintains the real tables of a world while everything else happens to it.

In seeds from ``KEPT_FROM`` on, with dice of its own. It is the product's own compaction
(COMPACTION-1) and search for orphans (ORPHAN-1), over a writer in memory; between every two of its
calls the others go on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from pyiceberg.exceptions import CommitFailedException, ServiceUnavailableError
from pyiceberg.table import CommitTableResponse, Table
from simulation.keyed_real import AT, NAMES
from simulation.memory_io import MemoryIO
from simulation.real_catalog import RealCatalog

from headgate.control_protocol.errors import HeadgateError
from headgate.tables.iceberg.maintenance import orphan_files
from headgate.tables.iceberg.maintenance.compaction_commit import (
    Replacement,
    Written,
    locate_moved_rows,
)
from headgate.tables.iceberg.maintenance.compaction_plan import (
    CompactionLimits,
    choose_files_to_compact,
    sink_data_folder,
)
from headgate.tables.iceberg.maintenance.maintenance_commit import Settled
from headgate.tables.iceberg.maintenance.orphan_files import Ages, Orphans
from headgate.tables.iceberg.maintenance.row_expiry import RowExpiry

if TYPE_CHECKING:
    from simulation.world import World

KEPT_FROM = 900_000
"""Seeds below are what they were before there was a keeper."""

EPOCH_S = 2**31
"""The wall clock's begin, later than any real one: time does not run back."""

EXPIRES_SHARE = 0.5
"""How often rows expire, where they do, instead of any other maintenance."""

DIES_RATE = UNKNOWN_RATE = 0.2
"""Of a call of who expires rows, beside what befalls all calls of the weather."""

_TURNS_BETWEEN = 8
_TRIES = 4


class Keeper:
    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = random.Random(f"keeper in {world.seed}")
        self._busy = False
        self._seen_ms: dict[str, int] = {}
        self._done = self._turn()

    def look(self) -> None:
        """After a turn of the world; now and then it goes a step on."""
        if self._busy or self._dice.random() * _TURNS_BETWEEN > 1:
            return
        self._busy = True
        try:
            next(self._done)
        finally:
            self._busy = False

    def _turn(self) -> Iterator[None]:
        while True:
            catalog = self._dice.choice(self._world.catalogs)
            steps = self._dice.choice((self._compact, self._compact, self._remove_orphans))
            if self._world.ages and self._dice.random() < EXPIRES_SHARE:
                catalog, steps = self._world.catalog, self._expire_rows
            try:
                yield from steps(catalog)
            except KeeperKilled:
                self._world.struck["maintenance killed"] += 1
            except (OSError, HeadgateError, ServiceUnavailableError, CommitFailedException):
                self._world.struck["maintenance fails"] += 1
            yield

    def _compact(self, catalog: RealCatalog) -> Iterator[None]:
        world, port = self._world, KeepersPort(self._world, catalog, self._others)
        table = port.load_table(catalog.table)
        choice = choose_files_to_compact(
            table, world.sink, "main", CompactionLimits(2**20, 2, 10**6)
        )
        if not choice.portions:
            return
        since_s = world.clock.now_ms / 1000
        prefix = f"{sink_data_folder(table, world.sink)}/compacted/{self._dice.getrandbits(64):x}-"
        yield
        stored = world.catalog.storage.files
        if any(file.path not in stored for portion in choice.portions for file in portion):
            return  # replaced and expired meanwhile, or lost: the checkers tell which
        files, moved = [], []
        for portion in choice.portions:
            rows = [
                row
                for file in portion
                for place, row in enumerate(stored[file.path])
                if place not in file.dead
            ]
            files.append(world.catalog.storage.write(prefix, rows))
            moved.append(locate_moved_rows(portion, files[-1:]))
            world.written_ms[files[-1].path] = world.clock.now_ms
        yield
        replacement = Replacement(
            port,  # type: ignore[arg-type]
            catalog.table,
            (world.sink, "main"),
            Written(choice, tuple(files), since_s, tuple(moved)),
            age_max_s=world.climate.coordinators.claim_age_max_ms / 1000,
            clock_s=lambda: world.clock.now_ms / 1000,
        )
        outcome = Settled.REFUSED
        for _ in range(_TRIES):
            try:
                outcome = replacement.try_commit()
            except (OSError, HeadgateError, ServiceUnavailableError):
                world.struck["compaction fails"] += 1
                yield
                continue
            world.struck[f"compaction {outcome}"] += 1
            world.note("  a compaction of {} is {}", catalog.table, outcome)
            if outcome in (Settled.LANDED, Settled.GONE):
                break
            yield
        if outcome is not Settled.LANDED:
            replacement.delete_new_files_unless_doubtful()

    def _expire_rows(self, catalog: RealCatalog) -> Iterator[None]:
        """It is killed in the middle of some of its calls, and another one begins anew."""
        world, ages = self._world, self._world.ages
        assert ages is not None
        expiry = RowExpiry(
            KeepersPort(world, catalog, self._others, rough=self._dice),  # type: ignore[arg-type]
            catalog.table,
            (world.sink, "main"),
            column=NAMES[AT],
            limit_ms=ages.limit_ms(),
            dead_per_thousand=ages.dead_per_thousand,
        )
        due = expiry.find_due_rows()
        if due is None or not due.rows:
            return
        yield
        for _ in range(_TRIES):
            try:
                outcome = expiry.try_commit()
            except (OSError, HeadgateError, ServiceUnavailableError):
                world.struck["expiry fails"] += 1
                yield
                continue
            world.struck[f"expiry {outcome}"] += 1
            world.note("  an expiry of rows is {}", outcome)
            if outcome in (Settled.LANDED, Settled.GONE):
                break
            yield

    def _remove_orphans(self, catalog: RealCatalog) -> Iterator[None]:
        world, ages = self._world, self._ages()
        search = Orphans(
            KeepersPort(world, catalog, self._others),  # type: ignore[arg-type]
            world.sink,
            world.catalog.table,
            catalog.table,
            ages,
            listing=self._listed,
            wall_ms=lambda: EPOCH_S * 1000 + world.clock.now_ms,
        )
        found = search.find_orphans()
        yield
        if found.files:
            world.struck["orphans deleted"] += search.delete_orphans(found)
            storage = world.catalog.storage
            catalog.cleaned.update(path for path in found.files if not storage.holds(path))

    def _ages(self) -> Ages:
        claim_ms = self._world.climate.coordinators.claim_age_max_ms
        return Ages(claim_ms, claim_ms)

    def _listed(self, _: object, root: str) -> list[tuple[str, int]]:
        """What has no time of its own is as old as it has been seen here."""
        world, now_ms = self._world, self._world.clock.now_ms
        storage = world.catalog.storage
        found = []
        for path in (*storage.files, *storage.blobs):
            if path.startswith(f"{root}/"):
                at_ms = world.written_ms.get(path, self._seen_ms.setdefault(path, now_ms))
                found.append((path, EPOCH_S * 1000 + at_ms))
        self._others()
        return found

    def _others(self, rate: float = 0.3) -> None:
        """They go on in the middle of a call of the keeper."""
        world = self._world
        if world.deep < 2 and not world.calm.on and self._dice.random() < rate:
            world._others_until(world.clock.now_ms + self._dice.choice((20, 200, 1_500)))


class KeeperKilled(BaseException):
    """Nobody handles it on its way: the process is gone."""


class KeepersPort:
    """The catalog of one table, and of the primary table, as a process beside the sink calls it.

    ``rough``: dice that say where it dies besides, and which of its answers are lost.
    """

    def __init__(
        self,
        world: World,
        catalog: RealCatalog,
        others: Callable[..., None],
        *,
        rough: random.Random | None = None,
    ) -> None:
        self._world, self._catalog, self._others, self._rough = world, catalog, others, rough

    def load_table(self, identifier: str | tuple[str, ...]) -> Table:
        name = identifier if isinstance(identifier, str) else ".".join(identifier)
        catalog: Any = next(c for c in self._world.catalogs if c.table == name)
        self._others()
        if not catalog.reachable:
            raise ServiceUnavailableError("the catalog in memory is not reachable")
        return catalog.loaded(self, MemoryIO(catalog.storage, self._fails))

    def commit_table(self, _: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        self._may_die()
        self._others(0.7)
        world, call = self._world, (requirements, updates)
        fails = world.chance(world.rates.commit) or self._befalls(UNKNOWN_RATE)
        if fails and world.random.random() < 0.5:
            self._catalog.in_the_air.append((call, self))
            raise ConnectionError("the call takes its time")
        response = self._catalog.call(call, self)
        self._may_die()
        if fails:
            raise ConnectionError("the answer was lost")
        return response

    def _may_die(self) -> None:
        if self._befalls(DIES_RATE):
            raise KeeperKilled

    def _befalls(self, rate: float) -> bool:
        if self._rough is None or self._world.calm.on:
            return False
        return self._rough.random() < rate

    def _fails(self, what: str) -> None:
        if what == "storage write":
            self._may_die()
        if self._world.chance(self._world.rates.batch / 50):
            raise OSError(f"{what} fails")


@contextmanager
def timed(world: World) -> Iterator[None]:
    """One clock for stores and snapshots; they do not differ."""
    with ExitStack() as patches:
        for place, name, value in (
            (time, "time", lambda: EPOCH_S + world.clock.now_ms / 1000),
            (orphan_files, "SKEW_MS", 0),
        ):
            patches.enter_context(patch.object(place, name, value))
        yield
