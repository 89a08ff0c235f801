"""Sinks with Hudi tables under random faults, beside somebody who writes and tidies eagerly."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hudi_tables.chaos import SESSION_MS, SIGNS, Chaos, Rows
from hudi_tables.foreign import Foreign, Job
from hudi_tables.sinks import HudiSink
from hudi_tables.world import QUICK
from hudi_tables.zookeeper import ZooKeeper, zookeeper

from headgate.config.load import load
from headgate.operations.audit.audit import audit
from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars

pytest.importorskip("hudi", reason="needs Spark 3.5 and hudi-rs: make hudi")

KINDS = (
    ("COPY_ON_WRITE", "", {}),
    ("MERGE_ON_READ", "id", {}),
    ("MERGE_ON_READ", "", {}),
    ("COPY_ON_WRITE", "id", {"hoodie.index.type": "GLOBAL_RECORD_LEVEL_INDEX"}),
)
"""The table's type, its key, and more of its properties: a seed's last digits choose."""


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.mark.soak
@pytest.mark.timeout(2_400)
@pytest.mark.parametrize("seed", range(8))
def test_faults_and_an_eager_foreign_writer_lose_and_double_nothing(
    tmp_path: Path, bundle: Path, spark: Any, server: ZooKeeper, seed: int
) -> None:
    hold(tmp_path, bundle, spark, server, seed, seconds=240)


def hold(
    home: Path, bundle: Path, spark: Any, server: ZooKeeper, seed: int, seconds: float
) -> None:
    kind, key, more = KINDS[seed % len(KINDS)]
    settings = {"hoodie.table.type": kind, **server.lock(SESSION_MS), **SIGNS, **QUICK, **more}
    with EmbeddedKafka(home / "kafka", ensure_broker_jars(), heap="256m") as broker:
        sink = HudiSink(home, broker.bootstrap, settings, bundle, key)
        foreign = Foreign(Job(str(home), str(sink.location), str(bundle), settings, key, seed))
        chaos = Chaos(sink, server, foreign, random.Random(seed), keyed=bool(key))
        try:
            chaos.run(seconds)
            chaos.stop()
            foreign.archive_all(600)
        finally:
            print(f"seed {seed}: {chaos.struck}")
            foreign.kill()
            sink.close()
        for told, found in (
            ("Spark", by_spark(spark, sink)),
            (
                "Spark that lists folders",
                by_spark(spark, sink, **{"hoodie.metadata.enable": "false"}),
            ),
            ("hudi-rs", sink.zones()),
        ):
            ours = part(found, ours=True)
            assert ours == chaos.rows, (told, ours - chaos.rows, chaos.rows - ours)
            foreign.refuse_other_rows(part(found, ours=False))
        # Commits that are archived cannot be proven any more: the audit says so, and finds nothing.
        assert not audit(load(sink.file)).findings
        sink.succeeds("status", "check")


def part(rows: Rows, *, ours: bool) -> Rows:
    return Rows({row: n for row, n in rows.items() if (row[0] >= 0) is ours})


def by_spark(spark: Any, sink: HudiSink, **options: str) -> Rows:
    frame = spark.read.format("hudi").options(**options).load(str(sink.location))
    return Rows((row.id, row.zone) for row in frame.select("id", "zone").collect())
