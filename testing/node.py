"""One process of a sink: a participant, and its coordinator while it leads.

``runtime.assembly`` gives them threads; here somebody takes one turn after the other, and the
process may die at a named step of a port.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from headgate.control_protocol.events import Envelope
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.testing import FakeLog, FakeLogServer
from headgate.coordinator.driver import CoordinatorDriver
from headgate.coordinator.service import is_leader
from headgate.participant.driver import ParticipantDriver


class Killed(BaseException):
    """The process is gone, in the middle of whatever it did."""


class Node(ABC):
    """Implements ``ports.Leadership``. A subclass chooses the ports of both roles."""

    participant: ParticipantDriver

    def __init__(self, topics: Sequence[str]) -> None:
        self.topics = topics
        self.coordinator: CoordinatorDriver | None = None
        self.gone = False
        self.dies_at: str | None = None
        """The step at which the process is killed."""

    @abstractmethod
    def new_coordinator(self) -> CoordinatorDriver:
        """Build the coordinator of a new life."""

    def reaches(self, step: str) -> None:
        """Raise ``Killed`` in a process that dies here, or is dead: its ports call this."""
        if self.gone or self.dies_at == step:
            raise Killed

    def release(self, partitions: frozenset[TopicPartition]) -> None:
        self.participant.release(partitions)

    def claims(self, coordinator: CoordinatorDriver) -> None:
        """Let the coordinator claim: a poll has just shown ownership."""
        coordinator.primary()

    # -- ports.Leadership

    def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        if not is_leader(partitions, self.topics):
            self.close()
            return
        if self.coordinator is None:
            self.coordinator = self.new_coordinator()
        self.claims(self.coordinator)

    def failure(self) -> BaseException | None:
        return None

    def close(self) -> None:
        self.coordinator = None


class NodeLog(FakeLog):
    """The control log of a node, which may die before it says something, and after."""

    def __init__(self, node: Node, server: FakeLogServer) -> None:
        super().__init__(server)
        self._node = node

    def append(self, envelopes: Sequence[Envelope]) -> None:
        said = [type(envelope.event).__name__ for envelope in envelopes]
        for step in ("append", *(f"append {name}" for name in said)):
            self._node.reaches(step)
        self.say(envelopes)
        for step in ("appended", *(f"appended {name}" for name in said)):
            self._node.reaches(step)

    def say(self, envelopes: Sequence[Envelope]) -> None:
        super().append(envelopes)
