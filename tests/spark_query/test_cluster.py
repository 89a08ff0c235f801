"""A query on a cluster of Spark's own: executors are killed, and have no keys of their own."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from integration.faults.vending import VendedKeys, VendingCatalog
from integration.spark.cluster import standalone_cluster
from spark_query.spark_programs import Programs, running_below
from spark_query.test_real_query import PARTITIONS, RECORDS, end_of, judge, produce
from support.object_store import ObjectStore
from support.store_proxy import StoreProxy

from headgate.config.load import load
from headgate.operations.audit.audit import audit

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


@pytest.mark.soak
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


def test_executors_write_with_the_keys_that_the_catalog_vends_and_no_others(
    bootstrap: str,
    topic_factory: Callable[..., str],
    object_store: ObjectStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the sink file nor an environment has any; the store refuses whom it does not know."""
    for name in [*os.environ]:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    topic = topic_factory(PARTITIONS)
    programs = Programs(tmp_path, bootstrap, topic)
    produce(bootstrap, topic, 0)
    vended = VendedKeys(life_s=600)  # a busy machine takes long until executors write first
    with (
        StoreProxy(object_store.port) as proxy,
        VendingCatalog(tmp_path, object_store, vended) as catalog,
    ):
        proxy.first = vended.judge
        begin, properties, rest = programs.sink_file.read_text().partition("[catalog.properties]")
        table = rest.partition("[table]")[2]
        own = catalog.without_keys(object_store.s3(proxy.uri))
        lines = [f'"{key}" = "{value}"' for key, value in own.items()]
        programs.sink_file.write_text("\n".join([begin, properties, *lines, "", f"[table]{table}"]))
        with standalone_cluster(tmp_path, workers=2) as programs.master:
            end_of(programs)
        rows = catalog.catalog.load_table("db.trips").scan().to_arrow()
        report = audit(load(programs.sink_file))
    assert Counter(rows["id"].to_pylist()) == Counter(range(RECORDS))
    assert (report.findings, report.unproven) == ((), ()), report
    assert vended.refused == 0
