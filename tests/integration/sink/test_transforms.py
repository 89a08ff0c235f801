"""A sink with a transform: filtered records are counted, derived rows exact, whatever is killed."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from integration.conftest import Deploy
from integration.deployment import HEADGATE, Deployment
from integration.sink_file import COLUMNS

from headgate.operations.audit.audit import audit

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.wide]

TRANSFORM = {
    "spark": {"writer": "spark", "master": "local[2]", "distribution": "hash"},
    "table": {"partition_by": ["zone"]},
    "table.columns": {"columns": {"id": "long", "zone": "string", "day": "date", "twice": "int"}},
    "transform.columns": {"columns": {**COLUMNS, "id": "int"}},
    "transform": {
        "sql": "SELECT id, upper(zone) AS zone, to_date(happened_at) AS day, id * 2 AS twice "
        "FROM records WHERE id % 10 <> 0"
    },
}


def in_source(sink: Deployment) -> dict[int, tuple[int, int]]:
    """From each record's id to where it is."""
    (topic,) = sink.topics
    consumer = Consumer({"bootstrap.servers": sink.bootstrap, "group.id": "places"})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(sink.partitions)])
    found: dict[int, tuple[int, int]] = {}
    heard = 0
    while heard < sink.produced:
        for message in consumer.consume(10_000, timeout=0.1):
            assert message.error() is None
            heard += 1
            with suppress(ValueError):
                identifier = json.loads(message.value())["id"]
                found[identifier] = (message.partition(), message.offset())
    consumer.close()
    return found


def questions(sink: Deployment) -> dict[str, dict[str, Any]]:
    asked = subprocess.run(
        [HEADGATE, "check", sink.sink_file, "--json"], capture_output=True, text=True
    )
    return {answer["what"]: answer for answer in json.loads(asked.stdout)}


def test_filtered_derived_and_bad_records_are_exact_though_a_participant_is_killed(
    deploy: Deploy,
) -> None:
    bad = {"quarantine": {"policy": "quarantine", "per_thousand_max": 1_000}}
    sink = deploy({**TRANSFORM, **bad}, partitions=4)
    sink.bad_every = 7
    sink.start()
    sink.produce(2_000)
    sink.wait_for_commits()
    sink.produce(2_000)
    sink.kill(sink.participants[0])
    sink.produce(1_000)
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    rows = sink.rows()
    places = in_source(sink)
    good = [number for number in range(sink.produced) if number % 7]
    assert sorted(rows["id"].to_pylist()) == [number for number in good if number % 10]
    for row in rows.to_pylist():
        assert places[row["id"]] == (row["kafka_partition"], row["kafka_offset"])
        assert row["zone"] == "ABC"[row["id"] % 3]
        assert (row["day"].day, row["twice"]) == (1 + row["id"] // 100 % 28, 2 * row["id"])
    report = audit(sink.settings)
    assert report.findings == ()
    assert report.skipped_records == sum(number % 10 == 0 for number in good)
    assert report.sum_over_partitions("in_quarantine") == sink.produced - len(good)
    assert any("as many rows as the source has records" in proven for proven in report.proven)


def test_a_result_that_is_not_the_tables_is_told_by_check_and_stops_the_start(
    deploy: Deploy,
) -> None:
    sink = deploy(TRANSFORM)
    assert questions(sink)["transform"]["state"] == "unchecked"
    sink.change({"transform": {"sql": "SELECT id, zone AS twice FROM records"}})
    sink.start()
    sink.produce(100)
    line = sink.stopped_by_itself("HG-100")
    assert "transform.sql gives 'twice' as string, the table has int32" in line
    answer = questions(sink)["transform"]
    assert (answer["state"], answer["code"]) == ("wrong", "HG-100")
    assert answer["detail"] in line
    assert not sink.committed()
    sink.change({"transform": {"sql": "SELECT id, zone FROM records"}})
    assert questions(sink)["transform"]["detail"].endswith("gives id, zone")
