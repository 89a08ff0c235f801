"""Columns with rules: exactly what the record has, or a bad record; the same in every format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from unit.data_plane.formats.avro_worlds import encoded
from unit.data_plane.formats.avro_worlds import record as avro_record
from unit.data_plane.formats.json_tables import plain_rows

from headgate.data_plane.formats.avro.format import AvroRecords
from headgate.data_plane.formats.column_options import ColumnRule, parse_path
from headgate.data_plane.formats.connect.format import ConnectJsonRecords
from headgate.data_plane.formats.csv_and_strings import BytesRecords, CsvRecords, StringRecords
from headgate.data_plane.formats.field_names import with_lookup_names
from headgate.data_plane.formats.format_with_column_options import Inside, RuledColumns
from headgate.data_plane.formats.json.format import JsonRecords
from headgate.data_plane.formats.record_format import RecordFormat, UndecodableRecords

pytestmark = pytest.mark.usefixtures("either_loops")

MOMENT = pa.timestamp("us", tz="UTC")
TEXT = pa.large_string()
NOON = 1_785_585_600
Rules = Mapping[str, ColumnRule]


def read(
    records: RecordFormat,
    rules: Rules,
    columns: pa.Schema,
    values: Sequence[Any],
    *,
    caseless: bool = False,
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The rows, and why the other records are none."""
    octets = [v if isinstance(v, bytes) else json.dumps(v).encode() for v in values]
    schema = with_lookup_names(columns, None, caseless=caseless)
    made = RuledColumns(records, rules, schema, caseless=caseless)
    try:
        return plain_rows(made.decode(octets, schema)), {}
    except UndecodableRecords as error:
        assert error.rest.num_rows + len(error.bad) == len(values)
        error.rest.validate(full=True)
        return plain_rows(error.rest), error.bad


def column(name: str, kind: pa.DataType, *, required: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=not required)


# ------------------------------------------------------------------- every format with fields

USER = avro_record(id="long", name="string")
PAYLOAD = {"type": "record", "name": "P", "fields": [{"name": "user", "type": ["null", USER]},
           {"name": "at", "type": ["null", "long", "double"]}]}  # fmt: skip
RECORD = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"},
          {"name": "payload", "type": ["null", PAYLOAD]}]}  # fmt: skip
CONNECT_USER = {"type": "struct", "optional": True, "field": "user", "fields": [
    {"field": "id", "type": "int64"}, {"field": "name", "type": "string"}]}  # fmt: skip
CONNECT = {"type": "struct", "fields": [
    {"field": "id", "type": "int64"},
    {"field": "payload", "type": "struct", "optional": True, "fields": [
        CONNECT_USER, {"field": "at", "type": "double", "optional": True}]},
]}  # fmt: skip


def as_json(record: Any) -> bytes:
    return json.dumps(record).encode()


def as_avro(record: Any) -> bytes:
    return encoded(RECORD, record)


def as_connect(record: Any) -> bytes:
    return json.dumps({"schema": CONNECT, "payload": record}, separators=(",", ":")).encode()


def as_bare_connect(record: Any) -> bytes:
    return json.dumps({"schema": None, "payload": record}).encode()


TYPED = pytest.mark.parametrize(
    ("make", "spelled"),
    [
        (JsonRecords, as_json),
        (lambda: AvroRecords({"schema": json.dumps(RECORD)}), as_avro),
        (lambda: ConnectJsonRecords({}), as_connect),
        (lambda: ConnectJsonRecords({}), as_bare_connect),
    ],
    ids=["json", "avro", "connect", "connect without a schema"],
)


@TYPED
def test_paths_lead_to_fields_and_nulls_on_the_way_are_null(make: Any, spelled: Any) -> None:
    rules = {
        "user_id": ColumnRule(parse_path("payload.user.id")),
        "user_name": ColumnRule(parse_path("payload.user.name")),
        "id_as_text": ColumnRule(parse_path("payload.user.id"), as_text=True),
        "at": ColumnRule(parse_path("payload.at"), unit="s"),
        "source": ColumnRule(value="eu"),
    }
    columns = pa.schema(
        [
            column("id", pa.int64()),
            column("user_id", pa.int64()),
            column("user_name", TEXT),
            column("id_as_text", TEXT),
            column("at", MOMENT),
            column("source", TEXT, required=True),
        ]
    )
    records = [
        {"id": 1, "payload": {"user": {"id": 7, "name": "g"}, "at": NOON + 0.5}},
        {"id": 2, "payload": {"user": None, "at": None}},
        {"id": 3, "payload": None},
    ]
    rows, bad = read(make(), rules, columns, [spelled(record) for record in records])
    assert bad == {}
    empty = {"user_id": None, "user_name": None, "id_as_text": None, "at": None, "source": "eu"}
    assert rows == [
        {
            "id": 1,
            "user_id": 7,
            "user_name": "g",
            "id_as_text": "7",
            "at": (NOON * 10 + 5) * 100_000,
            "source": "eu",
        },
        {"id": 2, **empty},
        {"id": 3, **empty},
    ]


@TYPED
def test_a_default_is_for_a_field_that_is_not_there(make: Any, spelled: Any) -> None:
    rules = {
        "zone": ColumnRule(parse_path("payload.user.zone"), default="none"),
        "name": ColumnRule(parse_path("payload.user.name"), default="nobody"),
        "other": ColumnRule(default=5),
    }
    columns = pa.schema(
        [column("zone", TEXT), column("name", TEXT), column("other", pa.int64(), required=True)]
    )
    user = {"id": 7, "name": "g"}
    records = [
        {"id": 1, "payload": {"user": user, "at": None}},
        {"id": 2, "payload": {"user": None, "at": None}},
        {"id": 3, "payload": None},
    ]
    rows, bad = read(make(), rules, columns, [spelled(record) for record in records])
    assert bad == {}
    assert rows == [
        {"zone": "none", "name": "g", "other": 5},
        {"zone": None, "name": None, "other": 5},
        {"zone": None, "name": None, "other": 5},
    ]


@TYPED
def test_what_a_required_column_does_not_get_is_bad(make: Any, spelled: Any) -> None:
    rules = {"user_id": ColumnRule(parse_path("payload.user.id"))}
    columns = pa.schema([column("id", pa.int64()), column("user_id", pa.int64(), required=True)])
    records = [
        {"id": 1, "payload": {"user": {"id": 7, "name": "g"}, "at": None}},
        {"id": 2, "payload": {"user": None, "at": None}},
        {"id": 3, "payload": {"user": {"id": 8, "name": "g"}, "at": None}},
    ]
    rows, bad = read(make(), rules, columns, [spelled(record) for record in records])
    assert rows == [{"id": 1, "user_id": 7}, {"id": 3, "user_id": 8}]
    assert bad == {1: "payload.user.id: a required value is missing"}


# ----------------------------------------------------------------------------------------- JSON


def test_a_null_stays_null_and_only_a_missing_field_has_the_default() -> None:
    rules = {"v": ColumnRule(default="x"), "w": ColumnRule(parse_path("a.w"), default=1)}
    columns = pa.schema([column("v", TEXT), column("w", pa.int32())])
    values = [
        {},
        {"v": None, "a": {}},
        {"v": "y", "a": {"w": None}},
        {"a": None},
        {"a": {"w": 2}},
        b'{"\\u0076":null}',
    ]
    rows, bad = read(JsonRecords(), rules, columns, values)
    assert bad == {}
    assert [row["v"] for row in rows] == ["x", None, "y", "x", "x", None]
    assert [row["w"] for row in rows] == [1, 1, None, None, 2, 1]


def test_a_default_makes_a_required_column_whole_but_null_is_bad() -> None:
    columns = pa.schema([column("v", pa.int64(), required=True)])
    rows, bad = read(
        JsonRecords(), {"v": ColumnRule(default=3)}, columns, [{}, {"v": None}, {"v": 1}]
    )
    assert rows == [{"v": 3}, {"v": 1}]
    assert bad == {1: "v: a required value is missing"}


@pytest.mark.parametrize(
    ("unit", "number", "expected"),
    [
        ("s", "1785585600", NOON * 10**6),
        ("s", "1785585600.123456", NOON * 10**6 + 123_456),
        ("s", "1.785585600e9", NOON * 10**6),
        ("s", '"1785585600"', NOON * 10**6),
        ("ms", "1785585600123", NOON * 10**6 + 123_000),
        ("us", "1785585600123456", NOON * 10**6 + 123_456),
        ("ns", "1785585600123456000", NOON * 10**6 + 123_456),
        ("s", "-1", -(10**6)),
        ("s", '"2026-08-01T12:00:00Z"', NOON * 10**6),
        ("s", "null", None),
    ],
)
def test_a_number_of_seconds_is_no_time_of_1970(
    unit: str, number: str, expected: int | None
) -> None:
    columns = pa.schema([column("id", pa.int64()), column("at", MOMENT)])
    value = f'{{"id":1,"at":{number}}}'.encode()
    rows, bad = read(JsonRecords(), {"at": ColumnRule(unit=unit)}, columns, [value, b'{"id":2}'])
    assert bad == {}
    assert rows == [{"id": 1, "at": expected}, {"id": 2, "at": None}]


@pytest.mark.parametrize(
    ("unit", "number"),
    [
        ("s", "1785585600.1234567"),
        ("ns", "1785585600123456789"),
        ("s", "9223372036854775807"),
        ("s", "1e300"),
        ("s", "-99999999999999"),
        ("s", "true"),
        ("s", "[1]"),
        ("s", '"soon"'),
    ],
)
def test_what_does_not_fit_its_unit_is_a_bad_record_alone(unit: str, number: str) -> None:
    columns = pa.schema([column("at", MOMENT)])
    good = b'{"at":1}'
    values = [good, f'{{"at":{number}}}'.encode(), b"{", good]
    rows, bad = read(JsonRecords(), {"at": ColumnRule(unit=unit)}, columns, values)
    assert len(rows) == 2 or unit == "ns"
    assert bad[1].startswith("at: ")
    assert 2 in bad


def test_numbers_and_objects_become_text_as_they_are_written() -> None:
    rules = {"v": ColumnRule(as_text=True), "w": ColumnRule(parse_path("o.w"), as_text=True)}
    columns = pa.schema([column("v", TEXT), column("w", TEXT)])
    values = [
        b'{"v":1.50,"o":{"w":true}}',
        b'{"v":{"a" : [1, 2.0]},"o":{"w":"text"}}',
        b'{"v":"\\u00e9","o":null}',
        b'{"v":12345678901234567890123}',
        b'{"v":null,"o":{"w":-0}}',
        b'{"v":1,"o":[]}',
    ]
    rows, bad = read(JsonRecords(), rules, columns, values)
    assert rows == [
        {"v": "1.50", "w": "true"},
        {"v": '{"a" : [1, 2.0]}', "w": "text"},
        {"v": "\u00e9", "w": None},
        {"v": "12345678901234567890123", "w": None},
        {"v": None, "w": "-0"},
    ]
    assert bad == {5: "o.w: what should hold it is not an object"}


def test_without_the_rule_a_number_is_no_text_and_milliseconds_are_the_unit() -> None:
    columns = pa.schema([column("v", TEXT), column("at", MOMENT)])
    rows, bad = read(JsonRecords(), {}, columns, [{"v": 1}, {"at": 1}])
    assert rows == [{"v": None, "at": 1_000}]
    assert set(bad) == {0}


def test_a_field_and_what_is_inside_of_it_may_both_have_columns() -> None:
    rules = {
        "inside": ColumnRule(parse_path("a.b")),
        "again": ColumnRule(parse_path("a.b"), as_text=True),
    }
    columns = pa.schema([column("a", TEXT), column("inside", pa.int64()), column("again", TEXT)])
    values = [{"a": {"b": 1}}, {"a": {"b": "x"}}, {"a": {"b": 3}}]
    rows, bad = read(JsonRecords(), rules, columns, values)
    assert rows == [
        {"a": '{"b":1}', "inside": 1, "again": "1"},
        {"a": '{"b":3}', "inside": 3, "again": "3"},
    ]
    assert set(bad) == {1}


def test_case_does_not_matter_where_that_was_asked_for() -> None:
    rules = {
        "id": ColumnRule(parse_path("payload.id"), as_text=True),
        "at": ColumnRule(unit="s"),
        "v": ColumnRule(parse_path("payload.v"), default=9),
    }
    columns = pa.schema([column("id", TEXT), column("at", MOMENT), column("v", pa.int64())])
    values = [
        {"PayLoad": {"ID": 5, "V": 1}, "AT": 2},
        {"payload": {"id": 6, "v": None}, "at": 3},
        {"PAYLOAD": {}},
        b'{"p\\u0061yload":{"id":7},"At":1.5}',
    ]
    rows, bad = read(JsonRecords(), rules, columns, values, caseless=True)
    assert bad == {}
    assert rows == [
        {"id": "5", "at": 2_000_000, "v": 1},
        {"id": "6", "at": 3_000_000, "v": None},
        {"id": None, "at": None, "v": 9},
        {"id": "7", "at": 1_500_000, "v": 9},
    ]


@pytest.mark.parametrize("front", [(), ("after",)], ids=["plain", "in an envelope"])
def test_columns_under_paths_are_found_by_their_former_names(front: tuple[str, ...]) -> None:
    def known(name: str, kind: pa.DataType, number: int) -> pa.Field:
        return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})

    address = pa.struct([known("town", TEXT, 3)])
    columns = with_lookup_names(
        pa.schema([known("id", pa.int64(), 1), known("address", address, 2)]),
        json.dumps([{"field-id": 3, "names": ["town", "city"]}]),
        caseless=False,
    )
    rules = {"id": ColumnRule(("key",)), "address": ColumnRule(("sent", "to"))}
    inside = {column.name: Inside(front, column) for column in columns if front}
    record: Any = {"key": 1, "sent": {"to": {"city": "Bonn"}}}
    for step in front:
        record = {step: record}
    made = RuledColumns(JsonRecords(), rules, columns, inside=inside)
    result = made.decode([json.dumps(record).encode()], columns)
    assert plain_rows(result) == [{"id": 1, "address": {"town": "Bonn"}}]


def test_fields_with_dots_in_their_names_are_quoted() -> None:
    columns = pa.schema([column("v", pa.int64())])
    rules = {"v": ColumnRule(parse_path('a."b.c".d'))}
    assert read(JsonRecords(), rules, columns, [{"a": {"b.c": {"d": 4}}}])[0] == [{"v": 4}]
    for text in ("a..b", ".a", "a.", 'a"b', '"a'):
        with pytest.raises(ValueError, match="not a path"):
            parse_path(text)


def test_many_records_of_which_some_are_bad_keep_their_order() -> None:
    rules = {"at": ColumnRule(parse_path("e.at"), unit="s"), "n": ColumnRule(default=-1)}
    columns = pa.schema([column("id", pa.int64()), column("at", MOMENT), column("n", pa.int64())])
    values = [
        {"id": n, "e": {"at": n if n % 97 else "bad"}, **({"n": n} if n % 3 else {})}
        if n % 89
        else b"{"
        for n in range(1_000)
    ]
    rows, bad = read(JsonRecords(), rules, columns, values)
    assert set(bad) == {n for n in range(1_000) if not n % 97 or not n % 89}
    assert rows == [
        {"id": n, "at": n * 10**6, "n": n if n % 3 else -1} for n in range(1_000) if n not in bad
    ]


# ---------------------------------------------------------------------------------- other formats


def test_numbers_of_avro_become_text_in_the_fewest_digits() -> None:
    schema = avro_record(i="long", f="float", d="double", b="boolean", t="string")
    rules = {name: ColumnRule(as_text=True) for name in "ifdbt"}
    columns = pa.schema([column(name, TEXT) for name in "ifdbt"])
    value = {"i": -5, "f": 0.10000000149011612, "d": 0.1, "b": True, "t": "x"}
    made = AvroRecords({"schema": json.dumps(schema)})
    rows, _ = read(made, rules, columns, [encoded(schema, value)])
    assert rows == [{"i": "-5", "f": "0.1", "d": "0.1", "b": "true", "t": "x"}]


def test_times_that_say_their_unit_keep_it() -> None:
    schema = avro_record(at={"type": "long", "logicalType": "timestamp-millis"})
    made = AvroRecords({"schema": json.dumps(schema)})
    columns = pa.schema([column("at", MOMENT)])
    value = encoded(avro_record(at="long"), {"at": 5})
    assert read(made, {"at": ColumnRule(unit="s")}, columns, [value])[0] == [{"at": 5_000}]


def test_cells_and_texts_have_units_and_constants() -> None:
    columns = pa.schema([column("id", pa.int64()), column("at", MOMENT), column("z", TEXT)])
    rules = {"at": ColumnRule(unit="s"), "z": ColumnRule(value="eu")}
    rows, bad = read(CsvRecords({}), rules, columns, [b"1,5.25", b"2,", b"3,soon"])
    assert rows == [{"id": 1, "at": 5_250_000, "z": "eu"}, {"id": 2, "at": None, "z": "eu"}]
    assert set(bad) == {2}
    alone = pa.schema([column("at", MOMENT), column("z", TEXT)])
    assert read(StringRecords({}), rules, alone, [b"7"])[0] == [{"at": 7_000_000, "z": "eu"}]


@pytest.mark.parametrize("rule", [ColumnRule(as_text=True), ColumnRule(default="d")])
@pytest.mark.parametrize("caseless", [True, False])
def test_a_number_of_thousands_of_digits_beside_a_ruled_column_is_nobody_s_business(
    rule: ColumnRule, caseless: bool
) -> None:
    values = [
        b'{"n":%s,"a":"x\\ny"}' % (b"1" * 5000),
        b'{"n":%s,"b":"\\n"}' % (b"1" * 5000),
    ]
    columns = pa.schema([("a", TEXT)])
    rows, bad = read(JsonRecords(), {"a": rule}, columns, values, caseless=caseless)
    assert ([row["a"] for row in rows], bad) == (["x\ny", rule.default], {})


def test_what_is_no_record_is_no_row_of_constants() -> None:
    rules = {"a": ColumnRule(value="x")}
    rows, bad = read(JsonRecords(), rules, pa.schema([("a", TEXT)]), [b"garbage", b'{"b":1}'])
    assert rows == [{"a": "x"}]
    assert bad[0].startswith("not a JSON object")


def test_a_format_without_fields_gives_rows_of_constants() -> None:
    rules = {"a": ColumnRule(value="x")}
    columns = pa.schema([("a", TEXT)])
    assert read(CsvRecords({"columns": "p,q"}), rules, columns, [b"1"]) == ([{"a": "x"}], {})
    assert read(BytesRecords({}), rules, columns, [b"\xff"]) == ([{"a": "x"}], {})
