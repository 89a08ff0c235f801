"""JSON into every column type: what is taken, as what, and what is refused."""

from __future__ import annotations

import math
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from unit.data_plane.formats.json_tables import (
    COLUMNS,
    decoded,
    document,
    one_column,
    reasons,
)

from headgate.data_plane.formats import field_names
from headgate.data_plane.formats.format_registry import ValueOptions, create_record_format
from headgate.data_plane.formats.json.format import JsonRecords
from headgate.data_plane.formats.record_format import UndecodableRecords

NOON_S = 1_785_585_600  # 2026-08-01T12:00:00Z
NOON_US = NOON_S * 1_000_000
MICROS_US = NOON_US + 123_456
UUID_TEXT = "123e4567-e89b-12d3-a456-426614174000"

ZONES = ("Z", "+00", "+00:00", "+0000", "")
MOMENTS = [f'"2026-08-01{gap}12:00:00{zone}"' for gap in "T " for zone in ZONES]
FINE_MOMENTS = [f'"2026-08-01{gap}12:00:00.123456{zone}"' for gap in "T " for zone in ZONES]

TAKEN: dict[str, list[tuple[str, object]]] = {
    # T7, T8: every kind of number, and text that spells one
    "int": [(t, 123) for t in ("123", "123.0", "1.23e2", '"123"', '"123.0"')]
    + [("-2147483648", -(2**31)), ("2147483647", 2**31 - 1), ("-0", 0)],
    "long": [(t, 123) for t in ("123", "123.0", '"123"')]
    + [
        ("9007199254740993", 9007199254740993),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ('"9223372036854775807"', 2**63 - 1),
        ("1e18", 10**18),
    ],
    "float": [
        ("1.5", 1.5),
        ('"1.5"', 1.5),
        ("3", 3.0),
        ("0.1", 0.10000000149011612),
    ],
    "double": [("0.1", 0.1), ('"0.1"', 0.1), ("3", 3.0), ("1e308", 1e308), ("-0.0", 0.0)],
    # T9
    "decimal": [(t, Decimal("123.45")) for t in ("123.45", '"123.45"', "123.450", "1.2345e2")]
    + [("123", Decimal("123.00")), ("-99999999.99", Decimal("-99999999.99"))],
    "wide_decimal": [
        (
            '"1234567890123456789012345678.0123456789"',
            Decimal("1234567890123456789012345678.0123456789"),
        ),
        (
            "1234567890123456789012345678.0123456789",
            Decimal("1234567890123456789012345678.0123456789"),
        ),
        ("1e-10", Decimal("0.0000000001")),
    ],
    "boolean": [("true", True), ("false", False)],
    # T5: an object or array in a text column keeps every field, numbers to the digit
    "string": [
        ('"text"', "text"),
        ('""', ""),
        (r'"\ud83d\ude00\n\u0000"', "😀\n\x00"),
        (r'"\ud840\udc00 \udbff\udfff"', "\U00020000 \U0010ffff"),
        ('{"a": 1.50, "b": [true, null, "x\\"y"]}', '{"a":1.50,"b":[true,null,"x\\"y"]}'),
        ("[1, 2]", "[1,2]"),
    ],
    # T10, T11
    "date": [
        ('"2026-08-01"', 20666),
        ('"2026-08-01Z"', 20666),
        ("20666", 20666),
        ('"1969-12-31"', -1),
        ("-1", -1),
    ],
    "time": [
        ('"12:30:15.123"', 45_015_123_000),
        ('"12:30:15.123456"', 45_015_123_456),
        ('"12:30"', 45_000_000_000),
        ('"12:30Z"', 45_000_000_000),
        ('"12:30:15.123456Z"', 45_015_123_456),
        ("45015123", 45_015_123_000),
    ],
    # T12, T15
    "timestamptz": [(t, NOON_US) for t in MOMENTS]
    + [(t, MICROS_US) for t in FINE_MOMENTS]
    + [
        (str(NOON_S * 1000), NOON_US),
        ('"2026-08-01T14:00:00+02:00"', NOON_US),
        ('"2026-08-01T06:30:00-0530"', NOON_US),
        ('"1969-12-31T23:59:59.999999Z"', -1),
        ('"2026-08-01T12:00:00.123456000Z"', MICROS_US),
    ],
    "timestamp": [(t, NOON_US) for t in MOMENTS]
    + [(t, MICROS_US) for t in FINE_MOMENTS]
    + [(str(NOON_S * 1000), NOON_US)],
    "timestamp_ns": [
        ('"2026-08-01T12:00:00.123456789"', NOON_US * 1000 + 123_456_789),
        ('"1677-09-21T00:12:43.145224192"', -(2**63)),
        ('"2262-04-11T23:47:16.854775807"', 2**63 - 1),
        ('"1969-12-31T23:59:59.999999999"', -1),
        ("9223372036854", 9_223_372_036_854_000_000),
        ("-9223372036854", -9_223_372_036_854_000_000),
    ],
    "timestamptz_ns": [
        ('"2026-08-01T14:00:00.123456789+02:00"', NOON_US * 1000 + 123_456_789),
        ('"1677-09-21T00:12:43.145224192Z"', -(2**63)),
        ('"1677-09-21T00:12:43.145224193Z"', -(2**63) + 1),
        ('"2262-04-11T23:47:16.854775807Z"', 2**63 - 1),
        ('"1969-12-31T23:59:59.999999999Z"', -1),
        ("-1", -1_000_000),
    ],
    # T16, T17
    "uuid": [
        (f'"{UUID_TEXT}"', UUID(UUID_TEXT).bytes),
        (f'"{UUID_TEXT.upper()}"', UUID(UUID_TEXT).bytes),
    ],
    "fixed": [('"AAECAw=="', b"\x00\x01\x02\x03")],
    "binary": [('"AAECAw=="', b"\x00\x01\x02\x03"), ('""', b"")],
    # T3, T4
    "struct": [
        ('{"b": "2026-08-01T12:00:00Z", "a": 7}', {"a": 7, "b": NOON_US}),
        ("{}", {"a": None, "b": None}),
        ('{"a": 9007199254740993, "x": {}}', {"a": 9007199254740993, "b": None}),
    ],
    "list": [("[1, null, 3]", [1, None, 3]), ("[]", [])],
    "map": [('{"k": 1.5, "l": null}', [("k", Decimal("1.50")), ("l", None)]), ("{}", [])],
    "deep": [('[{"m": {"k": ["2026-08-01T12:00:00Z"]}}, null]', [{"m": [("k", [NOON_US])]}, None])],
}

REFUSED: dict[str, list[str]] = {
    "int": [
        r'"\u0000"',
        '"\x00"',
        "1.5",
        "2147483648",
        "-2147483649",
        "true",
        '"x"',
        '"1.5"',
        '""',
        "[1]",
        "{}",
        "1e-20",
    ],
    "long": ["1.5", "9223372036854775808", "9007199254740993.5", "1e19", "1e400", "false"],
    "float": ["1e39", "true", '"NaN"', "NaN", '"x"'],
    "double": ["1e400", "Infinity", '"inf"', "[]", '"1,5"'],
    "decimal": ["1.234", '"1.234"', "123456789", "1e400", "1e2147483648", "1e-40", "true", '"x"'],
    "wide_decimal": [
        *("1.000000000000000000000000000000000000000000001", '"1e-11"', "1e28"),
        '"30000000000000000000000000000000000000"',
    ],
    "boolean": ['"yes"', '"true"', "1", "0"],
    "string": ["1", "1.5", "true", r'"\ud800"'],
    "date": ['"2026-02-30"', '"20260801"', '"2026-08-01T00:00:00"', "1.5", "2932897", "true"],
    "time": [
        '"24:00"',
        '"12:60"',
        '"12:30:15.1234567"',
        "86400000",
        "-1",
        '"12:30+00"',
        '"12:30ZZ"',
    ],
    "timestamptz": [
        '"2026-02-30T00:00:00Z"',
        '"2026-08-01T00:00:00.1234567Z"',
        '"2026-08-01T25:00:00Z"',
        '"20260801120000"',
        '"1785585600000"',
        '"yesterday"',
        '"0000-01-01T00:00:00Z"',
        "253402300800000",
        "1.5",
        "true",
    ],
    "timestamp": ['"2026-08-01T12:00:00+02:00"', '"2026-08-01T12:00:00-01"'],
    "timestamp_ns": [
        '"1600-01-01T00:00:00"',
        '"2300-01-01T00:00:00"',
        '"1677-09-21T00:12:43.145224191"',
        '"2262-04-11T23:47:16.854775808"',
        '"2026-08-01T12:00:00.1234567891"',
        '"2026-08-01T12:00:00.1234567890"',
        "9223372036855",
        "-9223372036855",
        "1.5",
    ],
    "timestamptz_ns": [
        '"1677-09-21T00:12:43.145224191Z"',
        '"2262-04-11T23:47:16.854775808Z"',
        '"2262-04-11T23:47:16.854775807-00:01"',
        '"2026-08-01T12:00:00.1234567891Z"',
        "9223372036855",
    ],
    "uuid": [f'"{{{UUID_TEXT}}}"', '"123e4567e89b12d3a456426614174000"', '"x"', "1"],
    "fixed": ['"AAEC"', '"AAECAwQ="', '"****"', "1"],
    "binary": ['"A"', '"AA=A"', '"_-8="', "1"],
    "struct": ["[]", "1", '"{}"', '{"a": 1.5}', '{"b": "x"}'],
    "list": ["{}", "1", "[1.5]", '"[]"'],
    "map": ["[]", "1", '{"k": 1.234}'],
    "deep": ["[[]]", '[{"m": {"k": ["x"]}}]'],
}


@pytest.mark.parametrize(
    ("column", "text", "expected"),
    [(column, text, value) for column, cases in TAKEN.items() for text, value in cases],
)
def test_a_fitting_value_arrives_exactly(column: str, text: str, expected: object) -> None:
    assert decoded(one_column(column), [document(text)]) == [{"v": expected}]


@pytest.mark.parametrize(
    ("column", "text"), [(column, text) for column, cases in REFUSED.items() for text in cases]
)
def test_nothing_is_changed_to_make_it_fit(column: str, text: str) -> None:
    assert list(reasons(one_column(column), [document(text)])) == [0]


@pytest.mark.parametrize("column", COLUMNS)
def test_null_and_missing_are_null_where_a_column_is_optional(column: str) -> None:
    assert decoded(one_column(column), [document("null"), b"{}"]) == [{"v": None}, {"v": None}]


@pytest.mark.parametrize("column", COLUMNS)
def test_null_and_missing_are_bad_where_a_column_is_required(column: str) -> None:
    values = [document(TAKEN[column][0][0]), document("null"), b"{}"]
    assert list(reasons(one_column(column, required=True), values)) == [1, 2]


@pytest.mark.parametrize("column", COLUMNS)
def test_every_way_to_write_a_value_may_stand_beside_every_other(column: str) -> None:
    texts = [text for text, _ in TAKEN[column]] * 40
    expected = [{"v": value} for _, value in TAKEN[column]] * 40
    assert decoded(one_column(column), [document(text) for text in texts]) == expected


def test_required_fields_of_an_absent_struct_may_be_absent() -> None:
    inside = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    schema = pa.schema([pa.field("v", inside)])
    assert decoded(schema, [b'{"v":null}', b'{"v":{"a":1}}']) == [{"v": None}, {"v": {"a": 1}}]
    assert list(reasons(schema, [b'{"v":null}', b'{"v":{}}'])) == [1]


def test_lists_of_structs_with_decimals_may_all_be_empty() -> None:
    inside = pa.struct([pa.field("a", pa.decimal128(10, 2))])
    schema = pa.schema([pa.field("v", pa.large_list(inside))])
    # Keys that are numbers are in no plan of the one pass, so that the rules read it.
    beside = schema.append(pa.field("m", pa.map_(pa.int32(), pa.int32())))
    values = [b'{"v":[]}', b'{"v":null}']
    assert decoded(schema, values) == [{"v": []}, {"v": None}]
    assert [row["v"] for row in decoded(beside, values)] == [[], None]


def test_a_decimal_so_small_that_its_double_is_zero_is_no_zero() -> None:
    assert list(reasons(one_column("decimal"), [b'{"v":1.5}', b'{"v":1e-400}'])) == [1]


def test_columns_stand_in_the_tables_order_and_unknown_fields_are_ignored() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.large_string())])
    assert decoded(schema, [b'{"x":[{}],"b":"t","a":1}']) == [{"a": 1, "b": "t"}]


def test_names_are_compared_to_the_letter() -> None:
    assert decoded(one_column("int"), [b'{"V":1}']) == [{"v": None}]


TWICE = [
    (b'{"v":1,"v":2}', "v"),
    (b'{"v":1,"v":1}', "v"),
    (b'{"v":1,"\\u0076":null}', "v"),
    (b'{"v":1,"x":2,"x":3}', "x"),
    (b'{"v":1,"x":[{"y":{"z":1,"y":1,"z":2}}]}', "z"),
    (b'{"":1,"v":1,"":2}', ""),
]


@pytest.mark.parametrize(("value", "key"), TWICE)
@pytest.mark.usefixtures("either_loops")
def test_an_object_that_names_a_key_twice_is_a_bad_record(value: bytes, key: str) -> None:
    good = b'{"v":7,"x":[{"v":1},{"v":2}],"y":{"v":1}}'
    with pytest.raises(UndecodableRecords) as caught:
        create_record_format("json", {}).decode([good, value, good, value], one_column("int"))
    reason = f'an object names the key "{key}" twice'
    assert caught.value.bad == {1: reason, 3: reason}
    assert caught.value.rest.to_pylist() == [{"v": 7}] * 2


@pytest.mark.parametrize("kind", ["map", "struct", "string", "list of structs"])
@pytest.mark.usefixtures("either_loops")
def test_so_it_is_at_any_depth(kind: str) -> None:
    inside = pa.struct([("k", pa.int64())])
    column = {
        "map": pa.map_(pa.large_string(), pa.int64()),
        "struct": inside,
        "string": pa.large_string(),
        "list of structs": pa.large_list(inside),
    }[kind]
    value = b'[{"k":1,"k":2}]' if kind.startswith("list") else b'{"k":1,"k":2}'
    schema = pa.schema([("v", column)])
    for options in ({}, {"case-insensitive": "true"}):
        chosen = ValueOptions.from_options(options)
        named = field_names.with_lookup_names(schema, None, caseless=chosen.caseless)
        with pytest.raises(UndecodableRecords) as caught:
            create_record_format("json", chosen.of_format).decode([b'{"v":%s}' % value], named)
        assert caught.value.bad == {0: 'an object names the key "k" twice'}


@pytest.mark.usefixtures("either_loops")
def test_connect_json_names_no_key_twice_either() -> None:
    schema = b'{"type":"struct","fields":[{"field":"v","type":"int32"}]}'
    odd = b'{"type":"struct","fields":[{"field":"v","type":"int64","type":"int32"}]}'
    values = [
        b'{"schema":%s,"payload":{"v":1}}' % schema,
        b'{"schema":%s,"payload":{"v":1,"v":2}}' % schema,
        b'{"schema":%s,"payload":{"v":1}}' % odd,
        b'{"schema":%s,"payload":{"v":1},"payload":{"v":2}}' % schema,
        b'{"schema":null,"payload":{"v":1,"x":{"y":1,"y":2}}}',
    ]
    with pytest.raises(UndecodableRecords) as caught:
        create_record_format("connect-json", {}).decode(values, one_column("int"))
    assert set(caught.value.bad) == {1, 2, 3, 4}
    assert all("twice" in reason for reason in caught.value.bad.values())
    assert caught.value.rest.to_pylist() == [{"v": 1}]


@pytest.mark.parametrize("key", [pa.int32(), pa.date32()])
def test_a_maps_keys_may_be_of_other_types_than_text(key: pa.DataType) -> None:
    schema = pa.schema([("v", pa.map_(key, pa.int64()))])
    text = "2026-08-01" if pa.types.is_date32(key) else "20666"
    assert decoded(schema, [document(f'{{"{text}": 1}}')])[0]["v"] == [(20666, 1)]


@pytest.mark.parametrize("block", [1, 2, 3, 200])
def test_minus_zero_keeps_its_sign_whatever_is_beside_it(block: int) -> None:
    for kind in (pa.float64(), pa.float32()):
        schema = pa.schema([("v", kind), ("in", pa.struct([("w", kind)]))])
        values = [b'{"v":-0,"in":{"w":-0}}', *[b'{"v":1}'] * (block - 1)]
        first = JsonRecords().decode(values, schema).to_pylist()[0]
        assert [math.copysign(1, n) for n in (first["v"], first["in"]["w"])] == [-1, -1]


def test_minus_zero_is_a_whole_number() -> None:
    schema = pa.schema([("v", pa.int64()), ("w", pa.decimal128(5, 2))])
    values = [b'{"v":-0,"w":-0}', b'{"v":1,"w":1}']
    assert JsonRecords().decode(values, schema).to_pylist()[0] == {"v": 0, "w": 0}


def test_a_reason_names_the_innermost_place_once() -> None:
    inner = pa.struct([("x", pa.int32()), pa.field("y", pa.int32(), nullable=False)])
    schema = pa.schema([("s", pa.struct([("t", inner)]))])
    values = [b'{"s":{"t":{"x":"a","y":1}}}', b'{"s":{"t":{"x":1}}}', b'{"s":{"t":3}}']
    with pytest.raises(UndecodableRecords) as caught:
        JsonRecords().decode(values, schema)
    assert caught.value.bad == {
        0: 's.t.x: "a" is not a number',
        1: "s.t.y: a required value is missing",
        2: "s.t: 3 is not an object",
    }
