"""Bad records under load and faults: table and quarantine together hold each record once."""

from __future__ import annotations

import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.iceberg.rest_server import LyingProxy
from integration.sink_file import KEPT

from headgate.operations.audit.audit import audit
from headgate.operations.status.status import read_status

pytestmark = pytest.mark.integration

RATE = 300
"""What two participants keep up with on a busy machine, though every fifth record is bad."""


def test_x18_bad_records_go_into_the_quarantine_and_the_rest_is_committed(deploy: Deploy) -> None:
    sink = deploy(KEPT)
    sink.bad_every = 7
    sink.produce(1_000)
    sink.start(2)
    sink.wait_until_lag_zero()
    shown = read_status(sink.settings).transactions
    sink.stop()
    report = sink.judge()
    assert (
        report.sum_over_partitions("in_table"),
        report.sum_over_partitions("in_quarantine"),
    ) == (857, 143)
    assert sum(transaction.quarantined for transaction in shown) == 143


@pytest.mark.wide
@pytest.mark.spark
@pytest.mark.parametrize(
    "transform",
    [
        pytest.param({}, marks=pytest.mark.soak),
        {"sql": "SELECT * FROM records WHERE id % 3 <> 0"},
    ],
)
def test_x18_through_spark_as_well(deploy: Deploy, transform: dict[str, str]) -> None:
    spark = {"writer": "spark", "master": "local[2]"}
    change = {**KEPT, "spark": spark, **({"transform": transform} if transform else {})}
    sink = deploy(change)
    sink.bad_every = 7
    sink.produce(3_000)
    sink.start()
    sink.wait_until_lag_zero(180)
    sink.stop()
    if not transform:
        assert sink.judge().sum_over_partitions("in_quarantine") == 429
        return
    (aside,) = sink.quarantined()
    history = sink.history()
    assert history
    records = [commit.record for commit in history.commits]
    assert aside.num_rows == sum(record.quarantined for record in records) == 429
    assert sink.own_rows().num_rows + sum(record.skipped for record in records) == 3_000 - 429


def test_skipped_ones_are_counted(deploy: Deploy) -> None:
    sink = deploy({"quarantine": {"policy": "skip", "per_thousand_max": 1_000}})
    sink.bad_every = 10
    sink.produce(100)
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    history = sink.history()
    assert history
    assert sum(commit.record.skipped for commit in history.commits) == 10
    assert audit(sink.settings).skipped_records == 10
    assert sink.own_rows().num_rows == 90


def test_too_many_stop_the_sink_with_a_name(deploy: Deploy) -> None:
    sink = deploy({"quarantine": {"policy": "quarantine", "sample_records_min": 100}})
    sink.bad_every = 2
    sink.produce(1_000)
    sink.start()
    assert "could not be converted" in sink.stopped_by_itself("HG-211")
    assert sink.own_rows().num_rows == 0


def on_rest(deploy: Deploy, proxy: LyingProxy, name: str) -> Deployment:
    """A sink that keeps every fifth record in its quarantine, behind a proxy that may lie."""
    namespace = name.replace("-", "_")
    catalog = {"type": "rest", "uri": proxy.uri, "warehouse": None}
    sink = deploy(
        {**KEPT, "catalog.properties": catalog, "table": {"identifier": f"{namespace}.rows"}}
    )
    sink.bad_every = 5
    return sink


@pytest.mark.wide
def test_the_coordinator_is_killed_between_decision_and_delivery(
    deploy: Deploy, lying_proxy: LyingProxy, unique_name: str
) -> None:
    """The table has landed, the call for the quarantine is under way and will be lost: kill -9."""
    sink = on_rest(deploy, lying_proxy, unique_name)
    sink.start(2)
    with sink.load(RATE):
        for _ in range(2):
            sink.wait_for_commits(2)
            leader = sink.leader()
            lying_proxy.lose_next("rows_quarantine")
            sink.wait_until(lying_proxy.kept.is_set, "delivery")
            lying_proxy.forbids = "commit"  # nobody else delivers before it was looked at
            sink.kill(leader)
            lying_proxy.let_go()
            assert sink.pending()
            assert "are pending for the quarantine" in " ".join(audit(sink.settings).remarks)
            assert read_status(sink.settings).pending_rows == sum(
                pending_commit.rows for pending_commit in sink.pending()
            )
            lying_proxy.forbids = ""
            sink.start()
        sink.wait_for_commits(2)
    sink.wait_until_lag_zero()
    sink.stop()
    report = sink.judge()
    assert len(report.epochs) >= 3
    assert report.sum_over_partitions("in_quarantine") == -(-sink.produced // 5)


@pytest.mark.wide
def test_a_quarantine_that_takes_nothing_holds_the_table_up_for_a_while_only(
    deploy: Deploy, lying_proxy: LyingProxy, unique_name: str
) -> None:
    sink = on_rest(deploy, lying_proxy, unique_name)
    sink.start()
    with sink.load(RATE):
        sink.wait_for_commits(1)
        lying_proxy.lose_next("rows_quarantine")
        sink.wait_until(lying_proxy.kept.is_set, "delivery")
        sink.wait_for_commits(2)
        assert sink.pending()
        lying_proxy.let_go()
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()
