"""Kills of real queries, in the long run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from spark_query.kills import PARTITIONS, Kills

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.soak]


@pytest.mark.timeout(5_400)
def test_query_12_twenty_kills_at_random_moments_neither_lose_nor_double(
    bootstrap: str, topic_factory: Callable[..., str], tmp_path: Path
) -> None:
    Kills(1, tmp_path, bootstrap, topic_factory(PARTITIONS)).play(20)
