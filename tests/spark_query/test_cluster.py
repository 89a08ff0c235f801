"""A query on a cluster of Spark's own, whose executors are killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from integration.spark.cluster import standalone_cluster
from spark_query.spark_programs import Programs, running_below
from spark_query.test_real_query import PARTITIONS, RECORDS, end_of, judge, produce

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.wide,
    pytest.mark.timeout(600),
]

TELLS = """
while not query.lastProgress or not query.lastProgress["numInputRows"]:
    assert not query.exception(), query.exception()
    query.awaitTermination(0.2)
where = spark.sparkContext.range(2).map(lambda _: __import__("headgate").__file__).collect()
print("headgate is at", where, flush=True)
"""


def executors() -> list[psutil.Process]:
    return running_below(os.getpid(), "CoarseGrainedExecutorBackend")


def test_query_12_executors_that_are_killed_neither_lose_nor_double(
    bootstrap: str, topic_factory: Callable[..., str], tmp_path: Path
) -> None:
    topic = topic_factory(PARTITIONS)
    programs = Programs(tmp_path, bootstrap, topic)
    for first in range(0, 4 * RECORDS, RECORDS):
        produce(bootstrap, topic, first)
    before, ends, after = programs.query.partition("query.processAllAvailable()")
    query = before + TELLS + ends + after
    with standalone_cluster(tmp_path, workers=2) as programs.master:
        with programs.start(query=query) as running:
            assert running.wait_for("headgate is at"), running.output[-4000:]
            assert "headgate.zip" in running.output, "what the executors have is not what was sent"
            (killed, _) = executors()
            killed.kill()
            running.process.wait(240)
            assert running.process.returncode == 0, running.output[-4000:]
        judge(programs, 4 * RECORDS)
        produce(bootstrap, topic, 4 * RECORDS)
        with programs.start(query=query) as running:
            assert running.wait_for("headgate is at"), running.output[-4000:]
            for each in executors():
                each.kill()
            running.kill()
        end_of(programs)
    judge(programs, 5 * RECORDS)
