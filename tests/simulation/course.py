"""A world's course: the faults of its climate, then what must come when they have stopped."""

from __future__ import annotations

from typing import Any

from simulation.climate import LOOKS_MS, Handover, Rates, Weather
from simulation.world import World
from support.verdicts import Kind, Violation

from headgate.control_protocol.events import Pause, Resume
from headgate.control_protocol.identifiers import tag_name

PROGRESS_WITHIN_MS = 12_000
RESUMED_AFTER_MS = 4_000
SETTLED_AFTER_MS = 2_500
CALM_LAG_MS_MAX = 2_500
OPERATOR_AGAIN_MS = 2_000


class Course:
    def __init__(self, world: World) -> None:
        self._world = world
        self._operates_ms = 0

    def run(self) -> None:
        """Raises ``Violation``; returns when all is well, or the sink stopped as it should."""
        world, weather = self._world, self._world.climate.weather
        if weather is Weather.CALM:
            self._while_calm()
        while world.clock.now_ms < world.climate.faults_until_ms:
            world.turn()
            if world.stopped():
                return
        self._heal()
        self._until_no_lag()
        if not world.stopped() and world.trouble.strikes_late():
            for _ in range(3):
                self._something_new()
                self._until_no_lag()
        self._until_resumed()
        if world.stopped() or weather in (Weather.SLOW, Weather.UPHEAVAL) or world.climate.split:
            return
        if world.wedge.kind is not None:  # what was moved, spoilt or cut stays so
            return
        if not world.calm.on:
            self._nobody_dies_any_more()
            self._wait(SETTLED_AFTER_MS)
        if world.climate.pauses or world.forger.unsigned:  # who forges a PAUSE leaves it there
            self._say_until_stored(Resume())
        self._epilogue()

    def _while_calm(self) -> None:
        """The members join, the first epoch begins; from then on all is calm."""
        rates = self._world.rates
        event, rates.event = rates.event, 0.0
        self._wait(2_000)
        rates.event = event
        self._world.calm.begin()

    def _wait(self, ms: int) -> None:
        until_ms = self._world.clock.now_ms + ms
        while self._world.clock.now_ms < until_ms and not self._world.stopped():
            self._world.turn()

    def _heal(self) -> None:
        world = self._world
        world.note("the faults stop")
        world.rates = Rates()
        world.climate.handover = Handover.COOPERATIVE
        world.climate.works_ms = (0, 20, 100)
        away: tuple[Any, ...] = (*world.catalogs, world.source, world.log)
        for what in away:
            what.reachable = True
        world.log.land_oldest_in_flight(len(world.log.in_the_air))
        while any(catalog.in_the_air for catalog in world.catalogs):
            world.events.land_late()
        self._house_all()
        self._something_new()

    def _house_all(self) -> None:
        """The group has heard of every partition by now.

        What got lost is said again first: moving its partition meanwhile is work done twice.
        """
        events = self._world.events
        while self._world.calm.on and events.homeless() and self._something_unheard():
            self._world.turn()
        if not self._world.calm.on and events.homeless():
            events.rebalance()
        while self._world.calm.on and events.homeless():
            events.rebalance()

    def _something_unheard(self) -> bool:
        states = (node.participant.state for node in self._world.nodes if not node.gone)
        return any(state.said.unheard or state.said.has_status_not_read_back for state in states)

    def _something_new(self) -> None:
        for at in self._world.source.partitions:
            self._world.events.produced(at, 1)

    def _until_no_lag(self) -> None:
        world = self._world
        left, moved_ms, resumed = self._left(), world.clock.now_ms, False
        whole = not world.broken
        while (world.oracle.lag() or world.oracle.pending()) and not world.stopped():
            world.turn()
            if whole and world.broken:
                # An idle sink sees it at its next look round, a minute later (seed 1900410, real).
                whole = False
                self._something_new()
            self._operate_until_heard(Resume())
            before, left = left, self._left()
            moved_ms = moved_ms if left == before else world.clock.now_ms
            if not resumed and world.clock.now_ms - moved_ms > RESUMED_AFTER_MS:
                world.events.operate(Resume())  # whatever the table says, as the command does
                resumed = True
            if world.clock.now_ms - moved_ms > PROGRESS_WITHIN_MS:
                late = (
                    f"the faults are over, these do not come: {world.oracle.lag()}, "
                    f"{world.oracle.pending()} pending commits are pending"
                )
                raise Violation(Kind.STARVATION, late)

    def _until_resumed(self) -> None:
        """SUSPEND-5: an operator's word for a suspended table is heeded, and what was pending for
        it is delivered."""
        world = self._world
        if not world.trouble.struck or world.quarantine is None:
            return
        self._nobody_dies_any_more()  # what is pending for a suspended table keeps nobody waiting
        self._wait(2 * SETTLED_AFTER_MS)
        until_ms = world.clock.now_ms + PROGRESS_WITHIN_MS
        while world.trouble.to_be_resumed() and not world.stopped():
            world.turn()
            if world.clock.now_ms > until_ms:
                raise Violation(Kind.STARVATION, f"{world.trouble.table} is not resumed")
        self._until_no_lag()

    def _nobody_dies_any_more(self) -> None:
        """In the calm a dead coordinator costs an epoch, and the group gives nobody what it had.

        A commit that only moves tags would be enough to kill it, long after all has come (seeds
        1000260, keyed, and 1000720, both over the real adapter, where END looks round often).
        """
        if self._world.quarantine is not None:
            self._world.quarantine.kills_left = 0

    def _left(self) -> tuple[object, int]:
        """What is to come; a coordinator that still dies undelivered makes it later."""
        quarantine = self._world.quarantine
        oracle = self._world.oracle
        return (oracle.lag(), oracle.pending()), quarantine.kills_left if quarantine else 0

    def _epilogue(self) -> None:
        """Whatever was before: now the sink is as good as new, and stays so through a move."""
        world = self._world
        world.calm.begin()
        for _ in range(1 + world.seed % 2):
            self._something_new()
            world.events.rebalance()
            self._quickly()
        self._nothing_left_behind()
        if world.climate.looks_round:
            self._tags_follow()
        if world.climate.pauses:
            self._pause_outlives_its_coordinator()

    def _nothing_left_behind(self) -> None:
        """PENDING-7, where no coordinator died between a delivery and the read that shows it."""
        world = self._world
        if world.climate.weather is Weather.CALM and not world.climate.elections and world.kept:
            left = world.kept.left_behind()
            if left:
                raise Violation(Kind.WASTE, f"key files that were delivered are left: {left[:3]}")

    def _tags_follow(self) -> None:
        """TABLE-4: where others have moved a table that START names, its tag comes after it."""
        world = self._world
        world.struck["tag follows others' commits"] += 1
        named = world.quarantine.named if world.quarantine else ()
        tables = [world.catalog, *(world.secondaries[name] for name in named)]
        for catalog in tables:
            catalog.append_foreign()
        heads = [(catalog, catalog.branches["main"]) for catalog in tables]
        within_ms = LOOKS_MS + 2 * world.climate.coordinators.commit_interval_ms + CALM_LAG_MS_MAX
        until_ms = world.clock.now_ms + within_ms
        while behind := [at.table for at, head in heads if not self._is_under_tag(at, head)]:
            world.turn()
            if world.stopped():
                return
            if world.clock.now_ms > until_ms:
                late = f"calm, but after {within_ms} ms the tags of these do not follow: {behind}"
                raise Violation(Kind.STARVATION, late)

    def _is_under_tag(self, catalog: Any, snapshot_id: int) -> bool:
        """Whether the tag's snapshot comes after this one, or nobody keeps it any more."""
        way = catalog.ancestry(catalog.tags.get(tag_name(self._world.sink)))
        known = (snapshot.snapshot_id == snapshot_id for snapshot in way)
        return snapshot_id not in catalog.snapshots or any(known)

    def _quickly(self) -> None:
        world = self._world
        within_ms = 2 * world.climate.coordinators.commit_interval_ms + CALM_LAG_MS_MAX
        until_ms = world.clock.now_ms + within_ms
        while world.oracle.lag() and not world.stopped():
            world.turn()
            if world.clock.now_ms > until_ms:
                late = f"calm, but after {within_ms} ms these lag: {world.oracle.lag()}"
                raise Violation(Kind.STARVATION, late)

    # ------------------------------------------------------------------------- the operator's part

    def _say_until_stored(self, event: Pause | Resume) -> None:
        world = self._world
        world.events.operate(event)
        until_ms = world.clock.now_ms + PROGRESS_WITHIN_MS
        while not self._is_stored(event) and not world.stopped():
            world.turn()
            self._operate_until_heard(event)
            if world.clock.now_ms > until_ms:
                raise Violation(Kind.STARVATION, f"{event} is not in the table")

    def _is_stored(self, event: Pause | Resume) -> bool:
        newest = self._world.oracle.newest
        return newest is None or newest.paused == isinstance(event, Pause)

    def _operate_until_heard(self, event: Pause | Resume) -> None:
        """An operator looks whether the table says so, and else says it again."""
        now_ms = self._world.clock.now_ms
        if not self._is_stored(event) and now_ms >= self._operates_ms:
            self._operates_ms = now_ms + OPERATOR_AGAIN_MS
            self._world.events.operate(event)

    def _pause_outlives_its_coordinator(self) -> None:
        world = self._world
        self._say_until_stored(Pause())
        world.calm.on = False
        for node in world.nodes:
            world.kill(node, "the pause")
        self._wait(5_000)
        world.calm.begin()
        self._something_new()
        self._wait(2_000)
        if not world.oracle.lag():
            raise Violation(Kind.UNTRUTH, "a paused sink moves rows")
        self._say_until_stored(Resume())
        self._quickly()
