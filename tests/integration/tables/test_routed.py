"""One sink fills many tables: each record is in one of them once, whatever dies (R1 to R7)."""

from __future__ import annotations

import pytest
from integration.conftest import Deploy
from integration.iceberg.rest_server import LyingProxy
from integration.tables.routed_sink import judge, routed, rows_of, table_of, with_zones

from headgate.operations.audit import audit
from headgate.operations.status import status

pytestmark = pytest.mark.integration


def test_point_3_three_topics_go_into_their_tables(deploy: Deploy) -> None:
    sink = routed(deploy)
    with_zones(sink)
    for topic in sink.topics:
        sink.produce(300, topic)
    sink.start(2)
    sink.wait_until_lag_zero()
    sink.stop()
    by_name = table_of(sink, sink.topics[1])
    counts = judge(sink, ["db.orders", by_name, "db.zone_a", "db.zone_b"])
    assert counts == {
        "db.orders": 300,
        by_name: 300,
        "db.zone_a": 100,
        "db.zone_b": 100,
        "db.rejected": 100,
    }
    assert rows_of(sink, "db.ledger").num_rows == 0
    report = audit(sink.settings)
    assert (report.findings, report.unproven) == ((), ())
    assert (report.total("in_table"), report.total("in_quarantine")) == (800, 100)
    messages = set(rows_of(sink, "db.rejected")["message"].to_pylist())
    assert all("no table db.zone_c" in message for message in messages)


def test_point_3_the_coordinator_is_killed_between_decision_and_payment(
    deploy: Deploy, lying_proxy: LyingProxy, unique_name: str
) -> None:
    """The ledger has landed, the call for one of the tables is under way and will be lost."""
    space = unique_name.replace("-", "_")
    catalog = {"type": "rest", "uri": lying_proxy.uri, "warehouse": None}
    sink = routed(deploy, {"catalog.properties": catalog}, namespace=space)
    with_zones(sink, space)
    sink.start(2)
    with sink.load():
        sink.wait_for_commits(2)
        for topic in sink.topics[1:]:
            sink.produce(200, topic)
        leader = sink.leader()
        lying_proxy.lose_next("orders")
        sink.wait_until(lying_proxy.kept.is_set, "payment")
        sink.kill(leader)
        lying_proxy.let_go()
        assert {debt.table for debt in sink.owed()} >= {f"{space}.orders"}
        assert status(sink.settings).owed_rows == sum(debt.rows for debt in sink.owed())
        sink.start()
        sink.wait_for_commits(2)
    sink.wait_until_lag_zero()
    sink.stop()
    by_name = table_of(sink, sink.topics[1], space)
    tables = [f"{space}.{name}" for name in ("orders", "zone_a", "zone_b")]
    counts = judge(sink, [*tables, by_name], f"{space}.rejected")
    assert counts[by_name] == 200
    report = audit(sink.settings)
    assert (report.findings, report.unproven) == ((), ())
    assert len(report.epochs) >= 2
