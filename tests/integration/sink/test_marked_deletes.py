"""Deletes that mark rows (KEY-13): over kills and replays, each deleted key has one row, marked.

The oracle is this file's own; DuckDB and pyiceberg read the table.
"""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka as kafka
import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.readers import read_with_duckdb, read_with_pyiceberg
from pyiceberg.types import TimestamptzType

from headgate.control_protocol.errors import ConfigurationError
from headgate.operations.audit.audit import audit
from headgate.operations.audit.report import Verdict
from headgate.operations.check.check import check
from headgate.operations.control.maintain import maintain
from headgate.operations.control.resolve_stop import resolve_stop_of_sink

pytestmark = pytest.mark.integration

MARKED: dict[str, Any] = {
    "table": {"key": ["id"], "properties": {"format-version": "3"}},
    "table.columns": {
        "columns": {"id": {"type": "long", "required": True}, "name": "string", "n": "long"}
    },
    "changes": {"envelope": "debezium", "on_delete": "mark"},
}
BEGIN_MS = 1_785_585_600_000
DAY_MS = 24 * 3_600_000
Row = dict[str, Any]


@dataclass
class Deletes:
    """Produces changes, half of them deletes; ``rows`` is what a table with marks has of them."""

    sink: Deployment
    seed: int
    envelope: str = "debezium"
    marking: bool = True
    rows: dict[int, Row] = field(default_factory=dict)
    clock_ms: int = BEGIN_MS

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        ordered = {"bootstrap.servers": self.sink.bootstrap, "enable.idempotence": True}
        self._producer = kafka.Producer(ordered)

    def produce(self, count: int, keys: int = 200) -> None:
        for _ in range(count):
            key = self._dice.randrange(keys)
            if self._dice.random() < 0.5:
                self.put(key)
            else:
                self.delete(key)
        self.flush()

    def flush(self) -> None:
        assert self._producer.flush(60) == 0

    def put(self, key: int) -> None:
        before, row = self._live(key), {"id": key, "name": f"{self.clock_ms}", "n": self.clock_ms}
        change = {"before": before, "after": row, "op": "u" if before else "c"}
        self._send(key, row if self.envelope == "plain" else change)
        self.rows[key] = {**row, "deleted_at": None}

    def delete(self, key: int) -> None:
        """Of an absent key, too; with the row before, or by the message's key alone."""
        before = self._live(key)
        known = before if before and self._dice.random() < 0.7 else None
        if self.envelope == "plain":
            at, known = self._send(key, None), None
        else:
            at = self._send(key, {"before": known, "after": None, "op": "d"})
            self._send(key, None)
        if self.marking:
            row = known or {"id": key, "name": None, "n": None}
            self.rows[key] = {**row, "deleted_at": at}
        else:
            self.rows.pop(key, None)

    def _live(self, key: int) -> Row | None:
        row = self.rows.get(key)
        if row is None or row["deleted_at"] is not None:
            return None
        return {name: row[name] for name in ("id", "name", "n")}

    def _send(self, key: int, value: Row | None) -> int:
        self.clock_ms += 1
        name = str(key) if self.envelope == "plain" else json.dumps({"id": key})
        octets = None if value is None else json.dumps(value).encode()
        partition = zlib.crc32(str(key).encode()) % self.sink.partitions
        self._producer.produce(
            self.sink.topics[0],
            octets,
            name.encode(),
            partition=partition,
            timestamp=self.clock_ms,
        )
        self._producer.poll(0)
        return self.clock_ms


def assert_marked(sink: Deployment, deletes: Deletes) -> None:
    expected = [deletes.rows[key] for key in sorted(deletes.rows)]
    with sink.table() as table:
        location = table.metadata_location
    for read in (read_with_pyiceberg, read_with_duckdb):
        rows = read(location).select(["id", "name", "n", "deleted_at"]).to_pylist()
        for row in rows:
            marked = row["deleted_at"]
            row["deleted_at"] = marked and round(marked.timestamp() * 1000)
        assert sorted(rows, key=lambda row: row["id"]) == expected, read.__name__


def assert_well(sink: Deployment, marked: int) -> None:
    report = audit(sink.settings)
    assert (report.findings, report.unproven) == ((), ())
    assert report.verdict is Verdict.WELL
    assert any(f"{marked:,} of them marked as deleted" in told for told in report.proven)


@pytest.mark.wide
@pytest.mark.parametrize("envelope", ["debezium", "plain"])
def test_key_13_over_kills_each_deleted_key_has_one_row_that_is_marked(
    deploy: Deploy, envelope: str
) -> None:
    sink = deploy({**MARKED, "changes": {**MARKED["changes"], "envelope": envelope}})
    deletes = Deletes(sink, 1, envelope)
    deletes.produce(600)
    first, _ = sink.start(2)
    sink.wait_for_commits()
    sink.kill(first)
    deletes.produce(600)
    sink.start()
    sink.wait_for_commits()
    sink.kill(sink.leader())
    sink.start()
    deletes.produce(300)
    sink.wait_until_lag_zero()
    sink.stop()
    assert_marked(sink, deletes)
    marked = sum(row["deleted_at"] is not None for row in deletes.rows.values())
    assert 20 < marked < len(deletes.rows)
    assert_well(sink, marked)

    sink.change({"maintenance": {"rows_after_ms": 30 * DAY_MS, "rows_by": "deleted_at"}})
    (done,) = maintain(sink.settings, (), ("rows",), dry_run=False, on_progress=lambda *_: None)
    assert (done.expired_rows, done.failed) == (marked, "")
    deletes.rows = {key: row for key, row in deletes.rows.items() if row["deleted_at"] is None}
    assert_marked(sink, deletes)
    report = audit(sink.settings)
    assert (report.findings, report.unproven, report.expired_rows) == ((), (), marked)


@pytest.mark.wide
def test_key_13_what_deletes_do_changes_only_by_a_persons_word(deploy: Deploy) -> None:
    removing = {"envelope": "debezium"}
    sink = deploy({**MARKED, "changes": removing})
    deletes = Deletes(sink, 3, marking=False)
    deletes.produce(300)
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    with pytest.raises(ConfigurationError, match="the sink file says something else"):
        resolve_stop_of_sink(sink.settings, ["HG-297=mark"])

    with sink.table() as table, table.update_schema() as update:
        update.add_column("deleted_at", TimestamptzType())
    sink.change({"changes": {**removing, "on_delete": "mark"}})
    answer = next(each for each in check(sink.settings) if "HG-297" in str(each))
    assert "deletes remove rows so far" in str(answer)
    sink.start()
    said = sink.stopped_by_itself("HG-297")
    assert "deletes remove rows so far" in said
    resolve_stop_of_sink(sink.settings, ["HG-297=mark"])
    with pytest.raises(ConfigurationError, match="nothing was changed"):
        resolve_stop_of_sink(sink.settings, ["HG-297=mark"])

    deletes.marking = True
    deletes.produce(300)
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    assert_marked(sink, deletes)
    assert any(row["deleted_at"] for row in deletes.rows.values())
    report = audit(sink.settings)
    assert report.findings == ()
    assert any("deleted before changes.on_delete changed" in told for told in report.unproven)

    sink.change({"changes": {**removing, "on_delete": "remove"}})
    sink.start()
    assert "deletes mark rows in the column deleted_at so far" in sink.stopped_by_itself("HG-297")
    resolve_stop_of_sink(sink.settings, ["HG-297=remove"])
    deletes.marking = False
    deletes.produce(200)
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    assert_marked(sink, deletes)
    assert audit(sink.settings).findings == ()
