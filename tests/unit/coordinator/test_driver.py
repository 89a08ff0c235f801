"""What the coordinator's driver tells a person who reads its log."""

from __future__ import annotations

import logging

import pytest
from protocol.coordinating import IDENTITY, SETTINGS

from headgate.control_protocol.testing import (
    FakeCatalog,
    FakeClock,
    FakeLog,
    FakeLogServer,
    FakeSource,
    FakeTable,
    FakeTopics,
)
from headgate.coordinator.driver import CoordinatorDriver, StartAt, World


def test_who_did_not_answer_in_time_stands_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    source, clock = FakeSource(), FakeClock()
    source.create("trips", 2)
    world = World(
        FakeLog(FakeLogServer(clock)),
        FakeTable(FakeCatalog(), IDENTITY.sink),
        FakeTopics(source, ("trips",)),
        clock,
    )
    driver = CoordinatorDriver(IDENTITY, SETTINGS, world, StartAt())
    for _ in range(50):
        driver.run_once(0)
        driver.lead()
        clock.advance(SETTINGS.commit_interval_ms)

    assert "0 rows committed; time-out; nothing admissible of trips/0, trips/1" in caplog.text
