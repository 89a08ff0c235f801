"""Delta and PostgreSQL tables whose quarantine is Iceberg, in a REST catalog, on a real broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.iceberg.rest_server import LyingProxy
from integration.kinds.test_delta import delta
from integration.kinds.test_postgres import postgres
from integration.readers import read_delta_with_duckdb, read_postgres, read_with_duckdb
from integration.sink.test_dead_letters import offsets
from integration.sink_file import COLUMNS, COORDINATES, Sections
from support.postgres_server import PostgresServer

from headgate.operations.audit.audit import audit
from headgate.operations.cli.main import main
from headgate.operations.status.status import read_status
from headgate.runtime.sink_tables import open_tables_creating_nothing

pytestmark = [pytest.mark.integration, pytest.mark.wide]

TOKEN = "not-to-be-shown"


Reader = Callable[[], pa.Table]


def keeping(
    deploy: Deploy, primary: Sections, read: Reader, proxy: LyingProxy, more: Mapping[str, object]
) -> Deployment:
    """A sink whose every fifth record is bad."""
    aside = {"policy": "quarantine", "per_thousand_max": 1_000, "type": "iceberg", **more}
    properties = {"type": "rest", "uri": proxy.uri, "token": TOKEN}
    sink = deploy({**primary, "quarantine": aside, "quarantine.catalog.properties": properties})
    sink.bad_every = 5

    def rows_aside() -> list[pa.Table]:
        with open_tables_creating_nothing(sink.settings) as tables:
            name = sink.settings.quarantine.table
            table = tables.require_catalog_format(name).load_table(name)
            assert table.scan().to_arrow().num_rows == -(-sink.produced // 5)
        rows = read_with_duckdb(table.metadata_location).select(["topic", "partition", "offset"])
        return [rows.rename_columns(list(COORDINATES))]

    sink.rows = read  # type: ignore[method-assign]
    sink.quarantined = rows_aside  # type: ignore[method-assign]
    return sink


@pytest.fixture
def beside_delta(
    deploy: Deploy, lying_proxy: LyingProxy, tmp_path: Path, unique_name: str
) -> Deployment:
    location = tmp_path / "lake" / "rows"
    return keeping(
        deploy,
        delta(location),
        lambda: read_delta_with_duckdb(str(location)),
        lying_proxy,
        named(unique_name),
    )


def named(name: str) -> Mapping[str, object]:
    return {"table": f"{name.replace('-', '_')}.rows_quarantine"}


def judged(sink: Deployment) -> None:
    """Nothing is lost or doubled, and every command says so."""
    report = sink.judge()
    bad = -(-sink.produced // 5)
    assert report.sum_over_partitions("in_quarantine") == bad
    assert sink.rows().num_rows == sink.produced - bad
    assert len(read_status(sink.settings).rejected_records) == 5
    for command in ("status", "audit", "check"):
        done = CliRunner().invoke(main, [command, str(sink.sink_file)])
        assert done.exit_code == 0, done.output
        assert TOKEN not in done.output


def killed_before_it_delivers(sink: Deployment, proxy: LyingProxy) -> None:
    """Kill -9 between the table's commit, which has landed, and the delivery, which is lost."""
    sink.wait_for_commits(2)
    leader = sink.leader()
    proxy.lose_next("rows_quarantine")
    sink.wait_until(proxy.kept.is_set, "delivery")
    sink.kill(leader)
    proxy.let_go()
    assert sink.pending()
    assert "are pending for the quarantine" in " ".join(audit(sink.settings).remarks)
    assert read_status(sink.settings).pending_rows == sum(
        pending_commit.rows for pending_commit in sink.pending()
    )
    sink.start()


def test_the_coordinator_is_killed_between_decision_and_delivery(
    beside_delta: Deployment, lying_proxy: LyingProxy
) -> None:
    sink = beside_delta
    sink.start(2)
    with sink.load():
        killed_before_it_delivers(sink, lying_proxy)
        killed_before_it_delivers(sink, lying_proxy)
        sink.wait_for_commits(2)
    sink.wait_until_lag_zero()
    sink.stop()
    judged(sink)


@pytest.mark.wide
@pytest.mark.usefixtures("installed_example")
def test_so_it_is_beside_a_postgres_table(
    deploy: Deploy,
    lying_proxy: LyingProxy,
    tmp_path: Path,
    unique_name: str,
    server: PostgresServer,
) -> None:
    primary, more = postgres(tmp_path, server), named(unique_name)
    columns = (*COLUMNS, *COORDINATES)
    sink = keeping(deploy, primary, lambda: read_postgres(server, columns), lying_proxy, more)
    sink.start(2)
    with sink.load():
        killed_before_it_delivers(sink, lying_proxy)
        sink.wait_for_commits(2)
    sink.wait_until_lag_zero()
    sink.stop()
    judged(sink)


@pytest.mark.spark
def test_spark_writes_both_and_dead_letters_are_sent(
    beside_delta: Deployment, topic_factory: Callable[..., str]
) -> None:
    sink, letters = beside_delta, topic_factory(1)
    sink.change(
        {
            "spark": {"writer": "spark", "master": "local[2]"},
            "quarantine": {"dead_letter_topic": letters},
        }
    )
    sink.produce(500)
    sink.start()
    sink.wait_until_lag_zero(180)
    sink.wait_until(lambda: sum(offsets(sink.bootstrap, letters).values()) >= 100, "dead letters")
    sink.stop()
    judged(sink)


@pytest.mark.wide
def test_a_catalog_that_is_down_loses_nothing(
    beside_delta: Deployment, lying_proxy: LyingProxy
) -> None:
    sink = beside_delta
    sink.produce(100)
    sink.start()
    sink.wait_until_lag_zero()
    lying_proxy.refusing = True
    with sink.load():
        (participant,) = sink.participants
        sink.wait_until(lambda: participant.said("rows_quarantine cannot"), "what it waits for")
        check = CliRunner().invoke(main, ["check", str(sink.sink_file)])
        assert check.exit_code == 3
        assert TOKEN not in check.output + participant.log_text()
        decided = sink.record()
        sink.kill(participant)
        sink.start()
        assert sink.participants[0].ended() == 3, str(sink.participants[0])
        sink.participants.clear()
        assert sink.record() == decided
        lying_proxy.refusing = False
        sink.start()
        sink.wait_for_commits(1)
    sink.wait_until_lag_zero()
    sink.stop()
    judged(sink)
