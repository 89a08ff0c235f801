"""A sink whose table is Hudi, in processes of its own: killed, resumed, among others who write."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from integration.sink_file import default_sections, toml

from headgate.operations.cli import main
from headgate.operations.demo.broker import EmbeddedKafka, fetch_broker_jars
from headgate.operations.demo.produce import create_topic
from headgate.tables.hudi.settings import write_settings

hudi = pytest.importorskip("hudi", reason="needs Spark 3.5 and hudi-rs: make hudi")

WAIT_S_MAX = 200
TOPIC = "trips"


class HudiSink:
    """One sink file, and the processes that run it."""

    def __init__(self, home: Path, bootstrap: str, hudi_settings: Mapping[str, str], jar: Path):
        self.location = home / "lake" / "trips"
        self.file = home / "sink.toml"
        self.produced = 0
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        self._stack = ExitStack()
        self._home = home
        sections = {
            **default_sections(home, bootstrap, [TOPIC], "trips"),
            "catalog.properties": {"spark.jars": str(jar), "spark.driver.memory": "768m"},
            "table": {
                "type": "hudi",
                "identifier": "db.trips",
                "location": str(self.location),
                "create": True,
                "partition_by": ["zone"],
            },
            "table.columns": {"columns": {"id": "long", "zone": "string"}},
            "table.properties": dict(hudi_settings),
        }
        self.file.write_text(toml(sections))
        create_topic(bootstrap, TOPIC, partitions=2)

    def produce(self, count: int) -> None:
        for number in range(self.produced, self.produced + count):
            value = json.dumps({"id": number, "zone": "abc"[number % 3]})
            self._producer.produce(TOPIC, value.encode(), partition=number % 2)
        self._producer.flush(30)
        self.produced += count

    def start(self) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self._home / "run.log").open("ab"))
        command = [str(Path(sys.executable).with_name("headgate")), "run", str(self.file)]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._home)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def ids(self) -> Counter[int]:
        """As hudi-rs reads them."""
        if not (self.location / ".hoodie" / "hoodie.properties").exists():
            return Counter()
        try:
            batches = hudi.HudiTableBuilder.from_base_uri(str(self.location)).build().read()
        except Exception:  # noqa: BLE001 - its properties, or its timeline, were being written
            return Counter()
        return Counter(n for batch in batches for n in batch.column("id").to_pylist())

    def waits_for(self, rows: int) -> None:
        self.wait(lambda: sum(self.ids().values()) >= rows, f"{rows} rows")

    def wait(self, happened: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + WAIT_S_MAX
        while time.monotonic() < until:
            if happened():
                return
            time.sleep(1)
        raise AssertionError(f"never: {what}\n{self.said()[-4000:]}")

    def said(self) -> str:
        return (self._home / "run.log").read_text()

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def sink(tmp_path: Path, bundle: Path, lock: dict[str, str]) -> Iterator[HudiSink]:
    with EmbeddedKafka(tmp_path / "kafka", fetch_broker_jars(), heap="256m") as broker:
        settings = {**lock, "hoodie.time.generator.max_expected_clock_skew_ms": "20"}
        made = HudiSink(tmp_path, broker.bootstrap, settings, bundle)
        yield made
        made.close()


@pytest.mark.timeout(600)
def test_point_2_a_killed_sink_and_foreign_writers_lose_and_double_nothing(
    sink: HudiSink, spark: Any, lock: dict[str, str]
) -> None:
    sink.produce(1_000)
    first = sink.start()
    sink.waits_for(1_000)
    (jvm,) = subprocess.check_output(["pgrep", "-P", str(first.pid), "java"]).split()
    os.kill(int(jvm), signal.SIGKILL)
    sink.produce(500)
    sink.waits_for(1_500)
    sink.produce(500)
    first.kill()
    first.wait()
    second = sink.start()
    theirs = spark.createDataFrame(
        [(-1, "a", None, None, None)],
        "id long, zone string, kafka_topic string, kafka_partition int, kafka_offset long",
    )
    options = {
        **write_settings("trips", lock),
        "hoodie.table.name": "trips",
        "hoodie.datasource.write.operation": "bulk_insert",
        "hoodie.bulkinsert.shuffle.parallelism": "1",
        "hoodie.datasource.write.partitionpath.field": "zone",
        "hoodie.datasource.write.hive_style_partitioning": "true",
    }
    theirs.write.format("hudi").options(**options).mode("append").save(str(sink.location))
    sink.produce(500)
    sink.waits_for(2_501)
    expected = Counter({-1: 1, **dict.fromkeys(range(2_500), 1)})
    assert sink.ids() == expected
    by_spark = spark.read.format("hudi").load(str(sink.location)).select("id").collect()
    assert Counter(row[0] for row in by_spark) == expected

    second.terminate()
    assert second.wait(120) == 0, sink.said()[-4000:]
    run = CliRunner()
    for command in ("status", "audit", "check"):
        done = run.invoke(main, [command, str(sink.file)])
        assert done.exit_code == 0, done.output
    refused = run.invoke(main, ["rollback", str(sink.file), "1.1"])
    assert refused.exit_code == 2
    assert "HG-151" in refused.output
