"""Debezium's times are read in the unit that their schema names, never as milliseconds."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from unit.data_plane.formats import avro_worlds
from unit.data_plane.formats.json_tables import plain_rows

from headgate.data_plane.formats.avro.format import AvroRecords
from headgate.data_plane.formats.casting.counted_time_types import Counted, debezium_time_type
from headgate.data_plane.formats.connect.format import ConnectJsonRecords
from headgate.data_plane.formats.record_format import UndecodableRecords

NAIVE, ZONED = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
NANO, CLOCK, DAY = pa.timestamp("ns"), pa.time64("us"), pa.date32()
MOMENT_MS = 1_785_585_600_123
NOON_MS = 43_200_500

TAKEN: list[tuple[str, int, pa.DataType, int]] = [
    ("Date", 20_666, DAY, 20_666),
    ("Date", -1, DAY, -1),
    ("Date", 20_666, pa.int32(), 20_666),
    ("Time", NOON_MS, CLOCK, NOON_MS * 1_000),
    ("MicroTime", NOON_MS * 1_000, CLOCK, NOON_MS * 1_000),
    ("MicroTime", 1, CLOCK, 1),
    ("NanoTime", NOON_MS * 1_000_000, CLOCK, NOON_MS * 1_000),
    ("Timestamp", MOMENT_MS, NAIVE, MOMENT_MS * 1_000),
    ("Timestamp", MOMENT_MS, ZONED, MOMENT_MS * 1_000),
    ("MicroTimestamp", MOMENT_MS * 1_000, NAIVE, MOMENT_MS * 1_000),
    ("MicroTimestamp", MOMENT_MS * 1_000, ZONED, MOMENT_MS * 1_000),
    ("MicroTimestamp", 1, NAIVE, 1),
    ("MicroTimestamp", -1, NAIVE, -1),
    ("MicroTimestamp", MOMENT_MS * 1_000, pa.int64(), MOMENT_MS * 1_000),
    ("NanoTimestamp", MOMENT_MS * 1_000_000, NAIVE, MOMENT_MS * 1_000),
    ("NanoTimestamp", 1, NANO, 1),
]
"""With the count that the column has, in its own unit."""

REFUSED: list[tuple[str, int, pa.DataType]] = [
    ("Date", 20_666, NAIVE),
    ("Date", 20_666, CLOCK),
    ("Date", 10**9, DAY),
    ("Time", NOON_MS, NAIVE),
    ("MicroTime", 1, ZONED),
    ("MicroTime", 86_400_000_000, CLOCK),
    ("MicroTime", -1, CLOCK),
    ("NanoTime", 1, CLOCK),
    ("Timestamp", MOMENT_MS, DAY),
    ("Timestamp", MOMENT_MS, CLOCK),
    ("MicroTimestamp", 20_666, DAY),
    ("MicroTimestamp", 2**63 - 1, NAIVE),
    ("NanoTimestamp", 1, NAIVE),
]


def kind_of(name: str) -> str:
    return "int" if name in ("Date", "Time") else "long"


def by_connect(name: str, numbers: list[int | None], column: pa.DataType) -> pa.RecordBatch:
    kind = "int32" if kind_of(name) == "int" else "int64"
    field = {"field": "v", "type": kind, "name": f"io.debezium.time.{name}", "optional": True}
    schema = {"type": "struct", "fields": [field]}
    values = [json.dumps({"schema": schema, "payload": {"v": number}}) for number in numbers]
    wanted = pa.schema([pa.field("v", column)])
    return ConnectJsonRecords({}).decode([value.encode() for value in values], wanted)


def by_avro(name: str, numbers: list[int | None], column: pa.DataType) -> pa.RecordBatch:
    named = {"type": kind_of(name), "connect.name": f"io.debezium.time.{name}"}
    schema = avro_worlds.record(v=["null", {"connect.version": 1, **named}])
    values = [avro_worlds.encoded(schema, {"v": number}) for number in numbers]
    wanted = pa.schema([pa.field("v", column)])
    return AvroRecords({"schema": json.dumps(schema)}).decode(values, wanted)


@pytest.mark.parametrize("read", [by_connect, by_avro])
@pytest.mark.parametrize(("name", "number", "column", "expected"), TAKEN)
def test_each_is_taken_in_its_unit(
    read: Any, name: str, number: int, column: pa.DataType, expected: int
) -> None:
    found = plain_rows(read(name, [number, None, number], column))
    assert [row["v"] for row in found] == [expected, None, expected]


@pytest.mark.parametrize("read", [by_connect, by_avro])
@pytest.mark.parametrize(("name", "number", "column"), REFUSED)
def test_what_is_none_of_the_columns_times_is_a_bad_record(
    read: Any, name: str, number: int, column: pa.DataType
) -> None:
    with pytest.raises(UndecodableRecords) as refused:
        read(name, [None, number, None], column)
    assert list(refused.value.bad) == [1]
    assert refused.value.rest.num_rows == 2


def test_other_names_say_nothing_of_numbers() -> None:
    for name in ("", "MicroTime", "io.debezium.time.Interval", "io.debezium.data.Enum"):
        assert debezium_time_type(name) is None


@pytest.mark.parametrize("name", ["Year", "MicroDuration", "NanoDuration"])
def test_a_year_or_a_duration_is_no_moment(name: str) -> None:
    kind = debezium_time_type(f"io.debezium.time.{name}")
    assert kind is not None
    assert not any(
        kind.can_become(target) for target in (pa.date32(), pa.time64("us"), pa.timestamp("us"))
    )


def test_the_type_comes_through_arrows_messages() -> None:
    for name in ("MicroTime", "NanoTimestamp", "Date"):
        kind = debezium_time_type(f"io.debezium.time.{name}")
        assert isinstance(kind, Counted)
        again = Counted.__arrow_ext_deserialize__(pa.int64(), kind.__arrow_ext_serialize__())
        assert (again.unit, again.of_day) == (kind.unit, kind.of_day)
