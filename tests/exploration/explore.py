"""Breadth-first through every situation of a small world: ``python tests/exploration/explore.py``.

Without a name it lists the worlds. What is searched for: a row lost or doubled, offsets or epochs
that fall, an honest status refused in a clean world, and *traps*: situations from which, whatever
non-fault steps follow, the table can never hold every record. The first way found is a shortest.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from array import array
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from exploration.canonical import canonical
from exploration.small_world import Bounds, World, first_world
from exploration.steps import complete, steps
from simulation.quick import quick_copies
from support.verdicts import Kind, Violation

MAXIMUM = 10_000_000


@dataclass
class Finding:
    """``exhausted``: every situation was seen. ``problem``, its kind and the way to it, if any.

    A problem without a kind is an assertion of the machine's own.
    """

    states: int
    seconds: float
    exhausted: bool = True
    problem: str | None = None
    kind: Kind | None = None
    way: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        found = self.problem or ("nothing wrong" if self.exhausted else "nothing wrong so far")
        return "\n  ".join([f"{self.states} states, {self.seconds:.0f} s: {found}", *self.way])


class Search:
    def __init__(self, bounds: Bounds, states_max: int) -> None:
        self._bounds = bounds
        self._states_max = states_max
        self._known: dict[Hashable, int] = {}
        self._came: list[tuple[int, str]] = []
        self._queue: deque[tuple[int, World]] = deque()
        self._complete: list[int] = []
        self._before: list[array[int]] = []  # per situation: where a non-fault step came from
        self._full = False

    def run(self) -> Finding:
        began = time.monotonic()
        self._reach(_beginning(self._bounds), -1, "the beginning")
        wrong, at = self._walk()
        if wrong is None and not self._full:
            wrong, at = self._trap()
        return Finding(
            states=len(self._known),
            seconds=time.monotonic() - began,
            exhausted=not self._full and not self._queue,
            problem=wrong and (str(wrong) or type(wrong).__name__),
            kind=getattr(wrong, "kind", None),
            way=self._way(at) if wrong else [],
        )

    def _walk(self) -> tuple[Exception | None, int]:
        while self._queue:
            here, world = self._queue.popleft()
            if complete(world, self._bounds):
                self._complete.append(here)
            try:
                for name, fault, after in steps(world, self._bounds):
                    there = self._reach(after, here, name)
                    if there is not None and not fault and there != here:
                        self._before[there].append(here)
            except (AssertionError, ValueError, LookupError) as wrong:
                return wrong, here
        return None, -1

    def _reach(self, world: World, source: int, name: str) -> int | None:
        key = hash(canonical(world))
        known = self._known.get(key)
        if known is not None:
            return known
        if len(self._known) >= self._states_max:
            self._full = True
            return None
        number = self._known[key] = len(self._known)
        self._came.append((source, name))
        self._before.append(array("l"))
        self._queue.append((number, world))
        return number

    def _trap(self) -> tuple[Violation | None, int]:
        good = bytearray(len(self._known))
        found = list(self._complete)
        for number in found:
            good[number] = 1
        while found:
            for before in self._before[found.pop()]:
                if not good[before]:
                    good[before] = 1
                    found.append(before)
        trapped = good.find(0)
        if trapped < 0:
            return None, -1
        situations = f"{good.count(0)} situations in which no way leads to the end"
        return Violation(Kind.TRAP, situations), trapped

    def _way(self, number: int) -> list[str]:
        names = []
        while number >= 0:
            number, name = self._came[number]
            names.append(name)
        return names[::-1]


def _beginning(bounds: Bounds) -> World:
    world = first_world(bounds)
    while bounds.joined and world.table.record is None:
        calm = [step for step in steps(world, bounds) if not step.fault]
        gains = [step for step in calm if " gains " in step.name]
        world = (gains or calm)[0].world
    return world


def explore(bounds: Bounds, states_max: int = MAXIMUM) -> Finding:
    gc.disable()  # nothing here is a cycle, and a million small tuples are slow to look through
    try:
        with quick_copies():
            return Search(bounds, states_max).run()
    finally:
        gc.enable()


def main() -> int:
    from exploration.worlds import LARGE, SMALL

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("worlds", nargs="*", help="their names, or 'small', 'large', 'all'")
    parser.add_argument("--states-max", type=int, default=MAXIMUM)
    options = parser.parse_args()
    worlds = {**SMALL, **LARGE}
    groups = {"small": [*SMALL], "large": [*LARGE], "all": [*worlds]}
    names = [n for named in options.worlds for n in groups.get(named, [named])]
    if not names:
        print("\n".join(worlds))
    wrong = 0
    for name in names:
        finding = explore(worlds[name], options.states_max)
        wrong += finding.problem is not None
        print(f"{name:24} {finding}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
