"""The participant's driver: how it goes on while a port does not answer."""

from __future__ import annotations

import pytest

from headgate.control_protocol.identifiers import Sender, SinkName, TopicPartition
from headgate.control_protocol.testing.clock import FakeClock
from headgate.control_protocol.testing.group import FakeGroup, FakeMember
from headgate.control_protocol.testing.log import FakeLog, FakeLogServer
from headgate.control_protocol.testing.source import FakeSource
from headgate.control_protocol.testing.writer import FakeBatchWriter, FakeStorage
from headgate.participant.driver import ParticipantDriver, World
from headgate.participant.settings import ParticipantSettings
from headgate.participant.state import State

TURN_MS = 50


class NoLeadership:
    def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Somebody else leads."""

    def failure(self) -> None:
        return None


def test_an_outage_of_the_log_neither_spins_nor_fills_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, source = FakeClock(), FakeSource()
    server = FakeLogServer(clock, reachable=False)
    driver = ParticipantDriver(
        State(SinkName("sink"), Sender("one", "life"), ParticipantSettings()),
        World(
            FakeMember(FakeGroup(source, clock), "one"),
            FakeLog(server),
            FakeBatchWriter(source, FakeStorage(), clock),
            NoLeadership(),
            clock,
        ),
    )
    for outage in (1, 2):
        server.reachable = False
        driver._listener.behind = True
        before_ms = clock.monotonic_ms()
        for _ in range(20):
            driver.run_once(TURN_MS)
        assert clock.monotonic_ms() - before_ms == 20 * TURN_MS
        # Once for each outage, and not twenty times a second.
        assert caplog.messages.count("HG-401 the fake control log is not reachable") == outage
        server.reachable = True
        driver.run_once(TURN_MS)
