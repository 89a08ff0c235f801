"""Many records over four partitions through two Spark participants, each exactly once."""

from __future__ import annotations

import threading
import time

import pytest
from integration.conftest import Deploy

MILLIONS = 2_000_000
WITH_SPARK = {
    "spark": {"writer": "spark", "master": "local[1]"},
    "coordinator": {"commit_interval_ms": 2_000, "commit_timeout_ms": 30_000},
    "participant": {"batch_records_max": 100_000, "release_timeout_ms": 20_000},
}


@pytest.mark.spark
@pytest.mark.integration
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(
    ("records", "kills"),
    [
        pytest.param(100_000, 1, marks=pytest.mark.soak),
        pytest.param(MILLIONS, 0, marks=pytest.mark.soak),
        pytest.param(MILLIONS, 3, marks=pytest.mark.soak),
    ],
)
def test_two_million_records_with_the_coordinator_killed_on_the_way(
    deploy: Deploy, records: int, kills: int
) -> None:
    sink = deploy(WITH_SPARK, partitions=4)
    producer = threading.Thread(target=sink.produce, args=(records,))
    producer.start()
    began = time.monotonic()
    sink.start(2)
    for kill in range(1, kills + 1):
        aim = records * kill // (kills + 2)
        sink.wait_until(lambda aim=aim: sink.committed() >= aim, f"{aim} rows", 600)
        sink.kill(sink.leader())
        sink.start()
    producer.join()
    sink.wait_until_lag_zero(1_200)
    took = time.monotonic() - began
    sink.wait_until(sink.all_share, "partitions with both", 300)
    sink.stop()
    report = sink.judge()
    assert report.live_rows == records
    print(f"{kills} kills: {took:.0f} s with Spark's start, {report.commits} commits,", end=" ")
    print(f"{len(report.epochs)} epochs, {report.live_files} files")
