"""Avro into every column type: what is taken, as what, and what is refused, never changed."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from unit.data_plane.formats.avro_worlds import (
    decoded,
    encoded,
    physical,
    reasons,
    record,
    zigzag,
)
from unit.data_plane.formats.json_tables import COLUMNS, one_column

from headgate.data_plane.formats.avro.format import AvroRecords
from headgate.data_plane.formats.avro.schema import nullable_fields_with_default, parse_schema
from headgate.data_plane.formats.record_format import UndecodableRecords

DAY_US = 86_400_000_000
NOON_MS = 1_785_585_600_000
NOON_US = NOON_MS * 1000
UUID_TEXT = "123e4567-e89b-12d3-a456-426614174000"
UUID_BYTES = UUID(UUID_TEXT).bytes
WIDEST = Decimal("9" * 28 + "." + "9" * 10)
INNER = {
    **record(a="long", b={"type": "long", "logicalType": "timestamp-micros"}),
    "name": "Inner",
}


def logical(kind: str, name: str, /, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return logical("bytes", "decimal", precision=precision, scale=scale)


def unscaled(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)


WORDS = ["null", "string", "long"]

TAKEN: list[tuple[str, str, Any, Any, Any]] = [
    ("T7", "int", "int", 123, 123),
    ("T7", "int", "long", 123, 123),
    ("T7", "int", "float", 123.0, 123),
    ("T7", "int", "double", 123.0, 123),
    ("T7", "int", "string", "123", 123),
    ("T7", "int", "long", -(2**31), -(2**31)),
    ("T8", "long", "double", 123.0, 123),
    ("T8", "long", "string", "123", 123),
    ("T8", "long", "long", 2**63 - 1, 2**63 - 1),
    ("T8", "long", "long", -(2**63), -(2**63)),
    ("T8", "long", decimal(38, 2), unscaled(12300), 123),
    ("T8", "float", "int", 123, 123.0),
    ("T8", "float", "double", 123.5, 123.5),
    ("T8", "float", "string", "123.5", 123.5),
    ("T8", "double", "long", 2**53 + 2, float(2**53 + 2)),
    ("T8", "double", "float", 123.5, 123.5),
    ("T8", "double", "string", "0.1", 0.1),
    ("T8", "double", decimal(10, 2), unscaled(12345), 123.45),
    ("T9", "decimal", "string", "123.45", Decimal("123.45")),
    ("T9", "decimal", "double", 123.45, Decimal("123.45")),
    ("T9", "decimal", "float", 123.5, Decimal("123.50")),
    ("T9", "decimal", "float", 0.1, Decimal("0.10")),
    ("T9", "decimal", "int", 123, Decimal("123.00")),
    ("T9", "decimal", decimal(10, 2), unscaled(12345), Decimal("123.45")),
    ("T9", "decimal", decimal(10, 2), unscaled(-12345), Decimal("-123.45")),
    ("T9", "decimal", decimal(10, 4), unscaled(1234500), Decimal("123.45")),
    ("T9", "decimal", decimal(10, 2), b"", Decimal("0.00")),
    ("T9", "decimal", decimal(10, 2), b"\xff" * 20 + unscaled(-1), Decimal("-0.01")),
    ("T9", "wide_decimal", decimal(38, 10), unscaled(10**38 - 1), WIDEST),
    ("T9", "wide_decimal", decimal(38, 10), unscaled(1 - 10**38), WIDEST.copy_negate()),
    ("T10", "date", logical("int", "date"), 20666, 20666),
    ("T10", "date", "int", 20666, 20666),
    ("T10", "date", "string", "2026-08-01", 20666),
    ("T11", "time", logical("int", "time-millis"), 45_015_123, 45_015_123_000),
    ("T11", "time", logical("long", "time-micros"), 45_015_123_456, 45_015_123_456),
    ("T11", "time", "int", 45_015_123, 45_015_123_000),
    ("T11", "time", "string", "12:30:15.123", 45_015_123_000),
    ("T12", "timestamptz", logical("long", "timestamp-millis"), NOON_MS, NOON_US),
    ("T12", "timestamptz", logical("long", "local-timestamp-millis"), NOON_MS, NOON_US),
    ("T12", "timestamptz", "long", NOON_MS, NOON_US),
    ("T15", "timestamptz", logical("long", "timestamp-micros"), NOON_US + 1, NOON_US + 1),
    ("T15", "timestamp", logical("long", "local-timestamp-micros"), NOON_US + 1, NOON_US + 1),
    ("T15", "timestamp", logical("long", "timestamp-micros"), -1, -1),
    ("T15", "timestamptz", logical("long", "timestamp-nanos"), NOON_US * 1000, NOON_US),
    ("T15", "timestamp_ns", logical("long", "timestamp-micros"), NOON_US, NOON_US * 1000),
    ("T15", "timestamp_ns", logical("long", "local-timestamp-nanos"), 123_456_789, 123_456_789),
    ("T15", "timestamp_ns", logical("long", "timestamp-nanos"), -(2**63), -(2**63)),
    ("T15", "timestamptz_ns", logical("long", "timestamp-nanos"), 2**63 - 1, 2**63 - 1),
    ("T15", "timestamptz_ns", logical("long", "local-timestamp-nanos"), -1, -1),
    ("T15", "timestamptz_ns", logical("long", "timestamp-millis"), -1, -1_000_000),
    ("T15", "timestamptz_ns", "long", NOON_MS, NOON_US * 1000),
    ("T16", "uuid", "string", UUID_TEXT, UUID_BYTES),
    ("T16", "uuid", logical("string", "uuid"), UUID_TEXT.upper(), UUID_BYTES),
    ("T16", "uuid", {"type": "fixed", "name": "U", "size": 16}, UUID_BYTES, UUID_BYTES),
    ("T16", "string", logical("string", "uuid"), UUID_TEXT, UUID_TEXT),
    (
        "T16",
        "uuid",
        logical("fixed", "uuid", name="U", size=16),
        UUID_BYTES,
        UUID_BYTES,
    ),
    ("T17", "binary", "bytes", b"\x00\xff", b"\x00\xff"),
    ("T17", "binary", "string", "AAECAw==", b"\x00\x01\x02\x03"),
    ("T17", "fixed", "bytes", b"\x00\x01\x02\x03", b"\x00\x01\x02\x03"),
    ("T17", "fixed", {"type": "fixed", "name": "F", "size": 4}, b"abcd", b"abcd"),
    ("T17", "fixed", "string", "AAECAw==", b"\x00\x01\x02\x03"),
    ("T1", "boolean", "boolean", True, True),
    ("T1", "string", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    ("T3", "struct", INNER, {"a": 1, "b": NOON_US}, {"a": 1, "b": NOON_US}),
    ("T3", "struct", {"type": "map", "values": "long"}, {"a": 7, "x": 8}, {"a": 7, "b": None}),
    ("T4", "list", {"type": "array", "items": ["null", "string"]}, ["1", None], [1, None]),
    (
        "T4",
        "map",
        {"type": "map", "values": decimal(9, 1)},
        {"k": unscaled(15)},
        [("k", Decimal("1.50"))],
    ),
    (
        "T5",
        "string",
        INNER,
        {"a": 1, "b": NOON_US},
        '{"a":1,"b":"2026-08-01T12:00:00+00:00"}',
    ),
    ("T5", "string", {"type": "array", "items": "long"}, [1, 2], "[1,2]"),
    ("T5", "string", {"type": "map", "values": "string"}, {"k": "é"}, '{"k":"\\u00e9"}'),
    (
        "T5",
        "string",
        {"type": "array", "items": ["null", "bytes", {**record(a="long"), "name": "Inner"}]},
        [None, b"\x00\xff", {"a": 1}],
        '[null,"AP8=",{"a":1}]',
    ),
    *(
        ("T5", "string", {"type": "array", "items": kind}, [0, value], text)
        for kind, value, text in (
            (logical("int", "date"), -719_162, '["1970-01-01","0001-01-01"]'),
            (logical("int", "time-millis"), 86_399_999, '["00:00:00","23:59:59.999000"]'),
            (
                logical("long", "timestamp-nanos"),
                NOON_US * 1000 + 1,
                '["1970-01-01T00:00:00+00:00","2026-08-01T12:00:00.000000001+00:00"]',
            ),
            (
                logical("long", "local-timestamp-nanos"),
                -(2**63),
                '["1970-01-01T00:00:00","1677-09-21T00:12:43.145224192"]',
            ),
        )
    ),
    ("unions", "long", WORDS, "123", 123),
    ("unions", "long", WORDS, 124, 124),
    ("unions", "long", WORDS, None, None),
    ("unions", "string", ["string", "null"], None, None),
    ("unions", "long", "null", None, None),
]

REFUSED: list[tuple[str, Any, Any]] = [
    ("int", "long", 2**31),
    ("int", "double", 1.5),
    ("int", "double", float("nan")),
    ("int", "string", "1.5"),
    ("int", "string", "0x10"),
    ("int", "boolean", True),
    ("int", "bytes", b"1"),
    ("int", logical("int", "date"), 5),
    ("long", "double", 1e19),
    ("long", decimal(38, 2), unscaled(12345)),
    ("long", decimal(38, 0), unscaled(2**63)),
    ("float", "double", 0.1),
    ("float", "double", 1e300),
    ("float", "int", 2**24 + 1),
    ("double", "long", 2**53 + 1),
    ("double", "string", "nan"),
    ("double", decimal(38, 20), unscaled(10**37 + 1)),
    ("decimal", "double", 0.125),
    ("decimal", "double", float("inf")),
    ("decimal", "double", 1e10),
    ("decimal", "double", 4.0300000000000004e-55),
    ("decimal", "int", 10**8),
    ("decimal", decimal(10, 4), unscaled(1234567)),
    ("decimal", decimal(38, 2), unscaled(10**10)),
    ("wide_decimal", decimal(38, 10), unscaled(10**38)),
    ("wide_decimal", decimal(38, 10), unscaled(-(2**127))),
    ("wide_decimal", decimal(38, 10), unscaled(2**200)),
    ("wide_decimal", decimal(38, 0), unscaled(3 * 10**37)),
    ("wide_decimal", "string", str(3 * 10**37)),
    ("boolean", "string", "yes"),
    ("boolean", "string", "true"),
    ("boolean", "int", 1),
    ("string", "int", 1),
    ("string", "bytes", b"text"),
    ("date", logical("int", "date"), 2_932_897),
    ("date", logical("long", "timestamp-micros"), 0),
    ("date", "string", "2026-02-30"),
    ("time", logical("int", "time-millis"), -1),
    ("time", logical("int", "time-millis"), 86_400_000),
    ("time", logical("long", "time-micros"), DAY_US),
    ("timestamptz", logical("long", "timestamp-millis"), 2**62),
    ("timestamptz", logical("long", "timestamp-nanos"), NOON_US * 1000 + 1),
    ("timestamptz", "long", 2**62),
    ("timestamptz", logical("int", "date"), 1),
    ("timestamp_ns", logical("long", "timestamp-micros"), 2**62),
    ("timestamptz_ns", logical("long", "timestamp-micros"), (2**63 - 1) // 1000 + 1),
    ("timestamptz_ns", logical("long", "timestamp-millis"), -(2**63) // 10**6 - 1),
    ("timestamptz_ns", "string", "2262-04-11T23:47:16.854775808Z"),
    ("uuid", "bytes", b"short"),
    ("uuid", "string", UUID_TEXT[:-1]),
    ("fixed", "bytes", b"12345"),
    ("fixed", {"type": "fixed", "name": "F", "size": 3}, b"abc"),
    ("binary", "string", "no base64!"),
    ("binary", "long", 1),
    ("struct", "string", "{}"),
    ("list", "int", 1),
    ("list", {"type": "map", "values": "int"}, {}),
    ("list", {"type": "array", "items": "long"}, [1, 2**40]),
    ("map", {"type": "array", "items": "int"}, []),
    ("map", {"type": "map", "values": "double"}, {"k": 0.125}),
    ("struct", {**record(a="double"), "name": "Inner"}, {"a": 1.5}),
    ("long", WORDS, "1.5"),
    *(
        ("string", {"type": "map", "values": logical(kind, name)}, {"k": value})
        for kind, name, value in (
            ("int", "date", 2_932_897),
            ("long", "time-micros", DAY_US),
            ("long", "time-micros", -1),
            ("long", "timestamp-micros", 253_402_300_800_000_000),
        )
    ),
]


def written(kind: Any, value: Any) -> bytes:
    return encoded(physical(record(v=kind)), {"v": value})


@pytest.mark.parametrize(("number", "column", "kind", "value", "expected"), TAKEN)
def test_what_is_taken(number: str, column: str, kind: Any, value: Any, expected: Any) -> None:
    schema, columns = record(v=kind), one_column(column)
    assert decoded(schema, [written(kind, value)] * 3, columns) == [{"v": expected}] * 3


@pytest.mark.parametrize(("column", "kind", "value"), REFUSED)
def test_what_is_refused_is_bad_alone_and_beside_others(column: str, kind: Any, value: Any) -> None:
    nullable = kind if isinstance(kind, list) else ["null", kind]
    schema, columns = record(v=nullable), one_column(column)
    good = written(nullable, None)
    bad = reasons(schema, [good, written(nullable, value), good], columns)
    assert list(bad) == [1]
    assert bad[1].startswith("v")


def test_t20_columns_come_in_the_tables_order() -> None:
    schema = record(z="long", a="string", m="boolean")
    columns = pa.schema([("m", pa.bool_()), ("z", pa.int64()), ("a", pa.large_string())])
    found = decoded(schema, [encoded(schema, {"z": 1, "a": "x", "m": True})], columns)
    assert list(found[0].items()) == [("m", True), ("z", 1), ("a", "x")]


def test_a_default_never_replaces_a_null_nor_what_is_missing() -> None:
    schema = record(v=["null", "long"])
    schema["fields"][0]["default"] = None
    schema["fields"].append({"name": "w", "type": ["long", "null"], "default": 7})
    columns = pa.schema([("v", pa.int64()), ("w", pa.int64()), ("gone", pa.int64())])
    assert decoded(schema, [encoded(schema, {"v": 1, "w": None})], columns) == [
        {"v": 1, "w": None, "gone": None}
    ]


def test_required_columns_refuse_nulls_and_writers_that_lack_them() -> None:
    schema = record(v=["null", "long"])
    required = one_column("long", required=True)
    values = [encoded(schema, {"v": v}) for v in (1, None, 2)]
    assert reasons(schema, values, required) == {1: "v: a required value is missing"}
    assert list(reasons(record(other="long"), [zigzag(1)], required)) == [0]
    inside = pa.schema([("s", pa.struct([pa.field("a", pa.int64(), nullable=False)]))])
    outer = record(s=["null", {**record(a=["null", "long"]), "name": "Inner"}])
    values = [encoded(outer, {"s": s}) for s in (None, {"a": None}, {"a": 1})]
    assert reasons(outer, values, inside) == {1: "s.a: a required value is missing"}


HOSTILE: list[tuple[str, Any, bytes]] = [
    ("boolean", "boolean", b"\x02"),
    ("int", "int", zigzag(2**40)),
    ("long", "long", b"\xff" * 12),
    ("long", "long", b"\xff" * 9 + b"\x7f"),
    ("string", "string", zigzag(2) + b"\xff\xfe"),
    ("string", "string", zigzag(-5) + b"abc"),
    ("string", "string", zigzag(2**62) + b"abc"),
    ("string", {"type": "enum", "name": "E", "symbols": ["A"]}, zigzag(3)),
    ("string", {"type": "enum", "name": "E", "symbols": ["A"]}, zigzag(-1)),
    ("int", ["null", "int"], zigzag(5)),
    ("int", ["null", "int"], zigzag(-1)),
    ("list", {"type": "array", "items": "null"}, zigzag(2**62) + b"\0"),
    ("list", {"type": "array", "items": "int"}, zigzag(2**62) + b"\0"),
    ("list", {"type": "array", "items": "int"}, zigzag(-(2**63)) + zigzag(2) + b"\2\4\0"),
    ("list", {"type": "array", "items": "int"}, zigzag(-2) + zigzag(-9) + b"\2\4\0"),
    ("list", {"type": "array", "items": "int"}, zigzag(2) + b"\2\4"),
    ("map", {"type": "map", "values": "int"}, zigzag(2) + b"\2k\2\2k\4\0"),
    ("map", {"type": "map", "values": "int"}, zigzag(1) + b"\2\xff\2\0"),
    ("string", {"type": "map", "values": "int"}, zigzag(2) + b"\2k\2\2k\4\0"),
    ("int", "int", b""),
    ("int", "int", zigzag(1) + b"x"),
    ("double", "double", b"1234567"),
    ("fixed", {"type": "fixed", "name": "F", "size": 4}, b"abc"),
]


@pytest.mark.parametrize(("column", "kind", "hostile"), HOSTILE)
def test_hostile_bytes_are_one_bad_record(column: str, kind: Any, hostile: bytes) -> None:
    nothing = reasons(record(v=kind), [hostile] * 2, one_column(column))
    assert list(nothing) == [0, 1]


def test_arrays_in_blocks_with_sizes_are_read() -> None:
    kind = {"type": "array", "items": "int"}
    value = zigzag(-2) + zigzag(2) + b"\2\4" + zigzag(1) + b"\6" + b"\0"
    assert decoded(record(v=kind), [value], one_column("list")) == [{"v": [1, 2, 3]}]


def test_an_unknown_logical_type_is_what_it_annotates() -> None:
    schema = record(v=logical("long", "moon-phase"))
    assert decoded(schema, [zigzag(4)], one_column("long")) == [{"v": 4}]


def test_names_are_resolved_in_their_namespaces() -> None:
    inner = {"type": "fixed", "name": "F", "size": 4}
    schema = {
        "type": "record",
        "name": "Row",
        "namespace": "a.b",
        "fields": [{"name": "v", "type": inner}, {"name": "w", "type": "F"}],
    }
    columns = pa.schema([("v", COLUMNS["fixed"]), ("w", COLUMNS["fixed"])])
    assert decoded(schema, [b"abcdefgh"], columns) == [{"v": b"abcd", "w": b"efgh"}]
    schema["fields"][1]["type"] = "a.b.F"
    assert decoded(schema, [b"abcdefgh"], columns) == [{"v": b"abcd", "w": b"efgh"}]


def test_one_value_goes_into_the_only_column() -> None:
    assert decoded("string", [b"\x02x"], one_column("string")) == [{"v": "x"}]
    two = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    assert reasons("long", [b"\x02"], two) == {0: "a single value is no row of 2 columns"}


def test_a_union_of_records_goes_into_the_columns_of_each() -> None:
    schema = [{**record(a="long"), "name": "A"}, {**record(b="string"), "name": "B"}]
    columns = pa.schema([("a", pa.int64()), ("b", pa.large_string())])
    values = [b"\x00\x02", b"\x02\x02x", b"\x00\x04"]
    assert decoded(schema, values, columns) == [
        {"a": 1, "b": None},
        {"a": None, "b": "x"},
        {"a": 2, "b": None},
    ]


@pytest.mark.parametrize("branches", [128, 129, 300])
def test_a_union_may_have_more_branches_than_arrows_unions(branches: int) -> None:
    union = [{**record(a="long"), "name": f"R{number}"} for number in range(branches)]
    chosen = [0, branches - 1, 127, 1, branches // 2, branches - 1]
    values = [zigzag(branch) + zigzag(row) for row, branch in enumerate(chosen)]
    for column, expected in (
        ("struct", [{"a": row, "b": None} for row in range(len(chosen))]),
        ("string", [f'{{"a":{row}}}' for row in range(len(chosen))]),
    ):
        rows = decoded(record(v=union), values, one_column(column))
        assert [row["v"] for row in rows] == expected


def test_no_column_is_taken_apart_for_a_bad_record(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = record(a=["null", "long"], b=["null", "string"])
    columns = pa.schema([("a", pa.int64()), ("b", pa.large_string())])
    values = [encoded(schema, {"a": at, "b": f"x{at}"}) for at in range(4)]
    monkeypatch.delattr("headgate.data_plane.formats.avro.decoder.Cursors.select")
    for broken in (b"", values[2][:1], b"\xff" * 11):
        with pytest.raises(UndecodableRecords) as refused:
            decoded(schema, [*values[:2], broken, *values[3:]], columns)
        assert set(refused.value.bad) == {2}
        assert [(row["a"], row["b"]) for row in refused.value.rest.to_pylist()] == [
            (at, f"x{at}") for at in (0, 1, 3)
        ]


def test_nanoseconds_become_text_without_pandas() -> None:
    """Arrow's own values of nanoseconds are those of pandas, which few installations have."""
    schema = record(v={"type": "array", "items": logical("long", "timestamp-nanos")})
    value = encoded(physical(schema), {"v": [1]})
    code = f"""
import sys
class Absent:
    def find_spec(self, name, *_):
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Absent())
import pyarrow as pa
from headgate.data_plane.formats.avro.format import AvroRecords
from headgate.data_plane.formats.avro.schema import nullable_fields_with_default, parse_schema
read = AvroRecords({{"schema": {json.dumps(schema)!r}}}).decode
print(read([{value!r}], pa.schema([("v", pa.large_string())]))[0][0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == '["1970-01-01T00:00:00.000000001+00:00"]\n', done.stderr


def test_a_schema_is_parsed_once() -> None:
    text = json.dumps(record(a="long"))
    assert AvroRecords({"schema": text}).writer is AvroRecords({"schema": text}).writer


def test_the_schema_is_checked_when_the_format_is_made() -> None:
    from headgate.control_protocol.errors import ConfigurationError
    from headgate.data_plane.formats.format_registry import create_record_format

    for options in ({}, {"schema": "{"}, {"schema": json.dumps({"type": "record"})}):
        with pytest.raises(ConfigurationError, match="avro"):
            create_record_format("avro", options)


def test_fields_that_may_be_null_beside_a_default_are_named_in_any_spelling() -> None:
    nothing = {"type": "null"}
    inner = {"type": "record", "name": "Nested", "fields": [{"name": "x", "type": "int"}]}
    inner["fields"].append({"name": "n", "type": "null"})  # type: ignore[attr-defined]
    types = {
        "first": ["int", "null"],
        "last": ["int", "string", nothing],
        "wrapped": {"type": "array", "items": ["int", "null"]},
        "nested": inner,
        "own_default_null": ["null", "int"],
        "never_null": ["int", "string"],
    }
    fields = [{"name": name, "type": kind, "default": 1} for name, kind in types.items()]
    fields.append({"name": "without", "type": ["int", nothing]})
    schema = parse_schema(json.dumps({"type": "record", "name": "R", "fields": fields}))
    assert nullable_fields_with_default(schema) == ("first", "last")
