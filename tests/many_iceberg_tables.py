"""A sink file of many Iceberg tables on SQLite, some of them with a key, and its records."""

from __future__ import annotations

import json
from pathlib import Path

from support.local_catalog import LocalCatalog, local_catalog

from headgate.config.load import parse
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.identifiers import TopicPartition
from headgate.testing.sink_in_process import SinkInProcess

LEDGER, KEYED, ADDED, ASIDE = "db.ledger", "db.orders", "db.returns", "db.rejected"
KEYS = 5

_FILE = """
name = "shop"
[source]
topics = [{topics}]
[kafka]
"bootstrap.servers" = "127.0.0.1:9092"
[catalog]
name = "local"
[catalog.properties]
type = "sql"
uri = "sqlite:///{home}/catalog.sqlite"
warehouse = "file://{home}/warehouse"
[tables]
ledger = "db.ledger"
[tables.create]
schema = "declared"
[[tables.route]]
topic = "^shop\\\\.(?P<name>.+)$"
to = "db.{{name}}"
[[tables.table]]
match = "db.orders"
key = ["id"]
columns = [{{ name = "id", type = "long", required = true }}, {{ name = "zone", type = "string" }}]
[[tables.table]]
match = "db.frozen.*"
maintain = false
columns = [{{ name = "id", type = "long" }}]
[[tables.table]]
match = "db..*"
columns = [{{ name = "id", type = "long" }}, {{ name = "zone", type = "string" }}]
[tables.record_columns]
topic = "topic"
partition = "partition"
offset = "offset"
[quarantine]
policy = "quarantine"
table = "db.rejected"
per_thousand_max = 1000
[spark]
writer = "in-process"
[coordinator]
commit_interval_ms = 50
commit_timeout_ms = 200
rebalance_delay_ms = 10
election_timeout_ms = 50000
delivery_timeout_ms = 1000
retry_backoff_ms = 10
retry_backoff_max_ms = 20
[participant]
end_offset_interval_ms = 10
[maintenance]
files_min = 4
"""


def value(at: TopicPartition, offset: int) -> bytes:
    """A tenth of the records are bad; orders come again and again for a few keys."""
    if offset % 10 == 7:
        return b"{broken"
    number = offset % KEYS if at.topic == "shop.orders" else offset
    return json.dumps({"id": number, "zone": f"{offset}"}).encode()


class ManyTables:
    """The sink, its catalog, and its file as ``headgate`` would read it."""

    def __init__(self, home: Path, *names: str, more: str = "") -> None:
        """``more`` is the end of the file: first what belongs to [maintenance]."""
        topics = ", ".join(f'"shop.{name}"' for name in names)
        text = _FILE.format(topics=topics, home=home) + more
        self.local: LocalCatalog = local_catalog(home)
        self.catalog = self.local.catalog
        self.file = home / "shop.toml"
        self.file.write_text(text)
        self.sink = SinkInProcess(parse(text), value)

    @property
    def settings(self) -> SinkSettings:
        return self.sink.settings

    def commits(self, count: int, each: int = 10) -> None:
        """So many transactions, each with so many records for every topic, and delivered."""
        for _ in range(count):
            self.sink.produce(each)
            self.sink.run_until_settled()

    def files(self, name: str) -> int:
        """Live data files."""
        return len(list(self.catalog.load_table(name).scan().plan_files()))

    def close(self) -> None:
        self.sink.end_lives()
        self.catalog.close()
