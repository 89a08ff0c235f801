"""Columns that ``headgate init`` proposes from the schemas of a registry."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema
from integration.registry.server import RegistryServer
from integration.registry.test_asking import framed as framed_avro
from integration.registry.test_asking import registered, registered_schema
from integration.registry.test_protobuf import framed, nested_file, registered_file
from unit.data_plane.formats.avro_worlds import record

from headgate.config.sink_sections import FormatSettings
from headgate.control_protocol.errors import ConfigurationError, Unreachable
from headgate.data_plane.cdc.policy import Envelope
from headgate.operations.init.infer_record_format import ProposedRecords, propose_from_records


def proposed(url: str, values: list[bytes | None], key: bytes | None = None) -> ProposedRecords:
    given = FormatSettings(options={"registry.url": url, "registry.max.retries": "0"})  # type: ignore[arg-type]
    return propose_from_records([(key, value) for value in values], given, is_format_given=False)


def named(called: str, **fields: Any) -> Any:
    return {**record(**fields), "name": called}


def columns(records: ProposedRecords) -> dict[str, str]:
    return {column.name: column.type for column in records.proposal.columns}


def test_columns_of_all_writers_of_avro_and_how_many_records_have_none(
    troubled: RegistryServer,
) -> None:
    moment: Any = {"type": "long", "logicalType": "timestamp-millis"}
    inner: Any = named("Inner", tags={"type": "array", "items": "string"})
    one = record(id="int", at=moment, inner=inner)
    two = record(id="long", risk=["null", "double"])
    values = [{"id": 1, "at": 0, "inner": {"tags": ["x"]}}, {"id": 2, "risk": None}]
    good = [
        framed_avro(registered(troubled.url, f"s{number}", schema), schema, value)
        for number, (schema, value) in enumerate(zip((one, two), values, strict=True))
    ]
    found = proposed(troubled.url, [*good, b"\0\0\0\0\x63x", b"{}", None])
    assert found.format_name == "avro-registry"
    assert columns(found) == {
        "id": "long",
        "at": "timestamptz",
        "inner": "struct<tags: list<string>>",
        "risk": "double",
    }
    assert "5 records" in found.describe_records()
    assert found.looks.tombstones == 1


def test_columns_of_the_row_in_avro_s_changes_and_the_key_of_their_messages(
    troubled: RegistryServer,
) -> None:
    row = named("Row", id="long", name="string")
    change = named("Change", before=["null", row], after=["null", "Row"], op="string")
    number = registered(troubled.url, "change", change)
    key = registered(troubled.url, "key", named("Key", id="long"))
    value = struct.pack(">bI", 0, number) + b"\0\x02\x02\x02x\x02c"
    found = proposed(troubled.url, [value] * 3, struct.pack(">bI", 0, key) + b"\x02")
    assert found.envelope is Envelope.DEBEZIUM
    assert columns(found) == {"id": "long", "name": "string"}
    assert found.choose_key() == (("id",), False)


def test_columns_of_protobuf_s_messages_are_found_without_saying_that_it_is_protobuf(
    troubled: RegistryServer,
) -> None:
    number = registered_file(troubled.url, "one", nested_file("one"))
    found = proposed(troubled.url, [framed(number, b"\x04\x02\x02", b"\x08\x01")])
    assert found.format_name == "protobuf-registry"
    assert columns(found) == {"x": "long", "y": "string"}


def test_columns_of_json_s_schemas(troubled: RegistryServer) -> None:
    properties = {"id": {"type": "integer"}, "name": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    number = registered_schema(troubled.url, "s", Schema(json.dumps(schema), "JSON"))
    found = proposed(troubled.url, [struct.pack(">bI", 0, number) + b'{"id": 1}'])
    assert found.format_name == "json-registry"
    assert columns(found) == {"id": "long", "name": "string"}


def test_records_of_a_registry_without_its_address_say_how_to_give_it() -> None:
    with pytest.raises(ConfigurationError, match="--registry URL"):
        propose_from_records([(None, b"\0\0\0\0\1x")], FormatSettings(), is_format_given=False)


def test_a_registry_that_is_away_is_named(troubled: RegistryServer) -> None:
    url = troubled.url
    troubled.trouble.status = 500
    with pytest.raises(Unreachable, match="schema registry"):
        proposed(url, [b"\0\0\0\0\1x"])
