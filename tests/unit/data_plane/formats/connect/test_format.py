"""Kafka Connect's JSON with its schema: that says what a value is, the table what it wants."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from unit.data_plane.formats.json_tables import COLUMNS, one_column, plain_rows

from headgate.data_plane.formats.connect.format import ConnectJsonRecords
from headgate.data_plane.formats.record_format import UndecodableRecords

LOGICAL = "org.apache.kafka.connect.data."
NOON_MS = 1_785_585_600_000


def struct(**fields: Any) -> dict[str, Any]:
    listed = [{**_type(kind), "field": name, "optional": True} for name, kind in fields.items()]
    return {"type": "struct", "fields": listed, "optional": False, "name": "row"}


def _type(kind: Any) -> dict[str, Any]:
    return {"type": kind} if isinstance(kind, str) else dict(kind)


def logical(kind: str, name: str, **parameters: str) -> dict[str, Any]:
    more = {"parameters": parameters} if parameters else {}
    return {"type": kind, "name": LOGICAL + name, "version": 1, **more}


def envelope(schema: Any, payload: Any) -> bytes:
    """As Connect writes it: without spaces."""
    return json.dumps({"schema": schema, "payload": payload}, separators=(",", ":")).encode()


def decoded(values: Sequence[bytes], columns: pa.Schema) -> list[dict[str, Any]]:
    return plain_rows(ConnectJsonRecords({}).decode(values, columns))


def reasons(values: Sequence[bytes], columns: pa.Schema) -> Mapping[int, str]:
    try:
        ConnectJsonRecords({}).decode(values, columns)
    except UndecodableRecords as error:
        assert error.rest.num_rows + len(error.bad) == len(values)
        return error.bad
    return {}


def in_base64(number: int, width: int = 4) -> str:
    return base64.b64encode(number.to_bytes(width, "big", signed=True)).decode()


TAKEN: list[tuple[str, str, Any, Any, Any]] = [
    ("T7", "int", "int8", 123, 123),
    ("T7", "int", "int64", 123, 123),
    ("T7", "int", {"type": "int64", "name": ["no name"]}, 123, 123),
    ("T7", "int", "double", 123.0, 123),
    ("T7", "int", "string", "123", 123),
    ("T8", "long", "int64", 2**63 - 1, 2**63 - 1),
    ("T8", "float", "float", 0.1, 0.10000000149011612),
    ("T8", "double", "float", 1.5, 1.5),
    ("T8", "double", "double", 0.1, 0.1),
    (
        "T9",
        "decimal",
        logical("bytes", "Decimal", scale="2"),
        in_base64(-12345),
        Decimal("-123.45"),
    ),
    ("T9", "decimal", logical("bytes", "Decimal", scale="0"), in_base64(7), Decimal("7.00")),
    ("T9", "decimal", "double", 123.45, Decimal("123.45")),
    ("T9", "decimal", "float", 0.1, Decimal("0.10")),
    ("T10", "date", logical("int32", "Date"), 20666, 20666),
    ("T11", "time", logical("int32", "Time"), 45_015_123, 45_015_123_000),
    ("T12", "timestamptz", logical("int64", "Timestamp"), NOON_MS, NOON_MS * 1000),
    ("T12", "timestamp", logical("int64", "Timestamp"), NOON_MS, NOON_MS * 1000),
    ("T15", "timestamptz", "string", "2026-08-01 12:00:00.000001+0000", NOON_MS * 1000 + 1),
    ("T17", "binary", "bytes", "AAECAw==", b"\x00\x01\x02\x03"),
    ("T17", "fixed", "bytes", "AAECAw==", b"\x00\x01\x02\x03"),
    ("T1", "boolean", "boolean", True, True),
    ("T1", "string", "string", "text", "text"),
    ("T4", "list", {"type": "array", "items": {"type": "int64"}}, [1, None], [1, None]),
    (
        "T4",
        "map",
        {
            "type": "map",
            "keys": {"type": "string"},
            "values": logical("bytes", "Decimal", scale="1"),
        },
        {"k": in_base64(15)},
        [("k", Decimal("1.50"))],
    ),
    ("T3", "struct", struct(a="int32", x="string"), {"a": 1}, {"a": 1, "b": None}),
    ("T5", "string", struct(a="int32"), {"a": 1}, '{"a":1}'),
    ("null", "int", "int32", None, None),
]

REFUSED: list[tuple[str, Any, Any]] = [
    ("int", "int64", 2**31),
    ("int", "int8", 300),
    ("int", "double", 1.5),
    ("int", "boolean", True),
    ("int", "int32", "x"),
    ("int", logical("int32", "Date"), 1),
    ("float", "double", 0.1),
    ("decimal", logical("bytes", "Decimal", scale="3"), in_base64(1)),
    ("decimal", logical("bytes", "Decimal", scale="2"), in_base64(10**10, 8)),
    ("decimal", logical("bytes", "Decimal", scale="2"), in_base64(2**130, 20)),
    ("decimal", logical("bytes", "Decimal", scale="x"), in_base64(1)),
    ("decimal", logical("bytes", "Decimal", scale="2"), "no base64!"),
    ("boolean", "string", "yes"),
    ("string", "int32", 1),
    ("date", logical("int32", "Date"), 2**30),
    ("time", logical("int32", "Time"), 86_400_000),
    ("timestamptz", logical("int64", "Timestamp"), 2**62),
    ("timestamptz", logical("int32", "Date"), 1),
    ("int", "moon", 1),
    ("int", {"type": ["null", "int32"]}, 1),
    ("map", {"type": "map", "keys": {"type": "int32"}, "values": {"type": "int32"}}, [[1, 2]]),
]


@pytest.mark.parametrize(("number", "column", "kind", "value", "expected"), TAKEN)
def test_what_is_taken(number: str, column: str, kind: Any, value: Any, expected: Any) -> None:
    compact = envelope(struct(v=kind), {"v": value})
    spaced = json.dumps({"payload": {"v": value}, "schema": struct(v=kind)}).encode()
    found = decoded([compact, spaced, compact], one_column(column))
    assert found == [{"v": expected}] * 3


@pytest.mark.parametrize(("column", "kind", "value"), REFUSED)
def test_what_is_refused(column: str, kind: Any, value: Any) -> None:
    good = envelope(struct(v="string"), {"v": None})
    bad = envelope(struct(v=kind), {"v": value})
    assert list(reasons([good, bad, good], one_column(column))) == [1]


BROKEN = [
    b"",
    b"{}",
    b'{"v":1}',
    b"[1]",
    b'{"schema":null}',
    b'{"schema":7,"payload":{"v":1}}',
    b'{"schema":null,"payload":null}',
    b'{"schema":null,"payload":7}',
    envelope(struct(v="int32"), None),
    envelope(struct(v="int32"), [1]),
    envelope(struct(v="int32"), {"v": 1})[:-1],
    envelope(struct(v="int32"), {"v": 1}) + b"}",
    envelope(struct(v="int32"), {"v": 1})[:-1] + b',"payload":{"v":"x"}}',
    envelope(struct(v="int32"), {"v": 1})[:-1] + b"},{}}",
    envelope({"type": "struct", "fields": 7}, {"v": 1}),
    envelope({"type": ["null", "struct"]}, {"v": 1}),
]


@pytest.mark.parametrize("broken", BROKEN)
def test_what_is_no_envelope_is_bad_alone_and_among_others(broken: bytes) -> None:
    good = [envelope(struct(v="int32"), {"v": number}) for number in range(40)]
    assert list(reasons([broken], one_column("int"))) == [0]
    assert list(reasons([*good, broken, *good], one_column("int"))) == [40]


def test_more_in_the_envelope_does_not_matter() -> None:
    more = envelope(struct(v="int32"), {"v": 1})[:-1] + b',"other":[1,{"v":2}]}'
    assert decoded([more, envelope(struct(v="int32"), {"v": 2})], one_column("int")) == [
        {"v": 1},
        {"v": 2},
    ]


@pytest.mark.parametrize("kind", ["moon", ["null", "string"], {"type": "string"}])
def test_a_field_of_no_type_of_connects_costs_no_column_that_does_not_want_it(kind: Any) -> None:
    value = envelope(struct(v="int32", w={"type": kind}), {"v": 1, "w": "x"})
    assert decoded([value], one_column("int")) == [{"v": 1}]


def test_a_field_whose_name_is_no_text_has_no_default_that_matters() -> None:
    value = envelope({"type": "struct", "fields": [{"field": ["v"], "type": "int32"}]}, {"v": 1})
    assert ConnectJsonRecords({}).nullable_fields_with_default([value]) == []


def test_several_schemas_in_one_batch_keep_the_records_order() -> None:
    values = [
        envelope(struct(v="int32"), {"v": 0}),
        envelope(struct(v="string"), {"v": "1"}),
        envelope(None, {"v": "2"}),
        envelope(struct(v="int64", w="string"), {"v": 3}),
        envelope({"type": "int64"}, 4),
    ] * 30
    found = decoded(values, one_column("int"))
    assert [row["v"] for row in found] == [0, 1, 2, 3, 4] * 30


def test_defaults_never_replace_an_explicit_null() -> None:
    schema = struct(v={"type": "int32", "default": 7})
    assert decoded([envelope(schema, {"v": None})], one_column("int")) == [{"v": None}]
    assert decoded([envelope(schema, {})], one_column("int")) == [{"v": None}]
    assert list(reasons([envelope(schema, {})], one_column("int", required=True))) == [0]


def test_t20_columns_come_in_the_tables_order() -> None:
    columns = pa.schema([("b", COLUMNS["int"]), ("a", COLUMNS["string"])])
    found = decoded([envelope(struct(a="string", b="int32"), {"a": "x", "b": 1})], columns)
    assert list(found[0].items()) == [("b", 1), ("a", "x")]
