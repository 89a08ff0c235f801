"""Loses an epoch's first START with the log's end before everybody has heard it.

Only some seeds have this, so that the others are what they would be without. In these the table is
created anew and its coordinator dies: the next one counts epochs anew, and comes to speak for an
epoch that the participants know already, by another's word.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from simulation.climate import Rates, Weather

from headgate.control_protocol.events import Envelope, StartCommit
from headgate.coordinator.phases import Phase
from headgate.coordinator.settings import TableRecreatedPolicy

if TYPE_CHECKING:
    from simulation.world import World

ONE_SEED_IN, LOSES = 50, 28
LOST_AMONG = 5
BREAKS_MS, FAULTS_UNTIL_MS = 10_000, 12_000


class Unheard:
    def __init__(self, world: World) -> None:
        self._world = world
        self._dead = False
        self._strikes = world.seed % ONE_SEED_IN == LOSES
        if self._strikes:
            self._prepare()

    def _prepare(self) -> None:
        """A long epoch, the upheaval, and little else that could begin one more."""
        climate = self._world.climate
        climate.weather, climate.upheaval = Weather.UPHEAVAL, "recreate table"
        climate.poison, climate.split, climate.pauses = False, False, False
        climate.expected, climate.deaf = frozenset(), 0.0
        climate.nodes, climate.partitions = max(2, climate.nodes), max(2, climate.partitions)
        climate.works_ms = (0, 20)
        climate.rates = Rates(again=0.1, event=0.15)
        climate.upheaval_ms, climate.faults_until_ms = BREAKS_MS, FAULTS_UNTIL_MS
        climate.coordinators = replace(
            climate.coordinators,
            commit_interval_ms=100,
            on_table_recreated=TableRecreatedPolicy.RESTART,
        )
        climate.participants = replace(climate.participants, presence_interval_ms=5_000)

    def look(self) -> None:
        world = self._world
        if not self._strikes:
            return
        world.events.any = [world.events.produce]
        if not world.broken:
            return
        if not self._dead:
            self._dead = True
            for node in world.nodes:
                if node.coordinator and node.coordinator.state.term and not node.gone:
                    world.kill(node, "the table's end")
        self._lose()

    def _lose(self) -> None:
        """Its place in the log is given to something else, which is all that the late will hear."""
        world, log = self._world, self._world.log
        for place in range(max(log.begin, log.end - LOST_AMONG), log.end):
            said = world.events.envelope(log.messages[place - log.begin])
            first = isinstance(said.event, StartCommit) and said.event.settled_to is None
            if first and self._is_open(said) and not self._heard_by_all(place):
                world.struck["first START lost"] += 1
                world.note("the control topic has lost {}", said)
                world.log_truncated = True
                log.messages[place - log.begin] = log.messages[0]

    def _is_open(self, said: Envelope) -> bool:
        states = [node.coordinator.state for node in self._world.nodes if node.coordinator]
        opened = [state for state in states if state.phase is Phase.OPEN]
        return any(state.identity.sender == said.sender for state in opened)

    def _heard_by_all(self, place: int) -> bool:
        living = [node for node in self._world.nodes if not node.gone]
        return all(node.log.position > place for node in living)
