"""A Spark job that hangs blocks its participant's membership neither now nor forever."""

from __future__ import annotations

import time

import psutil
import pytest
from integration.conftest import Deploy

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.wide,
]

POLL_MS_MAX = 7_000
START_S = 240


def test_f43_the_group_is_polled_while_a_job_hangs_and_for_too_long_ends_the_sink(
    deploy: Deploy,
) -> None:
    """First for longer than the poll interval, then for the time of two batches."""
    sink = deploy(
        {
            "spark": {"writer": "spark", "master": "local[1]"},
            "kafka": {"max.poll.interval.ms": POLL_MS_MAX},
            "participant": {"batch_timeout_ms": 3 * POLL_MS_MAX, "batch_attempts_max": 2},
        }
    )
    sink.produce()
    (participant,) = sink.start()
    sink.wait_until_lag_zero(START_S)
    (jvm,) = (p for p in psutil.Process(participant.pid).children() if p.name() == "java")
    jvm.suspend()
    try:
        sink.produce()
        until = time.monotonic() + 2 * POLL_MS_MAX / 1000
        sink.wait_until(lambda: time.monotonic() > until, "time")
        assert sink.shares() == [2]
        assert sink.lag() == 1_000
        jvm.resume()
        sink.wait_until_lag_zero()
        assert sink.judge().epochs == (1,)
        assert not participant.said("lost without notice")
        jvm.suspend()
        sink.produce()
        assert participant.ended(180) == 1
    finally:
        jvm.kill()
    assert participant.said("HG-219")
    assert participant.said("21000 ms, 2 in a row")
