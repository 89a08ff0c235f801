"""Several participants: they share the work, and come and go without a row lost or doubled."""

from __future__ import annotations

import pytest
from integration.conftest import Deploy

pytestmark = pytest.mark.integration


@pytest.mark.wide
def test_several_participants_share_the_partitions(deploy: Deploy) -> None:
    sink = deploy(partitions=4)
    sink.start(3)
    with sink.load():
        sink.wait_until(lambda: sink.shares() == [1, 1, 2], "partitions with all three")
        sink.wait_for_commits(3)
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()


@pytest.mark.parametrize("protocol", [pytest.param("classic", marks=pytest.mark.wide), "consumer"])
def test_hc13_hc33_participants_join_and_leave_under_load(deploy: Deploy, protocol: str) -> None:
    sink = deploy({"source": {"group_protocol": protocol}}, partitions=4)
    if protocol == "consumer":  # there the broker decides about sessions
        sink.change({"kafka": {"session.timeout.ms": None, "heartbeat.interval.ms": None}})
    with sink.load():
        (first,) = sink.start()
        sink.wait_for_commits(2)
        sink.start()
        sink.wait_until(lambda: sink.shares() == [2, 2], "partitions with both")
        sink.wait_for_commits(2)
        sink.stop(first)
        sink.wait_until(lambda: sink.shares() == [4], "partitions with the one that stayed")
        sink.wait_for_commits(2)
    sink.wait_until_lag_zero()
    sink.stop()
    assert len(sink.judge().epochs) == 2


def test_hc10_everything_is_stopped_and_started_again(deploy: Deploy) -> None:
    sink = deploy()
    with sink.load():
        for _ in range(2):
            sink.start(2)
            sink.wait_for_commits(2)
            sink.stop()
    sink.produce(100)  # while nobody runs, however soon the load ended
    assert sink.lag()
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()
