"""One sink fills many tables: each record is in one of them once, whatever dies (ROUTE-1 to
ROUTE-7, LEDGER-1)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from integration.conftest import Deploy
from integration.deployment import HEADGATE
from integration.iceberg.rest_server import LyingProxy
from integration.sink.test_reports import records_of
from integration.tables.routed_sink import (
    ROUTED_COLUMNS,
    judge,
    routed,
    rows_of,
    table_of,
    with_zones,
)
from support.topics import delete_topics

from headgate.operations.audit.audit import audit
from headgate.operations.check.check import State
from headgate.operations.check.check import check as check_sink
from headgate.operations.many_tables.list import list_tables
from headgate.operations.status.status import read_status

pytestmark = pytest.mark.integration


def test_three_topics_go_into_their_tables(deploy: Deploy) -> None:
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
    assert (
        report.sum_over_partitions("in_table"),
        report.sum_over_partitions("in_quarantine"),
    ) == (800, 100)
    shown = list_tables(sink.settings)
    assert [(table.table, table.state, table.pending_rows) for table in shown.tables] == [
        (name, "open", 0) for name in sorted(["db.orders", by_name, "db.zone_a", "db.zone_b"])
    ]
    assert len({table.valid_through_ms for table in shown.tables}) >= 1
    said = {check.what: check for check in check_sink(sink.settings)}
    assert {check.state for check in said.values()} <= {State.OK, State.UNCHECKED}
    assert f"{sink.topics[2]} -> db.zone_{{field}}" in said["routes"].detail
    messages = set(rows_of(sink, "db.rejected")["message"].to_pylist())
    assert all("no table db.zone_c" in message for message in messages)


@pytest.mark.wide
def test_the_coordinator_is_killed_between_decision_and_delivery(
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
        sink.wait_until(lying_proxy.kept.is_set, "delivery")
        sink.kill(leader)
        lying_proxy.let_go()
        assert {pending_commit.table for pending_commit in sink.pending()} >= {f"{space}.orders"}
        assert read_status(sink.settings).pending_rows == sum(
            pending_commit.rows for pending_commit in sink.pending()
        )
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


def test_routes_are_edited_between_a_kill_and_a_restart(deploy: Deploy) -> None:
    """What was decided stays where it was decided to; what was not goes by the new routes."""
    sink = routed(deploy)
    with_zones(sink)
    sink.start()
    with sink.load():
        sink.wait_for_commits(2)
        sink.kill(sink.leader())
        first, _, third = sink.topics
        sink.change(
            {
                "tables.route": [
                    {"topic": first, "field": "zone", "to": "db.zone_{field}"},
                    {"topic": third, "to": "db.orders"},
                ]
            }
        )
        sink.produce(100, third)
        sink.start()
        sink.wait_for_commits(2)
    sink.wait_until_lag_zero()
    sink.stop()
    counts = judge(sink, ["db.orders", "db.zone_a", "db.zone_b"])
    assert all(counts.values()), counts
    report = audit(sink.settings)
    assert (report.findings, report.unproven) == ((), ())


def test_topics_of_a_pattern_appear_and_vanish_while_the_sink_runs(
    deploy: Deploy, admin: AdminClient, unique_name: str
) -> None:
    """A new one has its table before anybody reads it; what a deleted one brought stays."""
    sink = routed(deploy, topics=3)
    with_zones(sink)
    late = f"{unique_name}.late"
    pattern = f"^{unique_name}\\..+$"
    route = {"topic": f"^{unique_name}\\.(?P<name>.+)$", "to": "db.of_{name}"}
    routes = [{"topic": sink.topics[0], "to": "db.orders"}, route]
    own = {"match": "db.(orders|of_.*)", "columns": ROUTED_COLUMNS}
    sink.change(
        {
            "source": {"topics": [sink.topics[0], pattern]},
            "kafka": {"topic.metadata.refresh.interval.ms": 500},
            "tables.route": routes,
            "tables.table": [own],
        }
    )
    sink.start()
    sink.produce(100)
    sink.wait_until(lambda: sink.committed() >= 100, "the first rows")
    admin.create_topics([NewTopic(late, 2, 1)])[late].result()
    sink.produce(100, late)
    sink.wait_until(lambda: sink.committed() >= 200, "rows of the topic that appeared")
    delete_topics(admin, late)
    sink.produce(100)
    sink.wait_until(lambda: sink.committed() >= 300, "rows after the topic vanished")
    # decided is not delivered yet
    sink.wait_until(lambda: rows_of(sink, "db.orders").num_rows >= 200, "they are in their table")
    sink.stop()
    assert rows_of(sink, "db.of_late").num_rows == 100
    assert rows_of(sink, "db.orders").num_rows == 200
    assert rows_of(sink, "db.rejected").num_rows == 0


@pytest.mark.wide
@pytest.mark.spark
def test_through_spark_in_one_job(deploy: Deploy) -> None:
    sink = routed(deploy, {"spark": {"writer": "spark", "master": "local[2]"}})
    with_zones(sink)
    for topic in sink.topics:
        sink.produce(300, topic)
    sink.start()
    sink.wait_until_lag_zero(180)
    sink.kill(sink.leader())
    for topic in sink.topics:
        sink.produce(300, topic)
    sink.change({"spark": {"writer": "spark", "master": "local[2]", "distribution": "hash"}})
    sink.start()
    sink.wait_until_lag_zero(180)
    sink.stop()
    by_name = table_of(sink, sink.topics[1])
    counts = judge(sink, ["db.orders", by_name, "db.zone_a", "db.zone_b"])
    assert counts["db.orders"] == counts[by_name] == 600
    assert counts["db.zone_a"] + counts["db.zone_b"] + counts["db.rejected"] == 600
    report = audit(sink.settings)
    assert (report.findings, report.unproven) == ((), ())


@pytest.mark.wide
@pytest.mark.spark
def test_a_transform_says_where_each_row_goes(deploy: Deploy) -> None:
    """To a table that there is, to none (null, or unknown), or nowhere at all."""
    named = "CASE zone WHEN 'c' THEN NULL ELSE zone END"
    sink = routed(
        deploy,
        {
            "spark": {"writer": "spark", "master": "local[2]"},
            "transform": {
                "sql": f"SELECT *, {named} AS _table FROM records WHERE id % 10 > 0",
                "columns": ROUTED_COLUMNS,
            },
            "tables.create": None,
            "tables.table": None,
            "tables.route": [{"field": "_table", "to": "db.zone_{field}"}],
        },
    )
    with_zones(sink)
    for topic in sink.topics:
        sink.produce(300, topic)
    sink.start()
    sink.wait_until_lag_zero(280)
    sink.stop()
    found = {name: rows_of(sink, f"db.{name}") for name in ("zone_a", "zone_b", "rejected")}
    kept = [n for n in range(300) if n % 10]
    assert {name: rows.num_rows for name, rows in found.items()} == {
        f"{name}": 3 * sum(n % 3 == zone for n in kept)
        for zone, name in enumerate(("zone_a", "zone_b", "rejected"))
    }
    for name in ("zone_a", "zone_b"):
        assert set(found[name]["zone"].to_pylist()) == {name[-1]}
    report = audit(sink.settings)
    assert report.findings == ()
    assert any("90 records were skipped" in words for words in report.unproven)
    assert (
        report.sum_over_partitions("in_table"),
        report.sum_over_partitions("in_quarantine"),
    ) == (540, 270)
    said = {check.what: check for check in check_sink(sink.settings)}
    assert said["transform"].state is State.OK, said["transform"]


@pytest.mark.wide
def test_a_function_says_where_each_row_goes_though_its_process_is_killed(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, topic_factory: Callable[..., str]
) -> None:
    """SHAPE-5, REPORT-2, REPORT-3: without Spark; and what is told of many tables."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    own_process, hours = (str(HEADGATE), "run"), topic_factory(1)
    sink = routed(
        deploy,
        {
            "transform": {
                "python": "support.user_functions:to_tables",
                "columns": ROUTED_COLUMNS,
            },
            "tables.create": None,
            "tables.table": None,
            "tables.route": [{"field": "_table", "to": "db.zone_{field}"}],
            "signal": {"topic": hours},
            "quarantine": {
                "policy": "quarantine",
                "per_thousand_max": 1_000,
                "table": "db.rejected",
            },
        },
    )
    told = sink.sink_file.with_name("lineage.json")
    sink.change({"lineage": {"file": str(told), "every_ms": 1_000}})
    with_zones(sink)
    sink.bad_every = 10
    sink.start(1, own_process)
    for topic in sink.topics:
        sink.produce(300, topic)
    sink.wait_for_commits()
    sink.kill(sink.participants[0])
    sink.start(1, own_process)
    for topic in sink.topics:
        sink.produce(300, topic)
    sink.wait_until_lag_zero()
    sink.wait_until(lambda: bool(records_of(sink.bootstrap, hours)), "a signal")
    sink.stop()
    counts = judge(sink, ["db.zone_a", "db.zone_b"])
    good = [n for n in range(sink.produced) if n % 10]
    assert counts["db.zone_a"] == sum(n % 3 == 0 for n in good)
    assert counts["db.zone_b"] == sum(n % 3 == 1 for n in good)
    report = audit(sink.settings)
    assert (report.findings, report.unproven) == ((), ())
    said = {check.what: check for check in check_sink(sink.settings)}
    assert said["transform"].state is State.OK, said["transform"]
    assert said["rows"].state is State.OK, said["rows"]
    events = [json.loads(line) for line in told.read_text().splitlines()]
    assert events[-1]["eventType"] == "COMPLETE"
    outputs = {output["name"] for output in events[-1]["outputs"]}
    assert {"db.zone_a", "db.zone_b", "db.rejected"} <= outputs
    assert any(name.endswith("/ledger") for name in outputs)
    for signal in records_of(sink.bootstrap, hours):
        assert (signal["table"], signal["suspended"]) == ("db.ledger", [])
