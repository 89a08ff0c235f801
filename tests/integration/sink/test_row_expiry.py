"""Rows that reach their age go while a sink commits, is killed and rewrites; no other row does
(EXPIRY-1 to EXPIRY-3).

The oracle is this file's own; DuckDB and pyiceberg read the table.
"""

from __future__ import annotations

import json
import random
import time
import zlib
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka as kafka
import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.readers import read_with_duckdb, read_with_pyiceberg

from headgate.operations.audit.audit import audit
from headgate.operations.check.check import State, check
from headgate.operations.control.maintain import maintain

pytestmark = pytest.mark.integration

DAY_S = 24 * 3_600
AGED: dict[str, Any] = {
    "table": {"properties": {"format-version": "3"}},
    "table.columns": {
        "columns": {
            "id": {"type": "long", "required": True},
            "n": "long",
            "at": {"type": "timestamptz", "unit": "s"},
        }
    },
    "maintenance": {
        "rows_after_ms": 5 * DAY_S * 1000,
        "rows_by": "at",
        "interval_ms": 1_000,
        "compact": True,
        "files_min": 3,
        "orphans": True,
        "dead_per_thousand": 1,
    },
}
KEYED = {**AGED, "table": {**AGED["table"], "key": ["id"]}}


@dataclass
class Aging:
    """Produces records of which a third is due, some have no time, and some a far one.

    ``rows``: what the table has when all that is due has gone; by key, or by their number.
    """

    sink: Deployment
    keyed: bool
    rows: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    count: int = 0
    due: int = 0

    def __post_init__(self) -> None:
        self._dice = random.Random(5)
        self._now_s = int(time.time())
        self._producer = kafka.Producer({"bootstrap.servers": self.sink.bootstrap})

    def produce(self, count: int, keys: int = 150) -> None:
        for _ in range(count):
            key = self._dice.randrange(keys) if self.keyed else self.count
            at = self._dice.choice([-50, -20, -9, -1, 0, None, 1_000_000])
            at = None if at is None else self._now_s + at * DAY_S
            is_due = at is not None and at < self._now_s - 5 * DAY_S
            self.due += is_due
            self.rows.pop(key, None)
            if not is_due:
                self.rows[key] = (self.count, at)
            value = {"id": key, "n": self.count, "at": at}
            partition = zlib.crc32(str(key).encode()) % self.sink.partitions
            self._producer.produce(
                *(self.sink.topics[0], json.dumps(value).encode(), str(key).encode()),
                partition=partition,
            )
            self._producer.poll(0)
            self.count += 1
        assert self._producer.flush(60) == 0


def assert_left(sink: Deployment, aging: Aging) -> None:
    expected = sorted((key, n, at) for key, (n, at) in aging.rows.items())
    with sink.table() as table:
        location = table.metadata_location
    for read in (read_with_pyiceberg, read_with_duckdb):
        rows = read(location).select(["id", "n", "at"]).to_pylist()
        found = [(row["id"], row["n"], row["at"] and round(row["at"].timestamp())) for row in rows]
        assert sorted(found, key=lambda row: row[:2]) == expected, read.__name__


@pytest.mark.wide
@pytest.mark.parametrize("keyed", [False, True])
def test_expiry_3_over_kills_what_is_due_goes_and_nothing_else(
    deploy: Deploy, *, keyed: bool
) -> None:
    sink = deploy(KEYED if keyed else AGED)
    told = {each.what: each for each in check(sink.settings)}
    assert told["table"].state is State.OK
    aging = Aging(sink, keyed)
    aging.produce(400)
    sink.start(2)
    sink.wait_for_commits()
    for _ in range(3):
        aging.produce(200)
        sink.kill(sink.leader())  # an expiry may be on its way, or half written
        sink.start()
        sink.wait_until_lag_zero()
    expiry = {each.what: each for each in check(sink.settings)}["row expiry"]
    assert expiry.state is State.OK
    assert "no reader shows a row later than 6 d 7 h" in expiry.detail
    assert "storage has no bytes of it later than" in expiry.detail
    sink.stop()
    (done,) = maintain(
        *(sink.settings, (), ("rows", "compact")), dry_run=False, on_progress=lambda *_: None
    )
    assert not done.failed
    assert_left(sink, aging)

    report = audit(sink.settings)
    assert report.findings == ()
    assert 0 < report.expired_rows <= aging.due
    assert report.unproven == ()
    if keyed:
        assert any("that of their last record has expired" in text for text in report.proven)
        assert any("less" in text and "that expired" in text for text in report.proven)
    else:
        said = f"except {report.expired_rows} whose rows have expired"
        assert any(said in text for text in report.proven)
