"""A record's Kafka timestamp as a column: to the unit of the column, or the record is bad."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headgate.control_protocol.identifiers import TopicPartition
from headgate.data_plane.batch.metadata_columns import RecordColumns
from headgate.data_plane.batch.writer_task_plan import SourcePlan
from headgate.kafka.record_fetch import Chunk
from headgate.native.byte_arrays import Packed


def columns_of(kind: pa.DataType, stamps: list[int]) -> tuple[list[int | None], dict[int, str]]:
    count = len(stamps)
    numbers = np.arange(count, dtype=np.int64)
    places = np.zeros(count, np.int64)
    chunk = Chunk(
        Packed.pack([b""] * count), places, places, numbers, np.array(stamps, dtype=np.int64)
    )
    source = SourcePlan({}, record_columns={"timestamp": "at"})
    reading = RecordColumns(source, pa.schema([("at", kind)]), [TopicPartition("t", 0)])
    found, bad = reading.build_columns_and_bad_rows(chunk)
    return found["at"].cast(pa.int64()).to_pylist(), bad


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize(("unit", "factor"), [("us", 1_000), ("ns", 1_000_000)])
def test_milliseconds_are_scaled_exactly(unit: str, factor: int, zone: str | None) -> None:
    stamps = [0, 1, 1_785_585_600_123, 9_223_372_036_854, -1]
    expected = [*(stamp * factor for stamp in stamps[:-1]), None]
    assert columns_of(pa.timestamp(unit, tz=zone), stamps) == (expected, {})


def test_a_time_that_nanoseconds_cannot_count_is_a_bad_record() -> None:
    found, bad = columns_of(pa.timestamp("ns", tz="UTC"), [5, 9_223_372_036_855, 6])
    assert (found[0], found[2]) == (5_000_000, 6_000_000)
    assert list(bad) == [1]
    assert bad[1].startswith("at: 9223372036855 ")


def test_a_time_that_microseconds_cannot_count_is_a_bad_record() -> None:
    far = 9_223_372_036_854_776
    found, bad = columns_of(pa.timestamp("us", tz="UTC"), [5, far, 2**63 - 1, 6])
    assert (found[0], found[3]) == (5_000, 6_000)
    assert bad == {
        1: "at: the record's time is out of range",
        2: "at: the record's time is out of range",
    }
