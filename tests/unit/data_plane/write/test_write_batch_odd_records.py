"""Hand-picked records, in addition to random ones: each is a row, or a bad record.

A batch holds records that must become rows, and another one those that must not, with a sound
record on either side: what is odd is judged by itself.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from support.local_catalog import LocalCatalog
from unit.data_plane.write.test_write_batch_mutated_records import PLAIN, WORLDS, Desk, World, local

from headgate.control_protocol.ports import BatchWritten
from headgate.control_protocol.quarantine_policy import Disposal
from headgate.kafka.push_source import Record

__all__ = ["local"]  # the fixture

LONG = 100_000
STAMP = 1_785_585_600_123


def zigzag(number: int) -> bytes:
    number = number * 2 if number >= 0 else -number * 2 - 1
    octets = bytearray()
    while number > 127:
        octets.append(number & 127 | 128)
        number >>= 7
    return bytes([*octets, number])


def field(name: str, text: str) -> bytes:
    """A sound JSON record, but for one field that is written like this."""
    others = {other: value for other, value in PLAIN.items() if other != name}
    return f'{json.dumps(others)[:-1]}, "{name}": {text}}}'.encode("utf-8", "surrogatepass")


SOUND = json.dumps(PLAIN).encode()
JSON_ROWS = [
    field("t", '"' + "x" * LONG + '"'),
    field("t", '"' + "\\u0041" * LONG + '"'),
    field("t", '"' + "\\\\" * LONG + '"'),
    field("t", "[" * 254 + "]" * 254),
    field("t", '{"a":"\\ud800"}'),
    field("t", '"\\u0000"'),
    field("t", '"\x01\x1f\x7f"'),
    field("m", "1." + "0" * LONG),
    field("m", "0e999999999999999999"),
    field("m", "-0.00"),
    field("d", "1." + "1" * LONG),
    field("d", "1e-999"),
    field("l", "0e999999999"),
    field("l", "1." + "0" * LONG),
    field("i", "-0"),
    field("i", '"7"'),
    field("zz\\ud800z", "1"),
    field("", "1"),
    field("map", '{"\\u0000": 1}'),
    b"\n\n" + SOUND + b" \n\t",
    b"{" + b",".join(b'"k%d":%d' % (n, n) for n in range(20_000)) + b"}",
]
JSON_BAD = [
    *(b"\xef\xbb\xbf" + SOUND, SOUND.decode().encode("utf-16"), SOUND.decode().encode("utf-32")),
    *(b"", b"   ", b"true", b"1", b'"x"', b"null", b"[]", SOUND * 2, SOUND + b"x"),
    *(b"\0" + SOUND, SOUND + b"\0", b"\x0b" + SOUND, "\u00a0".encode() + SOUND, b"/* */" + SOUND),
    *(b'{"t":"' + b"a" * LONG, b"{" + b'"' * LONG, b'{"t":"' + b"\\" * (LONG + 1), b"[" * LONG),
    *(field("m", "9" * LONG), field("d", "9" * LONG), field("m", '"' + "9" * LONG + '"')),
    *(field("m", "1e999999999999999999"), field("m", "1e-999999999999999999")),
    *(field("m", '"1e999999999999999999"'), field("m", "12.345"), field("m", "10000000.00")),
    *(field("i", "1e999999999"), field("i", "2147483648"), field("i", "true"), field("i", '" 1"')),
    *(field("i", '"1_000"'), field("i", "0x10"), field("i", '"\u0661"'), field("i", "1.5")),
    *(field("d", "1e999"), field("d", "NaN"), field("d", "-Infinity"), field("d", '"NaN"')),
    *(field("d", ".5"), field("d", "5."), field("d", "1e"), field("d", "+1"), field("d", "-")),
    *(field("f", "3.5e38"), field("ts", "1e999999999"), field("ts", '"1e999999999999"')),
    *(field("ts", str(-(2**63))), field("naive", str(2**63 - 1)), field("ts", str(2**63))),
    field("ts", '"2016-12-31T23:59:60Z"'),
    field("ts", '"2020-01-01T00:00:00+99:99"'),
    field("ts", '"0001-01-01T00:00:00+23:59"'),
    field("ts", '"9999-12-31T23:59:59.999999-23:59"'),
    *(field("day", str(2**31 - 1)), field("day", '"-0001-01-01"'), field("day", '"+10000-01-01"')),
    *(field("at", '"24:00:00"'), field("u", '"{123e4567-e89b-12d3-a456-426614174000}"')),
    *(field("raw", '"AA EC"'), field("fix", '"' + "A" * LONG + '"'), field("s", '"{}"')),
    *(field("s", '{"x": 1}'), field("list", "[[1]]"), field("list", "[" * LONG + "]" * LONG)),
    *(field("t", '"\\ud800"'), field("t", '"\ud800"'), field("t", '"\\x41"'), field("t", "7")),
    *(field("map", '{"\\udfff": 1}'), field("other", '{"a":1,"a":2}'), b'{"i":1,"\\u0069":2}'),
    field("t", '{"a":' * 2_000 + "1" + "}" * 2_000),
    field("other", "1e999999999999999999999999"),
]


def connect(fields: list[dict[str, Any]], payload: Any) -> bytes:
    schema = {"type": "struct", "fields": [{"optional": True, **one} for one in fields]}
    return json.dumps({"schema": schema, "payload": payload}).encode()


def money(octets: bytes, parameters: Any) -> bytes:
    logical = "org.apache.kafka.connect.data.Decimal"
    one = {"field": "m", "type": "bytes", "name": logical, "parameters": parameters}
    return connect([one], {"m": base64.b64encode(octets).decode()})


def timed(name: str, kind: str, logical: str, number: int) -> bytes:
    called = f"org.apache.kafka.connect.data.{logical}"
    return connect([{"field": name, "type": kind, "name": called}], {name: number})


CONNECT_ROWS = [
    money(b"\xff\x00", {"scale": "2"}),
    money(b"", {"scale": "2"}),
    connect([{"field": f"k{n}", "type": "int32"} for n in range(3_000)], {"k1": 1}),
    connect([{"field": "", "type": "int32"}], {"": 1}),
    connect([{"field": "i"}, {"field": "zz", "type": "int65"}], {"zz": 1}),
    connect([{"field": "\0", "type": "string"}], {"\0": "a"}),
    connect([{"field": "t", "type": "string", "default": "\ud800"}], {}),
    b'{"schema":null,"payload":{"i":1},"x":2}',
]
CONNECT_BAD = [
    *(money(b"\1", {"scale": str(10**9)}), money(b"\1", {"scale": str(-(10**9))})),
    *(money(b"\1", {"scale": "9" * 5_000}), money(b"\1", [1]), money(b"\1", None)),
    money(b"\x7f" * LONG, {"scale": "2"}),
    timed("day", "int32", "Date", 2**31 - 1),
    timed("ts", "int64", "Timestamp", 2**63 - 1),
    timed("at", "int32", "Time", 2**31 - 1),
    connect([{"field": "i", "type": "int32"}, {"field": "i", "type": "int64"}], {"i": 1}),
    *(connect([{"field": "i"}], {"i": 1}), connect([{"field": "i", "type": ["int32"]}], {"i": 1})),
    *(connect([{"field": "i", "type": "int8"}], {"i": 300}), connect([], None)),
    connect([{"field": "d", "type": "double"}], {"d": "NaN"}),
    b'{"schema":{"type":"struct","fields":"x"},"payload":{}}',
    b'{"schema":{"type":"struct","fields":[1,null]},"payload":{}}',
    *(b'{"schema":5,"payload":5}', b'{"schema":[],"payload":[]}', b'{"schema":null}', b"{}"),
    b'{"schema":' + b'{"type":"array","items":' * LONG + b',"payload":[]}',
]
CELLS = b"1,-5,1.5,%s,true,2020-02-29,2026-01-02T03:04:05Z"
CSV_ROWS = [
    *(CELLS % b"a\0b", CELLS % b"a\rb", CELLS % b"a" + b"\r\n", CELLS % (b"x" * LONG), b",,,,,,"),
    *(CELLS % (b'"' + b'""' * LONG + b'"'), CELLS % b'"a\nb"', CELLS % b'","'),
]
CSV_BAD = [
    *(b"\0" * 20, b'"' * (LONG + 1), b'""' * LONG + b"x", b"," * LONG, b'",",' * LONG),
    *(CELLS % (b'"' + b"x" * LONG), CELLS % b'"a" ', CELLS % b"a" + b"\n\n"),
    *(b"\xef\xbb\xbf" + CELLS % b"a", CELLS % b"\xed\xa0\x80", CELLS % b"a,b", b"9" * LONG),
    *(b"1e999" + (CELLS % b"a")[1:], b"9" * LONG + (CELLS % b"a")[1:], b" 1" + (CELLS % b"a")[1:]),
    (CELLS % b"a").replace(b"1.5", b"NaN"),
    (CELLS % b"a").replace(b"2020-02-29", b"2" * LONG),
]


def write(desk: Desk, values: list[bytes]) -> tuple[int, int]:
    """How many became rows, and how many were quarantined."""
    outcome = desk.write(
        [Record("t", 0, place, STAMP, value, b"k", []) for place, value in enumerate(values)]
    )
    assert isinstance(outcome, BatchWritten), outcome
    (result,) = outcome.partitions.values()
    assert sum(file.records for file in outcome.files) == result.records
    return result.records, result.quarantined


@pytest.mark.parametrize(
    ("name", "rows", "bad"),
    [
        ("json", JSON_ROWS, JSON_BAD),
        ("connect-json", CONNECT_ROWS, CONNECT_BAD),
        ("csv", CSV_ROWS, CSV_BAD),
    ],
    ids=["json", "connect-json", "csv"],
)
def test_odd_records_are_rows_or_bad_records(
    local: LocalCatalog, name: str, rows: list[bytes], bad: list[bytes]
) -> None:
    desk = Desk(local, name, WORLDS[name], Disposal.QUARANTINE)
    assert write(desk, rows) == (len(rows), 0)
    assert write(desk, [rows[-1], *bad, rows[-1]]) == (2, len(bad))


def schema_of(name: str, kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": name, "type": kind}]}


def decimal_of(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


ENDLESS = zigzag(2**40) + zigzag(0)
NULLS = {"type": "array", "items": "null"}
NOTHING = {"type": "array", "items": {"type": "record", "name": "e", "fields": []}}
EMPTIES = {"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}}
LONGS = {"type": "array", "items": "long"}
DOUBLES = {"type": "map", "values": "double"}
ONE = struct.pack("<d", 1.0)
AVRO_ROWS: list[tuple[str, Any, bytes]] = [
    ("m", decimal_of(9, 2), zigzag(LONG) + b"\0" * (LONG - 1) + b"\5"),
    ("m", decimal_of(9, 2), zigzag(LONG) + b"\xff" * LONG),
    ("m", decimal_of(9, 2), zigzag(2) + b"\xff\0"),
    ("m", decimal_of(9, 2), zigzag(0)),
    ("d", "double", struct.pack("<d", float("nan"))),
    ("f", "float", struct.pack("<f", float("-inf"))),
    ("t", "string", zigzag(1) + b"\0"),
    ("raw", "bytes", zigzag(LONG) + b"x" * LONG),
    ("list", LONGS, zigzag(-2) + zigzag(2) + zigzag(1) + zigzag(2) + zigzag(0)),
    ("i", "int", b"\x82\x80\x80\x00"),
]
AVRO_BAD: list[tuple[str, Any, bytes]] = [
    *(("other", kind, ENDLESS) for kind in (NULLS, NOTHING, EMPTIES)),
    *(("list", kind, ENDLESS) for kind in (NULLS, NOTHING, EMPTIES, LONGS)),
    *(("t", kind, ENDLESS) for kind in (NULLS, NOTHING, EMPTIES)),
    ("list", LONGS, zigzag(-2) + zigzag(2**40) + zigzag(1) + zigzag(2) + zigzag(0)),
    ("other", LONGS, zigzag(-2) + zigzag(-5) + zigzag(1) + zigzag(2) + zigzag(0)),
    ("list", LONGS, b"\xff" * 9 + b"\1" + zigzag(2) + zigzag(0)),
    ("map", DOUBLES, zigzag(2) + (zigzag(1) + b"a" + ONE) * 2 + zigzag(0)),
    ("map", DOUBLES, zigzag(1) + zigzag(1) + b"\xff" + ONE + zigzag(0)),
    ("m", decimal_of(9, 2), zigzag(LONG) + b"\x7f" * LONG),
    ("m", decimal_of(10**9, 10**9), zigzag(1) + b"\5"),
    ("d", "double", b"\0" * 7),
    ("f", "double", struct.pack("<d", 1e300)),
    *(("i", "int", octets) for octets in (b"", zigzag(2**40), zigzag(1) + b"x")),
    *(("day", {"type": "int", "logicalType": "date"}, zigzag(n)) for n in (2**31 - 1, -(2**31))),
    *(
        ("ts", {"type": "long", "logicalType": "timestamp-millis"}, zigzag(number))
        for number in (2**63 - 1, -(2**63))
    ),
    ("at", {"type": "int", "logicalType": "time-millis"}, zigzag(-1)),
    ("u", {"type": "string", "logicalType": "uuid"}, zigzag(LONG) + b"a" * LONG),
    *(("t", "string", octets) for octets in (zigzag(2**62), zigzag(-1), zigzag(2) + b"\xff\xfe")),
    ("t", "string", zigzag(3) + b"\xed\xa0\x80"),
    ("b", "boolean", b"\2"),
    *(("t", {"type": "enum", "name": "e", "symbols": ["A"]}, zigzag(n)) for n in (5, -1)),
    *(("i", ["null", "int"], zigzag(number)) for number in (2, -1, 2**62)),
]


def test_odd_avro_is_rows_or_bad_records(local: LocalCatalog) -> None:
    for expected, cases in (((1, 0), AVRO_ROWS), ((0, 1), AVRO_BAD)):
        for name, kind, octets in cases:
            world = World({"schema": json.dumps(schema_of(name, kind))}, lambda _: b"")
            desk = Desk(local, "avro", world, Disposal.QUARANTINE)
            assert write(desk, [octets]) == expected, (name, kind, octets[:40])


KEYS = [None, b"", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"k" * LONG]
HEADERS: list[list[tuple[str, bytes | None]]] = [
    [],
    [("h", None), ("h", b"")],
    [("", b"x")],
    [("\0", b"\0")],
    [("h\udcff", b"x")],
    [("x" * LONG, b"y" * LONG)],
    [(f"h{number}", b"v") for number in range(5_000)],
]
STAMPS = [-(2**63), -62_135_596_800_001, -2, -1, 0, 253_402_300_800_000, 2**62, 2**63 - 1]


@pytest.mark.parametrize("name", ["json", "string"])
def test_odd_keys_headers_and_timestamps(local: LocalCatalog, name: str) -> None:
    """Each of them alone: what does not fit its column is a bad record."""
    desk = Desk(local, name, WORLDS[name], Disposal.QUARANTINE)
    for place, record in enumerate(_odd()):
        outcome = desk.write([record])
        assert isinstance(outcome, BatchWritten), (place, outcome)
        (result,) = outcome.partitions.values()
        assert result.records + result.quarantined == 1, place


def _odd() -> Iterator[Record]:
    for key in KEYS:
        yield Record("t", 0, 0, STAMP, SOUND, key, [])
    for headers in HEADERS:
        yield Record("t", 0, 0, STAMP, SOUND, b"k", headers)
    for stamp in STAMPS:
        yield Record("t", 0, 0, stamp, SOUND, b"k", [])
