"""Which tables are refused, and what is said of them: nothing is written into any of these."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from headgate.control_protocol.errors import StopSink
from headgate.tables.iceberg.supported_tables import (
    raise_if_metadata_not_understood,
    require_supported,
)


def field(kind: Any = "long", **more: Any) -> dict[str, Any]:
    return {"id": 1, "name": "v", "type": kind, "required": False, **more}


def metadata(column: dict[str, Any], **changes: Any) -> TableMetadata:
    text = {
        "format-version": 3,
        "table-uuid": "ec4ddd3e-0ce6-44ef-884f-e7aa8a09a895",
        "location": "file:///t",
        "last-updated-ms": 1,
        "last-column-id": 9,
        "last-sequence-number": 0,
        "next-row-id": 0,
        "current-schema-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": [column]}],
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
    }
    return TableMetadataUtil.parse_raw(json.dumps({**text, **changes}))


def by(transform: str) -> list[dict[str, Any]]:
    spec = {"source-id": 1, "field-id": 1000, "transform": transform, "name": "p"}
    return [{"spec-id": 0, "fields": [spec]}]


VERSION_1 = {
    "format-version": 1,
    "schema": {"type": "struct", "schema-id": 0, "fields": [field()]},
    "partition-spec": [],
}
INSIDE = {
    "type": "list",
    "element-id": 2,
    "element-required": False,
    "element": {"type": "struct", "fields": [{**field(), "id": 3, "write-default": 7}]},
}


@pytest.mark.parametrize(
    "taken",
    [
        metadata(field("timestamp_ns")),
        metadata(field("timestamptz_ns"), **{"partition-specs": by("day")}),
        metadata(field(**{"initial-default": 7})),  # of rows that were there before the column
        metadata(field(), **{"format-version": 2}),
    ],
)
def test_what_can_be_appended_to_is_taken(taken: TableMetadata) -> None:
    require_supported("db.t", taken)


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (metadata(field(), **VERSION_1), "has format version 1"),
        (metadata(field(), **{"next-row-id": None}), "has no next-row-id"),
        (metadata(field(), properties={"encryption.key-id": "k"}), "is encrypted"),
        (metadata(field("unknown")), "column v is of type unknown"),
        (metadata(field("geometry")), "column v is of type geometry"),
        (metadata(field("geography")), "column v is of type geography"),
        (metadata(field(**{"write-default": 7})), "column v has a write default"),
        (metadata(field(INSIDE)), "column v.element.v has a write default"),
        (
            metadata(field("timestamp_ns"), **{"partition-specs": by("identity")}),
            "partition field p is of type timestamp_ns",
        ),
    ],
)
def test_what_cannot_be_is_named(refused: TableMetadata, said: str) -> None:
    with pytest.raises(StopSink, match=r"table db\.t.*" + said):
        require_supported("db.t", refused)


@pytest.mark.parametrize(
    ("column", "changes", "said"),
    [
        (field("variant"), {}, "Unsupported field type: 'variant'"),
        (field("geometry(EPSG:4326)"), {}, "Could not parse geometry"),
        (field(), {"format-version": 4}, "does not match any of the expected tags"),
        (field("timestamp_ns", **{"write-default": "2026-08-01T12:00:00"}), {}, "timestamp_ns"),
    ],
)
def test_metadata_that_pyiceberg_does_not_know_stops_the_sink(
    column: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(Exception) as caught:
        metadata(column, **changes)
    with pytest.raises(StopSink, match=r"table db\.t has metadata that is not understood") as stop:
        raise_if_metadata_not_understood("db.t", caught.value)
    assert said in str(stop.value)


def test_what_may_pass_does_not_stop_it() -> None:
    with pytest.raises(Exception) as caught:
        TableMetadataUtil.parse_raw("<html>busy</html>")
    raise_if_metadata_not_understood("db.t", caught.value)
    raise_if_metadata_not_understood("db.t", ConnectionError("reset"))
