"""Kills of real queries, in the long run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from integration.spark.cluster import StandaloneCluster
from spark_query.kills import PARTITIONS, WORKERS, Kills

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.soak]


@pytest.mark.timeout(5_400)
@pytest.mark.parametrize("where", ["in the driver", "on a cluster"])
def test_query_12_twenty_kills_at_random_moments_neither_lose_nor_double(
    bootstrap: str, topic_factory: Callable[..., str], tmp_path: Path, where: str
) -> None:
    with ExitStack() as stack:
        cluster = cluster_of(tmp_path, stack) if where == "on a cluster" else None
        Kills(1, tmp_path, bootstrap, topic_factory(PARTITIONS), cluster=cluster).play(20)


def cluster_of(folder: Path, stack: ExitStack) -> StandaloneCluster:
    made = StandaloneCluster(folder, stack)
    made.add_workers(WORKERS)
    return made
