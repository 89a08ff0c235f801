"""Sinks whose Hudi tables are filled by Spark: one session writes the files and commits them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hudi_tables.sinks import (
    BySparkSink,
    HudiSink,
    ManyBySparkSink,
    SubmittedSink,
    ids_by_spark,
)
from hudi_tables.test_hudi_sink import started

pytest.importorskip("hudi", reason="needs Spark 3.5 and hudi-rs: make hudi")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [BySparkSink, ManyBySparkSink])
def test_a_killed_sink_that_writes_with_spark_loses_and_doubles_nothing(
    tmp_path: Path, bundle: Path, spark: Any, lock: dict[str, str], kind: type[HudiSink]
) -> None:
    with started(tmp_path, bundle, lock, kind=kind) as sink:
        first = sink.begin()
        sink.produce(300)
        sink.spoil(10)
        first.kill()
        first.wait()
        sink.resume()
        assert ids_by_spark(spark, *sink.wanted()) == Counter(range(660))
        sink.succeeds("status", "check", "audit")


@pytest.mark.timeout(600)
def test_rows_by_key_that_spark_stages_survive_the_death_of_the_jvm(
    tmp_path: Path, bundle: Path, spark: Any, lock: dict[str, str]
) -> None:
    settings = {
        **lock,
        "hoodie.table.type": "MERGE_ON_READ",
        "hoodie.index.type": "GLOBAL_RECORD_LEVEL_INDEX",
    }
    with started(tmp_path, bundle, settings, "id", BySparkSink) as sink:
        sink.change(range(600), "old")
        first = sink.start()
        sink.wait(lambda: sum(sink.zones().values()) == 600, "600 rows")
        (jvm,) = subprocess.check_output(["pgrep", "-P", str(first.pid), "java"]).split()
        os.kill(int(jvm), signal.SIGKILL)
        sink.change(range(300), "new")
        sink.change(range(500, 600), None)
        assert first.wait(120) == 1, sink.said()[-4000:]
        assert "HG-210" in sink.said()
        second = sink.start()
        expected = {**dict.fromkeys(range(500), "old"), **dict.fromkeys(range(300), "new")}
        sink.wait(lambda: sink.zones() == Counter(expected.items()), "the fold")
        second.terminate()
        assert second.wait(120) == 0, sink.said()[-4000:]
        found = spark.read.format("hudi").load(str(sink.location)).select("id", "zone").collect()
        assert Counter((row.id, row.zone) for row in found) == Counter(expected.items())
        sink.succeeds("status", "check")


@pytest.mark.timeout(600)
def test_a_submitted_job_transforms_rows_into_hudis_files(
    tmp_path: Path, bundle: Path, spark: Any, lock: dict[str, str]
) -> None:
    with started(tmp_path, bundle, lock, kind=SubmittedSink) as sink:
        first = sink.begin()
        assert isinstance(sink, SubmittedSink)
        driver = sink.driver()
        first.kill()
        first.wait()
        sink.wait(lambda: not Path(f"/proc/{driver}").exists(), "the end of the job")
        sink.produce(60)
        second = sink.start()
        expected = Counter((number, "ABC"[number % 3]) for number in range(360))
        sink.wait(lambda: sink.zones() == expected, "360 rows with their zones")
        second.kill()
        second.wait()
        assert ids_by_spark(spark, *sink.wanted()) == Counter(range(360))
        sink.succeeds("status", "check", "audit")
