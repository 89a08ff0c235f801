"""Decides which slot a sink goes to, and which sinks move for balance (FLEET-8). Pure.

The group shares out slots by number; these functions share out sinks by load. Placement gives
no guarantee to anybody: a sink that is placed badly works all the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from math import gcd

from headgate.runtime.fleet.fleet_records import sink_of_key
from headgate.runtime.fleet.fleet_view import FleetView, SinkView
from headgate.runtime.fleet.sink_files import has_own_jvm
from headgate.runtime.fleet.sink_life import DesiredState, LifeState

CORE_WEIGHT = 50
"""A core that is used counts as so many idle sinks."""
EXCESS = 1.25
"""Nothing moves unless the most loaded worker has so many times the load of the least."""
PART = 0.1
"""At most this part of all sinks is moved at a time: a sink that moves pauses for seconds."""
STAYS_MS = 600_000
"""A sink that was moved stays for so long."""


def load_of(sink: SinkView) -> float:
    """Return what a sink costs its worker: one, and what it takes of cores lately."""
    if sink.spec is None or sink.spec.state is DesiredState.STOPPED:
        return 0.0
    permille = sink.observed.cpu_permille if sink.observed else None
    return 1 + CORE_WEIGHT * (permille or 0) / 1_000


def worker_loads(fleet: FleetView) -> Mapping[str, float]:
    """Return what each worker that takes sinks carries, as placement counts it."""
    loads = {name: 0.0 for name, worker in fleet.workers.items() if worker.takes_sinks}
    for sink in fleet.sinks.values():
        if sink.worker in loads:
            loads[sink.worker] += load_of(sink)
    return loads


@dataclass(slots=True)
class Placing:
    """Chooses slots one after the other, and counts what it has placed."""

    slots: int
    owners: Mapping[int, str]
    of_slot: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    of_worker: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    hosts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many participants of a sink a worker has."""

    @classmethod
    def from_fleet(cls, fleet: FleetView, slots: int) -> Placing:
        """Count what is placed."""
        owners = {
            slot: worker
            for slot, worker in fleet.slot_owners.items()
            if fleet.workers[worker].takes_sinks
        }
        placing = cls(slots, owners)
        for sink in fleet.sinks.values():
            if sink.spec is not None:
                placing._count_load(sink.key, sink.slot, load_of(sink))
        return placing

    def assign_slot(self, key: str, load: float = 1.0, worker: str = "") -> int:
        """Return the least loaded slot of the least loaded worker, or of this one; count it there.

        A worker that has a participant of the same sink comes last. While no worker is known, what
        is placed is load of nobody, and goes to the least loaded slot.
        """
        sink = sink_of_key(key)
        slots = [slot for slot, owner in self.owners.items() if not worker or owner == worker]
        slot = min(
            slots or range(self.slots),
            key=lambda slot: (
                self.hosts[sink, self.owners.get(slot, "")] if slots else 0,
                self.of_worker[self.owners[slot]] if slots else 0.0,
                self.of_slot[slot],
                _tie_break_rank(slot, self.slots),
            ),
        )
        self._count_load(key, slot, load)
        return slot

    def _count_load(self, key: str, slot: int, load: float) -> None:
        self.of_slot[slot] += load
        if owner := self.owners.get(slot):
            self.of_worker[owner] += load
            self.hosts[sink_of_key(key), owner] += 1


def _tie_break_rank(slot: int, slots: int) -> int:
    """Return a slot's place in an order whose first ones fall to as many workers as there are.

    Groups give neighbours to one worker, or every third slot, as members came; and the first sinks
    come before any worker. In steps of a prime near the golden section both are far apart.
    """
    return slot * pow(_spread_step(slots), -1, slots) % slots


@cache
def _spread_step(slots: int) -> int:
    """Return the step: it meets each slot, and with few workers each residue."""
    fit = [step for step in range(1, slots + 1) if gcd(step, _FEW * slots) == 1]
    return min(fit, key=lambda step: abs(step - slots / _GOLDEN))


_GOLDEN = (1 + 5**0.5) / 2
_FEW = 2 * 3 * 5


@dataclass(frozen=True, slots=True)
class Move:
    """Says that a sink goes to another slot."""

    key: str
    slot: int


def find_moves(fleet: FleetView, now_ms: int) -> list[Move]:
    """Return the moves that bring the loads of workers together; few, and never back and forth.

    A sink that is in error, has a JVM of its own, was moved by a person, or was moved lately stays
    where it is.
    ``now_ms`` is the wall clock that movers use.
    """
    slots: dict[str, list[int]] = defaultdict(list)
    for slot, worker in sorted(fleet.slot_owners.items()):
        if fleet.workers[worker].takes_sinks:
            slots[worker].append(slot)
    if len(slots) < 2:
        return []
    owner = {slot: worker for worker, some in slots.items() for slot in some}
    of_worker = dict.fromkeys(slots, 0.0)
    of_slot: dict[int, float] = defaultdict(float)
    movable: dict[str, list[tuple[float, str]]] = defaultdict(list)
    hosts: Counter[tuple[str, str]] = Counter()
    for sink in fleet.sinks.values():
        if sink.slot not in owner or sink.spec is None:
            continue
        worker, load = owner[sink.slot], load_of(sink)
        of_worker[worker] += load
        of_slot[sink.slot] += load
        hosts[sink_of_key(sink.key), worker] += 1
        if load and _may_be_moved(sink, now_ms):
            movable[worker].append((load, sink.key))
    found: list[Move] = []
    at_once = max(1, int(PART * len(fleet.sinks)))
    while len(found) < at_once:
        most = max(of_worker, key=lambda worker: (of_worker[worker], worker))
        least = min(of_worker, key=lambda worker: (of_worker[worker], worker))
        gap = of_worker[most] - of_worker[least]
        if of_worker[most] <= EXCESS * of_worker[least] or gap <= 1:
            break
        # The largest that still narrows the gap; half of it at best, for then both are even.
        fitting = [
            (load, key)
            for load, key in movable[most]
            if load < gap and not hosts[sink_of_key(key), least]
        ]
        if not fitting:
            break
        load, key = max(fitting, key=lambda each: (each[0] <= gap / 2, each))
        slot = min(slots[least], key=lambda slot: (of_slot[slot], slot))
        found.append(Move(key, slot))
        movable[most].remove((load, key))
        hosts[sink_of_key(key), least] += 1
        hosts[sink_of_key(key), most] -= 1
        of_worker[most] -= load
        of_worker[least] += load
        of_slot[slot] += load
    return found


def _may_be_moved(sink: SinkView, now_ms: int) -> bool:
    """Return whether it may be moved: an error would go with it, and blame another worker.

    One with a JVM has memory where it runs, and might wait for it for ever elsewhere (FLEET-13).
    """
    assert sink.spec is not None
    rests = sink.spec.moved_ms and now_ms - sink.spec.moved_ms < STAYS_MS
    works = sink.state in (LifeState.RUNNING, LifeState.PAUSED)
    stays = sink.spec.pinned or rests
    return works and not stays and not has_own_jvm(sink.spec.file)
