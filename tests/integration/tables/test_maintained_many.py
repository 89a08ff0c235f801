"""Many tables under kills with maintenance on: files stay few, and other readers count the rows.

``HEADGATE_SOAK_TABLES`` and ``HEADGATE_SOAK_MINUTES`` make it larger or longer. Every second table
has a key, whose rows come again and again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.readers import read_with_duckdb, read_with_pyiceberg
from integration.sink.test_maintenance import told
from integration.sink_file import COORDINATES

from headgate.operations.audit.audit import audit
from headgate.operations.demo.producer import produce

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(3_600)]

TABLES = int(os.environ.get("HEADGATE_SOAK_TABLES", "40"))
MINUTES = float(os.environ.get("HEADGATE_SOAK_MINUTES", "5"))
KEYS, ROUND, FILES_MIN = 7, 20, 6
COLUMNS = [{"name": "id", "type": "long", "required": True}, {"name": "zone", "type": "string"}]


def record(number: int) -> bytes:
    return json.dumps({"id": number % KEYS, "zone": f"{number}"}).encode()


def of_many(deploy: Deploy) -> Deployment:
    sink = deploy({}, partitions=1, topics=TABLES)
    keyed = "|".join(sink.topics[::2])
    sink.change(
        {
            "table": None,
            "table.columns": None,
            "table.record_columns": None,
            "tables": {"ledger": "db.ledger"},
            "tables.create": {"schema": "declared"},
            "tables.record_columns": dict(
                zip(("topic", "partition", "offset"), COORDINATES, strict=True)
            ),
            "tables.route": [{"topic": "^(?P<name>.+)$", "to": "db.{name}"}],
            "tables.table": [
                {"match": f"db.({named(keyed)})", "key": ["id"], "columns": COLUMNS},
                {"match": "db..*", "columns": COLUMNS},
            ],
            "quarantine": {"per_thousand_max": 1_000, "table": "db.rejected"},
            "coordinator": {"commit_interval_ms": 2_000, "commit_timeout_ms": 20_000},
            "maintenance": {
                "compact": True,
                "orphans": True,
                "interval_ms": 2_000,
                "files_min": FILES_MIN,
            },
        }
    )
    return sink


def named(topic: str) -> str:
    return "".join(c if c.isalnum() or c == "|" else "_" for c in topic.lower())


def numbers(produced: int) -> Iterator[bytes]:
    return map(record, range(produced, produced + ROUND))


def test_many_tables_are_maintained_under_kills(deploy: Deploy) -> None:
    sink = of_many(deploy)
    sink.start(2)
    produced = kills = rounds = 0
    most, ends_s = 0, time.monotonic() + MINUTES * 60
    while time.monotonic() < ends_s:
        for topic in sink.topics:
            produce(sink.bootstrap, topic, numbers(produced), partitions=1)
        produced, rounds = produced + ROUND, rounds + 1
        time.sleep(2)
        if rounds % 5 == 0:
            sink.kill(sink.leader())  # a compaction may be on its way, or half written
            sink.start()
            kills += 1
            sink.wait_until_lag_zero()
            most = max(most, *live_files(sink).values())
    sink.wait_until_lag_zero()
    sink.wait_until(lambda: not sink.pending(), "everything is delivered")
    sink.wait_until(lambda: max(live_files(sink).values()) < 4 * FILES_MIN, "files stay many")
    sink.stop()

    files = live_files(sink)
    rewritten, orphans = told(sink, ": compacted "), told(sink, "orphans deleted")
    print(f"{TABLES} tables, {MINUTES:g} minutes, {kills} kills, {rounds} rounds, {produced} each")
    print(f"live files: {sum(files.values())} at the end, at most {max(files.values())} a table")
    print(f"seen on the way: at most {most} a table; compactions {rewritten}, orphans {orphans}")
    with sink.catalog() as catalog:
        for number, topic in enumerate(sink.topics):
            location = catalog.load_table(f"db.{named(topic)}").metadata_location
            for read in (read_with_duckdb, read_with_pyiceberg):
                zones = sorted(map(int, read(location)["zone"].to_pylist()))
                keyed = number % 2 == 0
                first = produced - KEYS if keyed else 0
                assert zones == list(range(first, produced)), (topic, read.__name__)
        aside = catalog.load_table("db.rejected").scan().to_arrow().num_rows
    assert aside == 0
    assert not audit(sink.settings).findings
    assert rewritten >= TABLES, "each table is compacted"


def live_files(sink: Deployment) -> dict[str, int]:
    with sink.catalog() as catalog:
        return {
            topic: sum(1 for _ in catalog.load_table(f"db.{named(topic)}").scan().plan_files())
            for topic in sink.topics
        }
