"""The benchmark's records are what they are said to be, and the same every time."""

from __future__ import annotations

import json

import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from comparison import workloads
from comparison.workloads import EVENT_BYTES, WORKLOADS, Workload, zigzag
from headgate.data_plane.formats.format_registry import create_record_format
from headgate.tables.iceberg.type_parser import parse_columns
from rivals.flink import flink_type

each = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=list(WORKLOADS))
ROWS = 300


@pytest.fixture(autouse=True)
def few_endings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Render fewer endings than a benchmark's."""
    monkeypatch.setattr(workloads, "ENDINGS", 499)


@each
def test_a_seed_gives_the_same_records_and_another_seed_others(workload: Workload) -> None:
    once, again, other = (list(workload.records(ROWS, seed)) for seed in (1, 1, 2))
    assert once == again
    assert once != other


@each
def test_every_record_fits_its_columns_and_fills_them(workload: Workload) -> None:
    schema = schema_to_pyarrow(Schema(*parse_columns(workload.columns, {})))
    records = create_record_format(workload.format, workload.options)
    rows = records.decode(list(workload.records(ROWS, 1)), schema)
    assert rows.column("id").to_pylist() == list(range(ROWS))
    if workload.name != "trips":
        assert all(column.null_count == 0 for column in rows.columns)


def test_trips_have_29_columns_of_which_two_are_always_and_eight_sometimes_null() -> None:
    (record, *_) = records = [json.loads(one) for one in WORKLOADS["trips"].records(ROWS, 1)]
    nulls = {name: sum(one[name] is None for one in records) for name in record}
    assert len(record) == 29
    assert [name for name, count in nulls.items() if count == ROWS] == ["ehail_fee", "airport_fee"]
    assert sum(0 < count < ROWS for count in nulls.values()) == 8


def test_events_have_the_size_that_they_are_known_by() -> None:
    assert {len(record) for record in WORKLOADS["events"].records(ROWS, 1)} == {EVENT_BYTES}


def test_json_holds_the_columns_and_nothing_else() -> None:
    for name in ("taxi", "trips", "events", "nested", "wide-json"):
        (record,) = WORKLOADS[name].records(1, 1)
        assert list(json.loads(record)) == list(WORKLOADS[name].columns)


@pytest.mark.parametrize("number", [0, 1, 63, 64, 8191, 8192, 2**31, 2**40])
def test_ids_are_avro_longs(number: int) -> None:
    encoded = zigzag(number)
    assert sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(encoded)) == 2 * number
    assert [byte & 0x80 for byte in encoded] == [0x80] * (len(encoded) - 1) + [0]


def test_types_are_spelled_as_flink_does() -> None:
    kind = "struct<a: long, b: list<struct<c: string>>, d: map<string, timestamptz>>"
    assert flink_type(kind) == (
        "ROW<`a` BIGINT, `b` ARRAY<ROW<`c` STRING>>, `d` MAP<STRING, TIMESTAMP_LTZ(6)>>"
    )


def test_the_wide_workloads_have_the_same_hundred_columns() -> None:
    assert WORKLOADS["wide-json"].columns == WORKLOADS["wide-avro"].columns
    assert len(WORKLOADS["wide-avro"].columns) == 100
