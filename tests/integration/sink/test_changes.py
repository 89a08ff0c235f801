"""Keyed tables from a topic to the rows that others read: they equal the fold of the source.

The oracle is a dictionary per test, filled as records are produced; kills, restarts and several
participants lie between.
"""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import dataclass, field, replace
from typing import Any

import confluent_kafka as kafka
import pyarrow as pa
import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.readers import read_with_duckdb, read_with_pyiceberg
from pyiceberg.io.pyarrow import schema_to_pyarrow
from support.iceberg_files import write_files

from headgate.control_protocol.identifiers import TransactionNumber
from headgate.control_protocol.ports import CommitAttempt, Landed
from headgate.control_protocol.table_format import Use
from headgate.operations.audit.audit import audit
from headgate.operations.audit.report import Verdict
from headgate.runtime.sink_tables import SinkTables
from headgate.tables.iceberg.table_creation import require_key_field_ids
from headgate.tables.iceberg.upsert.key_files import (
    OFFSET,
    PARTITION,
    TOPIC,
    key_file_schema,
    write_key_file,
)

pytestmark = pytest.mark.integration

KEYED: dict[str, Any] = {
    "table": {"key": ["id"], "properties": {"format-version": "3"}},
    "table.columns": {
        "columns": {"id": {"type": "long", "required": True}, "name": "string", "n": "long"}
    },
}
Row = dict[str, Any]


@dataclass
class Changelog:
    """Produces changes of rows, by key to one of two partitions; ``rows`` is their fold."""

    sink: Deployment
    seed: int
    envelope: str = "plain"
    rows: dict[int, Row] = field(default_factory=dict)
    topic: str = ""

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        self.changes = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """A producer that knows the topic as it is now."""
        ordered = {"bootstrap.servers": self.sink.bootstrap, "enable.idempotence": True}
        self._producer = kafka.Producer(ordered)

    def produce(self, count: int, keys: int = 500) -> None:
        """So many changes more, four in five of them rows."""
        for _ in range(count):
            key = self._dice.randrange(keys)
            if self._dice.random() < 0.8:
                self._put(key)
            elif self.envelope == "debezium" and self._dice.random() < 0.5 and key in self.rows:
                self._move(key, keys + self._dice.randrange(keys))
            else:
                self._delete(key)
        assert self._producer.flush(60) == 0

    def _put(self, key: int) -> None:
        row = {"id": key, "name": f"{self.changes}" if self.changes % 5 else None}
        row |= {"n": self._dice.randrange(10**9)}
        before = self.rows.get(key)
        self.rows[key] = row
        if self.envelope == "plain":
            self._send(key, row)
        else:
            op = "u" if before else self._dice.choice("cr")
            self._send(key, {"before": before, "after": row, "op": op, "source": {}})

    def _delete(self, key: int) -> None:
        before = self.rows.pop(key, None)
        if self.envelope == "debezium":
            self._send(key, {"before": before or {"id": key}, "after": None, "op": "d"})
        self._send(key, None)

    def _move(self, key: int, to: int) -> None:
        """A key update, as Debezium writes it: the old one goes, and the new one comes."""
        if key == to or to in self.rows:
            return
        row = {**self.rows[key], "id": to}
        self._delete(key)
        self.rows[to] = row
        self._send(to, {"before": None, "after": row, "op": "c"})

    def _send(self, key: int, value: Row | None) -> None:
        self.changes += 1
        name = str(key) if self.envelope == "plain" else json.dumps({"id": key})
        octets = None if value is None else json.dumps(value).encode()
        partition = zlib.crc32(str(key).encode()) % self.sink.partitions
        topic = self.topic or self.sink.topics[0]
        self._producer.produce(topic, octets, name.encode(), partition=partition)
        self._producer.poll(0)


def assert_folded(sink: Deployment, changes: Changelog) -> None:
    """Both readers see exactly the fold, and the record counts each change once."""
    expected = sorted(changes.rows.values(), key=lambda row: row["id"])
    with sink.table() as table:
        location = table.metadata_location
    for read in (read_with_pyiceberg, read_with_duckdb):
        rows = read(location).select(["id", "name", "n"]).to_pylist()
        assert sorted(rows, key=lambda row: row["id"]) == expected, read.__name__
    history = sink.history()
    assert history
    counts = [commit.record.keys for commit in history.commits if commit.record.keys]
    assert sum(each.record_count for each in counts) == changes.changes
    assert sum(each.inserted - each.deleted for each in counts) == len(expected)


def assert_well(sink: Deployment) -> None:
    """The audit folds the source itself, and proves the table value by value."""
    report = audit(sink.settings)
    assert report.findings == ()
    assert report.unproven == ()
    assert report.verdict is Verdict.WELL
    (folded,) = (told for told in report.proven if "value by value" in told)
    assert folded.startswith(f"{report.live_rows:,} rows")
    assert (report.sum_over_partitions("lost"), report.sum_over_partitions("invented")) == (0, 0)


@pytest.mark.parametrize("version", [pytest.param("2", marks=pytest.mark.soak), "3"])
def test_a_compacted_topic_over_kills_and_restarts_is_its_fold(
    deploy: Deploy, version: str
) -> None:
    table = {**KEYED["table"], "properties": {"format-version": version}}
    sink = deploy({**KEYED, "table": table})
    changes = Changelog(sink, 1)
    changes.produce(2_000)
    first, _ = sink.start(2)
    sink.wait_until_lag_zero()
    sink.kill(first)
    changes.produce(1_000)
    sink.kill(sink.participants[0])
    sink.start()
    changes.produce(1_000)
    sink.wait_until_lag_zero()
    sink.stop()
    assert_folded(sink, changes)
    assert_well(sink)
    go_wrong(sink, changes)
    report = audit(sink.settings)
    assert {"row-lost", "row-undeleted", "value-differs"} <= {f.what for f in report.findings}
    assert (report.verdict, report.exit_code()) == (Verdict.WRONG, 1)


def go_wrong(sink: Deployment, changes: Changelog, routed: str = "") -> None:
    """Commit, as the sink does, a delete that no record says, a row with another value than its
    record, and one whose key was deleted."""
    lost, changed, *_ = sorted(changes.rows)
    deleted = next(key for key in range(500) if key not in changes.rows)
    parts = (sink.settings.tables if routed else sink.settings.table).record_columns
    with sink.catalog() as catalog:
        name = routed or sink.settings.table.identifier
        table = SinkTables.from_open_catalog(sink.settings, catalog).open_table(name, Use.SECONDARY)
        view, loaded = table.read(), catalog.load_table(name)
        live = {row["id"]: row for row in loaded.scan().to_arrow().to_pylist()}
        rows = [live[changed] | {"n": -1}]
        partition = zlib.crc32(str(deleted).encode()) % sink.partitions
        rows += [live[changed] | {"id": deleted, parts.offset: 0, parts.partition: partition}]
        kind = schema_to_pyarrow(loaded.schema(), include_field_ids=False)
        columns = key_file_schema(
            loaded.schema(), require_key_field_ids(loaded.schema(), ("id",)), with_topic=True
        )
        gone = {TOPIC: live[lost][parts.topic], PARTITION: live[lost][parts.partition]}
        keys = pa.Table.from_pylist([gone | {"id": lost, OFFSET: 10**6}], columns)
        files = (
            *write_files(loaded, pa.Table.from_pylist(rows, kind)),
            write_key_file(loaded.io, f"{loaded.location()}/data/wrong.parquet", keys),
        )
        assert view.record
        number = TransactionNumber(view.record.transaction.number + 1)
        transaction = replace(view.record.transaction, number=number)
        record = replace(view.record, transaction=transaction, records=2)
        assert isinstance(table.commit(CommitAttempt(view, record, files)), Landed)


DEBEZIUM = {**KEYED, "changes": {"envelope": "debezium"}}


@pytest.mark.soak
def test_key_updates_of_debezium_over_a_kill_are_their_fold(
    deploy: Deploy,
) -> None:
    sink = deploy(DEBEZIUM)
    changes = Changelog(sink, 2, "debezium")
    changes.produce(1_000)
    sink.start()
    sink.wait_for_commits()
    sink.kill(sink.participants[0])
    changes.produce(1_000)
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    assert_folded(sink, changes)
    assert_well(sink)


@pytest.mark.soak
@pytest.mark.spark
def test_debezium_through_spark_is_its_fold(deploy: Deploy) -> None:
    """The table asks for its rows to be brought together, which those of changes are not."""
    asks = {"format-version": "3", "write.distribution-mode": "hash"}
    table = {**KEYED["table"], "properties": asks, "partition_by": ["bucket(3, id)"]}
    spark = {"writer": "spark", "master": "local[2]"}
    sink = deploy({**DEBEZIUM, "table": table, "spark": spark})
    changes = Changelog(sink, 3, "debezium")
    changes.produce(1_500)
    sink.start()
    sink.wait_for_commits()
    changes.produce(500)
    sink.wait_until_lag_zero(180)
    sink.stop()
    assert_folded(sink, changes)


@pytest.mark.soak
@pytest.mark.spark
def test_rows_that_need_columns_get_them_through_spark_and_the_fold_holds(deploy: Deploy) -> None:
    schema = {"unknown_fields": "evolve"}
    spark = {"writer": "spark", "master": "local[2]"}
    few = {"columns": {"id": {"type": "long", "required": True}, "name": "string"}}
    sink = deploy({**DEBEZIUM, "table.columns": few, "table.schema": schema, "spark": spark})
    changes = Changelog(sink, 4, "debezium")
    changes.produce(1_000)
    sink.start()
    sink.wait_until_lag_zero(180)
    sink.stop()
    assert_folded(sink, changes)
    assert audit(sink.settings).verdict is Verdict.WELL
