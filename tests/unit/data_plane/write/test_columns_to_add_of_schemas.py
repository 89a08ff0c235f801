"""Columns that Connect's schemas and Protobuf's descriptors ask for (SCHEMA-1, SCHEMA-2,
SCHEMA-5)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, IntegerType, LongType, NestedField
from support.local_catalog import local_catalog
from unit.config.test_load_schema_policy import IN_PROCESS, policy
from unit.data_plane.formats.connect.test_format import envelope, in_base64, logical, struct
from unit.data_plane.formats.protobuf_worlds import World, field
from unit.data_plane.write.test_columns_to_add import Desk, evolving

from headgate.config.load import parse
from headgate.control_protocol.columns import Column, ListOf, MapOf, Struct
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import BatchNeeds
from headgate.data_plane.formats.connect import schema_inference as connect_schema_inference
from headgate.data_plane.formats.protobuf import schema_inference as protobuf_schema_inference
from headgate.data_plane.formats.protobuf.descriptors import (
    Types,
    parse_types,
    split_descriptor_set,
)
from headgate.data_plane.formats.registry.schemas import SchemaRegistry

PRICE = logical("bytes", "Decimal", scale="2")
OF_NINE = logical("bytes", "Decimal", scale="2", **{"connect.decimal.precision": "9"})
OLD = struct(id="int64", pax="int32")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    local = local_catalog(tmp_path)
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "pax", IntegerType()),
        NestedField(3, "fare", DecimalType(5, 2)),
    )
    local.catalog.create_table("db.t", schema)
    yield Desk(local, evolving("connect-json"))
    local.catalog.close()


# ------------------------------------------------------------------------------- Connect's JSON


def test_a_new_field_of_connects_schema_becomes_a_column(desk: Desk) -> None:
    new = struct(id="int64", pax="int64", tip="double", at=logical("int64", "Timestamp"))
    first, second = envelope(OLD, {"id": 1, "pax": 1}), envelope(new, {"id": 2, "tip": 0.5})
    third = envelope(new, {"id": 3, "pax": 2**40, "at": 1})
    needs = desk.write(first, second, third)
    assert isinstance(needs, BatchNeeds)
    assert {c.name: c.type for c in needs.columns.fields} == {
        "id": "long",
        "pax": "long",
        "tip": "double",
        "at": "timestamptz",
    }
    assert (needs.first, needs.records) == (Offsets(dict.fromkeys(needs.first, 0)), 3)
    done, rows = desk.settled(first, second, third)
    assert set(done) == {"id: optional", "pax: long", "+tip", "+at"}
    assert [(row["pax"], row["tip"]) for row in rows] == [(1, None), (None, 0.5), (2**40, None)]
    assert desk.settled(first, third)[0] == (), "nothing is asked for twice"


def test_connects_schemas_are_found_in_any_envelope(desk: Desk) -> None:
    new = struct(id="int64", tip="int32")
    loose = json.dumps({"payload": {"id": 1, "tip": 5}, "schema": new}, indent=1).encode()
    done, rows = desk.settled(envelope(new, {"id": 2, "tip": 6}), loose, b'{"schema": {}}')
    assert "+tip" in done
    assert [row["tip"] for row in rows] == [6, 5]


def test_a_payload_without_a_schema_is_judged_by_its_values(desk: Desk) -> None:
    done, rows = desk.settled(
        envelope(None, {"id": 1, "tip": 1, "pax": 2**31}), envelope(None, {"id": 2, "more": None})
    )
    assert set(done) == {"+tip", "pax: long"}
    assert [(row["tip"], row["pax"]) for row in rows] == [(1, 2**31), (None, None)]


def test_connects_decimals_without_a_precision_widen_nothing(desk: Desk) -> None:
    some = struct(id="int64", fare=PRICE, sum=PRICE)
    done, rows = desk.settled(
        envelope(some, {"id": 1, "fare": in_base64(12345), "sum": in_base64(2**40, 8)}),
        envelope(some, {"id": 2, "fare": in_base64(1234567)}),
    )
    assert "+sum" in done
    assert not any("fare" in change for change in done)
    assert [str(row["sum"]) for row in rows] == ["10995116277.76"], "the second is a bad record"
    said = struct(id="int64", fare=OF_NINE)
    done, rows = desk.settled(envelope(said, {"id": 2, "fare": in_base64(1234567)}))
    assert done == ("fare: decimal(9, 2)",)
    assert str(rows[0]["fare"]) == "12345.67"


def test_connects_types_as_columns() -> None:
    inner = struct(a="int8", b="bytes")
    schema = struct(
        s=inner,
        l={"type": "array", "items": {"type": "string", "optional": True}},
        m={"type": "map", "keys": {"type": "string"}, "values": PRICE},
        d=logical("int32", "Date"),
        t=logical("int32", "Time"),
        f="float",
        empty=struct(),
    )
    found = connect_schema_inference.with_default_precision(
        connect_schema_inference.columns_of(schema)
    )
    assert {column.name: column.type for column in found.fields} == {
        "s": Struct((Column("a", "int", required=False), Column("b", "binary", required=False))),
        "l": ListOf(Column("", "string", required=False)),
        "m": MapOf("string", Column("", "decimal(38, 2)")),
        "d": "date",
        "t": "time",
        "f": "float",
    }
    assert connect_schema_inference.columns_of({"type": "int32"}) == Struct()


# ------------------------------------------------------------------------------------- Protobuf


def worlds() -> list[World]:
    return [World("proto2"), World("proto3")]


@pytest.mark.parametrize("world", worlds(), ids=lambda world: str(world.syntax))
def test_every_field_of_a_descriptor_becomes_a_column(world: World, desk: Desk) -> None:
    """Of this message everything but what holds itself; the values are Google's."""
    with desk.local.catalog.load_table("db.t").update_schema() as update:
        update.add_column("f_int32", LongType())
    desk.source = evolving("protobuf", **world.options)
    message = world.row(f_int32=7, f_uint64=2**64 - 1, r_string=["a", "b"], color=7)
    message.inner.x = 5
    message.counts["k"] = 3
    message.byid[9].y = "nine"
    message.at.seconds = 12
    message.wrapped.value = 4
    done, rows = desk.settled(message.SerializeToString())
    added = {change for change in done if change.startswith("+")}
    wanted = {f"+{name}" for name in world.columns.names} - {"+f_int32", "+next"}
    assert added == wanted
    (row,) = rows
    assert (row["f_int32"], int(row["f_uint64"]), row["r_string"]) == (7, 2**64 - 1, ["a", "b"])
    assert (row["color"], row["inner"]["x"], row["wrapped"]) == ("GREEN", 5, 4)
    assert (dict(row["counts"]), dict(row["byid"])[9]["y"]) == ({"k": 3}, "nine")
    assert row["at"].timestamp() == 12
    assert desk.settled(message.SerializeToString())[0] == ()


def test_a_registrys_new_message_brings_its_columns(desk: Desk) -> None:
    """Each front is a schema and a message type of it; one that nobody knows asks for nothing."""
    old, new = _types("id"), _types("id", "tip")
    known = {1: (old, "row.proto"), 2: (new, "row.proto")}
    desk.source = evolving("protobuf-registry", **{"registry.url": "http://127.0.0.1:1"})
    values = [_framed(1, _row(1)), _framed(2, _row(2, 5)), _framed(1, _row(3)), b"\1nothing"]
    with patch.object(SchemaRegistry, "read_protobuf_types", lambda _, front: known[front[-1]]):
        needs = desk.write(*values)
        assert isinstance(needs, BatchNeeds)
        assert {c.name: c.type for c in needs.columns.fields}["tip"] == "long"
        done, rows = desk.settled(*values)
    assert "+tip" in done
    assert [(row["id"], row["tip"]) for row in rows] == [(1, None), (2, 5), (3, None)]


def _types(*names: str) -> Types:
    world = World("proto3")
    del world.file.message_type[:]
    row = world.file.message_type.add(name="Row")
    for number, name in enumerate(names, start=1):
        field(row, name, number, "int64")
    world.file.name = "row.proto"
    return parse_types([world.file.SerializeToString()])


def _row(number: int, tip: int = 0) -> bytes:
    return bytes([8, number, 16, tip]) if tip else bytes([8, number])


def _framed(schema: int, message: bytes) -> bytes:
    return b"\0" + schema.to_bytes(4, "big") + b"\0" + message


def test_a_message_that_holds_itself_ends_where_it_begins_again() -> None:
    world = World("proto3")
    raw = base64.b64decode(world.options["descriptor"])
    types = parse_types(split_descriptor_set(raw))
    found = protobuf_schema_inference.columns_of(types, types.require_message("t.Row"))
    assert "next" not in {column.name for column in found.fields}
    optional = {column.name for column in found.fields if not column.required}
    assert {"inner", "at", "wrapped", "o_int32", "either"} <= optional
    assert not {"f_int32", "r_int32", "counts", "color"} & optional


@pytest.mark.parametrize(
    "form",
    [
        '[format]\ntype = "connect-json"\n',
        '[format]\ntype = "protobuf-registry"\n[format.options]\n"registry.url" = "http://x"\n',
    ],
)
def test_formats_with_schemas_may_evolve(form: str) -> None:
    assert parse(policy("evolve", IN_PROCESS + form)).table.schema.policy.unknown_fields == "evolve"
