"""One sink fills keyed tables and others by their topics: each keyed one is the fold of its topic.

The oracle is a dictionary per topic, filled as records are produced; the coordinator is killed and
paused meanwhile.
"""

from __future__ import annotations

from typing import Any

import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.readers import read_with_duckdb, read_with_pyiceberg
from integration.sink.test_changes import Changelog, go_wrong
from integration.sink_file import COLUMNS

from headgate.operations.audit.audit import audit
from headgate.operations.audit.report import Verdict
from headgate.operations.check.check import State
from headgate.operations.check.check import check as check_sink
from headgate.operations.many_tables.list import list_tables

pytestmark = pytest.mark.integration

_COORDINATES = ("kafka_topic", "kafka_partition", "kafka_offset")
_ROWS = [
    {"name": "id", "type": "long", "required": True},
    {"name": "name", "type": "string"},
    {"name": "n", "type": "long"},
]


def keyed_routes(
    deploy: Deploy, change: dict[str, Any] | None = None, columns: list[Any] = _ROWS
) -> Deployment:
    """Two topics go to keyed tables by their names, the third to one that is appended to."""
    sink = deploy({}, topics=3)
    first, second, third = sink.topics
    sink.change(
        {
            "table": None,
            "table.columns": None,
            "table.record_columns": None,
            "tables": {"ledger": "db.ledger"},
            "tables.create": {"schema": "declared", "properties": {"format-version": "3"}},
            "tables.record_columns": dict(
                zip(("topic", "partition", "offset"), _COORDINATES, strict=True)
            ),
            "tables.route": [
                {"topic": first, "to": "db.orders"},
                {"topic": second, "to": "db.users"},
                {"topic": third, "to": "db.trips"},
            ],
            "tables.table": [
                {"match": "db.(orders|users)", "columns": columns, "key": ["id"]},
                {
                    "match": "db.trips",
                    "columns": [{"name": name, "type": kind} for name, kind in COLUMNS.items()],
                },
            ],
            "quarantine": {"per_thousand_max": 1_000, "table": "db.rejected"},
            **(change or {}),
        }
    )
    return sink


def assert_folded(sink: Deployment, changes: Changelog, table: str) -> None:
    """Both readers see exactly the fold, and the table's records count each change once."""
    expected = sorted(changes.rows.values(), key=lambda row: row["id"])
    with sink.catalog() as catalog:
        location = catalog.load_table(table).metadata_location
    for read in (read_with_pyiceberg, read_with_duckdb):
        rows = read(location).select(["id", "name", "n"]).to_pylist()
        assert sorted(rows, key=lambda row: row["id"]) == expected, (table, read.__name__)


def judged(sink: Deployment, orders: Changelog, users: Changelog, trips: int) -> None:
    assert [
        (each.table, each.state, each.pending_rows) for each in list_tables(sink.settings).tables
    ] == [(name, "open", 0) for name in ("db.orders", "db.trips", "db.users")]
    assert_folded(sink, orders, "db.orders")
    assert_folded(sink, users, "db.users")
    with sink.catalog() as catalog:
        found = read_with_duckdb(catalog.load_table("db.trips").metadata_location)
    assert found.num_rows == trips


@pytest.mark.wide
def test_topics_go_to_keyed_tables_over_a_kill(deploy: Deploy) -> None:
    sink = keyed_routes(deploy)
    orders = Changelog(sink, 1, topic=sink.topics[0])
    users = Changelog(sink, 2, topic=sink.topics[1])
    orders.produce(1_000)
    users.produce(500)
    sink.produce(300, sink.topics[2])
    sink.start()
    sink.wait_for_commits()
    sink.kill(sink.participants[0])
    orders.produce(500)
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    judged(sink, orders, users, 300)

    said = {check.what: check for check in check_sink(sink.settings)}
    assert {check.state for check in said.values()} <= {State.OK, State.UNCHECKED}
    assert said["keys"].detail == "db.orders by id; db.users by id"
    assert_well(sink)
    go_wrong(sink, orders, "db.orders")
    report = audit(sink.settings)
    assert (report.verdict, report.exit_code()) == (Verdict.WRONG, 1)
    found = {finding.what: finding.evidence for finding in report.findings}
    for what in ("row-lost", "row-undeleted", "value-differs"):
        assert found[what].startswith("db.orders: ")
        assert sink.topics[0] in found[what]


def assert_well(sink: Deployment) -> None:
    report = audit(sink.settings)
    assert report.findings == ()
    assert report.unproven == ()
    assert report.verdict is Verdict.WELL


def test_columns_that_their_rows_need_are_added_over_a_kill(deploy: Deploy) -> None:
    evolves = {"tables.schema": {"unknown_fields": "evolve"}}
    sink = keyed_routes(deploy, evolves, columns=_ROWS[:-1])
    orders = Changelog(sink, 5, topic=sink.topics[0])
    users = Changelog(sink, 6, topic=sink.topics[1])
    orders.produce(300)
    sink.produce(100, sink.topics[2])
    sink.start()
    sink.wait_for_commits()
    users.produce(200)
    sink.kill(sink.participants[0])
    orders.produce(100)
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    judged(sink, orders, users, 100)
    assert_well(sink)


@pytest.mark.soak
def test_so_they_do_over_kills_and_pauses(deploy: Deploy) -> None:
    sink = keyed_routes(deploy)
    orders = Changelog(sink, 1, topic=sink.topics[0])
    users = Changelog(sink, 2, topic=sink.topics[1])
    orders.produce(1_500)
    users.produce(500)
    sink.produce(300, sink.topics[2])
    first, second = sink.start(2)
    sink.wait_for_commits()
    orders.produce(500)
    sink.kill(first)
    users.produce(500)
    sink.wait_until_lag_zero()
    second.pause()
    orders.produce(500, keys=50)
    sink.start()
    sink.wait_until_lag_zero()
    second.resume()
    users.produce(300, keys=50)
    sink.wait_until_lag_zero()
    sink.stop()
    judged(sink, orders, users, 300)
    assert_well(sink)


@pytest.mark.soak
@pytest.mark.spark
def test_so_do_spark_s_tasks(deploy: Deploy) -> None:
    sink = keyed_routes(deploy, {"spark": {"writer": "spark", "master": "local[2]"}})
    orders = Changelog(sink, 3, topic=sink.topics[0])
    users = Changelog(sink, 4, topic=sink.topics[1])
    orders.produce(800)
    users.produce(200)
    sink.produce(100, sink.topics[2])
    sink.start()
    sink.wait_for_commits()
    orders.produce(400)
    sink.wait_until_lag_zero(180)
    sink.stop()
    judged(sink, orders, users, 100)
