"""More new tables than a minute may bring: their records wait, and a keyed one is its fold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from integration.readers import read_with_duckdb
from support.local_catalog import LocalCatalog, local_catalog

from headgate.config.load import parse
from headgate.control_protocol.identifiers import TopicPartition
from headgate.runtime import routed_table_creation
from headgate.runtime.routed_table_creation import TableMaker
from headgate.testing.sink_in_process import SinkInProcess

TABLES, KEYS = 7, 3
MINUTE_MS = 2_000
"""Of the test's clock; a turn takes 10."""

FILE = """
name = "shop"
[source]
topics = ["changes"]
[kafka]
"bootstrap.servers" = "127.0.0.1:9092"
[catalog]
name = "local"
[catalog.properties]
type = "sql"
uri = "sqlite:///HOME/catalog.sqlite"
warehouse = "file://HOME/warehouse"
[tables]
ledger = "db.ledger"
new_per_minute_max = 3
[tables.create]
schema = "declared"
[[tables.route]]
field = "kind"
to = "shop.{field}"
[[tables.table]]
match = "shop..*"
key = ["id"]
columns = [
  { name = "id", type = "long", required = true },
  { name = "kind", type = "string" },
  { name = "zone", type = "string" },
]
[tables.record_columns]
topic = "topic"
partition = "partition"
offset = "offset"
[changes]
tombstones = "skip"
[quarantine]
policy = "quarantine"
table = "db.rejected"
[spark]
writer = "in-process"
[coordinator]
commit_interval_ms = 50
rebalance_delay_ms = 10
election_timeout_ms = 50000
retry_backoff_ms = 200
retry_backoff_max_ms = 200
[participant]
end_offset_interval_ms = 10
"""


def value(_: TopicPartition, offset: int) -> bytes:
    """A snapshot of all tables first, and then changes of their rows."""
    row = {"id": offset // TABLES % KEYS, "kind": f"t{offset % TABLES}", "zone": f"{offset}"}
    return json.dumps(row).encode()


@pytest.fixture
def local(tmp_path: Path) -> LocalCatalog:
    return local_catalog(tmp_path)


@pytest.fixture
def shop(
    tmp_path: Path, local: LocalCatalog, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SinkInProcess]:
    sink = SinkInProcess(parse(FILE.replace("HOME", str(tmp_path))), value)
    maker = partial(TableMaker, monotonic_s=lambda: 60 * sink.clock.now_ms / MINUTE_MS)
    monkeypatch.setattr(routed_table_creation, "TableMaker", maker)
    yield sink
    sink.end_lives()


def test_a_first_snapshot_of_more_tables_than_a_minute_brings_is_whole(
    shop: SinkInProcess, local: LocalCatalog
) -> None:
    shop.begin_life()
    shop.produce(TABLES * KEYS * 2)
    begun_ms = shop.clock.now_ms
    shop.run_until_settled()
    assert shop.clock.now_ms - begun_ms >= 2 * MINUTE_MS, "three tables a minute"

    for number in range(TABLES):
        found = read_with_duckdb(local.catalog.load_table(f"shop.t{number}").metadata_location)
        newest = {f"{TABLES * (KEYS + key) + number}" for key in range(KEYS)}
        assert set(found["zone"].to_pylist()) == newest
    assert local.catalog.load_table("db.rejected").scan().to_arrow().num_rows == 0
