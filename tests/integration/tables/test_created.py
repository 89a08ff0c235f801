"""Undeclared tables are created and evolved by what their records show, whatever dies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.oracle import assert_exactly_once, read_source
from integration.sink_file import COORDINATES
from integration.tables.routed_sink import rows_of

from headgate.operations.audit.audit import audit
from headgate.operations.demo.producer import produce

pytestmark = pytest.mark.integration

RECORDS = 40
_SHAPES = (
    {"id": 1, "fare": 2.5, "zone": "a"},
    {"user": {"name": "x", "age": 7}, "tags": ["p", "q"]},
    {"device": "d-1", "on": True, "level": 12, "seen": "2026-01-02T03:04:05Z"},
)
_LATER = (
    {"tip": 1.25},
    {"user": {"name": "y", "age": 8, "city": "z"}, "score": 3},
    {"battery": 0.5, "firmware": {"major": 4}},
)


def value_of(topic: int, number: int) -> dict[str, Any]:
    """Of one of three shapes; from the middle on every second record brings more."""
    value = dict(_SHAPES[topic % 3])
    if number >= RECORDS and number % 2:
        value |= _LATER[topic % 3]
    return {"number": number, **value}


def fill(sink: Deployment, begin: int) -> None:
    for place, topic in enumerate(sink.topics):
        values = (
            json.dumps(value_of(place, number)).encode() for number in range(begin, begin + RECORDS)
        )
        produce(sink.bootstrap, topic, values, partitions=sink.partitions)


def undeclared(deploy: Deploy, topics: int) -> Deployment:
    sink = deploy({}, topics=topics, partitions=1)
    sink.change(
        {
            "table": None,
            "table.columns": None,
            "table.record_columns": None,
            "tables": {"ledger": "db.ledger"},
            "tables.create": {"schema": "infer", "partition_by": ["zone|device|kafka_topic"]},
            "tables.schema": {"unknown_fields": "evolve"},
            "tables.record_columns": dict(
                zip(("topic", "partition", "offset"), COORDINATES, strict=True)
            ),
            "tables.route": [{"topic": "^.*$", "to": "lake.{topic}"}],
            "quarantine": {"table": "db.rejected"},
        }
    )
    return sink


def judge(sink: Deployment) -> None:
    """Table by table: each record once, and each value where a reader looks for it."""
    everything = []
    for place, topic in enumerate(sink.topics):
        rows = rows_of(sink, f"lake.{_table(topic)}")
        everything.append(rows.select(list(COORDINATES)))
        for row in rows.to_pylist():
            wanted = value_of(place, row["number"])
            assert row["kafka_topic"] == topic
            assert [*differing(wanted, row)] == [], (topic, row)
    assert_exactly_once(everything, read_source(sink.bootstrap, *sink.topics), columns=COORDINATES)
    assert rows_of(sink, "db.rejected").num_rows == 0


def differing(wanted: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[str]:
    """Which values of a record are not in its row; and which are that it never had."""
    for name, value in row.items():
        if name in COORDINATES:
            continue
        if isinstance(value, dict):
            yield from differing(wanted.get(name) or {}, value)
        elif value != wanted.get(name):
            yield name
    yield from (name for name in wanted if name not in row)


def _table(topic: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in topic.lower())


@pytest.mark.parametrize("topics", [6, pytest.param(30, marks=pytest.mark.soak)])
def test_topics_of_three_shapes_make_and_evolve_their_tables(deploy: Deploy, topics: int) -> None:
    sink = undeclared(deploy, topics)
    fill(sink, 0)
    sink.start(2)
    sink.wait_until(lambda: sink.committed() >= topics * RECORDS // 2, "the first rows")
    leader = sink.leader()
    fill(sink, RECORDS)
    sink.kill(leader)
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    judge(sink)
    report = audit(sink.settings)
    assert (report.findings, report.unproven) == ((), ())
    with sink.catalog() as catalog:
        table = catalog.load_table(f"lake.{_table(sink.topics[2])}")
        assert [field.name for field in table.spec().fields] == ["device"]
