"""One process: a participant with the coordinator inside, as ``sink.assembly`` builds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simulation.climate import FOR_EVER_MS
from simulation.faulty import (
    Dated,
    FaultyLog,
    FaultyMember,
    FaultyTable,
    FaultyTopics,
    FaultyWriter,
)
from simulation.keyed_fake import KeyedCatalog, KeyedFakeTable
from simulation.quarantine import ASIDE
from simulation.real_catalog import RealCatalog
from simulation.real_port import CatalogPort, real_table
from simulation.together import FaultyJointDeliveries
from support.participant_states import check_step

from headgate.control_protocol.errors import HeadgateError, LeadershipReleased
from headgate.control_protocol.identifiers import Sender, TopicPartition
from headgate.control_protocol.ports import SecondaryTable
from headgate.control_protocol.quarantine_policy import BadRecordLimits
from headgate.control_protocol.testing import FakeTable
from headgate.coordinator.driver import CoordinatorDriver
from headgate.coordinator.driver import World as CoordinatorPorts
from headgate.coordinator.phases import Phase as Coordinating
from headgate.coordinator.state import NO_KEYS, Identity
from headgate.coordinator.state import Timer as Due
from headgate.participant.batches import next_source_look_due_ms
from headgate.participant.driver import ParticipantDriver
from headgate.participant.inputs_and_actions import Action, Input
from headgate.participant.state import Phase as Participating
from headgate.participant.state import State, Timer
from headgate.tables.concurrent_secondary_tables import SecondaryTables
from headgate.testing.node import Node as Process

if TYPE_CHECKING:
    from simulation.world import World

Actor = tuple["Node", str, Callable[[], object]]
Nap = tuple[int, tuple[int, int, int]]
NAP_MS_MAX = 250
CUT_OFF_MS = 1_500


class CheckedParticipant(ParticipantDriver):
    """Checks every state of its machine, those in the middle of a turn among them."""

    def _step_machine(self, given: Input) -> Sequence[Action]:
        before = self.state
        actions = super()._step_machine(given)
        check_step(before, self.state)
        return actions


class Node(Process):
    """``busy`` holds the roles that are in the middle of a turn, further up the Python stack."""

    driver = CheckedParticipant

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"node{number}")
        self.world, self.number = world, number
        self.gone = True
        self.stopped_by: HeadgateError | None = None
        self.stalled_until_ms = 0
        self.heard_ms = 0
        self.expelled = False
        self.busy: set[str] = set()
        self._naps: dict[str, Nap] = {}
        self.ports: list[CatalogPort] = []
        """Through which its coordinator of now calls real tables."""
        self._open: list[SecondaryTable] = []
        """Those tables, to be closed with it."""

    def start(self) -> None:
        world = self.world
        self.life += 1
        self.gone = self.expelled = False
        self.stalled_until_ms = 0
        self.heard_ms = world.clock.now_ms
        self.busy = set()
        self._open = []
        self.ports = []
        self._naps = {}
        self.member = f"{self.name}.{self.life}"
        self.coordinator = None
        self.log = FaultyLog(world, self, "participant")
        self.writer = FaultyWriter(world, self)
        initial = State(world.sink, Sender(self.name, str(self.life)), world.climate.participants)
        self.start_participant(initial, self.writer, log=self.log, group=FaultyMember(world, self))
        world.note(f"{self.name} starts its life {self.life}")

    @property
    def cut_off(self) -> bool:
        """From the group, for the rest of its life."""
        first = self.number == 0 and self.life == 1
        return first and self.world.climate.split and self.world.clock.now_ms >= CUT_OFF_MS

    def release(self, partitions: frozenset[TopicPartition]) -> None:
        """The world stands still meanwhile: who waits without a bound, would for ever."""
        if self.world.climate.participants.release_timeout_ms == FOR_EVER_MS:
            self.world.log.reachable = self.world.source.reachable = True
        super().release(partitions)

    def claim_leadership(self, coordinator: CoordinatorDriver) -> None:
        """In the service only the coordinator's thread calls, which has no turn while one hangs."""
        if "coordinator" in self.busy:
            return
        life = self.life
        self.busy.add("coordinator")
        try:
            super().claim_leadership(coordinator)
        finally:
            if life == self.life:
                self.busy.discard("coordinator")

    def close(self) -> None:
        super().close()
        opened, self._open = self._open, []
        for table in opened:
            table.close()
        for port in self.ports:
            port.closed = True

    def new_coordinator(self) -> CoordinatorDriver:
        world = self.world
        world.incarnations += 1
        sender = Sender(self.name, f"{self.life}c{world.incarnations}")
        self.coordinator_log = FaultyLog(world, self, "coordinator")
        self._naps.pop("coordinator", None)
        return CoordinatorDriver(
            Identity(
                world.sink,
                "group",
                sender,
                secondaries=world.quarantine.named if world.quarantine else (),
                routed=bool(world.quarantine and world.quarantine.ledger),
                paces=world.payday.paces,
                refresh_ms=world.payday.refresh_ms,
                keyed=world.has_key(world.catalog),
                routed_keys=world.keys if world.follows_keys else NO_KEYS,
                growth_ms=world.keys.growth_ms if world.keys else None,
            ),
            world.climate.coordinators,
            CoordinatorPorts(
                self.coordinator_log,
                Dated(world, FaultyTable(world, self, self._primary(), world.catalog)),
                FaultyTopics(world, self),
                world.clock,
                secondaries=SecondaryTables(
                    self._secondary,
                    threads=False,
                    required=world.quarantine.named if world.quarantine else None,
                    together=self._joint(),
                ),
                stamp=world.stamps.giver(self) if world.stamps else lambda: "",
            ),
            world.climate.start_at,
            limits=self._limits(),
        )

    def _limits(self) -> BadRecordLimits:
        """No setting skips a record there, which only forged claims say."""
        quarantine = self.world.quarantine
        limits = quarantine.limits if quarantine else BadRecordLimits()
        return replace(limits, may_skip=not self.world.forger.unsigned)

    def _joint(self) -> FaultyJointDeliveries | None:
        world = self.world
        joint = world.payday.joint and isinstance(world.catalog, RealCatalog)
        return FaultyJointDeliveries(world, self) if joint else None

    def _primary(self) -> SecondaryTable:
        self.ports = []
        return self._opened(self.world.catalog, "")

    def _secondary(self, name: str) -> SecondaryTable:
        catalog = self.world.secondaries[name]
        called = "quarantine " if name == ASIDE else "other "
        return FaultyTable(self.world, self, self._opened(catalog, called), catalog, called=called)

    def _opened(self, catalog: Any, called: str) -> SecondaryTable:
        if not isinstance(catalog, RealCatalog):
            made = KeyedFakeTable if isinstance(catalog, KeyedCatalog) else FakeTable
            return made(catalog, self.world.sink)
        table = real_table(self.world, self, catalog, called)
        self._open.append(table)
        return table

    # -- turns

    def actors(self) -> list[Actor]:
        """Who may take a turn, and would not just find again that there is nothing to do."""
        if self.gone or self.stalled_until_ms > self.world.clock.now_ms:
            return []
        actors: list[Actor] = []
        if "participant" not in self.busy and not self._naps_still("participant"):
            actors.append((self, "participant", self._participate))
        if (
            self.coordinator is not None
            and "coordinator" not in self.busy
            and not self._naps_still("coordinator")
        ):
            actors.append((self, "coordinator", self._coordinate))
        return actors

    def _naps_still(self, role: str) -> bool:
        nap = self._naps.get(role)
        return nap is not None and self.world.clock.now_ms < nap[0] and nap[1] == self._outside()

    def _outside(self) -> tuple[int, int, int]:
        """What wakes a napping actor, its own timers apart."""
        log = self.world.log
        return log.end, log.generation, self.world.group_changes

    def _participate(self) -> bool:
        self._naps.pop("participant", None)
        before = self.participant.state
        self.participant.run_once(0)
        state = self.participant.state
        if state is not before or self.log.held:
            return True
        due = state.deadlines.get
        times = [due(timer) for timer in (Timer.ALIVE, Timer.RESEND, Timer.RETRY)]
        times += [self.writer.due_ms] if state.run.batch else []
        times += [next_source_look_due_ms(state)] if state.phase is Participating.WRITING else []
        self._nap("participant", times)
        return False

    def _coordinate(self) -> bool:
        self._naps.pop("coordinator", None)
        coordinator = self.coordinator
        assert coordinator is not None
        before = coordinator.state
        coordinator.run_once(0)
        state = coordinator.state
        if state is not before or self.coordinator_log.held:
            return True
        due = {Coordinating.OPEN: Due.END, Coordinating.COLLECTING: Due.TIME_OUT}.get(state.phase)
        times = [state.deadlines.get(Due.RETRY), state.deadlines.get(due) if due else None]
        self._nap("coordinator", times)
        return False

    def _nap(self, role: str, times_ms: Iterable[int | None]) -> None:
        now_ms = self.world.clock.now_ms
        wake_ms = min((t for t in times_ms if t is not None), default=now_ms + NAP_MS_MAX)
        self._naps[role] = (min(wake_ms, now_ms + NAP_MS_MAX), self._outside())

    def turn(self, role: str, run: Callable[[], object]) -> bool:
        """Whether anything came of it."""
        life = self.life
        self.busy.add(role)
        try:
            return self.run_turn_and_note_death(run)
        finally:
            if life == self.life:
                self.busy.discard(role)

    def on_killed(self) -> None:
        """The world has noted it; or it was an earlier life that wanted to go on."""

    def on_stopped(self, error: HeadgateError) -> None:
        if isinstance(error, LeadershipReleased):
            self.world.leaves(self, error.away_ms)
            return
        self.gone = True
        self.world.note(f"{self.name} stops: {error}")
        if not self.world.mends(self, error):
            self.stopped_by = error
