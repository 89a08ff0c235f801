"""What Iceberg's own Kafka Connect sink 1.12 makes of a JSON value, where that is exact.

Facts from its converter's cases. Where it guesses (a zone that it drops, a fraction that it cuts
off, a decimal that it rounds) the record is bad here.
"""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from unit.data_plane.formats.json.test_one_pass import RulesAlone

from headgate.data_plane.formats.json.format import JsonRecords
from headgate.data_plane.formats.record_format import UndecodableRecords

SHORT = ("Z", "+00", "+00:00", "+0000", "")
NOON = dt.datetime(2023, 5, 18, 11, 22, 33, tzinfo=dt.UTC)
FINE = dt.datetime(2026, 3, 31, 3, 17, 37, 260514, tzinfo=dt.UTC)
ZONED, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
UUID = uuid.UUID("f30d6a1c-3c8b-4a0e-9d5e-0c9b8f4f8f11")


def texts(day: str, clock: str, zones: tuple[str, ...]) -> list[str]:
    return [f'"{day}{between}{clock}{zone}"' for between in "T " for zone in zones]


def local(moment: dt.datetime) -> dt.datetime:
    return moment.replace(tzinfo=None)


CASES: list[tuple[pa.DataType, list[str], Any]] = [
    *((kind, ['"123"', "123", "123.0", "1.23e2"], 123) for kind in (pa.int32(), pa.int64())),
    *((kind, ['"123"', "123", "123.0"], 123.0) for kind in (pa.float32(), pa.float64())),
    (pa.decimal128(10, 2), ['"123.45"', "123.45"], Decimal("123.45")),
    (pa.decimal128(10, 0), ['"123"', "123"], Decimal(123)),
    (pa.bool_(), ["true"], True),
    (pa.large_string(), ['"f\\u00fcr"', '"für"'], "für"),
    (pa.large_binary(), ['"aGVsbG8="'], b"hello"),
    (pa.binary(5), ['"aGVsbG8="'], b"hello"),
    (pa.uuid(), [f'"{UUID}"', f'"{str(UUID).upper()}"'], UUID),
    (pa.date32(), ['"2023-11-15"', "19676"], dt.date(2023, 11, 15)),
    (pa.time64("us"), ['"07:51:30.888"', "28290888"], dt.time(7, 51, 30, 888000)),
    (ZONED, [*texts("2023-05-18", "11:22:33", SHORT), "1684408953000"], NOON),
    (ZONED, texts("2023-05-18", "03:22:33", ("-08", "-08:00", "-0800")), NOON),
    (ZONED, texts("2026-03-31", "03:17:37.260514", SHORT), FINE),
    (LOCAL, [*texts("2023-05-18", "11:22:33", SHORT), "1684408953000"], local(NOON)),
    (LOCAL, texts("2026-03-31", "03:17:37.260514", SHORT), local(FINE)),
    (pa.large_list(pa.int32()), ['[123, "123", null]'], [123, 123, None]),
    (pa.map_(pa.string(), pa.int64()), ['{"a":1,"b":"2"}'], [("a", 1), ("b", 2)]),
    (pa.struct([("d", pa.date32())]), ['{"d":19676}'], {"d": dt.date(2023, 11, 15)}),
]


@pytest.mark.parametrize("reader", [JsonRecords, RulesAlone])
@pytest.mark.parametrize(("kind", "spelt", "wanted"), CASES)
def test_a_value_is_what_the_connect_sink_makes_of_it(
    reader: type[JsonRecords], kind: pa.DataType, spelt: list[str], wanted: Any
) -> None:
    values = [b'{"v":%s}' % text.encode() for text in spelt]
    read = reader().decode(values, pa.schema([("v", kind)]))
    assert read.column(0).to_pylist() == [wanted] * len(values)


@pytest.mark.parametrize("reader", [JsonRecords, RulesAlone])
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (LOCAL, '"2023-05-18T11:22:33-08:00"'),  # the zone is dropped there
        (pa.int32(), "123.7"),  # 123
        (pa.int32(), "2147483648"),  # the lower bits
        (pa.decimal128(10, 2), "123.455"),  # 123.46
        (pa.bool_(), '"yes"'),  # false
        (pa.time64("us"), "86400000"),
    ],
)
def test_where_the_connect_sink_guesses_the_record_is_bad(
    reader: type[JsonRecords], kind: pa.DataType, text: str
) -> None:
    with pytest.raises(UndecodableRecords):
        reader().decode([b'{"v":%s}' % text.encode()], pa.schema([("v", kind)]))
