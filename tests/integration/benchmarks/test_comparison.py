"""The benchmark runs, finds every row, and knows when one is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from comparison.changelog import UPSERT
from comparison.headgate_sink import Headgate
from comparison.measure import Course, backlog, live
from comparison.report import line, show, show_reads
from comparison.topic import Topic
from comparison.upserts import upserts
from comparison.workloads import WORKLOADS

ROWS = 20_000
pytestmark = pytest.mark.integration


def course(bootstrap: str, home: Path) -> Course:
    return Course(bootstrap, home, WORKLOADS["taxi"], interval_ms=1_000, cores=1, timeout_s=60)


@pytest.mark.wide
def test_a_backlog_is_measured(
    bootstrap: str, tmp_path: Path, unique_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = Topic(bootstrap, unique_name, WORKLOADS["taxi"], partitions=2)
    topic.fill(ROWS)
    run = backlog(Headgate("in-process"), course(bootstrap, tmp_path), topic.name, ROWS)
    assert run.exact
    assert run.found.files >= 1
    assert run.rows_per_cpu_s > 0
    assert run.memory_bytes > 50_000_000
    show("a run", [run, replace(run, exact=False)], None)
    assert "NO" in capsys.readouterr().out
    assert '"exact": true' in line("a run", run)


@pytest.mark.wide
def test_freshness_is_measured(bootstrap: str, tmp_path: Path) -> None:
    """For longer than the ten seconds that do not count."""
    run = live(Headgate("in-process"), course(bootstrap, tmp_path), 2, (1_500, ROWS))
    assert run.exact
    assert run.found.snapshots > 3
    assert run.delays_ms is not None
    assert 0 < run.delays_ms[0] <= run.delays_ms[1]


@pytest.mark.soak
def test_changes_are_measured_and_what_their_table_costs_readers(
    bootstrap: str, tmp_path: Path, unique_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = Topic(bootstrap, unique_name, UPSERT, partitions=2)
    systems = [Headgate("in-process")]
    changing = replace(course(bootstrap, tmp_path), workload=UPSERT)
    (run,), reads = upserts(systems, changing, topic, keys=2_000, changes=3_000)
    assert run.exact
    assert run.rows_per_cpu_s > 0
    assert all(one.by["spark"] and one.by["duckdb"] for one in reads)
    show_reads("reads", reads)
    assert "1.00" in capsys.readouterr().out
