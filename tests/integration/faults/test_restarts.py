"""Rolling restarts of every participant, one after the other, while records keep coming."""

from __future__ import annotations

import pytest
from integration.conftest import Deploy

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_800)]


@pytest.mark.wide
@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_rolling_restarts_under_load(deploy: Deploy, rounds: int) -> None:
    sink = deploy(partitions=4)
    sink.start(3)
    with sink.load():
        for _ in range(rounds):
            for participant in list(sink.participants):
                sink.wait_until(sink.all_share, "partitions with all three")
                sink.stop(participant)
                sink.start()
        sink.wait_until(sink.all_share, "partitions with all three")
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()
