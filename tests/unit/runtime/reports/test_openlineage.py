"""OpenLineage events: their parts, their ids, and what is never in one (REPORT-1, REPORT-2)."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from headgate.runtime.reports.openlineage import (
    PARTITIONS_MAX,
    CommittedCounts,
    Kind,
    LineageReport,
    LineageRun,
    OutputColumn,
    OutputTable,
    Sink,
    build_event,
    dataset_of,
)

SINK = Sink("trips", "city", "broker:9092", "lake", "0.1.0")
EPOCH = LineageRun(7, "a-uuid")
TABLE = OutputTable(
    "city.trips",
    "s3a://lake/city/trips",
    (
        OutputColumn("id", "id"),
        OutputColumn("email", "contact.email", hidden=True),
        OutputColumn("at", "at", changed=True),
        OutputColumn("kafka_offset"),
    ),
    snapshot_id=42,
)
TOLD = LineageReport(
    time_ms=1_790_000_000_123,
    topics=("trips",),
    outputs=(TABLE, OutputTable("city.trips_quarantine")),
    brought=CommittedCounts(rows=10, files=2, commits=3),
    transaction="7.4",
    offsets={"trips": {1: 5, 0: 9}},
)


def facets_of(event: Any) -> list[Any]:
    sides = [*event["inputs"], *event["outputs"], event["job"], event["run"]]
    return [
        f
        for side in sides
        for f in (*side["facets"].values(), *side.get("outputFacets", {}).values())
    ]


def test_an_event_has_what_the_specification_requires() -> None:
    """Its classes of Python (1.54) were compared by hand; names and required parts are these."""
    event: Any = json.loads(json.dumps(build_event(Kind.RUNNING, SINK, EPOCH, TOLD)))
    assert set(event) == {
        *("eventType", "eventTime", "producer", "schemaURL", "run", "job", "inputs", "outputs")
    }
    assert uuid.UUID(event["run"]["runId"]).version == 5
    assert event["eventTime"] == "2026-09-21T14:13:20.123Z"
    assert (event["job"]["namespace"], event["job"]["name"]) == ("city", "trips")
    assert event["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    for facet in facets_of(event):
        assert {"_producer", "_schemaURL"} <= set(facet)
        assert ":" in facet["_producer"]
    (kafka,) = event["inputs"]
    assert (kafka["namespace"], kafka["name"]) == ("kafka://broker:9092", "trips")
    table, aside = event["outputs"]
    assert (table["namespace"], table["name"]) == ("s3://lake", "city/trips")
    assert (aside["namespace"], aside["name"]) == ("iceberg://lake", "city.trips_quarantine")
    assert table["facets"]["symlinks"]["identifiers"] == [
        {"namespace": "iceberg://lake", "name": "city.trips", "type": "TABLE"}
    ]
    assert [each["name"] for each in table["facets"]["schema"]["fields"]] == [
        *("id", "email", "at", "kafka_offset")
    ]
    assert table["facets"]["version"]["datasetVersion"] == "42"
    statistics = table["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["fileCount"]) == (10, 2)
    assert "outputFacets" not in aside
    progress = event["run"]["facets"]["headgate_progress"]
    assert (progress["epoch"], progress["transaction"], progress["commits"]) == (7, "7.4", 3)
    assert progress["offsets"] == {"trips": {"0": 9, "1": 5}}


def test_columns_tell_where_they_come_from_and_what_hides_them() -> None:
    event: Any = build_event(Kind.START, SINK, EPOCH, TOLD)
    fields = event["outputs"][0]["facets"]["columnLineage"]["fields"]
    told = {
        name: (
            source["inputFields"][0]["field"],
            source["inputFields"][0]["transformations"][0]["subtype"],
            source["inputFields"][0]["transformations"][0]["masking"],
        )
        for name, source in fields.items()
    }
    assert told == {
        "id": ("id", "IDENTITY", False),
        "email": ("contact.email", "TRANSFORMATION", True),
        "at": ("at", "TRANSFORMATION", False),
    }


def test_a_run_has_one_id_whoever_tells_of_it() -> None:
    again = Sink("trips", "elsewhere", "other:1", "c", "9.9")
    assert EPOCH.run_id(SINK) == EPOCH.run_id(again)
    ids = {
        EPOCH.run_id(SINK),
        LineageRun(8, "a-uuid").run_id(SINK),
        LineageRun(7, "another").run_id(SINK),
        EPOCH.run_id(Sink("others", "city", "", "", "")),
    }
    assert len(ids) == 4


def test_an_error_is_told_by_its_code_alone() -> None:
    event: Any = build_event(Kind.FAIL, SINK, EPOCH, LineageReport(0, code="HG-207"))
    assert event["run"]["facets"]["errorMessage"]["message"] == "HG-207"


def test_offsets_of_very_many_partitions_are_left_out() -> None:
    many = LineageReport(
        0, transaction="1.1", offsets={"t": dict.fromkeys(range(PARTITIONS_MAX + 1), 0)}
    )
    event: Any = build_event(Kind.RUNNING, SINK, EPOCH, many)
    assert "offsets" not in event["run"]["facets"]["headgate_progress"]


@pytest.mark.parametrize(
    ("location", "named"),
    [
        ("s3://user:secret@bucket/a/b/", ("s3://bucket", "a/b")),
        (
            "abfss://box@account.dfs.core.windows.net/a",
            ("abfss://box@account.dfs.core.windows.net", "a"),
        ),
        ("wasb://user:secret@box.net/a", ("wasb://box.net", "a")),
        ("file:///tmp/lake/a", ("file", "/tmp/lake/a")),
        ("/tmp/lake/a", ("file", "/tmp/lake/a")),
        ("https://host/a?sig=secret", ("https://host", "a")),
        ("", ("iceberg://lake", "db.t")),
    ],
)
def test_a_dataset_is_named_by_its_place_without_secrets(
    location: str, named: tuple[str, str]
) -> None:
    assert dataset_of(location, "lake", "db.t") == named
