"""Measures the time between a sink's commits on an object store that answers late.

    python benchmarks/commit_interval_on_slow_store.py [--catalogs sql rest glue]
        [--interval-ms 1000]

One participant in process, 5,000 small records/s in four partitions. S3 and Glue are moto's, the
REST catalog is a small one; a proxy before each of them adds the delay to every request of the
sink. What is printed is from commit to commit, as the table's snapshots say, behind the first five.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from integration.deployment import Deployment
from round_trips import OURS
from support.counting_proxy import CountingProxy
from support.object_store import ObjectStore
from support.small_rest_catalog import SmallRestCatalog

from headgate.operations.demo.producer import ensure_topic
from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars

PARTITIONS = 4
WARM_COMMITS = 5


def late(port: int, delay_s: float, stack: ExitStack) -> str:
    proxy = stack.enter_context(CountingProxy(port))
    proxy.delay_s = delay_s
    return proxy.uri


def properties(
    kind: str, home: Path, store: ObjectStore, delay_s: float, stack: ExitStack
) -> Mapping[str, str | None]:
    uri = late(store.port, delay_s, stack)
    if kind == "glue":
        return {**store.glue(uri), **store.s3(uri), "uri": None}
    if kind == "sql":
        return store.s3(uri)
    server = stack.enter_context(SmallRestCatalog(home, {**store.s3(), **OURS}))
    rest = late(server.server_port, delay_s, stack)
    return {**store.s3(uri), "type": "rest", "uri": rest, "warehouse": None}


def apart_ms(kind: str, bootstrap: str, given: argparse.Namespace) -> list[int]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home, store = Path(folder), stack.enter_context(ObjectStore())
        ensure_topic(bootstrap, kind, partitions=PARTITIONS)
        change = {
            "catalog.properties": properties(kind, home, store, given.delay_ms / 1000, stack),
            "coordinator": {"commit_interval_ms": given.interval_ms},
        }
        own = {"group": kind, "partitions": PARTITIONS, "change": change, "store": store}
        sink = stack.enter_context(Deployment(home, bootstrap, [kind], **own))
        sink.start()
        with sink.load(given.rate):
            sink.wait_for_commits(WARM_COMMITS)
            time.sleep(given.seconds)
        sink.stop()
        history = sink.history()
        assert history is not None
        at_ms = [commit.committed_ms for commit in history.commits if commit.record.records]
        return [after - before for before, after in pairwise(at_ms[WARM_COMMITS:-1])]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--catalogs", nargs="+", default=["sql", "rest", "glue"])
    asked.add_argument("--interval-ms", type=int, default=1_000)
    asked.add_argument("--delay-ms", type=float, default=50)
    asked.add_argument("--rate", type=int, default=5_000)
    asked.add_argument("--seconds", type=float, default=30)
    given = asked.parse_args()
    jars = ensure_broker_jars()
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder), jars) as broker:
        print("catalog | commits | p50 ms | p99 ms | load")
        for kind in given.catalogs:
            apart = apart_ms(kind, broker.bootstrap, given)
            half, most = np.percentile(apart, [50, 99])
            print(
                f"{kind:>7} | {len(apart):>7} | {half:>6.0f} | {most:>6.0f} | "
                f"{os.getloadavg()[0]:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
