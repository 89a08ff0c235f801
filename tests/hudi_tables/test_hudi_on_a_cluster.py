"""Sinks whose Hudi tables are filled on a cluster of Spark's own, by executors that know nothing.

They have neither the bundle, nor Hadoop's client of S3, nor keys: all that comes from the driver.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hudi_tables.sinks import HudiOnS3Sink, ids_by_spark
from hudi_tables.test_hudi_s3_sink import check
from hudi_tables.test_hudi_sink import started
from integration.sink_file import Sections
from integration.spark.cluster import StandaloneCluster
from support.object_store import SECRET, ObjectStore

pytest.importorskip("hudi", reason="needs Spark 3.5 and hudi-rs: make hudi")


@pytest.mark.timeout(900)
def test_executors_that_know_nothing_fill_a_table_on_s3_through_kills(
    tmp_path: Path,
    bundle: Path,
    spark: Any,
    lock: dict[str, str],
    object_store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with ExitStack() as stack:
        cluster = StandaloneCluster(tmp_path, stack)
        cluster.add_workers(2)

        class Sink(HudiOnS3Sink):
            store = object_store

            def filled(self, properties: dict[str, str], key: str) -> Sections:
                conf = {"spark.driver.host": "127.0.0.1"}
                on = {"writer": "spark", "master": cluster.master, "conf": conf}
                return {**super().filled(properties, key), "spark": on}

        with started(tmp_path, bundle, lock, kind=Sink) as sink:
            first = sink.begin()
            killed, _ = cluster.executors()
            os.kill(killed, signal.SIGKILL)
            sink.produce(300)
            sink.spoil(10)
            sink.waits_for(600)
            first.kill()
            first.wait()
            sink.resume()
            assert ids_by_spark(spark, *sink.wanted()) == Counter(range(660))
            check(sink, proven=True)
    told = [path for path in tmp_path.glob("worker*/**/*") if path.is_file()]
    assert any(path.name == "headgate.zip" for path in told), "the package was not sent"
    assert [path for path in told if SECRET.encode() in path.read_bytes()] == []
