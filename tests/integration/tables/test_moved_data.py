"""The owner of a table moves its data, and a record names the sink's own tables: nothing stops."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.oracle import assert_exactly_once, read_source
from integration.sink_file import COORDINATES
from integration.tables.routed_sink import judge, routed, rows_of, table_of, with_zones
from integration.tables.test_suspended import running

from headgate.data_plane.routing import table_lookup

pytestmark = pytest.mark.integration


def move(sink: Deployment, table: str) -> str:
    """Set another place for the table's data; return its folder."""
    with sink.catalog() as catalog:
        found = catalog.load_table(table)
        folder = f"{found.metadata.location}/elsewhere"
        with found.transaction() as change:
            change.set_properties({"write.data.path": folder})
    return folder


def below(sink: Deployment, table: str, folder: str) -> int:
    """How many of the table's rows lie in files below the folder."""
    with sink.catalog() as catalog:
        tasks = catalog.load_table(table).scan().plan_files()
    return sum(t.file.record_count for t in tasks if t.file.file_path.startswith(f"{folder}/"))


def test_a_table_whose_data_its_owner_moves_is_filled_at_the_new_place(deploy: Deploy) -> None:
    sink = deploy({})
    sink.start(2)
    sink.produce(300)
    sink.wait_until(lambda: sink.committed() == 300, "the first records")
    table = sink.settings.table.identifier
    folder = move(sink, table)
    with sink.load(200):  # the coordinator learns of it from a commit's answer
        sink.wait_until(lambda: below(sink, table, folder) > 0, "files at the new place")
    sink.wait_until(lambda: sink.lag() == 0, "all records")
    sink.stop()
    rows = rows_of(sink, table).select(list(COORDINATES))
    assert_exactly_once(rows, read_source(sink.bootstrap, *sink.topics), columns=COORDINATES)


@pytest.mark.wide
def test_of_many_tables_the_moved_one_and_all_others_are_filled(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_lookup, "LOADED_S", 0.5)
    sink = routed(deploy)
    with_zones(sink)
    tables = ["db.orders", "db.zone_a", "db.zone_b", table_of(sink, sink.topics[1])]
    with running(sink):
        for topic in sink.topics:
            sink.produce(100, topic)
        sink.wait_until(lambda: sink.lag() == 0, "the first records")
        folder = move(sink, "db.orders")
        for topic in sink.topics:
            sink.produce(100, topic)
        sink.wait_until(lambda: below(sink, "db.orders", folder) > 0, "files at the new place")
        for topic in sink.topics:
            sink.produce(100, topic)
        sink.wait_until(lambda: sink.lag() == 0, "all records")
    counts = judge(sink, tables)
    assert counts["db.orders"] == counts[tables[-1]] == 300


@pytest.mark.wide
def test_records_that_name_ledger_and_quarantine_are_bad_and_stop_nothing(deploy: Deploy) -> None:
    """ROUTE-5: so in each batch, also once the participant knows those tables."""
    sink = routed(deploy)
    third = sink.topics[2]
    routes = [{"topic": third, "field": "zone", "to": "db.{field}"}]
    sink.change(
        {
            "tables.route": routes,
            "source": {"topics": [third]},
            "tables.table": None,
            "quarantine": {"policy": "quarantine"},
        }
    )
    with_zones(sink)
    producer = Producer({"bootstrap.servers": sink.bootstrap})
    names = ["zone_a", "ledger", "rejected", "zone_b"]
    with running(sink):
        for batch in range(3):
            for name in names:
                producer.produce(third, json.dumps({"id": batch, "zone": name}), partition=0)
            assert producer.flush(10) == 0
            sink.wait_until(lambda: sink.lag() == 0, "the batch")
    with sink.catalog() as catalog:
        assert catalog.load_table("db.ledger").scan().to_arrow().num_rows == 0
    aside = rows_of(sink, "db.rejected").to_pylist()
    assert [row["error_class"] for row in aside] == ["own table"] * 6
    assert rows_of(sink, "db.zone_a").num_rows == rows_of(sink, "db.zone_b").num_rows == 3
