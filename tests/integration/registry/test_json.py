"""JSON with a registry: as Confluent's serializer and Kafka Connect's converter write it."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from integration.registry.server import RegistryServer
from integration.registry.test_asking import QUICK, registered_schema

from headgate.control_protocol.columns import Column, ListOf, MapOf, Struct
from headgate.control_protocol.errors import Unreachable
from headgate.data_plane.formats.avro.schema import UnfitSchema
from headgate.data_plane.formats.column_options import ColumnRule, with_read_options_of_rule
from headgate.data_plane.formats.connect.json_schema_translation import translate_json_schema
from headgate.data_plane.formats.format_registry import create_record_format
from headgate.data_plane.formats.record_format import RecordFormat, UndecodableRecords
from headgate.data_plane.formats.registry.frames import schema_id_headers_of
from headgate.data_plane.formats.registry.schemas import SchemaRegistry
from headgate.data_plane.formats.unknown_fields import UnknownFieldFinder

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.large_string())])
ROW = {
    "title": "Row",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "name": {"type": ["null", "string"]}},
}


def reader(url: str, **more: str) -> RecordFormat:
    return create_record_format("json-registry", {**QUICK, "registry.url": url, **more})


def framed(number: int, value: Any) -> bytes:
    return struct.pack(">bI", 0, number) + json.dumps(value).encode()


def registered(url: str, subject: str, schema: Any) -> int:
    return registered_schema(url, subject, Schema(json.dumps(schema), "JSON"))


def test_what_confluents_serializer_writes_is_read(registry_url: str, unique_name: str) -> None:
    with SchemaRegistryClient({"url": registry_url}) as client:
        write = JSONSerializer(json.dumps(ROW), client)
        at = SerializationContext(unique_name, MessageField.VALUE)
        values = [write({"id": number, "name": f"n{number}"}, at) for number in range(100)]
    rows = reader(registry_url).decode([v for v in values if v], COLUMNS)
    assert rows.to_pylist() == [{"id": n, "name": f"n{n}"} for n in range(100)]


def test_an_id_in_a_header_is_read_as_if_it_stood_in_front(troubled: RegistryServer) -> None:
    options = {"framing": "confluent-header"}
    with SchemaRegistryClient({"url": troubled.url}) as client:
        told = {"schema.id.serializer": header_schema_id_serializer}
        write = JSONSerializer(json.dumps(ROW), client, conf=told)
        at = SerializationContext("t", MessageField.VALUE, [])
        value = write({"id": 7, "name": "seven"}, at)
        headers = dict(at.headers or [])
    assert value is not None
    assert value.startswith(b"{")
    whole = schema_id_headers_of(options, "value").framed_value(value, headers)
    rows = reader(troubled.url, **options).decode([whole or b""], COLUMNS)
    assert rows.to_pylist() == [{"id": 7, "name": "seven"}]
    assert [path for path in troubled.asked if "guids" in path], "a header holds a GUID"


def test_one_batch_may_have_frames_of_every_kind(troubled: RegistryServer) -> None:
    number = registered(troubled.url, "s", ROW)
    guid = base64.b16decode(
        troubled.subjects.version("s", "latest")["guid"].replace("-", ""), casefold=True
    )
    values = [
        framed(number, {"id": 0}),
        b"\x01" + guid + b'{"id": 1}',
        b'{"id": 2}',
        framed(999, {"id": 3}),
        framed(number, [4]),
        b"\x01" + guid[:4],
        b"",
        framed(number, {"id": 7}),
    ]
    with pytest.raises(UndecodableRecords) as caught:
        reader(troubled.url).decode(values, COLUMNS)
    assert sorted(caught.value.bad) == [2, 3, 4, 5, 6]
    assert [row["id"] for row in caught.value.rest.to_pylist()] == [0, 1, 7]
    assert "does not begin with a zero byte" in caught.value.bad[2]
    assert caught.value.bad[3] == "the registry does not know the schema 999"


def test_who_needs_nothing_of_the_schema_asks_nobody(troubled: RegistryServer) -> None:
    rows = reader(troubled.url, schema="ignore").decode([framed(5, {"id": 1})], COLUMNS)
    assert rows.to_pylist() == [{"id": 1, "name": None}]
    assert troubled.asked == []


@pytest.mark.parametrize("ignored", [False, True])
def test_fields_without_a_schema_are_seen_under_every_id(ignored: bool) -> None:
    made: Any = reader("http://127.0.0.1:1", schema="ignore")
    finder = UnknownFieldFinder(COLUMNS, (), [("new",)] if ignored else (), caseless=False)
    made.watch_unknown_fields(finder)
    values = [framed(1, {"id": 1, "new": 5}), framed(2, {"id": 2, "new": 6}), framed(3, {"id": 3})]
    assert made.decode(values, COLUMNS).num_rows == 3
    unknown = [
        (rows.tolist(), [column.name for column in columns.fields])
        for rows, columns in made.unknown_columns_of_last_decode(values, ())
    ]
    assert unknown == ([] if ignored else [([0], ["new"]), ([1], ["new"])])
    assert made.record_count_with_ignored_fields == 2 * ignored


def test_a_registry_that_is_away_is_waited_for_by_name(troubled: RegistryServer) -> None:
    troubled.trouble.status = 503
    with pytest.raises(Unreachable, match="HG-401 the schema registry does not give the schema 1"):
        reader(troubled.url).decode([framed(1, {"id": 1})], COLUMNS)


CONNECT: dict[str, Any] = {
    "title": "Row",
    "type": "object",
    "properties": {
        "price": {
            "connect.index": 1,
            "oneOf": [
                {"type": "null"},
                {
                    "type": "number",
                    "title": "org.apache.kafka.connect.data.Decimal",
                    "connect.version": 1,
                    "connect.type": "bytes",
                    "connect.parameters": {"scale": "2", "connect.decimal.precision": "9"},
                },
            ],
        },
        "day": {
            "type": "integer",
            "title": "org.apache.kafka.connect.data.Date",
            "connect.type": "int32",
            "connect.index": 2,
        },
        "at": {
            "type": "integer",
            "title": "io.debezium.time.MicroTimestamp",
            "connect.type": "int64",
            "connect.index": 3,
        },
        "id": {"type": "integer", "connect.type": "int32", "connect.index": 0},
    },
}


@pytest.mark.parametrize("counted", [True, False])
def test_decimals_and_times_of_kafka_connect_are_what_their_schema_says(
    troubled: RegistryServer, counted: bool
) -> None:
    """Its converter writes a decimal as base64, or as a number; the schema is the same.

    Beside a time that counts in a unit of its own, only base64 is read."""
    properties = dict(CONNECT["properties"])
    if not counted:
        del properties["at"]
    number = registered(troubled.url, "s", {**CONNECT, "properties": properties})
    columns = pa.schema(
        [
            ("id", pa.int64()),
            ("price", pa.decimal128(9, 2)),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
        ][: 4 if counted else 3]
    )
    encoded = base64.b64encode((1234).to_bytes(2, "big")).decode()
    row = {"id": 1, "price": encoded, "day": 3, "at": 1_000_001}
    values = [
        framed(number, row),
        framed(number, {**row, "id": 2, "price": 12.34}),
        framed(number, {**row, "id": 3, "price": None}),
        framed(number, {**row, "id": 4, "price": [1]}),
    ]
    with pytest.raises(UndecodableRecords) as caught:
        reader(troubled.url).decode(values, columns)
    assert sorted(caught.value.bad) == ([1, 3] if counted else [3])
    rows = caught.value.rest.to_pylist()
    wanted = {1: "12.34", 3: "None"} if counted else {1: "12.34", 2: "12.34", 3: "None"}
    assert {row["id"]: str(row["price"]) for row in rows} == wanted
    if counted:
        assert {row["at"].isoformat() for row in rows} == {"1970-01-01T00:00:01.000001+00:00"}
    assert {row["day"].isoformat() for row in rows} == {"1970-01-04"}


PRICE = CONNECT["properties"]["price"]


@pytest.mark.parametrize(
    ("price", "column", "value"),
    [
        (PRICE, pa.field("price", pa.large_string()), "AeJA"),
        (PRICE, pa.field("price", pa.large_binary()), "AeJA"),
        (PRICE, pa.field("price", pa.decimal128(6, 2)), "1234"),  # 4 digits, and -26588.24
        (
            PRICE,
            with_read_options_of_rule(
                pa.field("price", pa.large_string()), ColumnRule(as_text=True)
            ),
            "AeJA",
        ),
        (
            {"type": "array", "items": PRICE},
            pa.field("price", pa.large_list(pa.decimal128(12, 2))),
            [None, 1, "1234"],
        ),
        (
            {"type": "object", "additionalProperties": PRICE},
            pa.field("price", pa.large_string()),
            {"a": "AeJA"},
        ),
    ],
    ids=["text", "bytes", "too narrow", "as text", "in a list", "in a map"],
)
def test_a_decimal_in_base64_is_no_other_text_whatever_stands_beside_it(
    troubled: RegistryServer, price: Any, column: pa.Field, value: Any
) -> None:
    properties = {"price": price, "ratio": {"type": "number", "connect.type": "float64"}}
    number = registered(troubled.url, "s", {**CONNECT, "properties": properties})
    columns = pa.schema([column, pa.field("ratio", pa.float32())])
    bad = framed(number, {"price": value, "ratio": 0.1})  # no float is exactly 0.1
    with pytest.raises(UndecodableRecords) as caught:
        reader(troubled.url).decode([bad, framed(number, {"ratio": 0.1})], columns)
    assert list(caught.value.bad) == [0]
    assert caught.value.rest.num_rows == 1
    assert reader(troubled.url).decode([bad], columns.remove(0)).num_rows == 1, "who needs no price"


def found(schema: Any, references: dict[str, str] | None = None) -> dict[str, Any]:
    columns = translate_json_schema(json.dumps(schema), references or {}).columns
    return {column.name: column.type for column in columns.fields}


def test_the_columns_of_a_schema() -> None:
    shared = {"definitions": {"money": {"type": "number"}}, "type": "object"}
    assert found(
        {
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "b": {"oneOf": [{"type": "null"}, {"type": "string", "format": "date-time"}]},
                "c": {"type": "array", "items": {"type": "boolean"}},
                "d": {"type": "object", "additionalProperties": {"type": "number"}},
                "e": {"$ref": "#/definitions/e"},
                "f": {"$ref": "money.json#/definitions/money"},
                "g": {"anyOf": [{"type": "object"}, {"type": "string"}]},
                "h": {"type": ["string", "integer"]},
                "i": True,
                "j": {"type": [{"type": "string"}, "null"]},
                "k": {"type": {"type": "string"}},
                "l": {"type": "string", "connect.type": ["bytes"]},
                "m": {"type": "integer", "connect.type": {"of": "int8"}},
            },
            "definitions": {
                "e": {"type": "object", "properties": {"x": {"type": "string"}, "e": {"$ref": "#"}}}
            },
        },
        {"money.json": json.dumps(shared)},
    ) == {
        "a": "long",
        "b": "string",
        "c": ListOf(Column("", "boolean")),
        "d": MapOf("string", Column("", "double")),
        "e": Struct((Column("x", "string"),)),
        "f": "double",
        "l": "string",
        "m": "long",
    }


def test_a_schema_with_too_many_types_is_not_called_something_else() -> None:
    twice = {
        f"d{n}": {"type": "object", "properties": {m: {"$ref": f"#/$defs/d{n + 1}"} for m in "ab"}}
        for n in range(20)
    }
    with pytest.raises(UnfitSchema, match=r"^the schema describes more than 20000 types$"):
        found({**twice["d0"], "$defs": twice})


def test_what_a_value_has_beyond_its_open_schema_is_not_lost(troubled: RegistryServer) -> None:
    number = registered(troubled.url, "s", {**ROW, "properties": {"id": {"type": "integer"}}})
    made: Any = reader(troubled.url)
    finder = UnknownFieldFinder(pa.schema([]), (), (), caseless=False)
    made.watch_unknown_fields(finder)
    values = [framed(number, {"id": 1}), framed(number, {"id": 2, "late": "x"})]
    made.decode(values, pa.schema([("nothing", pa.string())]))
    wanted = [
        (rows.tolist(), {column.name: column.type for column in columns.fields})
        for rows, columns in made.unknown_columns_of_last_decode(values, ())
    ]
    assert wanted == [([0, 1], {"id": "long"}), ([1], {"late": "string"})]


def test_a_new_decimal_of_kafka_connect_becomes_a_column(troubled: RegistryServer) -> None:
    number = registered(troubled.url, "s", CONNECT)
    made: Any = reader(troubled.url)
    made.watch_unknown_fields(UnknownFieldFinder(pa.schema([]), (), (), caseless=False))
    price = base64.b64encode((1234).to_bytes(2, "big")).decode()
    values = [framed(number, {"id": 1, "price": price, "day": 3, "at": 1})]
    made.decode(values, pa.schema([("nothing", pa.string())]))
    [(_, columns)] = made.unknown_columns_of_last_decode(values, ())
    assert {column.name: column.type for column in columns.fields} == {
        "price": "decimal(9, 2)",
        "day": "date",
        "at": "long",
        "id": "int",
    }


@pytest.mark.parametrize(
    "schema",
    [
        '{"type": "object", "properties": {"a": {"$ref": "#"}}}',
        "[" * 10_000 + "]" * 10_000,
        "{",
        "7",
        '{"type": "object", "properties": []}',
        '{"type": "object", "properties": {"a": {"type": "array"}}}',
        json.dumps(
            {
                "properties": {f"p{n}": {"$ref": "#/definitions/d0"} for n in range(50)},
                "type": "object",
                "definitions": {
                    f"d{n}": {
                        "type": "object",
                        "properties": {
                            f"q{m}": {"$ref": f"#/definitions/d{n + 1}"} for m in range(50)
                        },
                    }
                    for n in range(20)
                },
            }
        ),
    ],
    ids=["recursive", "deep", "cut", "number", "list", "no items", "a tree without end"],
)
def test_a_hostile_schema_ends_in_bad_records_or_in_plain_json(
    troubled: RegistryServer, schema: str
) -> None:
    number = registered_schema(troubled.url, "s", Schema(schema, "JSON"))
    try:
        rows = reader(troubled.url).decode([framed(number, {"id": 1})], COLUMNS)
        assert rows.to_pylist() == [{"id": 1, "name": None}]
    except UndecodableRecords as error:
        assert f"the schema {number}" in error.bad[0]


def test_a_schema_that_refers_to_others_in_a_circle_is_asked_for_once(
    troubled: RegistryServer,
) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        schema = {"type": "object", "properties": {"x": {"$ref": f"{other}.json"}}}
        references = [SchemaReference(f"{other}.json", other, 1)]
        registered_schema(troubled.url, name, Schema(json.dumps(schema), "JSON", references))
    troubled.asked.clear()
    rows = reader(troubled.url).decode([framed(1, {"id": 1})], COLUMNS)
    assert rows.num_rows == 1
    assert len(troubled.asked) == 3


def test_a_version_that_is_referred_to_by_two_names_is_known_by_both(
    troubled: RegistryServer,
) -> None:
    refers_to: dict[str, dict[str, str]] = {
        "customer": {},
        "order": {"https://example.com/customer.json": "customer"},
        "top": {"order.json": "order", "customer.json": "customer"},
    }
    for subject, references in refers_to.items():
        schema = {
            "type": "object",
            "properties": {f"{subject}_id": {"type": "integer"}}
            | {other: {"$ref": name} for name, other in references.items()},
        }
        listed = [SchemaReference(name, other, 1) for name, other in references.items()]
        number = registered_schema(
            troubled.url, subject, Schema(json.dumps(schema), "JSON", listed)
        )
    troubled.asked.clear()
    read = SchemaRegistry({"url": troubled.url}).read_json_schema(struct.pack(">bI", 0, number))
    customer = Struct((Column("customer_id", "long"),))
    assert {column.name: column.type for column in read.columns.fields} == {
        "top_id": "long",
        "order": Struct((Column("order_id", "long"), Column("customer", customer))),
        "customer": customer,
    }
    assert len(troubled.asked) == 3
