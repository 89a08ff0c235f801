"""A sink that commits by size writes soon what an interval would delay by an hour (COMMIT-5)."""

from __future__ import annotations

import pytest
from integration.conftest import Deploy

pytestmark = pytest.mark.integration

AN_HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    "limit",
    [{"commit_records": 1_000}, pytest.param({"commit_bytes": 40_000}, marks=pytest.mark.wide)],
)
def test_what_is_enough_is_committed_before_its_time(deploy: Deploy, limit: dict[str, int]) -> None:
    batches = {"batch_records_max": 500}  # so that sizes are known
    sink = deploy({"coordinator": {"commit_interval_ms": AN_HOUR_MS, **limit}})
    sink.change({"participant": batches})
    sink.start(2)
    sink.wait_until(lambda: sink.shares() == [1, 1], "a partition for each")
    sink.produce(3_000)
    sink.wait_until(lambda: sink.committed() >= 2_000, "commits by size")
    sink.stop()
    sink.change({"coordinator": {"commit_interval_ms": 500}})  # what was less than the limit
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()
