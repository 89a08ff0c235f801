"""How many tables are judged: sixty topics of three shapes, amid kills, pauses and bad tables.

New columns arrive all the while; one table is dropped, of one the right is taken, one is renamed by
hand; the routes are edited between a kill and a restart. Each record is looked for with its values
in what DuckDB reads of every table. ``HEADGATE_SOAK_TOPICS=300`` judges so many.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.iceberg.rest_server import LyingProxy
from integration.sink_file import COORDINATES
from integration.tables.routed_sink import rows_of
from integration.tables.test_suspended import suspended_of, wait_until_decided

from headgate.control_protocol.errors import RetryLater, TableStillSuspended
from headgate.operations.audit.audit import audit
from headgate.operations.demo.producer import produce
from headgate.operations.many_tables.replay_quarantined import replay_tables
from headgate.operations.many_tables.resume import resume_and_wait_until_open

pytestmark = [pytest.mark.integration, pytest.mark.soak]

TOPICS = int(os.environ.get("HEADGATE_SOAK_TOPICS", "60"))
RECORDS, ROUNDS = 10, 8
DROPPED, FORBIDDEN, RENAMED = 7, 17, 27
EDITED = range(40, 50)
"""These topics have a table of their own until the routes are edited, and then one together."""
PATIENCE_S = 400.0 * TOPICS / 60


@dataclass
class Lake:
    """The sink, its catalog's proxy, and what was produced: by topic its records in order."""

    sink: Deployment
    proxy: LyingProxy
    space: str
    made: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    round: int = 0

    def table(self, number: int) -> str:
        name = self.sink.topics[number].replace("-", "_").lower()
        return f"{self.space}.{name}"

    @property
    def together(self) -> str:
        return f"{self.space}.together"

    def produces(self) -> None:
        """A round of records of every topic, the newest with a column that is new."""
        for number, topic in enumerate(self.sink.topics):
            values = [self._value(number, n) for n in range(RECORDS)]
            self.made.setdefault(topic, []).extend(values)
            octets = (json.dumps(value).encode() for value in values)
            produce(self.sink.bootstrap, topic, octets, partitions=1)
        self.round += 1

    def _value(self, number: int, n: int) -> dict[str, Any]:
        unique = (number * ROUNDS + self.round) * RECORDS + n
        shape: dict[str, Any] = (
            {"kind": "text", "zone": f"z{n}"},
            {"kind": "fraction", "fare": unique / 4},
            {"kind": "object", "at": {"x": unique, "y": f"y{n}"}},
        )[number % 3]
        return {"id": unique, **shape, f"new_{self.round}": unique * 10}

    def edits_routes(self) -> None:
        some = "|".join(self.sink.topics[n] for n in EDITED)
        own = {"topic": "^(?P<name>.+)$", "to": f"{self.space}.{{name}}"}
        merged = {"topic": f"^({some})$", "to": self.together, "merge": True}
        self.sink.change({"tables.route": [merged, own]})


def lake_of(deploy: Deploy, proxy: LyingProxy, space: str) -> Lake:
    sink = deploy({}, partitions=1, topics=TOPICS)
    sink.change(
        {
            "table": None,
            "table.columns": None,
            "table.record_columns": None,
            "catalog.properties": {"type": "rest", "uri": proxy.uri},
            "tables": {"ledger": f"{space}.ledger", "new_per_minute_max": 100},
            "tables.create": {"schema": "infer"},
            "tables.schema": {"unknown_fields": "evolve"},
            "tables.record_columns": dict(
                zip(("topic", "partition", "offset"), COORDINATES, strict=True)
            ),
            "tables.route": [{"topic": "^(?P<name>.+)$", "to": f"{space}.{{name}}"}],
            "quarantine": {"per_thousand_max": 1_000, "table": f"{space}.rejected"},
        }
    )
    return Lake(sink, proxy, space)


def test_how_it_is_judged_sixty_topics_amid_kills_pauses_and_bad_tables(
    deploy: Deploy, lying_proxy: LyingProxy, unique_name: str
) -> None:
    lake = lake_of(deploy, lying_proxy, unique_name.replace("-", "_"))
    sink, dropped, renamed = lake.sink, lake.table(DROPPED), lake.table(RENAMED)
    lake.produces()
    sink.start(2)
    sink.wait_until_lag_zero(PATIENCE_S)
    with sink.catalog() as catalog:
        catalog.drop_table(dropped)
        catalog.rename_table(renamed, f"{lake.space}.moved_by_hand")
    lying_proxy.closed.add(lake.table(FORBIDDEN).rpartition(".")[2])
    lake.produces()
    bad = {lake.table(number) for number in (DROPPED, FORBIDDEN, RENAMED)}
    sink.wait_until(lambda: bad <= suspended_of(sink).keys(), "three are suspended", PATIENCE_S)

    sink.kill(sink.leader())
    lake.produces()
    sink.start()
    asleep = sink.leader()
    asleep.pause()
    lake.produces()
    time.sleep(10)  # beyond its session, so that the other one takes over
    asleep.resume()
    lake.produces()
    wait_until_decided(sink, PATIENCE_S)

    lake.produces()
    for participant in [each for each in sink.participants if each.running]:
        sink.kill(participant)
    lake.edits_routes()
    lake.produces()
    sink.start(2)
    with sink.catalog() as catalog:
        catalog.rename_table(f"{lake.space}.moved_by_hand", renamed)
    lying_proxy.closed.clear()
    sink.wait_until(lambda: bad <= suspended_of(sink).keys(), "they stay suspended", PATIENCE_S)
    mended = [lake.table(number) for number in (FORBIDDEN, RENAMED)]
    sink.wait_until(lambda: resumed(sink, mended), "two are open again", PATIENCE_S)
    lake.produces()
    wait_until_decided(sink, PATIENCE_S)
    sink.stop()
    replay_tables(sink.settings, mended)
    judge(lake, bad - set(mended))
    report = audit(sink.settings)
    assert report.findings == ()
    assert suspended_of(sink).keys() == {dropped}


def resumed(sink: Deployment, names: list[str]) -> bool:
    try:
        resume_and_wait_until_open(sink.settings, names)
    except (RetryLater, TableStillSuspended):
        return False
    return True


def judge(lake: Lake, lost: set[str]) -> None:
    """Each record is in one place, with all its values; what a dropped table held went with it."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    named = {lake.table(n) for n in range(TOPICS)} - lost
    for table in sorted({*named, lake.together}):
        for row in rows_of(lake.sink, table).to_pylist():
            at = placed(row)
            assert at not in found, f"{at} is there twice, the second time in {table}"
            found[at] = row
            theirs = lake.sink.topics.index(at[0])
            assert table in (lake.table(theirs), lake.together)
    aside = {(row["topic"], row["offset"]) for row in diverted(lake, lost)}
    assert not aside & found.keys()
    for number, topic in enumerate(lake.sink.topics):
        made = lake.made[topic]
        there = {offset for name, offset in found if name == topic}
        there |= {offset for name, offset in aside if name == topic}
        if lake.table(number) in lost:
            assert there == set(range(len(made) - len(there), len(made)))
            assert len(there) >= len(made) - RECORDS, "no more than it held when it was dropped"
        else:
            assert there == set(range(len(made)))
        for offset, value in enumerate(made):
            if row := found.get((topic, offset)):
                assert {k: v for k, v in row.items() if v is not None} == {
                    **value,
                    **dict(zip(COORDINATES, (topic, 0, offset), strict=True)),
                }


def placed(row: Mapping[str, Any]) -> tuple[str, int]:
    return row[COORDINATES[0]], row[COORDINATES[2]]


def diverted(lake: Lake, tables: set[str]) -> Iterator[dict[str, Any]]:
    """What the quarantine holds for these tables; for others it is put again, and left out."""
    rows: pa.Table = rows_of(lake.sink, f"{lake.space}.rejected")
    for row in rows.to_pylist():
        assert row["error_class"] == "table", row
        if row["table_name"] in tables:
            yield row
