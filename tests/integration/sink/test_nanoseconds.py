"""Nanoseconds from a topic into a table of format version 3, exactly, read by Java's Iceberg."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.readers import IcebergSpark
from unit.data_plane.formats.avro_worlds import encoded, physical
from unit.data_plane.formats.avro_worlds import record as avro_record

from headgate.control_protocol.identifiers import tag_name
from headgate.operations.audit.audit import audit
from headgate.operations.demo.producer import produce

pytestmark = [pytest.mark.integration, pytest.mark.spark]

LEAST, MOST = -(2**63), 2**63 - 1
COLUMNS = {"id": "long", "at": "timestamp_ns", "seen": "timestamptz_ns"}
SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "table": {"partition_by": ["day(at)"]},
    "table.columns": {"columns": COLUMNS},
    "table.record_columns": {"timestamp": "sent"},
    "table.properties": {"format-version": "3", "commit.manifest.min-count-to-merge": "2"},
    "quarantine": {"policy": "quarantine", "per_thousand_max": 1_000},
}
NANOS = {"type": "long", "logicalType": "timestamp-nanos"}
LOCAL_NANOS = {"type": "long", "logicalType": "local-timestamp-nanos"}
SCHEMA = avro_record(id="long", at=LOCAL_NANOS, seen=NANOS)


def moment(number: int) -> int:
    """Both ends of what a long counts, the second before 1970 and many days after it."""
    if number % 50 == 0:
        return LEAST + number
    if number % 50 == 1:
        return MOST - number
    return (number - 5) * 3_600 * 10**9 + number * 1_001 + 1


def text_of(nanoseconds: int) -> str:
    seconds, fraction = divmod(nanoseconds, 10**9)
    days, second = divmod(seconds, 86_400)
    hours, minutes = divmod(second // 60, 60)
    day = date(1970, 1, 1) + timedelta(days=days)
    return f"{day}T{hours:02}:{minutes:02}:{second % 60:02}.{fraction:09}"


def as_json(number: int) -> bytes:
    at = text_of(moment(number))
    return json.dumps({"id": number, "at": at, "seen": f"{at}Z"}).encode()


def as_avro(number: int) -> bytes:
    at = moment(number)
    return encoded(physical(SCHEMA), {"id": number, "at": at, "seen": at})


def fill(sink: Deployment, values: list[bytes]) -> None:
    produce(sink.bootstrap, sink.topics[0], values, partitions=sink.partitions)
    sink.wait_until_lag_zero()


@pytest.fixture(params=["rest", pytest.param("sql", marks=pytest.mark.soak)])
def sections(request: pytest.FixtureRequest, unique_name: str) -> Mapping[str, Mapping[str, Any]]:
    """Of a sink on a catalog whose metadata headgate writes itself, or a server."""
    if request.param == "sql":
        return SECTIONS
    uri = f"http://127.0.0.1:{request.getfixturevalue('rest_port')}"
    table = {**SECTIONS["table"], "identifier": f"{unique_name.replace('-', '_')}.rows"}
    properties = {"type": "rest", "uri": uri, "warehouse": None}
    return {**SECTIONS, "table": table, "catalog.properties": properties}


@pytest.mark.wide
def test_json_and_avro_arrive_to_the_nanosecond_through_a_killed_leader(
    deploy: Deploy, iceberg_spark: IcebergSpark, sections: Mapping[str, Mapping[str, Any]]
) -> None:
    json_sink = deploy(sections)
    avro = {"format": {"type": "avro"}, "format.options": {"schema": json.dumps(SCHEMA)}}
    avro_sink = deploy({**sections, **avro, "name": "avro"})
    for sink, spelled, begin in ((json_sink, as_json, 0), (avro_sink, as_avro, 1_000)):
        sink.start(2)
        fill(sink, [spelled(number) for number in range(begin, begin + 300)])
        sink.kill(sink.leader())
        sink.start()
        fill(sink, [spelled(number) for number in range(begin + 300, begin + 500)])
        sink.stop()
        report = audit(sink.settings)
        assert report.findings == ()
    with json_sink.table() as table:
        found = iceberg_spark.read_with_java(table.metadata_location)
        assert {tag_name("sink"), tag_name("avro")} < set(table.metadata.refs)
    numbers = [*range(500), *range(1_000, 1_500)]
    assert sorted(row["id"] for row in found) == numbers
    for row in found:
        assert row["at"] == row["seen"] == moment(row["id"])
    assert len({row["_row_id"] for row in found}) == len(found)


@pytest.mark.wide
@pytest.mark.parametrize(
    "transform",
    [
        pytest.param({}, marks=pytest.mark.soak),
        {"sql": "SELECT id, at, concat(seen, '') AS seen FROM records"},
    ],
)
def test_through_spark_and_its_shuffle(
    deploy: Deploy, iceberg_spark: IcebergSpark, transform: dict[str, str]
) -> None:
    spark = {"writer": "spark", "master": "local[2]", "distribution": "hash"}
    as_text = {"columns": {"id": "long", "at": "string", "seen": "string"}}
    transformed = {"transform.columns": as_text, "transform": transform} if transform else {}
    sink = deploy({**SECTIONS, "spark": spark, **transformed})
    produce(sink.bootstrap, sink.topics[0], map(as_json, range(200)), partitions=sink.partitions)
    sink.start()
    sink.wait_until_lag_zero(180)
    sink.stop()
    assert audit(sink.settings).findings == ()
    with sink.table() as table:
        found = iceberg_spark.read_with_java(table.metadata_location)
    assert {row["id"]: row["at"] for row in found} == {n: moment(n) for n in range(200)}
    assert {row["id"]: row["seen"] for row in found} == {n: moment(n) for n in range(200)}
    assert len({row["_row_id"] for row in found}) == len(found) == 200


def test_what_nanoseconds_cannot_hold_is_set_aside_unchanged(
    deploy: Deploy, iceberg_spark: IcebergSpark
) -> None:
    sink = deploy(SECTIONS)
    sink.start()
    late, fine = "2262-04-11T23:47:16.854775808Z", "2026-08-01T12:00:00.1234567891Z"
    bad = [b'{"id":%d,"seen":"%s"}' % (n, t.encode()) for n, t in enumerate((late, fine))]
    fill(sink, [as_json(7), *bad, as_json(8)])
    sink.stop()
    assert audit(sink.settings).sum_over_partitions("in_quarantine") == 2
    with sink.table() as table:
        found = iceberg_spark.read_with_java(table.metadata_location)
    assert sorted(row["id"] for row in found) == [7, 8]
    with sink.catalog() as catalog:
        aside = catalog.load_table(sink.settings.quarantine.table).scan().to_arrow()
    assert sorted(aside["value"].to_pylist()) == sorted(bad)
