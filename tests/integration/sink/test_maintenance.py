"""Ten minutes of a stream with maintenance beside it: files stay few, commits go on, rows stay.

``HEADGATE_SOAK_MINUTES`` makes it shorter or longer. The first third goes without maintenance, so
that the times between commits can be compared; in the last one coordinators are killed.
"""

from __future__ import annotations

import os
import time
from itertools import pairwise
from statistics import quantiles

import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment

from headgate.control_protocol.table_history import SinkCommit

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(3_600)]

MINUTES = float(os.environ.get("HEADGATE_SOAK_MINUTES", "10"))
FILES_MIN = 12
MAINTAINED = {
    "compact": True,
    "orphans": True,
    "interval_ms": 3_000,
    "files_min": FILES_MIN,
    "orphans_after_ms": 60_000,
}


def test_ten_minutes_beside_a_stream(deploy: Deploy) -> None:
    sink = deploy(
        {
            "coordinator": {
                "commit_interval_ms": 1_000,
                "commit_timeout_ms": 10_000,
                "claim_age_max_ms": 60_000,
            }
        }
    )
    sink.start(2)
    with sink.load():
        sink.wait_for_commits(2)
        without = gaps(sink, MINUTES * 20)
        sink.change({"maintenance": MAINTAINED})
        sink.stop()
        sink.start(2)
        sink.wait_for_commits(2)
        beside = gaps(sink, MINUTES * 20)
        most = live_files(sink)
        ends_s = time.monotonic() + MINUTES * 20
        while time.monotonic() < ends_s:
            sink.kill(sink.leader())  # a compaction may be on its way, or half written
            sink.start()
            sink.wait_for_commits(10)
            most = max(most, live_files(sink))
    sink.wait_until_lag_zero()
    sink.stop()
    commits = sum(commit.record.records > 0 for commit in history(sink))
    report = sink.judge()
    rewritten, orphans = told(sink, ": compacted "), told(sink, "orphans deleted")
    print(f"{MINUTES:g} minutes, {report.live_rows} rows, {commits} commits on the branch still")
    print(f"live files: {report.live_files} at the end, at most {most} when looked at")
    print(f"compactions: {rewritten}, rounds that deleted orphans: {orphans}")
    for name, some in (("without", without), ("beside", beside)):
        tenths = quantiles(some, n=100)
        print(f"between commits {name}: p50 {tenths[49]:.2f} s, p99 {tenths[98]:.2f} s")
    assert rewritten, "nothing was compacted"
    # Each compaction leaves one file, and tiers double; two files come with each commit meanwhile.
    assert report.live_files < 10 * FILES_MIN


def gaps(sink: Deployment, seconds: float) -> list[float]:
    """Times between the commits of a while, in seconds."""
    since_ms = time.time() * 1000
    time.sleep(max(0.0, seconds))
    times = [
        c.committed_ms for c in history(sink) if c.record.records and c.committed_ms > since_ms
    ]
    return [(two - one) / 1000 for one, two in pairwise(times)]


def history(sink: Deployment) -> tuple[SinkCommit, ...]:
    found = sink.history()
    return found.commits if found else ()


def live_files(sink: Deployment) -> int:
    with sink.table() as table:
        return sum(1 for _ in table.scan().plan_files())


def told(sink: Deployment, words: str) -> int:
    """How often a participant's log says so."""
    logs = sink.sink_file.parent.glob(f"{sink.name}-*.log")
    return sum(log.read_text(errors="replace").count(words) for log in logs)
