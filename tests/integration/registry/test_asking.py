"""What the format asks of a registry, how often, and what it makes of each answer."""

from __future__ import annotations

import json
import struct
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from integration.registry.server import RegistryServer
from unit.data_plane.formats.avro_worlds import encoded, record

from headgate.control_protocol.errors import ConfigurationError, MissingRights, Unreachable
from headgate.data_plane.formats.format_registry import create_record_format
from headgate.data_plane.formats.record_format import RecordFormat, UndecodableRecords

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.large_string())])
QUICK = {"registry.timeout": "5", "registry.max.retries": "1", "registry.retries.wait.ms": "10"}
FIRST = record(id="int", name="string")
SECOND = record(extra="double", name=["null", "string"], id=["null", "long"])


def reader(url: str, **more: str) -> RecordFormat:
    return create_record_format("avro-registry", {**QUICK, "registry.url": url, **more})


def registered(url: str, subject: str, schema: Any) -> int:
    return registered_schema(url, subject, Schema(json.dumps(schema), "AVRO"))


def registered_schema(url: str, subject: str, schema: Schema) -> int:
    with SchemaRegistryClient({"url": url}) as client:
        return int(client.register_schema(subject, schema))


def framed(number: int, schema: Any, value: Any) -> bytes:
    return struct.pack(">bI", 0, number) + encoded(schema, value)


def bad_of(format_: RecordFormat, values: list[bytes]) -> dict[int, str]:
    try:
        format_.decode(values, COLUMNS)
    except UndecodableRecords as error:
        return error.bad
    return {}


def test_several_writer_schemas_in_one_batch_in_the_records_order(
    registry_url: str, unique_name: str
) -> None:
    first = registered(registry_url, f"{unique_name}-value", FIRST)
    second = registered(registry_url, f"{unique_name}-value-2", SECOND)
    values = []
    for number in range(300):
        old = framed(first, FIRST, {"id": number, "name": f"n{number}"})
        new = framed(second, SECOND, {"extra": 0.5, "name": f"n{number}", "id": number})
        values.append(new if number % 3 else old)
    rows = reader(registry_url).decode(values, COLUMNS)
    assert rows.to_pylist() == [{"id": n, "name": f"n{n}"} for n in range(300)]


def test_a_schema_is_asked_for_once_for_all_formats_of_a_process(troubled: RegistryServer) -> None:
    number = registered(troubled.url, "s", FIRST)
    value = framed(number, FIRST, {"id": 1, "name": "x"})
    for _ in range(3):
        reader(troubled.url).decode([value] * 5, COLUMNS)
    assert [path for path in troubled.asked if path.startswith("GET")] == [
        f"GET /schemas/ids/{number}"
    ]


def test_a_schema_that_refers_to_others_is_put_together(
    registry_url: str, unique_name: str
) -> None:
    inner = {"type": "fixed", "name": "Code", "namespace": "shared", "size": 2}
    middle = {**record(code="shared.Code"), "name": "Middle", "namespace": "shared"}
    outer = record(id="int", m="shared.Middle")
    names = [f"{unique_name}-{part}" for part in ("inner", "middle", "outer")]
    registered(registry_url, names[0], inner)
    to_inner = [SchemaReference("shared.Code", names[0], 1)]
    registered_schema(registry_url, names[1], Schema(json.dumps(middle), "AVRO", to_inner))
    to_middle = [SchemaReference("shared.Middle", names[1], 1)]
    whole = Schema(json.dumps(outer), "AVRO", to_middle)
    number = registered_schema(registry_url, names[2], whole)
    columns = pa.schema([("m", pa.struct([("code", pa.binary(2))]))])
    value = struct.pack(">bI", 0, number) + b"\x02ab"
    rows = reader(registry_url).decode([value], columns)
    assert rows.to_pylist() == [{"m": {"code": b"ab"}}]


def test_what_has_no_schema_is_a_bad_record_and_no_other_is(troubled: RegistryServer) -> None:
    number = registered(troubled.url, "s", FIRST)
    foreign = registered_schema(troubled.url, "p", Schema('syntax = "proto3";', "PROTOBUF"))
    itself = registered(troubled.url, "r", record(next=["null", "Row"]))
    good = framed(number, FIRST, {"id": 1, "name": "x"})
    values = [
        good,
        b"",
        b"\x00\x00",
        b"\x01" + good[1:],
        b'{"id":1}',
        struct.pack(">bI", 0, 999_999) + good[5:],
        struct.pack(">bI", 0, foreign) + good[5:],
        struct.pack(">bI", 0, itself) + good[5:],
        good[:-1],
        good,
    ]
    bad = bad_of(reader(troubled.url), values)
    assert sorted(bad) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert bad[5] == "the registry does not know the schema 999999"
    assert bad[6] == f"the schema {foreign} is PROTOBUF, not Avro"
    assert "contains itself" in bad[7]


def test_an_unknown_id_is_asked_for_again_in_the_next_batch(troubled: RegistryServer) -> None:
    value = framed(1, FIRST, {"id": 1, "name": "x"})
    format_ = reader(troubled.url)
    assert sorted(bad_of(format_, [value])) == [0]
    assert registered(troubled.url, "s", FIRST) == 1
    assert format_.decode([value], COLUMNS).num_rows == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_registry_in_trouble_fails_the_batch_and_not_the_record(
    troubled: RegistryServer, status: int
) -> None:
    number = registered(troubled.url, "s", FIRST)
    value = framed(number, FIRST, {"id": 1, "name": "x"})
    troubled.trouble.status = status
    with pytest.raises(Unreachable, match=f"schema {number}: {status}.*asked at {troubled.url}"):
        reader(troubled.url).decode([value], COLUMNS)
    troubled.trouble.status = 0
    assert reader(troubled.url).decode([value], COLUMNS).num_rows == 1


def test_a_registry_that_does_not_answer_in_time_fails_the_batch(troubled: RegistryServer) -> None:
    troubled.trouble.wait_s = 2
    quick = {"registry.timeout": "0.3"}
    with pytest.raises(Unreachable, match=r"timed out after 0\.3 s"):
        reader(troubled.url, **quick).decode([framed(1, FIRST, {"id": 1, "name": "x"})], COLUMNS)


def test_a_registry_that_is_not_there_fails_the_batch() -> None:
    with RegistryServer() as server:
        url = server.url
    with pytest.raises(Unreachable, match="schema 1: no connection"):
        reader(url).decode([framed(1, FIRST, {"id": 1, "name": "x"})], COLUMNS)


def test_a_registry_that_lets_nobody_in_is_for_a_person_to_mend() -> None:
    value = framed(1, FIRST, {"id": 1, "name": "x"})
    with RegistryServer(user="me:sesame") as server:
        server.subjects.register("s", {"schema": json.dumps(FIRST)})
        with pytest.raises(MissingRights, match="Unauthorized"):
            reader(server.url).decode([value], COLUMNS)
        rights = {"registry.basic.auth.user.info": "me:sesame"}
        assert reader(server.url, **rights).decode([value], COLUMNS).num_rows == 1


@pytest.mark.parametrize(
    ("away", "there"), [("", "me:sesame@"), ("you:other@", "me:sesame@"), ("me:sesame@", "")]
)
def test_an_address_is_asked_with_its_own_password_or_with_the_first(away: str, there: str) -> None:
    value = framed(1, FIRST, {"id": 1, "name": "x"})
    with RegistryServer() as gone:
        first = gone.url.replace("//", f"//{away}")
    with RegistryServer(user="me:sesame") as server:
        server.subjects.register("s", {"schema": json.dumps(FIRST)})
        both = f"{first}, {server.url.replace('//', f'//{there}')}"
        assert reader(both).decode([value], COLUMNS).num_rows == 1


@pytest.mark.parametrize(
    "options",
    [{"registry.url": "ftp://x"}, {"registry.url": "http://x", "registry.moon": "1"}, {"url": "x"}],
)
def test_options_that_the_client_does_not_know_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="avro-registry"):
        create_record_format("avro-registry", options)
