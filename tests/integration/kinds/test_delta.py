"""A sink whose table is Delta: killed, resumed, among others who write, and read back by others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from integration.conftest import Deploy
from integration.readers import read_delta_with_duckdb
from integration.sink_file import Sections

from headgate.operations.cli.main import main

pytestmark = pytest.mark.integration


def delta(location: Path, **more: object) -> Sections:
    return {
        "catalog.properties": {"type": None, "uri": None, "warehouse": None},
        "table": {"type": "delta", "location": str(location), **more},
    }


def test_killed_coordinators_and_foreign_writers_lose_and_double_nothing(
    deploy: Deploy, tmp_path: Path
) -> None:
    location = tmp_path / "lake" / "rows"
    sink = deploy(delta(location, partition_by=["zone"]))
    sink.rows = lambda: read_delta_with_duckdb(str(location))  # type: ignore[method-assign]
    sink.start(2)
    with sink.load():
        sink.wait_for_commits(2)
        sink.kill(sink.leader())
        sink.start()
        sink.wait_for_commits(2)
        theirs = pa.table({"id": [-1], "zone": ["a"]})
        write_deltalake(location, theirs, mode="append", schema_mode="merge")
        DeltaTable(location).optimize.compact()
        DeltaTable(location).create_checkpoint()
        sink.wait_for_commits(2)
        DeltaTable(location).vacuum(dry_run=False)
        sink.kill(sink.leader())
        sink.start()
        sink.wait_for_commits(1)
    sink.wait_until_lag_zero()
    sink.stop()
    report = sink.judge()
    assert report.rows == sink.produced
    assert report.live_rows == sink.produced + 1
    assert DeltaTable(location).to_pyarrow_table().num_rows == sink.produced + 1
    run = CliRunner()
    for command in ("status", "audit", "check"):
        done = run.invoke(main, [command, str(sink.sink_file)])
        assert done.exit_code == 0, done.output
    refused = run.invoke(main, ["rollback", str(sink.sink_file), "1.1"])
    assert refused.exit_code == 2
    assert "HG-151" in refused.output


@pytest.mark.soak
def test_a_restored_table_stops_the_sink_until_somebody_decides(
    deploy: Deploy, tmp_path: Path
) -> None:
    location = tmp_path / "lake" / "rows"
    sink = deploy(delta(location))
    sink.rows = lambda: read_delta_with_duckdb(str(location))  # type: ignore[method-assign]
    sink.produce(100)
    sink.start()
    sink.wait_until_lag_zero()
    before = DeltaTable(location).version()
    sink.produce(100)
    sink.wait_until_lag_zero()
    sink.stop()
    DeltaTable(location).restore(before)
    sink.start()
    assert "HG-201" in sink.stopped_by_itself("HG-201")
    sink.change({"coordinator": {"on_rollback": "follow-table"}})
    sink.start()
    sink.wait_until(lambda: sink.rows().num_rows == 200, "the rows that were restored away")
    sink.stop()
    rows = sink.rows()
    assert pc.count_distinct(rows["id"]).as_py() == 200


@pytest.mark.soak
@pytest.mark.spark
def test_spark_writes_the_files_as_well(deploy: Deploy, tmp_path: Path) -> None:
    location = tmp_path / "lake" / "rows"
    spark = {"writer": "spark", "master": "local[2]"}
    sink = deploy({**delta(location, partition_by=["zone"]), "spark": spark})
    sink.rows = lambda: read_delta_with_duckdb(str(location))  # type: ignore[method-assign]
    sink.produce()
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    assert sink.judge().rows == 1_000
