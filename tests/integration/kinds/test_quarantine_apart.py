"""A Delta table whose quarantine is an Iceberg table of a REST catalog, on a real broker."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.iceberg.rest_server import LyingProxy
from integration.kinds.test_delta import delta
from integration.readers import read_delta_with_duckdb, read_with_duckdb
from integration.sink_file import COORDINATES, KEPT

from headgate.operations.audit import audit
from headgate.operations.cli import main
from headgate.operations.status import status
from headgate.operations.table_access import opened_aside

pytestmark = pytest.mark.integration

TOKEN = "not-to-be-shown"


def keeping(deploy: Deploy, location: Path, proxy: LyingProxy, name: str) -> Deployment:
    """A sink whose every fifth record is bad."""
    namespace = name.replace("-", "_")
    sink = deploy(
        {
            **delta(location),
            "quarantine": {
                **KEPT["quarantine"],  # type: ignore[dict-item]
                "type": "iceberg",
                "table": f"{namespace}.rows_quarantine",
            },
            "quarantine.catalog.properties": {"type": "rest", "uri": proxy.uri, "token": TOKEN},
        }
    )
    sink.bad_every = 5

    def aside() -> list[pa.Table]:
        with opened_aside(sink.settings) as catalog:
            table = catalog.load_table(sink.settings.quarantine.table)
            assert table.scan().to_arrow().num_rows == -(-sink.produced // 5)
        rows = read_with_duckdb(table.metadata_location).select(["topic", "partition", "offset"])
        return [rows.rename_columns(list(COORDINATES))]

    sink.rows = lambda: read_delta_with_duckdb(str(location))  # type: ignore[method-assign]
    sink.quarantined = aside  # type: ignore[method-assign]
    return sink


def judged(sink: Deployment, location: Path) -> None:
    """Nothing is lost or doubled, and every command says so."""
    report = sink.judge()
    bad = -(-sink.produced // 5)
    assert report.total("in_quarantine") == bad
    assert DeltaTable(location).to_pyarrow_table().num_rows == sink.produced - bad
    assert len(status(sink.settings).bad_records) == 5
    for command in ("status", "audit", "check"):
        done = CliRunner().invoke(main, [command, str(sink.sink_file)])
        assert done.exit_code == 0, done.output
        assert TOKEN not in done.output


def test_point_14_the_coordinator_is_killed_between_decision_and_payment(
    deploy: Deploy, lying_proxy: LyingProxy, unique_name: str, tmp_path: Path
) -> None:
    location = tmp_path / "lake" / "rows"
    sink = keeping(deploy, location, lying_proxy, unique_name)
    sink.start(2)
    with sink.load():
        for _ in range(2):
            sink.wait_for_commits(2)
            leader = sink.leader()
            lying_proxy.lose_next("rows_quarantine")
            sink.wait_until(lying_proxy.kept.is_set, "payment")
            sink.kill(leader)
            lying_proxy.let_go()
            assert sink.owed()
            assert "are owed to the quarantine" in " ".join(audit(sink.settings).remarks)
            assert status(sink.settings).owed_rows == sum(debt.rows for debt in sink.owed())
            sink.start()
        sink.wait_for_commits(2)
    sink.wait_until_lag_zero()
    sink.stop()
    judged(sink, location)


def test_point_14_a_catalog_that_is_down_loses_nothing(
    deploy: Deploy, lying_proxy: LyingProxy, unique_name: str, tmp_path: Path
) -> None:
    location = tmp_path / "lake" / "rows"
    sink = keeping(deploy, location, lying_proxy, unique_name)
    sink.produce(100)
    sink.start()
    sink.wait_until_lag_zero()
    lying_proxy.refusing = True
    with sink.load():
        (participant,) = sink.participants
        sink.wait_until(lambda: participant.said("rows_quarantine"), "what it waits for")
        check = CliRunner().invoke(main, ["check", str(sink.sink_file)])
        assert check.exit_code == 3
        assert TOKEN not in check.output + participant.log_text()
        decided = DeltaTable(location).version()
        sink.kill(participant)
        sink.start()
        assert sink.participants[0].ended() == 3, str(sink.participants[0])
        sink.participants.clear()
        assert DeltaTable(location).version() == decided
        lying_proxy.refusing = False
        sink.start()
        sink.wait_for_commits(1)
    sink.wait_until_lag_zero()
    sink.stop()
    judged(sink, location)
