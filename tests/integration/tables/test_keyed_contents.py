"""One topic, several keyed tables and one without a key: what each record says decides which.

As Debezium's ``ByLogicalTableRouter`` makes such a topic, and as others do with a header. The
oracle is a dictionary for each table, filled as records are produced.
"""

from __future__ import annotations

import json
import random
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka as kafka
import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.readers import read_with_duckdb, read_with_pyiceberg
from integration.sink.test_changes import Changelog, go_wrong
from integration.tables.test_keyed_routes import assert_folded, assert_well, keyed_routes

from headgate.operations.audit.audit import audit
from headgate.operations.audit.report import Verdict
from headgate.operations.check.check import State
from headgate.operations.check.check import check as check_sink
from headgate.operations.many_tables.list import list_tables

pytestmark = pytest.mark.integration

Row = dict[str, Any]
KEYS = 200
_ROWS = [
    {"name": "id", "type": "long", "required": True},
    {"name": "name", "type": "string"},
    {"name": "n", "type": "long"},
]
_LOGS = [{"name": "id", "type": "long", "from": "after.id"}]


@dataclass
class Outbox:
    """Produces changes of ``orders`` and ``users`` and rows of ``logs`` into one topic; a key is in
    one of two partitions. ``rows`` is the fold of each table."""

    sink: Deployment
    seed: int
    headed: bool = False
    rows: dict[str, dict[int, Row]] = field(default_factory=lambda: defaultdict(dict))
    logs: list[int] = field(default_factory=list)
    unmatched: int = 0

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        ordered = {"bootstrap.servers": self.sink.bootstrap, "enable.idempotence": True}
        self._producer = kafka.Producer(ordered)
        self.sent = 0

    def produce(self, count: int) -> None:
        for _ in range(count):
            table, key = self._dice.choice(("orders", "users")), self._dice.randrange(KEYS)
            rows = self.rows[table]
            match self._dice.random():
                case coin if coin < 0.6:
                    self.put(table, key)
                case coin if coin < 0.85:
                    self.delete(table, key)
                case coin if coin < 0.92 and key in rows:
                    row = rows[key]
                    self.delete(table, key)
                    self.put(table, KEYS + key, row)
                case coin if coin < 0.97:
                    self.logs.append(self.sent)
                    row = {"id": self.sent}
                    event = row if self.headed else self._event("logs", "c", after=row)
                    self.send("logs", key, event)
                case _:
                    self.unmatched += not self.headed
                    if not self.headed:  # a message of the database's log, which is of no table
                        self.send("", key, self._event("", "m"))
        assert self._producer.flush(60) == 0

    def put(self, table: str, key: int, row: Row | None = None) -> None:
        before = self.rows[table].get(key)
        row = {"name": f"{table}{self.sent}", **(row or {}), "id": key, "n": self.sent}
        self.rows[table][key] = row
        op = "u" if before else self._dice.choice("cr")
        self.send(table, key, row if self.headed else self._event(table, op, before, row))

    def delete(self, table: str, key: int) -> None:
        before = self.rows[table].pop(key, None)
        if not self.headed:
            self.send(table, key, self._event(table, "d", before or {"id": key}))
        self.send(table, key, None)

    def close(self) -> None:
        assert self._producer.flush(60) == 0

    def of(self, table: str) -> Changelog:
        return Changelog(self.sink, 0, rows=self.rows[table])

    def _event(
        self, table: str, op: str, before: Row | None = None, after: Row | None = None
    ) -> Row:
        return {"before": before, "after": after, "op": op, "source": {"table": table}}

    def send(self, table: str, key: int, value: Row | None) -> None:
        self.sent += 1
        told = {"id": key, "__dbz__physicalTableIdentifier": f"shop.public.{table}"}
        self._producer.produce(
            self.sink.topics[0],
            None if value is None else json.dumps(value).encode(),
            str(key) if self.headed else json.dumps(told),
            partition=zlib.crc32(str(key).encode()) % self.sink.partitions,
            headers=[("table", table.encode())] if self.headed else [],
        )
        self._producer.poll(0)


class FlattenedOutbox(Outbox):
    """As ExtractNewRecordState flattens: a record that deletes has anything in its columns."""

    def _event(
        self, table: str, op: str, before: Row | None = None, after: Row | None = None
    ) -> Row:
        told = {"__op": op, "__table": table, "__deleted": str(op == "d").lower()}
        return {**(after or {"name": "", "n": 0, **(before or {})}), **told}


class DmsOutbox(Outbox):
    """As AWS DMS writes: what is of no table is a control record."""

    def _event(
        self, table: str, op: str, before: Row | None = None, after: Row | None = None
    ) -> Row:
        words = {"c": "insert", "r": "load", "u": "update", "d": "delete", "m": "create-table"}
        metadata = {"operation": words[op], "record-type": "control" if op == "m" else "data"}
        return {"data": after or before, "metadata": {**metadata, "table-name": table}}


def outbox(deploy: Deploy, change: dict[str, Any] | None = None) -> Deployment:
    """Keyed tables are made as records name them."""
    sink = keyed_routes(deploy)
    topic = sink.topics[0]
    sink.change(
        {
            "source": {"topics": [topic]},
            "tables.route": [
                {"topic": topic, "field": "source.table", "value": "logs", "to": "db.logs"},
                {"topic": topic, "field": "source.table", "to": "db.{field}"},
            ],
            "tables.table": [
                {"match": "db.logs", "columns": _LOGS},
                {"match": "db..*", "columns": _ROWS, "key": ["id"]},
            ],
            "changes": {"envelope": "debezium", "tombstones": "skip"},
            **(change or {}),
        }
    )
    return sink


def assert_proven(sink: Deployment, events: Outbox) -> None:
    """The tables with a key are the folds; rows of the others are compared record by record."""
    assert_well(sink)
    report = audit(sink.settings)
    assert (report.sum_over_partitions("lost"), report.sum_over_partitions("invented")) == (0, 0)
    assert report.sum_over_partitions("in_table") == len(events.logs)


def judged(sink: Deployment, events: Outbox) -> None:
    names = ["db.logs", "db.orders", "db.users"]
    found = list_tables(sink.settings).tables
    assert [(each.table, each.state, each.pending_rows) for each in found] == [
        (name, "open", 0) for name in names
    ]
    assert_folded(sink, events.of("orders"), "db.orders")
    assert_folded(sink, events.of("users"), "db.users")
    with sink.catalog() as catalog:
        location = catalog.load_table("db.logs").metadata_location
    for read in (read_with_pyiceberg, read_with_duckdb):
        assert sorted(read(location).column("id").to_pylist()) == events.logs, read.__name__


def test_one_topic_of_debezium_s_goes_to_keyed_tables_over_kills(deploy: Deploy) -> None:
    sink = outbox(deploy)
    events = Outbox(sink, 1)
    events.produce(800)
    sink.start(2)
    sink.wait_for_commits()
    sink.kill(sink.leader())
    events.produce(400)
    sink.start()
    sink.wait_for_commits()
    sink.kill(sink.participants[0])
    events.produce(400)
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    judged(sink, events)
    assert sum(len(each) for each in sink.quarantined()) == events.unmatched

    said = {check.what: check for check in check_sink(sink.settings)}
    assert {check.state for check in said.values()} <= {State.OK, State.UNCHECKED}
    told = f"records of {sink.topics[0]} name tables"
    assert said["keys"].detail == f"db.orders by id; db.users by id; {told}"
    assert_proven(sink, events)
    go_wrong(sink, events.of("orders"), "db.orders")
    report = audit(sink.settings)
    assert (report.verdict, report.exit_code()) == (Verdict.WRONG, 1)
    found = {finding.what: finding.evidence for finding in report.findings}
    for what in ("row-lost", "row-undeleted", "value-differs"):
        assert found[what].startswith("db.orders: ")
        assert sink.topics[0] in found[what]
    assert "record-lost" not in found


def delete_a_log(sink: Deployment) -> None:
    """Take a row out of the table without a key, as any engine may."""
    with sink.catalog() as catalog:
        logs = catalog.load_table("db.logs")
        row = logs.scan().to_arrow().to_pylist()[7]
        logs.delete(f"id = {row['id']}")


def test_a_keyed_table_made_anew_is_named_and_a_deleted_row_of_another_is_no_loss(
    deploy: Deploy,
) -> None:
    """What went into the table before is not there without a word, and is not called lost."""
    change = {
        "tables": {"ledger": "db.ledger", "on_missing": "create"},
        "tables.create": {"schema": "declared", "properties": {"format-version": "2"}},
    }
    sink = outbox(deploy, change)
    events = Outbox(sink, 4)
    events.produce(300)
    run_until_delivered(sink)
    with sink.catalog() as catalog:
        catalog.drop_table("db.users")
    events.produce(100)
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    delete_a_log(sink)
    report = audit(sink.settings)
    found = {finding.what: finding.evidence for finding in report.findings}
    assert found.keys() == {"table-recreated"}, report.findings
    there = set(ids(sink, "db.users"))
    absent = events.rows["users"].keys() - there
    assert absent
    assert there < events.rows["users"].keys()
    told = f"db.users: {len(absent)} keys have no row, because the table was re-created"
    assert found["table-recreated"].startswith(told)
    assert any(text.startswith("db.users: re-created") for text in report.unproven)
    assert_folded(sink, events.of("orders"), "db.orders")


def run_until_delivered(sink: Deployment) -> None:
    """Bring all that was produced into every table."""
    sink.start()
    sink.wait_until_lag_zero()
    sink.wait_until(lambda: delivered(sink), "the tables to be delivered")
    sink.stop()


def delivered(sink: Deployment) -> bool:
    return not any(each.pending_rows for each in list_tables(sink.settings).tables)


def ids(sink: Deployment, table: str) -> list[int]:
    with sink.catalog() as catalog:
        location = catalog.load_table(table).metadata_location
    found: list[int] = read_with_duckdb(location).column("id").to_pylist()
    return found


@pytest.mark.wide
@pytest.mark.parametrize(
    ("envelope", "field_name", "log", "made"),
    [
        ("dms", "metadata.table-name", "data.id", DmsOutbox),
        pytest.param("flattened", "__table", "id", FlattenedOutbox, marks=pytest.mark.soak),
    ],
)
def test_so_do_other_envelopes(
    deploy: Deploy, envelope: str, field_name: str, log: str, made: type[Outbox]
) -> None:
    sink = outbox(deploy)
    route = {"topic": sink.topics[0], "field": field_name}
    sink.change(
        {
            "tables.route": [
                {**route, "value": "logs", "to": "db.logs"},
                {**route, "to": "db.{field}"},
            ],
            "tables.table": [
                {"match": "db.logs", "columns": [{"name": "id", "type": "long", "from": log}]},
                {"match": "db..*", "columns": _ROWS, "key": ["id"]},
            ],
            "changes": {"envelope": envelope, "tombstones": "skip"},
        }
    )
    events = made(sink, 5)
    events.produce(400)
    run_until_delivered(sink)
    judged(sink, events)
    assert sum(len(each) for each in sink.quarantined()) == events.unmatched
    assert_proven(sink, events)


def test_a_header_sends_what_has_no_value_to_the_table_of_its_key(deploy: Deploy) -> None:
    """What it does not tell of is in the quarantine. A row that comes to another table stays in the
    one before, where nobody has deleted it."""
    routes = [{"header": "table", "to": "db.{header}"}]
    sections = [
        {"match": "db.logs", "columns": [{"name": "id", "type": "long"}]},
        {"match": "db..*", "columns": _ROWS, "key": ["id"]},
    ]
    change = {"tables.route": routes, "tables.table": sections, "changes": {"envelope": "plain"}}
    sink = outbox(deploy, change)
    events = Outbox(sink, 2, headed=True)
    events.produce(500)
    events.put("orders", 1_000)
    events.put("users", 1_000)
    events.delete("users", 1_000)
    events.send("", 1_000, None)
    events.close()
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    assert 1_000 in events.rows["orders"]
    judged(sink, events)
    with sink.catalog() as catalog:
        rejected = read_with_duckdb(catalog.load_table("db.rejected").metadata_location)
    assert rejected.column("error_class").to_pylist() == ["route"]
    assert_proven(sink, events)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_so_do_spark_s_tasks_over_a_kill(deploy: Deploy) -> None:
    sink = outbox(deploy, {"spark": {"writer": "spark", "master": "local[2]"}})
    events = Outbox(sink, 3)
    events.produce(600)
    (only,) = sink.start()
    sink.wait_until_lag_zero(400)
    events.produce(400)
    sink.kill(only)
    sink.start()
    sink.wait_until_lag_zero(400)
    sink.stop()
    judged(sink, events)
    assert_proven(sink, events)
