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
from headgate.participant.state import State, Timer

TURN_MS = 50


class NoLeadership:
    def on_assignment(self, partitions: frozenset[TopicPartition]) -> None:
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


def test_an_idle_participant_waits_until_something_is_due_and_a_busy_one_for_a_turn() -> None:
    clock, source = FakeClock(), FakeSource()
    source.create_or_replace("trips", 1)
    group = FakeGroup(source, clock)
    settings = ParticipantSettings(presence_interval_ms=5_000)
    driver = ParticipantDriver(
        State(SinkName("sink"), Sender("one", "life"), settings),
        World(
            FakeMember(group, "one"),
            FakeLog(FakeLogServer(clock)),
            FakeBatchWriter(source, FakeStorage(), clock),
            NoLeadership(),
            clock,
        ),
    )
    driver.run_once(0)
    assert driver.ms_to_wait_for_log(TURN_MS, 500) == TURN_MS, (
        "without a partition, the group may give one"
    )
    group.set_target_assignment({"one": [TopicPartition("trips", 0)]})
    for _ in range(5):  # its own PRESENCE is heard
        driver.run_once(0)
    assert driver.ms_to_wait_for_log(TURN_MS, 500) == 500
    clock.advance(4_900)
    assert (
        driver.ms_to_wait_for_log(TURN_MS, 500)
        == driver.state.deadlines[Timer.ALIVE] - clock.monotonic_ms()
    )
    driver._listener.behind = True
    assert driver.ms_to_wait_for_log(TURN_MS, 500) == TURN_MS
