"""What a sink costs that has nothing to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.conftest import Deploy

pytestmark = pytest.mark.integration

CLIENTS = 5
"""The group's consumer, a control reader for each role, and one producer and admin for both."""


def test_participant_and_coordinator_share_a_producer_and_an_admin(deploy: Deploy) -> None:
    sink = deploy()
    (participant,) = sink.start()
    sink.wait_until(lambda: participant.said("epoch.began"), "a coordinator")
    sink.wait_until(lambda: clients_of(participant.pid) == CLIENTS, "five clients")
    sink.produce(100)
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()


def clients_of(pid: int) -> int:
    """How many clients of librdkafka a process has: each has one thread of this name."""
    names = [(task / "comm").read_text().strip() for task in Path(f"/proc/{pid}/task").iterdir()]
    return names.count("rdk:main")
