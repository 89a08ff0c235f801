"""Columns with rules, and a struct of record parts: the same from both writers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from integration.conftest import Deploy

from headgate.operations.audit.audit import audit
from headgate.operations.demo.producer import produce

pytestmark = [pytest.mark.integration, pytest.mark.spark]

NOON = 1_785_585_600
COLUMNS: Mapping[str, Any] = {
    "id": "long",
    "user": {"type": "long", "from": "payload.user.id"},
    "at": {"type": "timestamptz", "unit": "s"},
    "note": {"type": "string", "from": "payload.note", "as_text": True},
    "zone": {"type": "string", "default": "none"},
    "region": {"type": "string", "value": "eu", "required": True},
}
SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "table.columns": {"columns": COLUMNS},
    "table.record_columns": {"topic": None, "partition": None, "offset": None, "struct": "kafka"},
    "quarantine": {"policy": "quarantine", "per_thousand_max": 1_000},
}


def value(number: int) -> bytes:
    if number % 50 == 7:
        return b'{"id":%d,"at":"soon"}' % number
    zone = {} if number % 2 else {"zone": None}
    note = [number, str(number), {"n": number}][number % 3]
    payload = {"user": {"id": number * 10}, "note": note}
    record = {"id": number, "payload": payload, "at": NOON + number + 0.25, **zone}
    return json.dumps(record, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    "spark",
    [
        {"writer": "in-process"},
        pytest.param({"writer": "spark", "master": "local[2]"}, marks=pytest.mark.wide),
    ],
)
def test_both_writers_give_the_rows_that_the_rules_say(
    deploy: Deploy, spark: dict[str, str]
) -> None:
    sink = deploy({**SECTIONS, "spark": spark})
    produce(sink.bootstrap, sink.topics[0], map(value, range(300)), partitions=sink.partitions)
    sink.start()
    sink.wait_until_lag_zero(180)
    sink.stop()
    report = audit(sink.settings)
    assert report.findings == ()
    assert report.sum_over_partitions("in_quarantine") == 6
    with sink.table() as table:
        rows = {row["id"]: row for row in table.scan().to_arrow().to_pylist()}
    assert sorted(rows) == [n for n in range(300) if n % 50 != 7]
    for number, row in rows.items():
        assert row["user"] == number * 10
        assert row["at"].timestamp() == NOON + number + 0.25
        assert row["note"] == [str(number), str(number), f'{{"n":{number}}}'][number % 3]
        assert (row["zone"], row["region"]) == ("none" if number % 2 else None, "eu")
        assert row["kafka"]["topic"] == sink.topics[0]
        assert row["kafka"]["timestamp"] is not None
    places = {(row["kafka"]["partition"], row["kafka"]["offset"]) for row in rows.values()}
    assert len(places) == len(rows)
