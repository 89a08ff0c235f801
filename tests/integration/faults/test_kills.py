"""kill -9 under load: at any time, and in the middle of a table commit."""

from __future__ import annotations

import pytest
from integration.conftest import Deploy
from integration.faults.stuck_catalog import kill_in_commit

pytestmark = pytest.mark.integration


@pytest.mark.wide
def test_hc07_hc08_hc09_f05_the_coordinator_is_killed_three_times(deploy: Deploy) -> None:
    sink = deploy(partitions=4)
    sink.start(2)
    with sink.load():
        sink.wait_for_commits(2)
        for _ in range(3):
            sink.kill(sink.leader())
            sink.start()
            sink.wait_for_commits(2)
    sink.wait_until_lag_zero()
    sink.stop()
    assert len(sink.judge().epochs) >= 4


@pytest.mark.wide
def test_hc12_a_participant_that_does_not_lead_is_killed(deploy: Deploy) -> None:
    sink = deploy(partitions=4)
    sink.start(2)
    with sink.load():
        sink.wait_until(lambda: sink.shares() == [2, 2], "partitions with both")
        sink.wait_for_commits(2)
        leader = sink.leader()
        (other,) = (participant for participant in sink.participants if participant is not leader)
        sink.kill(other)
        sink.wait_for_commits(2)
        sink.wait_until(lambda: sink.shares() == [4], "partitions with the one that is left")
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()


def test_hc08_f10_f11_the_coordinator_is_killed_while_it_commits(deploy: Deploy) -> None:
    sink = deploy()
    sink.start(2)
    with sink.load():
        sink.wait_for_commits(2)
        kill_in_commit(sink)
        sink.start()
        sink.wait_for_commits(2)
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()
