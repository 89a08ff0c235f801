"""Kills of real queries, in the long run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from integration.spark.cluster import StandaloneCluster
from spark_query.kills import DAEMON, EXECUTOR, PARTITIONS, RUN, TWO, WORKER, WORKERS, Kills

pytestmark = [pytest.mark.integration, pytest.mark.spark]


@pytest.mark.soak
@pytest.mark.timeout(5_400)
@pytest.mark.parametrize("where", ["in the driver", "on a cluster"])
def test_query_12_twenty_kills_at_random_moments_neither_lose_nor_double(
    bootstrap: str, topic_factory: Callable[..., str], tmp_path: Path, where: str
) -> None:
    with ExitStack() as stack:
        cluster = cluster_of(tmp_path, stack) if where == "on a cluster" else None
        Kills(1, tmp_path, bootstrap, topic_factory(PARTITIONS), cluster=cluster).play(20)


@pytest.mark.wide
@pytest.mark.timeout(1_200)
def test_query_12_each_kind_of_kill_on_a_cluster_neither_loses_nor_doubles(
    bootstrap: str, topic_factory: Callable[..., str], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        cluster = cluster_of(tmp_path, stack)
        kills = Kills(1, tmp_path, bootstrap, topic_factory(PARTITIONS), cluster=cluster)
        kills.play_each((DAEMON, EXECUTOR, WORKER, TWO, RUN))
        # Each of them, and the drivers but for those that Spark ended first.
        assert kills.told["kills"] >= 7, kills.told


def cluster_of(folder: Path, stack: ExitStack) -> StandaloneCluster:
    made = StandaloneCluster(folder, stack)
    made.add_workers(WORKERS)
    return made
