"""Sinks whose Hudi tables lie on S3: killed, resumed, read by Spark and hudi-rs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hudi_tables.sinks import (
    HudiOnS3Sink,
    ManyHudiOnS3Sink,
    ids_by_spark,
    rows_by_spark,
    undelivered,
)
from hudi_tables.test_hudi_sink import started
from support.object_store import ObjectStore

from headgate.config.load import load
from headgate.config.table_format_registry import quarantine_spec
from headgate.operations.cli.main import main
from headgate.operations.many_tables.list import list_tables
from headgate.operations.status.status import read_status

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
def test_a_killed_sink_on_s3_loses_and_doubles_nothing(
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
        first = sink.begin()
        sink.produce(300)
        sink.spoil(10)
        first.kill()
        first.wait()
        sink.resume()
        expected = Counter(range(660))
        assert ids_by_spark(spark, *sink.wanted()) == expected
        check(sink, proven=not key)


@pytest.mark.timeout(900)
def test_a_sink_with_many_tables_on_s3_that_is_killed_before_it_delivers_any_delivers_all(
    tmp_path: Path, bundle: Path, spark: Any, lock: dict[str, str], object_store: ObjectStore
) -> None:
    class Sink(ManyHudiOnS3Sink):
        store = object_store

    with started(tmp_path, bundle, lock, kind=Sink) as sink:
        first = sink.begin()
        settings = load(sink.file)
        aside = quarantine_spec(settings)
        sink.wait(lambda: read_status(settings).pending_rows == 0, "all is delivered")
        with undelivered(*sink.wanted(), aside):
            sink.produce(300)
            sink.spoil(10)
            sink.wait(
                lambda: read_status(settings).pending_rows == 310, "a decision that nobody delivers"
            )
            first.kill()
            first.wait()
            assert ids_by_spark(spark, *sink.wanted()) == Counter(range(300))
        sink.resume()
        expected = Counter(range(660))
        assert ids_by_spark(spark, *sink.wanted()) == expected
        for number, table in enumerate(sink.wanted()):
            assert ids_by_spark(spark, table) == Counter(range(number, 660, 3)), table.name
        rows = rows_by_spark(spark, aside, "headers")
        assert Counter(int(row.headers[0]["value"]) for row in rows) == Counter(range(30))
        pending = {
            each.table: (each.state, each.pending_rows) for each in list_tables(settings).tables
        }
        assert pending == {table.name: ("open", 0) for table in sink.wanted()}
        check(sink, proven=True)
