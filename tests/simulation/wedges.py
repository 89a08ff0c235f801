"""What once made a sink stand still in silence: moved data, a wrong writer, a lonely leader.

In seeds from ``WEDGED_FROM`` on, with dice of its own. ``moved data``: a table's owner moves it
(TOKEN-1, LEDGER-1), and writers see that later than the coordinator, or before. ``wrong writer``:
one node's files never lie where they should, so the sink has to stop by name (RANGE-3). ``cut
off``: one node's coordinator gets no answer from any catalog any more, so others have to lead
(ELECTION-2).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simulation.climate import Climate, Weather

from headgate.control_protocol.errors import FolderElsewhere, StatusRefused
from headgate.control_protocol.events import TableStart, WrittenFile
from headgate.control_protocol.ports import Batch, BatchWritten
from headgate.coordinator import phase_steps

if TYPE_CHECKING:
    from simulation.node import Node
    from simulation.world import World

WEDGED_FROM = 1_000_000
ONE_SEED_IN = 3
PATIENCE_MS = 1_500
"""ELECTION-2, in worlds that live for seconds."""

INTERVAL_MS_MAX = 300
"""Six ENDs that are refused have to fit into the time within which something must go on."""

MOVED, WRONG, CUT = "moved data", "wrong writer", "cut off"


def wedge_of(seed: int, climate: Climate, *, plain: bool) -> str | None:
    """What happens in its world; nothing in most."""
    dice = random.Random(f"wedge {seed}")
    if seed < WEDGED_FROM or not plain or dice.random() > 1 / ONE_SEED_IN:
        return None
    kind = dice.choice((MOVED, WRONG, CUT))
    fits = climate.weather is Weather.WILD and not climate.split
    short = climate.coordinators.commit_interval_ms <= INTERVAL_MS_MAX
    possible = {MOVED: True, WRONG: short, CUT: climate.nodes > 1}
    return kind if fits and possible[kind] else None


@contextmanager
def impatient(world: World) -> Iterator[None]:
    """ELECTION-2: in the world of a node that is cut off, a leader waits for seconds, not for
    minutes."""
    before = phase_steps.PATIENCE_MS_MIN
    if world.wedge.kind == CUT:
        phase_steps.PATIENCE_MS_MIN = PATIENCE_MS
    try:
        yield
    finally:
        phase_steps.PATIENCE_MS_MIN = before


class Wedge:
    """``kind`` is ``None`` where nothing of this happens."""

    def __init__(self, world: World, *, plain: bool) -> None:
        self._world = world
        self.kind = wedge_of(world.seed, world.climate, plain=plain)
        self._dice = random.Random(f"wedged {world.seed}")
        self._at_ms = self._dice.randint(500, world.climate.faults_until_ms)
        self._stale_ms = self._dice.choice((0, 300, 1_500))
        self._seen: dict[tuple[object, str], tuple[int, str]] = {}
        self.node = self._dice.randrange(world.climate.nodes)
        if self.kind == MOVED and world.quarantine is not None:
            world.quarantine.root_of = self.root
        if self.kind == WRONG:
            world.climate.expected |= {StatusRefused.code}
            world.broken = True

    @property
    def on(self) -> bool:
        return self._world.clock.now_ms >= self._at_ms

    def look(self) -> None:
        """Before each turn."""
        if self.kind != MOVED or not self.on or self._world.calm.on:
            return
        self._at_ms += self._dice.randint(1_000, 4_000)
        if self._world.clock.now_ms < self._world.climate.faults_until_ms:
            catalog = self._dice.choice(self._world.catalogs)
            catalog.data_location = f"memory://{catalog.table}/moved-{self._at_ms}/data"
            self._world.struck["table's data moved"] += 1
            self._world.note("WEDGE: the data of {} moves", catalog.table)

    # ---------------------------------------------------------------------------------- the writer

    def root(self, life: object, catalog: Any, *, anew: bool = False) -> str:
        """Below which this writer believes that the table wants its data."""
        now_ms = self._world.clock.now_ms
        until_ms, known = self._seen.get((life, catalog.table), (0, ""))
        if anew or now_ms >= until_ms:
            known = catalog.data_location or f"memory://{catalog.table}/data"
            self._seen[life, catalog.table] = now_ms + self._stale_ms, known
        return known

    def elsewhere(self, life: object, batch: Batch) -> str | None:
        """TOKEN-1: why a batch may not be written where START says, as ``Plans`` finds out."""
        if self.kind != MOVED:
            return None
        named = [(batch.table, self._world.catalog)]
        if batch.quarantine:
            named.append((batch.quarantine, self._world.secondaries[batch.quarantine.table]))
        wrong = [start for start, catalog in named if not self._within(life, start, catalog)]
        if not wrong:
            return None
        self._world.struck["START names the folder of before"] += 1
        return str(FolderElsewhere(f"{wrong[0].table}: {wrong[0].file_prefix}"))

    def _within(self, life: object, start: TableStart, catalog: Any) -> bool:
        return any(
            start.file_prefix.startswith(f"{self.root(life, catalog, anew=anew)}/")
            for anew in (False, True)
        )

    def spoilt(self, node: Node, written: BatchWritten) -> BatchWritten:
        """What a writer says that is not like all others."""
        if self.kind != WRONG or not self.on or node.number != self.node or not written.files:
            return written
        self._world.struck["files in a wrong folder"] += 1
        return replace(written, files=tuple(map(_astray, written.files)))

    # ------------------------------------------------------------------------------ the coordinator

    def cuts(self, node: Node) -> bool:
        """ELECTION-2: whether no catalog answers this node's coordinator."""
        return self.kind == CUT and self.on and node.number == self.node


def _astray(file: WrittenFile) -> WrittenFile:
    return replace(file, path=file.path.replace("/headgate/", "/astray/"))
