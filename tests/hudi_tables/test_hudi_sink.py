"""Sinks whose tables are Hudi: killed, resumed, among other writers."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hudi_tables.sinks import (
    TOPIC,
    HudiSink,
    IcebergAsideSink,
    ManyHudiSink,
    ids_by_spark,
    undelivered,
)
from hudi_tables.world import ARCHIVED_SOON, QUICK
from support.served_page import assert_served_without_rollback

from headgate.config.load import load
from headgate.config.table_format_registry import quarantine_spec, secondary_table_spec
from headgate.operations.audit.audit import audit
from headgate.operations.cli.main import main
from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars
from headgate.operations.status.status import read_status
from headgate.tables.hudi.write_configuration import build_safe_writer_settings

pytest.importorskip("hudi", reason="needs Spark 3.5 and hudi-rs: make hudi")


@pytest.fixture
def sink(tmp_path: Path, bundle: Path, lock: dict[str, str]) -> Iterator[HudiSink]:
    with started(tmp_path, bundle, lock) as made:
        yield made


def well(sink: HudiSink, command: str, *more: str) -> str:
    """Return what a command says that succeeds; it may ask for another try (3)."""
    said: list[str] = []

    def succeeds() -> bool:
        done = CliRunner().invoke(main, [command, str(sink.file), *more])
        said.append(done.output)
        assert done.exit_code in (0, 3), done.output
        return done.exit_code == 0

    sink.wait(succeeds, f"headgate {command}")
    return said[-1]


@contextmanager
def started(
    home: Path,
    bundle: Path,
    settings: dict[str, str],
    key: str = "",
    kind: type[HudiSink] = HudiSink,
) -> Iterator[HudiSink]:
    with EmbeddedKafka(home / "kafka", ensure_broker_jars(), heap="256m") as broker:
        made = kind(home, broker.bootstrap, {**settings, **QUICK}, bundle, key)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.timeout(900)
def test_a_killed_sink_and_foreign_writers_lose_and_double_nothing(
    tmp_path: Path, bundle: Path, spark: Any, lock: dict[str, str]
) -> None:
    with started(tmp_path, bundle, {**lock, **ARCHIVED_SOON}) as sink:
        fill_through_kills(sink, spark, lock)
        operate(sink)


def fill_through_kills(sink: HudiSink, spark: Any, lock: dict[str, str]) -> None:
    """Leave 2500 rows of the sink and a foreign one, and nobody who runs."""
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
        **build_safe_writer_settings("trips", lock),
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


def operate(sink: HudiSink) -> None:
    """Hudi has archived the first commits, the foreign one among them."""
    process = sink.start()
    for holds, goes_on in (("pause", "resume"), ("stop", "start")):
        well(sink, holds)
        held = sum(sink.ids().values())
        sink.produce(100)
        assert '"lag": 100' in well(sink, "status", "--json")
        well(sink, goes_on)
        sink.waits_for(held + 100)
    process.terminate()
    assert process.wait(120) == 0, sink.said()[-4000:]
    for command in ("status", "check"):
        well(sink, command)
    told = well(sink, "audit", "--accept-unproven")
    assert "2,700 rows of 2,700 different records\n          older snapshots have expired" in told
    assert (
        "unproven  1 row carries no coordinates" in told
    )  # those of others, whose commit was archived
    assert told.count("unproven") == 1, told
    assert_served_without_rollback(load(sink.file), 2_700)
    for command, *more in (["rollback", "1.1"], ["maintain"], ["delete", "--where", "id = 1"]):
        refused = CliRunner().invoke(main, [command, str(sink.file), *more])
        assert (refused.exit_code, "HG-151" in refused.output) == (2, True), refused.output
    well(sink, "offsets", "set", f"{TOPIC}/0=1300", "--yes")
    assert read_status(load(sink.file)).total_lag == 50


@pytest.mark.timeout(600)
def test_what_a_hudi_quarantine_is_pending_is_delivered_by_whoever_comes_next(
    sink: HudiSink, spark: Any
) -> None:
    sink.produce(200)
    sink.spoil(20)
    first = sink.start()
    sink.wait(lambda: sum(sink.kept_aside().values()) == 20, "20 spoiled records")
    settings = load(sink.file)
    with undelivered(quarantine_spec(settings)):
        sink.produce(200)
        sink.spoil(20)
        sink.waits_for(400)
        sink.wait(
            lambda: read_status(settings).pending_rows == 20, "a decision that is not delivered"
        )
        first.kill()
        first.wait()
    assert "are pending for the quarantine" in " ".join(audit(settings).remarks)
    second = sink.start()
    sink.spoil(10)
    expected = Counter(range(50))
    sink.wait(lambda: sink.kept_aside() == expected, "50 spoiled records, once each")
    second.terminate()
    assert second.wait(120) == 0, sink.said()[-4000:]
    assert sink.ids() == Counter(range(400))
    rows = spark.read.format("hudi").load(str(sink.aside)).select("partition", "headers").collect()
    assert Counter(int(row.headers[0]["value"]) for row in rows) == expected
    assert all(row.partition == int(row.headers[0]["value"]) % 2 for row in rows)
    sink.succeeds("status", "audit", "check")


@pytest.mark.timeout(600)
def test_an_iceberg_quarantine_beside_a_hudi_table_is_delivered_by_whoever_comes_next(
    tmp_path: Path, bundle: Path, spark: Any, lock: dict[str, str]
) -> None:
    with started(tmp_path, bundle, lock, kind=IcebergAsideSink) as sink:
        sink.produce(200)
        sink.spoil(20)
        first = sink.start()
        sink.wait(lambda: sum(sink.kept_aside().values()) == 20, "20 spoiled records")
        settings = load(sink.file)
        database = sqlite3.connect(tmp_path / "aside.sqlite")
        database.execute("BEGIN IMMEDIATE")  # nobody can deliver to it
        sink.produce(200)
        sink.spoil(20)
        sink.waits_for(400)
        sink.wait(
            lambda: read_status(settings).pending_rows == 20, "a decision that is not delivered"
        )
        first.kill()
        first.wait()
        assert "are pending for the quarantine" in " ".join(audit(settings).remarks)
        database.rollback()
        database.close()
        second = sink.start()
        sink.spoil(10)
        expected = Counter(range(50))
        sink.wait(lambda: sink.kept_aside() == expected, "50 spoiled records, once each")
        second.terminate()
        assert second.wait(120) == 0, sink.said()[-4000:]
        assert sink.ids() == Counter(range(400))
        by_spark = spark.read.format("hudi").load(str(sink.location)).count()
        assert by_spark == 400
        assert not sink.aside.exists()
        sink.succeeds("status", "audit", "check")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "index"), [("COPY_ON_WRITE", "SIMPLE"), ("MERGE_ON_READ", "GLOBAL_RECORD_LEVEL_INDEX")]
)
def test_rows_by_key_are_the_fold_of_the_topic_through_kills(
    tmp_path: Path, bundle: Path, spark: Any, lock: dict[str, str], kind: str, index: str
) -> None:
    settings = {**lock, "hoodie.table.type": kind, "hoodie.index.type": index}
    with started(tmp_path, bundle, settings, "id") as sink:
        sink.change(range(600), "old")
        first = sink.start()
        sink.wait(lambda: sum(sink.zones().values()) == 600, "600 rows")
        sink.change(range(300), "new")
        sink.change(range(500, 600), None)
        sink.wait(lambda: any(sink.location.rglob("*.inflight")), "an upsert is under way")
        first.kill()
        first.wait()
        second = sink.start()
        sink.change(range(590, 610), "again")
        expected = {
            **dict.fromkeys(range(500), "old"),
            **dict.fromkeys(range(300), "new"),
            **dict.fromkeys(range(590, 610), "again"),
        }
        sink.wait(lambda: sink.zones() == Counter(expected.items()), "the fold")
        second.terminate()
        assert second.wait(120) == 0, sink.said()[-4000:]
        found = spark.read.format("hudi").load(str(sink.location)).select("id", "zone").collect()
        assert Counter((row.id, row.zone) for row in found) == Counter(expected.items())
        sink.succeeds("status", "check")
        told = CliRunner().invoke(main, ["audit", str(sink.file)]).output
        assert "520 rows are live: as many as the commits inserted and did not delete" in told
        assert "each of 520 live rows has a key of its own" in told
        assert "finding" not in told


@pytest.mark.timeout(900)
def test_a_sink_that_is_killed_between_two_of_its_tables_delivers_the_rest_when_it_is_back(
    tmp_path: Path, bundle: Path, spark: Any, lock: dict[str, str]
) -> None:
    with started(tmp_path, bundle, lock, kind=ManyHudiSink) as sink:
        first = sink.begin()
        settings = load(sink.file)
        with undelivered(secondary_table_spec(settings, "db.zone_b")):
            sink.produce(300)
            sink.waits_for(500)
            sink.wait(
                lambda: read_status(settings).pending_rows == 100, "one table that is not delivered"
            )
            first.kill()
            first.wait()
        assert "100 rows" in " ".join(audit(settings).remarks)
        sink.spoil(10)
        sink.resume()
        expected = Counter(range(660))
        assert ids_by_spark(spark, *sink.wanted()) == expected
        run, file = CliRunner(), str(sink.file)
        sink.succeeds("tables", "status", "audit", "check")
        for words in (["rollback", file, "1.1"], ["tables", file, "resume", "--replay"]):
            assert "HG-151" in run.invoke(main, words).output
