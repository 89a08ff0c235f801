"""Histories (KEY-14 to KEY-16): over kills, each change of a key is one version of it.

The oracle is this file's own. DuckDB and Spark read the table through the guide's view.
"""

from __future__ import annotations

import json
import random
import re
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka as kafka
import duckdb
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.readers import IcebergSpark, read_with_duckdb
from integration.tables.test_keyed_routes import keyed_routes

from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.table_history import History
from headgate.operations.audit.audit import audit
from headgate.operations.audit.report import Verdict
from headgate.operations.check.check import check
from headgate.operations.control.delete_rows import RowDeletion, carry_out_deletion
from headgate.operations.control.resolve_stop import resolve_stop_of_sink
from headgate.operations.control.set_offsets import plan_offset_moves

pytestmark = pytest.mark.integration

HISTORY: dict[str, Any] = {
    "table": {"key": ["id"]},
    "table.columns": {
        "columns": {
            "id": {"type": "long", "required": True},
            "customer": "string",
            "total": "long",
            "placed_at": "timestamptz",
        }
    },
    "table.record_columns": {"timestamp": "changed_at"},
    "changes": {"envelope": "debezium", "history": True},
}
BEGIN_MS = 1_785_585_600_000
GUIDE = Path(__file__).parents[3] / "docs/guides/upserts-and-deletes.md"


def view_of_guide() -> str:
    """The guide's own words."""
    statement = re.compile(r"```sql\n(CREATE VIEW orders_history.*?)```", re.DOTALL)
    (found,) = statement.findall(GUIDE.read_text())
    assert isinstance(found, str)
    return found


@dataclass(frozen=True)
class Change:
    """One record, as an oracle needs it; ``total`` is ``None`` where it deletes."""

    at_ms: int
    total: int | None


@dataclass
class Orders:
    """Produces changes of few keys, whose times stand still and go back; remembers all."""

    sink: Deployment
    seed: int
    envelope: str = "debezium"
    topic: int = 0
    changes: dict[int, list[Change]] = field(default_factory=dict)
    clock_ms: int = BEGIN_MS

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        ordered = {"bootstrap.servers": self.sink.bootstrap, "enable.idempotence": True}
        self._producer = kafka.Producer(ordered)

    def produce(self, count: int, keys: int = 40) -> None:
        for _ in range(count):
            key = self._dice.randrange(keys)
            self.clock_ms += self._dice.choice([-3, -1, 0, 0, 1, 2, 5])
            total = None if self._dice.random() < 0.2 else self._dice.randrange(10**6)
            self._send(key, total)
            self.changes.setdefault(key, []).append(Change(self.clock_ms, total))
        assert self._producer.flush(60) == 0

    def _send(self, key: int, total: int | None) -> None:
        row = {"id": key, "customer": f"c{key}", "total": total}
        plain = self.envelope == "plain"
        if total is None:
            value = None if plain else {"before": {"id": key}, "after": None, "op": "d"}
        else:
            value = row if plain else {"before": None, "after": row, "op": "u"}
        name = str(key) if plain else json.dumps({"id": key})
        values = [value] if plain or total is not None else [value, None]
        for each in values:
            self._producer.produce(
                self.sink.topics[self.topic],
                None if each is None else json.dumps(each).encode(),
                name.encode(),
                partition=zlib.crc32(str(key).encode()) % self.sink.partitions,
                timestamp=self.clock_ms,
            )
        self._producer.poll(0)

    @property
    def count(self) -> int:
        return sum(map(len, self.changes.values()))

    @property
    def deletes(self) -> int:
        return sum(each.total is None for some in self.changes.values() for each in some)

    def view(self) -> list[tuple[Any, ...]]:
        """What KEY-15 says of these: key, version, total, since when, until when, current."""
        rows = []
        for key, changes in self.changes.items():
            begins = [max(c.at_ms for c in changes[: n + 1]) for n in range(len(changes))]
            for n, (change, begin) in enumerate(zip(changes, begins, strict=True)):
                last = n + 1 == len(changes)
                end = None if last else begins[n + 1]
                if change.total is not None:
                    rows.append((key, n + 1, change.total, begin, end, last))
        return sorted(rows)


VIEW_COLUMNS = ("id", "version", "total", "valid_from", "valid_to", "is_current")


def milliseconds(rows: pa.Table) -> list[tuple[Any, ...]]:
    result = []
    for row in rows.select(VIEW_COLUMNS).to_pylist():
        for name in ("valid_from", "valid_to"):
            row[name] = row[name] and round(row[name].timestamp() * 1000)
        result.append(tuple(row[name] for name in VIEW_COLUMNS))
    return sorted(result)


def assert_history(sink: Deployment, orders: Orders, name: str = "") -> None:
    with sink.catalog() as catalog:
        table = catalog.load_table(name or sink.settings.table.identifier)
    rows = read_with_duckdb(table.metadata_location)
    assert rows.num_rows == orders.count
    assert rows.num_rows - rows.column("deleted_at").null_count == orders.deletes
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("orders_changes", rows)
        connection.execute(view_of_guide().replace("CREATE VIEW", "CREATE TEMP VIEW"))
        found = milliseconds(connection.execute("FROM orders_history").to_arrow_table())
        overlaps = connection.execute(
            "SELECT count(*) FROM orders_history a JOIN orders_history b USING (id) "
            "WHERE a.version < b.version AND a.valid_from < coalesce(b.valid_to, 'infinity') "
            "AND b.valid_from < coalesce(a.valid_to, 'infinity') "
            "AND b.valid_from < coalesce(b.valid_to, 'infinity') "
            "AND a.valid_from < coalesce(a.valid_to, 'infinity')"
        ).fetchone()
    assert found == orders.view()
    assert overlaps == (0,)


def assert_well(sink: Deployment, orders: Orders) -> None:
    report = audit(sink.settings)
    assert (report.findings, report.unproven) == ((), ())
    assert report.verdict is Verdict.WELL
    said = f"{orders.count:,} rows are the versions of {len(orders.changes):,} keys"
    assert any(said in told for told in report.proven), report.proven


@pytest.mark.wide
@pytest.mark.parametrize("envelope", ["debezium", "plain"])
def test_key_14_key_15_over_kills_each_change_is_one_version(deploy: Deploy, envelope: str) -> None:
    sink = deploy({**HISTORY, "changes": {"envelope": envelope, "history": True}})
    orders = Orders(sink, 1, envelope)
    orders.produce(600)
    first, _ = sink.start(2)
    sink.wait_for_commits()
    sink.kill(first)
    orders.produce(600)
    sink.start()
    sink.wait_for_commits()
    sink.kill(sink.leader())
    sink.start()
    orders.produce(300)
    sink.wait_until_lag_zero()
    sink.stop()
    assert_history(sink, orders)
    with sink.table() as table:
        assert table.schema().identifier_field_ids == []
    assert_well(sink, orders)

    with pytest.raises(ConfigurationError, match="would be second versions"):
        plan_offset_moves(sink.settings, [f"{sink.topics[0]}/0=earliest"])
    with pytest.raises(ConfigurationError, match="which begin anew"):
        resolve_stop_of_sink(sink.settings, ["HG-206=earliest"])
    (done,) = carry_out_deletion(sink.settings, RowDeletion("id = 7"))
    assert done.rows == len(orders.changes.pop(7))
    assert_history(sink, orders)
    report = audit(sink.settings)
    assert (report.findings, report.verdict) == ((), Verdict.WELL), report.unproven


def test_key_14_key_16_another_kind_of_table_and_added_partitions_stop_the_sink(
    deploy: Deploy, admin: AdminClient
) -> None:
    sink = deploy(HISTORY)
    orders = Orders(sink, 2)
    orders.produce(100)
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    assert any("each change adds a version" in str(each) for each in check(sink.settings))
    report = audit(sink.settings, with_source=False)
    assert (report.findings, report.verdict) == ((), Verdict.NOT_PROVEN)
    assert any("its versions were not compared" in told for told in report.unproven)
    sink.change({"changes": {"envelope": "debezium", "on_delete": "mark", "history": False}})
    answer = next(each for each in check(sink.settings) if "HG-240" in str(each))
    assert "filled without a key" in str(answer)
    sink.start()
    assert "put table.key and changes.history back" in sink.stopped_by_itself("HG-240")

    sink.change({"changes": {"envelope": "debezium", "on_delete": "remove", "history": True}})
    (grown,) = admin.create_partitions([NewPartitions(sink.topics[0], 4)]).values()
    grown.result()
    producer = kafka.Producer({"bootstrap.servers": sink.bootstrap})
    producer.produce(sink.topics[0], b'{"op": "c", "after": {"id": 1}}', b'{"id": 1}', partition=3)
    assert producer.flush(60) == 0
    sink.start()
    assert f"{sink.topics[0]}/3" in sink.stopped_by_itself("HG-242")
    assert_history(sink, orders)


def test_key_16_a_key_with_versions_in_two_partitions_is_not_proven(deploy: Deploy) -> None:
    sink = deploy(HISTORY)
    orders = Orders(sink, 3)
    orders.produce(100)
    producer = kafka.Producer({"bootstrap.servers": sink.bootstrap})
    for partition in (0, 1):
        row = b'{"op": "c", "after": {"id": 77}}'
        producer.produce(sink.topics[0], row, b'{"id": 77}', partition=partition)
    assert producer.flush(60) == 0
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    report = audit(sink.settings)
    assert (report.findings, report.verdict) == ((), Verdict.NOT_PROVEN)
    assert any("1 key has records in several partitions" in each for each in report.unproven)


@pytest.mark.soak
def test_key_14_kills_and_pauses_at_any_moment_cost_and_double_no_version(deploy: Deploy) -> None:
    sink = deploy(HISTORY)
    orders, dice = Orders(sink, 8), random.Random(8)
    sink.start(3)
    for number in range(10):
        orders.produce(dice.randrange(50, 400))
        time.sleep(dice.random() * 2)  # somewhere within a transaction
        one = dice.choice(sink.participants)
        if number % 3 == 2:
            one.pause()
            time.sleep(dice.random() * 12)  # for longer than a session, or not
            one.resume()
        else:
            sink.kill(one)
            sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    assert_history(sink, orders)
    assert_well(sink, orders)


@pytest.mark.wide
def test_key_14_a_rollback_that_the_offsets_follow_neither_loses_nor_doubles_a_version(
    deploy: Deploy,
) -> None:
    sink = deploy(HISTORY)
    orders = Orders(sink, 5)
    for _ in range(3):
        orders.produce(100)
        sink.start()
        sink.wait_until_lag_zero()
        sink.stop()
    commits = [commit for commit in history_of(sink).commits if commit.record.records]
    with sink.table() as table:
        table.manage_snapshots().rollback_to_snapshot(commits[0].snapshot_id).commit()
    sink.start()
    sink.stopped_by_itself("HG-201")
    resolve_stop_of_sink(sink.settings, ["HG-201=follow-table"])
    orders.produce(100)
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    assert_history(sink, orders)
    report = audit(sink.settings)
    assert report.findings == ()


def history_of(sink: Deployment) -> History:
    found = sink.history()
    assert found
    return found


@pytest.mark.wide
def test_key_14_tables_of_routes_keep_histories_over_a_kill(deploy: Deploy) -> None:
    columns = [
        {"name": "id", "type": "long", "required": True},
        {"name": "customer", "type": "string"},
        {"name": "total", "type": "long"},
        {"name": "placed_at", "type": "timestamptz"},
    ]
    sink = keyed_routes(deploy, {"changes": HISTORY["changes"]}, columns)
    places = ("kafka_topic", "kafka_partition", "kafka_offset", "changed_at")
    parts = ("topic", "partition", "offset", "timestamp")
    sink.change({"tables.record_columns": dict(zip(parts, places, strict=True))})
    orders, users = Orders(sink, 6), Orders(sink, 7, topic=1)
    for each in (orders, users):
        each.produce(300)
    sink.start(2)
    sink.wait_for_commits()
    sink.kill(sink.leader())
    for each in (orders, users):
        each.produce(200)
    sink.start()
    sink.wait_until_lag_zero()
    sink.wait_until(lambda: not sink.pending(), "delivery of all that is pending")
    sink.stop()
    assert_history(sink, orders, "db.orders")
    assert_history(sink, users, "db.users")
    report = audit(sink.settings)
    assert (report.findings, report.unproven) == ((), ())
    said = f"db.orders: {orders.count:,} rows are the versions of {len(orders.changes):,} keys"
    assert any(said in told for told in report.proven), report.proven


@pytest.mark.soak
@pytest.mark.spark
def test_key_14_spark_writes_and_reads_a_history(
    deploy: Deploy, iceberg_spark: IcebergSpark
) -> None:
    sink = deploy({**HISTORY, "spark": {"writer": "spark", "master": "local[2]"}})
    orders = Orders(sink, 4)
    orders.produce(500)
    sink.start()
    sink.wait_for_commits()
    orders.produce(300)
    sink.wait_until_lag_zero(180)
    sink.stop()
    assert_history(sink, orders)
    query = view_of_guide().partition(" AS\n")[2]
    table = f"local.{sink.settings.table.identifier}"
    found = iceberg_spark.sql("local", sink.database, query.replace("orders_changes", table))
    assert milliseconds(found) == orders.view()
    assert_well(sink, orders)
