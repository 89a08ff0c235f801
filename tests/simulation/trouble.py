"""One routed table of a ledger's world goes wrong: dropped, set back, or not to be committed to.

It draws from dice of its own, so that worlds without it are what they would be anyway. In one of
two of its worlds the table is mended later, and an operator resumes it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from simulation.climate import Weather
from simulation.quarantine import OTHER, THIRD, is_ledger
from simulation.real_catalog import RealCatalog

from headgate.control_protocol import commit_record_codec
from headgate.control_protocol.events import Resume
from headgate.coordinator.settings import RollbackPolicy

if TYPE_CHECKING:
    from simulation.world import World

SHARE = 0.6
ASKED_AGAIN_MS = 400


def has_trouble(seed: int) -> bool:
    """Whether one of its tables goes wrong, if that comes to pass in time."""
    return _struck(seed) and is_ledger(seed)


def _struck(seed: int) -> bool:
    return random.Random(f"trouble strikes {seed}").random() < SHARE


class Trouble:
    def __init__(self, world: World) -> None:
        self._world = world
        dice = self._dice = random.Random(f"trouble in {world.seed}")
        quarantine, climate = world.quarantine, world.climate
        faults_ms = max(2, climate.faults_until_ms)
        self.table = dice.choice((OTHER, THIRD))
        self.kind = dice.choice(("drop", "set back", "forbid"))
        self._at_ms = dice.randint(faults_ms // 4, faults_ms * 3 // 4)
        self._mended_ms = self._at_ms + dice.randint(faults_ms // 8, faults_ms)
        self._mends = dice.random() < 0.5
        self._happens = (
            _struck(world.seed)
            and quarantine is not None
            and quarantine.ledger
            and climate.weather is not Weather.CALM
            and not isinstance(world.catalog, RealCatalog)
        )
        keeps = climate.coordinators.on_rollback is RollbackPolicy.KEEP_OFFSETS
        if keeps and self.kind == "set back":  # then it is no trouble
            self.kind = "forbid"
        if self._happens and self.kind == "set back":
            self._catalog.append_foreign()  # something to go back to
        self.struck = self.asked = False
        self._asked_ms = 0

    def look(self) -> None:
        """Before each turn."""
        now_ms = self._world.clock.now_ms
        if not self._happens or now_ms < self._at_ms:
            return
        if not self.struck and now_ms < self._world.climate.faults_until_ms:
            self._strike()
        elif self.struck and self._mends and now_ms >= self._mended_ms:
            self._mend(now_ms)

    @property
    def _catalog(self) -> Any:
        return self._world.secondaries[self.table]

    def strikes_late(self) -> bool:
        """Where it did not come to pass among the faults, it does when they are over."""
        if self._happens and not self.struck:
            self._strike()
            return self.struck
        return False

    def to_be_resumed(self) -> bool:
        """Whether an operator still wants it filled again; it is mended now, if not before."""
        self._mended_ms = min(self._mended_ms, self._world.clock.now_ms)
        return self._mends and self.struck and self.suspended

    @property
    def suspended(self) -> bool:
        newest = self._world.oracle.newest
        return newest is not None and any(p.table == self.table for p in newest.suspended)

    def _strike(self) -> None:
        world = self._world
        if self.kind == "set back" and not self._set_back():
            return
        self._catalog.exists = self.kind != "drop"
        self._catalog.forbidden = self.kind == "forbid"
        self.struck = True
        assert world.quarantine is not None
        world.quarantine.diverts = True
        world.note("TROUBLE: {} of {}", self.kind, self.table)
        world.struck[f"trouble of one table: {self.kind}"] += 1

    def _set_back(self) -> bool:
        """To an older snapshot of ours, when there is one; what that loses stays lost."""
        world, catalog = self._world, self._catalog
        kept = world.kept
        way = list(catalog.ancestry(catalog.branches.get("main")))
        ours = [
            s for s in way if commit_record_codec.decode_record(world.sink, s.summary) is not None
        ]
        older = way[way.index(ours[0]) + 1 :] if ours else []
        if not older or kept is None:
            return False
        kept.look()
        catalog.roll_back(self._dice.choice(older).snapshot_id)
        kept.was_set_back(self.table)
        return True

    def _mend(self, now_ms: int) -> None:
        world = self._world
        self._catalog.exists, self._catalog.forbidden = True, False
        if not self.suspended or self._resuming or not world.log.reachable:
            return
        if now_ms - self._asked_ms >= ASKED_AGAIN_MS:
            self.asked, self._asked_ms = True, now_ms
            assert world.kept is not None
            world.kept.is_asked_for(self.table)
            world.struck["suspended table resumed"] += 1
            world.events.operate(Resume((self.table,)))

    @property
    def _resuming(self) -> bool:
        newest = self._world.oracle.newest
        return newest is not None and any(
            p.table == self.table and p.resuming for p in newest.suspended
        )
