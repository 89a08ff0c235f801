"""Runs one process of a sink: a participant, and its coordinator while it leads.

``runtime.assembly`` gives them threads; here somebody takes one turn after the other, and the
process may die at a named step of a port.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.events import Envelope
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.ports import BatchWriter, ControlLog, GroupMember
from headgate.control_protocol.testing import FakeLog, FakeMember
from headgate.coordinator.driver import CoordinatorDriver
from headgate.coordinator.service import is_leader
from headgate.participant.driver import ParticipantDriver
from headgate.participant.driver import World as ParticipantPorts
from headgate.participant.state import State
from headgate.testing.in_memory_deployment import Deployment


class Killed(BaseException):
    """The process is gone, in the middle of whatever it did."""


class Node(ABC):
    """Implements ``ports.Leadership``. A subclass chooses the coordinator's ports, and the tables.

    ``dies_at``: the step at which the process is killed.
    """

    driver: type[ParticipantDriver] = ParticipantDriver
    participant: ParticipantDriver
    member: str
    """Its name in the group, another one in each life."""

    def __init__(self, deployment: Deployment, name: str, life: int = 0) -> None:
        self.deployment, self.name, self.life = deployment, name, life
        self.coordinator: CoordinatorDriver | None = None
        self.gone = False
        self.dies_at: str | None = None

    def start_participant(
        self,
        initial: State,
        writer: BatchWriter,
        *,
        log: ControlLog | None = None,
        group: GroupMember | None = None,
    ) -> None:
        """Begin a life with a participant in this state; the coordinator comes with the lead."""
        deployment = self.deployment
        self.participant = self.driver(
            initial,
            ParticipantPorts(
                group or FakeMember(deployment.group, self.member, self.release),
                log or NodeLog(self),
                writer,
                self,
                deployment.clock,
            ),
        )

    @abstractmethod
    def new_coordinator(self) -> CoordinatorDriver:
        """Build the coordinator of a new term of leading."""

    def die_if_due_at(self, step: str) -> None:
        """Raise ``Killed`` in a process that dies here, or is dead: its ports call this."""
        if self.gone or self.dies_at == step:
            raise Killed

    def release(self, partitions: frozenset[TopicPartition]) -> None:
        """Give partitions up, in the middle of a poll."""
        self.participant.release(partitions)

    def claim_leadership(self, coordinator: CoordinatorDriver) -> None:
        """Let the coordinator claim: a poll has just shown ownership."""
        coordinator.begin_to_lead_if_caught_up()

    def run_turn_and_note_death(self, turn: Callable[[], object]) -> bool:
        """Take a turn, of which the process may die; return whether anything came of it."""
        try:
            return bool(turn())
        except Killed:
            self.on_killed()
        except HeadgateError as error:
            self.on_stopped(error)
        return True

    def on_killed(self) -> None:
        """Do what follows when a port of this process has killed it."""
        self.gone = True

    def on_stopped(self, error: HeadgateError) -> None:
        """Note the error that ends this process."""
        raise error

    # -- ports.Leadership

    def on_assignment(self, partitions: frozenset[TopicPartition]) -> None:
        if not is_leader(partitions, self.deployment.topics):
            self.close()
            return
        if self.coordinator is None:
            self.coordinator = self.new_coordinator()
        self.claim_leadership(self.coordinator)

    def failure(self) -> BaseException | None:
        return None

    def close(self) -> None:
        self.coordinator = None


class NodeLog(FakeLog):
    """The control log of a node, which may die before it says something, and after."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.deployment.log)
        self._node = node

    def append(self, envelopes: Sequence[Envelope]) -> None:
        said = [type(envelope.event).__name__ for envelope in envelopes]
        for step in ("append", *(f"append {name}" for name in said)):
            self._node.die_if_due_at(step)
        self.append_without_death_points(envelopes)
        for step in ("appended", *(f"appended {name}" for name in said)):
            self._node.die_if_due_at(step)

    def append_without_death_points(self, envelopes: Sequence[Envelope]) -> None:
        """Append, with the node alive."""
        super().append(envelopes)
