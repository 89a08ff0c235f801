"""SIGSTOP past every time-out: a process that wakes up unaware of it does no harm."""

from __future__ import annotations

import time

import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment, Participant
from integration.faults.stuck_catalog import StuckCatalog

pytestmark = pytest.mark.integration


def takes_over(sink: Deployment, paused: Participant, seconds: float = 0) -> None:
    """Another leads, and commits, while the paused one still believes that it does."""
    until = time.monotonic() + seconds
    assert sink.leader() is not paused
    sink.wait_for_commits(3)
    while time.monotonic() < until:
        sink.wait_for_commits()


@pytest.mark.wide
@pytest.mark.parametrize("seconds", [0, pytest.param(60, marks=pytest.mark.soak)])
def test_f12_hc26_a_coordinator_that_was_paused_in_its_commit_is_refused(
    deploy: Deploy, seconds: float
) -> None:
    sink = deploy(partitions=4)
    sink.start(2)
    with sink.load():
        sink.wait_for_commits(2)
        zombie = sink.leader()
        with StuckCatalog(sink) as catalog:
            catalog.await_commit()
            zombie.pause()
        takes_over(sink, zombie, seconds)
        zombie.resume()
        sink.wait_until(lambda: zombie.said("commit refused"), "refusal by the catalog")
        sink.wait_until(lambda: zombie.said("HG-300 superseded by epoch"), "step-down")
        sink.wait_for_commits(2)
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()


def test_f12_hc25_a_coordinator_that_was_paused_anywhere_steps_down(deploy: Deploy) -> None:
    sink = deploy(partitions=4)
    sink.start(2)
    with sink.load():
        sink.wait_for_commits(2)
        zombie = sink.leader()
        zombie.pause()
        takes_over(sink, zombie)
        zombie.resume()
        sink.wait_until(lambda: sink.shares() == [2, 2], "partitions with both")
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()


@pytest.mark.wide
def test_f12_hc29_a_participant_that_was_paused_brings_nothing_twice(deploy: Deploy) -> None:
    sink = deploy(partitions=4)
    sink.start(2)
    with sink.load():
        sink.wait_until(lambda: sink.shares() == [2, 2], "partitions with both")
        sink.wait_for_commits(2)
        leader = sink.leader()
        (other,) = (participant for participant in sink.participants if participant is not leader)
        other.pause()
        sink.wait_until(lambda: sink.shares() == [4], "partitions with the one that is awake")
        sink.wait_for_commits(2)
        other.resume()
        sink.wait_until(lambda: sink.shares() == [2, 2], "partitions with both again")
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()
