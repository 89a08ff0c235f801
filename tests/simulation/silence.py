"""Hides the ends of partitions for a while, like those without a leader.

Only some seeds have them, with dice of their own, so that the others are what they would be
without. In these a partition is soon taken for idle.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from headgate.control_protocol.identifiers import TopicPartition

if TYPE_CHECKING:
    from simulation.world import World

ONE_SEED_IN, SILENT = 25, 17
RATE = 0.05
IDLENESS_MS = 300
LONGEST_MS = 4_000


class Silence:
    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = random.Random(f"silence {world.seed}")
        self._until_ms: dict[TopicPartition, int] = {}
        self._strikes = world.seed % ONE_SEED_IN == SILENT
        if self._strikes:
            climate = world.climate
            climate.coordinators = replace(climate.coordinators, idleness_ms=IDLENESS_MS)

    def over(self, ends: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """The answer to somebody who asked for these, without those that are silent now."""
        world, now_ms = self._world, self._world.clock.now_ms
        if not self._strikes or world.calm.on or now_ms >= world.climate.faults_until_ms:
            return ends
        if ends and self._dice.random() < RATE:
            world.struck["partition without leader"] += 1
            at = self._dice.choice(sorted(ends))
            self._until_ms[at] = now_ms + self._dice.randint(100, LONGEST_MS)
        return {at: end for at, end in ends.items() if self._until_ms.get(at, 0) <= now_ms}
