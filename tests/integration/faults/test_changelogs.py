"""Keyed tables of one sink, over a changelog with every kind of event, under every fault.

Participants are killed and paused, the catalog lies, Spark rewrites the tables. Whenever one is
looked at, DuckDB's rows of it are the fold of its topic up to the offsets of its newest record. The
fold is this file's own, of what was produced; it shares no code with the sink.
"""

from __future__ import annotations

import json
import random
import zlib
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka as kafka
import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.iceberg.rest_server import LyingProxy
from integration.readers import IcebergSpark, read_with_duckdb
from integration.tables.test_keyed_routes import keyed_routes

from headgate.control_protocol.identifiers import TopicPartition
from headgate.operations.audit.audit import audit
from headgate.tables.iceberg.reader import IcebergReader

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.wide]

LIES = ("drop-before", "drop-after", "503-after", "502-before", "twice")
DISTURBANCES = ("kill", "pause", "lie", "rewrite", "leader")
UNAVAILABLE = "__debezium_unavailable_value"
MARK = "marked"
Row = dict[str, Any]
Entry = tuple[int, Row | None] | None
"""A key's new row, or that it goes; ``None``: nothing comes of the record."""


@dataclass
class EveryKind:
    """A topic of Debezium's, with whatever may be in one, and what each offset is to a table."""

    sink: Deployment
    topic: str
    seed: int
    keys: int
    marking: bool = False
    logs: dict[int, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    live: dict[int, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        ordered = {"bootstrap.servers": self.sink.bootstrap, "enable.idempotence": True}
        self._producer = kafka.Producer(ordered)
        self._kinds: list[Callable[[int], None]] = [
            *[self._put] * 30,
            *[self._delete] * 8,
            *[self._move] * 4,
            self._of_no_row,
            self._bad,
        ]

    def produce(self, count: int) -> None:
        for _ in range(count):
            self._dice.choice(self._kinds)(self._dice.randrange(self.keys))
        assert self._producer.flush(120) == 0

    def fold(self, offsets: dict[int, int]) -> list[Row]:
        rows: dict[int, Row] = {}
        for partition, offset in offsets.items():
            for entry in filter(None, self.logs[partition][:offset]):
                key, row = entry
                if row is not None:
                    rows[key] = row
                elif not self.marking:
                    rows.pop(key, None)
        return [rows[key] for key in sorted(rows)]

    def _put(self, key: int) -> None:
        dice, before = self._dice, self.live.get(key)
        name = dice.choice((None, "", "ä" * dice.randrange(20), f"{key}-{dice.random()}"))
        row = {"id": key, "name": name, "n": dice.choice((None, dice.randrange(-(2**62), 2**62)))}
        self.live[key] = row
        op = "u" if before else dice.choice("cr")
        known = dice.choice((before, None)) if before else None
        self._say(key, {"before": known, "after": row, "op": op, "source": {"a": 1}}, (key, row))

    def _delete(self, key: int) -> None:
        """By its row before, by the message's key, or by a tombstone alone; also what is absent."""
        before, gone = self.live.pop(key, None), (key, None)
        match self._dice.randrange(2 if self.marking else 3):
            case 0:
                known = before or {"id": key, "name": None, "n": None}
                self._say(key, {"before": known, "after": None, "op": "d"}, self._gone(known))
                self._say(key, None, gone)
            case 1:
                said = {"before": None, "after": None, "op": "d"}
                self._say(key, said, self._gone({"id": key, "name": None, "n": None}))
            case _:
                self._say(key, None, gone)

    def _gone(self, before: Row) -> Entry:
        """What a record that deletes is to a table."""
        return before["id"], (before | {MARK: True} if self.marking else None)

    def _move(self, key: int) -> None:
        """A changed key: a delete, its tombstone, a create; in two partitions, if it falls so."""
        to = self._dice.randrange(self.keys)
        if key not in self.live or to in self.live:
            return
        row = self.live.pop(key)
        self._say(key, {"before": row, "after": None, "op": "d"}, self._gone(row))
        self._say(key, None, (key, None))
        self.live[to] = row | {"id": to}
        self._say(to, {"before": None, "after": self.live[to], "op": "c"}, (to, self.live[to]))

    def _of_no_row(self, key: int) -> None:
        self._say(key, self._dice.choice(({"op": "m", "message": {"prefix": "a"}}, {"op": "t"})))

    def _bad(self, key: int) -> None:
        """None of these touches the row that is there."""
        row = {"id": key, "name": "bad", "n": 1}
        wrong: tuple[Any, ...] = (
            b"no json",
            {"op": "x", "after": row},
            {"op": "c", "after": {"name": "without its key"}},
            {"op": "u", "before": None, "after": row | {"n": "many"}},
            {"op": "u", "before": None, "after": row | {"name": UNAVAILABLE}},
            {"op": "u", "before": row | {"id": key + 1}, "after": row},
        )
        self._say(key, self._dice.choice(wrong))

    def _say(self, key: int, value: Any, entry: Entry = None) -> None:
        octets = value if isinstance(value, bytes | None) else json.dumps(value).encode()
        partition = zlib.crc32(str(key).encode()) % self.sink.partitions
        self.logs[partition].append(entry)
        name = json.dumps({"id": key}).encode()
        self._producer.produce(self.topic, octets, name, partition=partition)
        self._producer.poll(0)


def _shown(row: Row) -> Row:
    """A row as the fold has it: of a mark, only that it is there."""
    marked = {MARK: True} if row.get("deleted_at") else {}
    return {name: row[name] for name in ("id", "name", "n")} | marked


@dataclass
class Amid:
    """The deployment, and whoever disturbs it."""

    sink: Deployment
    proxy: LyingProxy
    spark: IcebergSpark
    uri: str
    topics: dict[str, EveryKind]
    dice: random.Random
    looks: int = 0

    def __post_init__(self) -> None:
        self._once = self.dice.sample(DISTURBANCES, len(DISTURBANCES))

    def look(self) -> None:
        for name, events in self.topics.items():
            with self.sink.catalog() as catalog:
                table = catalog.load_table(name)
            record = IcebergReader(table, self.sink.settings.name, "main").view().current_record
            assert record is not None
            offsets = {
                number: record.offsets.get(TopicPartition(events.topic, number), 0)
                for number in range(self.sink.partitions)
            }
            rows = read_with_duckdb(table.metadata_location).to_pylist()
            there = sorted(map(_shown, rows), key=lambda row: row["id"])
            expected = events.fold(offsets)
            assert there == expected, (name, offsets)
            self.looks += bool(expected)

    def disturb(self) -> None:
        """One thing of these: each once, and then at random."""
        match self._once.pop() if self._once else self.dice.choice((*DISTURBANCES, "lie")):
            case "kill":
                self.sink.kill(self.dice.choice(self.sink.participants))
                self.sink.start()
            case "leader":
                self.sink.kill(self.sink.leader())
                self.sink.start()
            case "pause":
                asleep = self.dice.choice(self.sink.participants)
                asleep.pause()
                for events in self.topics.values():
                    events.produce(50)
                self.sink.wait_for_commits()
                asleep.resume()
            case "lie":
                self.proxy.lie = self.dice.choice(LIES)
            case "rewrite":
                name = self.dice.choice(list(self.topics))
                call = (
                    f"rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))"
                )
                with suppress(RuntimeError):  # the sink was faster
                    self.spark.rest_sql(self.uri, f"CALL rest.system.{call}")


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("atomic", [pytest.param(False, marks=pytest.mark.soak), True])
@pytest.mark.parametrize("marking", [False, True])
@pytest.mark.parametrize(
    ("keys", "changes", "rounds"),
    [(400, 300, len(DISTURBANCES)), pytest.param(100_000, 40_000, 24, marks=pytest.mark.soak)],
)
def test_judged_whenever_it_is_looked_at_each_table_is_the_fold_of_its_topic(
    deploy: Deploy,
    lying_proxy: LyingProxy,
    rest_port: int,
    iceberg_spark: IcebergSpark,
    unique_name: str,
    keys: int,
    changes: int,
    rounds: int,
    *,
    atomic: bool,
    marking: bool,
) -> None:
    space = unique_name.replace("-", "_")
    sink = keyed_routes(deploy)
    first, second, third = sink.topics
    columns = sink.settings.tables.table[0].columns
    assert columns, "declared"
    rows = [
        {"name": "id", "type": "long", "required": True},
        {"name": "name", "type": "string"},
        {"name": "n", "type": "long"},
    ]
    sink.change(
        {
            "catalog.properties": {"type": "rest", "uri": lying_proxy.uri, "warehouse": None},
            "tables": {"ledger": f"{space}.ledger", "atomic": atomic},
            "tables.route": [
                {"topic": first, "to": f"{space}.orders"},
                {"topic": second, "to": f"{space}.users"},
                {"topic": third, "to": f"{space}.trips"},
            ],
            "tables.table": [
                {"match": f"{space}.orders", "columns": rows, "key": ["id"]},
                {
                    "match": f"{space}.users",
                    "columns": rows,
                    "key": ["id"],
                    "partition_by": ["bucket(3, id)"],
                },
                {"match": f"{space}.trips", "columns": rows},
            ],
            "changes": {
                "envelope": "debezium",
                "on_truncate": "skip",
                "on_delete": "mark" if marking else "remove",
            },
            "quarantine": {
                "policy": "quarantine",
                "per_thousand_max": 1_000,
                "table": f"{space}.rejected",
            },
        }
    )
    topics = {
        f"{space}.orders": EveryKind(sink, first, 1, keys, marking),
        f"{space}.users": EveryKind(sink, second, 2, keys, marking),
    }
    uri = f"http://127.0.0.1:{rest_port}"
    amid = Amid(sink, lying_proxy, iceberg_spark, uri, topics, random.Random(f"{keys}{atomic}"))
    sink.start(2)
    for number in range(rounds):
        for events in topics.values():
            events.produce(changes)
        if number == 0:
            sink.wait_until_lag_zero()
        amid.look()
        amid.disturb()
        amid.look()
    lying_proxy.lie = None
    sink.wait_until_lag_zero()
    sink.wait_until(lambda: not sink.pending(), "delivery of all that is pending")
    amid.look()
    assert amid.looks > rounds
    sink.stop()
    report = audit(sink.settings)
    assert report.findings == ()
