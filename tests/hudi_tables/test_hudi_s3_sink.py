"""Sinks whose Hudi tables lie on S3: killed, resumed, read by Spark and hudi-rs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hudi_tables.sinks import HudiOnS3Sink
from hudi_tables.test_hudi_sink import started
from object_store import ObjectStore

from headgate.operations.cli import main
from headgate.sink.kinds import wanted_table
from headgate.sink.load import load
from headgate.tables.hudi.jvm import open_spark
from headgate.tables.hudi.places import HudiPlace

pytest.importorskip("hudi", reason="needs Spark 3.5 and hudi-rs: make hudi")


def check(sink: HudiOnS3Sink, *, proven: bool) -> None:
    """Ask the commands about a sink that has ended; an audit of keys proves less than all."""
    told = {}
    for command in ("status", "check", "audit"):
        done = CliRunner().invoke(main, [command, str(sink.file)])
        assert done.exit_code == 0 or (command == "audit" and not proven), done.output
        told[command] = done.output
    assert ("none lost, none twice: well" if proven else "660 rows are live") in told["audit"]
    assert "finding" not in told["audit"]
    assert sink.store.s3()["s3.secret-access-key"] not in "".join(told.values()) + sink.said()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("key", ["", "id"])
def test_point_5_a_killed_sink_on_s3_loses_and_doubles_nothing(
    tmp_path: Path,
    bundle: Path,
    spark: Any,
    lock: dict[str, str],
    object_store: ObjectStore,
    key: str,
) -> None:
    class Sink(HudiOnS3Sink):
        store = object_store

    with started(tmp_path, bundle, lock, key, Sink) as sink:
        sink.produce(300)
        sink.spoil(20)
        first = sink.start()
        sink.waits_for(300)
        sink.wait(lambda: sum(sink.kept_aside().values()) == 20, "20 spoiled records")
        sink.produce(300)
        sink.spoil(10)
        first.kill()
        first.wait()
        second = sink.start()
        sink.produce(60)
        expected = Counter(range(660))
        sink.wait(lambda: sink.ids() == expected, "660 rows, once each")
        sink.wait(lambda: sink.kept_aside() == Counter(range(30)), "30 spoiled records")
        second.terminate()
        assert second.wait(120) == 0, sink.said()[-4000:]
        place = HudiPlace.of(wanted_table(load(sink.file)))
        open_spark({}, place.hadoop)
        rows = spark.read.format("hudi").load(place.base_path).select("id").collect()
        assert Counter(row.id for row in rows) == expected
        check(sink, proven=not key)
