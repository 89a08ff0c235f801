"""Which records of a topic are of which keyed table, and what became of the others."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from headgate.config.load import parse
from headgate.control_protocol.events import TableStart
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.data_plane.batch.writer_task_plan import Handling, SourcePlan
from headgate.data_plane.routing.routes import Route, Routing
from headgate.data_plane.write.in_process_writer import chunk_of
from headgate.kafka.push_source import Record
from headgate.operations.audit.changelog_replay import (
    OtherRecords,
    RoutedSplit,
    batch_that_is_only_read,
)
from headgate.operations.audit.keyed_tables import KeyedTable, KeyedTables

AT = TopicPartition("events", 0)
ROUTES = (
    Route(header="table", to="db.{header}"),
    Route(field="table", value="^orders|users|logs$", to="db.{field}"),
)
ROUTING = Routing(ROUTES, keys=(("db.(orders|users)", ("id",)),))
RECORDS: list[tuple[Any, str]] = [
    ({"table": "orders"}, ""),  # 0
    ({"table": "users"}, ""),
    (None, "orders"),
    (None, ""),  # 3: nothing tells of which table
    ({"table": "else"}, ""),
    ({"table": "logs"}, ""),  # 5
    (None, "logs"),
    (b"no json", ""),
    ({"table": "users"}, "orders"),
    ({"table": "orders"}, ""),  # 9: not delivered yet
]


def shared(handling: Handling) -> tuple[list[int], dict[str, list[int]]]:
    """The offsets that are of orders, and those of ``Others``. Users are not there."""
    source = SourcePlan({}, routing=ROUTING, handling=handling)
    batch = batch_that_is_only_read(
        TableStart("db.orders", "", 0, 0, ""), {AT: OffsetRange(0, 10)}, {}
    )
    others = OtherRecords()
    shares = RoutedSplit(source, batch, [("db.orders", Offsets({AT: 9}))], others)
    records = [
        Record(
            "events",
            0,
            offset,
            0,
            value if isinstance(value, bytes | None) else json.dumps(value).encode(),
            b"key",
            [("table", header.encode())] if header else [],
        )
        for offset, (value, header) in enumerate(RECORDS)
    ]
    taken = [(number, some.offsets.tolist()) for number, some in shares(chunk_of([records]))]
    assert {number for number, _ in taken} == {0}
    noted = {"let_go": others.let_go, "absent": others.absent}
    found = {name: [*some.get(AT, [])] for name, some in noted.items()}
    assert others.not_replayed == {"db.users": 1}
    return sorted(offset for _, some in taken for offset in some), found


def test_records_are_told_apart_as_the_sink_does() -> None:
    own, others = shared(Handling())
    assert own == [0, 2, 8]
    assert others == {"let_go": [], "absent": [1, 9]}


SKIP = Disposal.SKIP


@pytest.mark.parametrize(
    ("settings", "let_go"),
    [
        ({"unrouted_tombstones": SKIP}, [3]),
        ({"unmatched": SKIP}, [3, 4]),
        ({"unmatched": SKIP, "unrouted_tombstones": Disposal.FAIL}, [4]),
        ({"tombstones": SKIP}, [6]),
        ({"policy": SKIP}, [7]),
    ],
)
def test_what_the_settings_let_go_is_nowhere(
    settings: dict[str, Disposal], let_go: list[int]
) -> None:
    own, others = shared(replace(Handling(), **settings))  # type: ignore[arg-type]
    assert own == [0, 2, 8]
    assert others == {"let_go": let_go, "absent": [1, 9]}


FILE = """
name = "shop"
[source]
topics = ["a", "b", "c", "d"]
[kafka]
"bootstrap.servers" = "localhost:1"
[catalog]
name = "lake"
[tables]
ledger = "db.ledger"
record_columns = { topic = "t", partition = "p", offset = "o" }
[[tables.route]]
topic = "^[ab]$"
header = "table"
to = "db.of_{header}"
[[tables.route]]
topic = "c"
to = "db.three"
[[tables.route]]
topic = "d"
to = "db.logs"
[[tables.table]]
match = "db.(of_one|of_two|three)"
key = ["id"]
[quarantine]
policy = "quarantine"
"""


def test_topics_that_share_tables_are_read_together() -> None:
    tables = KeyedTables(parse(FILE), lambda *_: None)
    for name in ("db.of_one", "db.three"):
        tables.tables[name] = KeyedTable(name, None, None, Offsets())  # type: ignore[arg-type]
    assert tables._group_topics_sharing_tables({"a", "b", "c"}) == [{"a", "b"}, {"c"}]
    assert [tables.may_take_topic(topic) for topic in "abcd"] == [True, True, True, False]
    assert [tables.takes_all_of_topic(topic) for topic in "abcd"] == [False, False, True, False]
    assert tables.keyed_tables_of_topic("a") == {"db.of_one"}
