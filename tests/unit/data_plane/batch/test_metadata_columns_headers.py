"""Headers as a column: values as they were, and names that are not UTF-8, which are a bad record
there and legible elsewhere."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.control_protocol.identifiers import TopicPartition
from headgate.data_plane.batch.metadata_columns import RecordColumns, printable_name
from headgate.data_plane.batch.writer_task_plan import SourcePlan
from headgate.kafka.librdkafka_binding import Headers, LentHeaders
from headgate.kafka.record_fetch import Chunk
from headgate.native.byte_arrays import Packed

ODD = b"na\xffme"


class OneHeader:
    """Stands for librdkafka: one message with one header of this name."""

    def __init__(self, name: bytes) -> None:
        self._name = name

    def message_headers(self, _message: int, _headers: Any) -> int:
        return 0

    def header_get_all(self, _: Any, place: int, name: Any, _value: Any, _size: Any) -> int:
        name._obj.value = self._name
        return int(place > 0)


def test_a_header_name_that_is_not_utf8_is_read() -> None:
    lent = LentHeaders(OneHeader(ODD), np.array([1], np.uint64))  # type: ignore[arg-type]
    assert lent[0] == [("na\udcffme", None)]
    assert printable_name("na\udcffme") == "na\\xffme"
    assert ctypes.c_char_p(ODD).value == ODD


def headers_in(kind: pa.DataType, records: list[Headers]) -> tuple[list[Any], dict[int, str]]:
    count = len(records)
    numbers = np.arange(count, dtype=np.int64)
    places = np.zeros(count, np.int64)
    chunk = Chunk(
        Packed.from_values([b""] * count),
        places,
        places,
        numbers,
        numbers,
        keys=None,
        headers=records,
    )
    source = SourcePlan({}, record_columns={"headers": "h"})
    reading = RecordColumns(source, pa.schema([("h", kind)]), [TopicPartition("t", 0)])
    found, bad = reading.build_columns_and_bad_rows(chunk)
    return found["h"].to_pylist(), bad


@pytest.mark.parametrize("value", [pa.large_string(), pa.large_binary()])
def test_such_a_record_is_bad_where_headers_fill_a_column(value: pa.DataType) -> None:
    records: list[Headers] = [[("a", b"1")], [("na\udcffme", b"2")], None]
    pairs = pa.large_list(pa.struct([("key", pa.large_string()), ("value", value)]))
    for kind in (pa.map_(pa.large_string(), value), pairs):
        found, bad = headers_in(kind, records)
        assert bad == {1: "the header name 'na\\\\xffme' is not UTF-8 text"}
        assert (len(found[0]), found[2]) == (1, [])


class Values:
    """Stands for librdkafka: one message with headers of these values, ``None`` is a null."""

    def __init__(self, *values: bytes | None) -> None:
        self._values = [
            None if each is None else ctypes.create_string_buffer(each) for each in values
        ]

    def message_headers(self, _message: int, _headers: Any) -> int:
        return 0

    def header_get_all(self, _: Any, place: int, name: Any, value: Any, size: Any) -> int:
        if place >= len(self._values):
            return 1
        held = self._values[place]
        name._obj.value = b"h"
        value._obj.value = None if held is None else ctypes.addressof(held)
        size._obj.value = 0 if held is None else len(held) - 1
        return 0


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(pa.large_string(), ["", None, "x"]), (pa.large_binary(), [b"", None, b"x"])],
)
def test_an_empty_header_is_empty_and_one_without_a_value_is_null(
    kind: pa.DataType, expected: list[Any]
) -> None:
    lent = LentHeaders(Values(b"", None, b"x"), np.array([1], np.uint64))  # type: ignore[arg-type]
    pairs = pa.large_list(pa.struct([("key", pa.large_string()), ("value", kind)]))
    found, bad = headers_in(pairs, [lent[0]])
    assert ([pair["value"] for pair in found[0]], bad) == (expected, {})
