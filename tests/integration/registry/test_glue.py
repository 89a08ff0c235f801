"""AWS Glue's schema registry, as moto plays it: framing, data formats, and what goes wrong."""

from __future__ import annotations

import base64
import json
import struct
import tracemalloc
import uuid
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from google.protobuf import descriptor_pool, message_factory
from integration.conftest import Deploy
from integration.registry.test_protobuf import nested_file
from integration.tables.test_created import _table
from integration.tables.test_created import rows_of as rows_in
from support.glue_serializer import Written, serialize_as_aws
from support.object_store import KEY, REGION, SECRET, ObjectStore
from support.store_proxy import CUTS, HANGS, RESETS, Answer, StoreProxy
from unit.data_plane.formats.avro_worlds import encoded, record

from headgate.config.sink_sections import FormatSettings
from headgate.control_protocol.errors import (
    ConfigurationError,
    MissingRights,
    SchemaIdReused,
    Unreachable,
)
from headgate.data_plane.formats.format_registry import create_record_format
from headgate.data_plane.formats.record_format import RecordFormat, UndecodableRecords
from headgate.operations.audit.audit import audit
from headgate.operations.check.check import State, check
from headgate.operations.demo.producer import produce
from headgate.operations.init.infer_record_format import propose_from_records

ROW = record(x="long", y="string")
JSON_ROW = {
    "title": "Row",
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "string"}},
}
TEXT = """
syntax = "proto3";
package city;
import "google/protobuf/timestamp.proto";
message Zone { string y = 1; }
message Second {
  map<string, int64> counts = 1;
  message Inside { int64 x = 1; string y = 2; }
}
message First { int64 x = 1; google.protobuf.Timestamp at = 2; }
"""
"""Numbered by full name: First, Second, Second.CountsEntry, Second.Inside, Zone."""

COLUMNS = pa.schema([("x", pa.int64()), ("y", pa.large_string())])
QUICK = {"registry.timeout": "2", "registry.max.retries": "0"}


def options(store: ObjectStore, endpoint: str | None = None) -> dict[str, str]:
    return {
        **QUICK,
        "glue.region": REGION,
        "glue.endpoint": endpoint or store.endpoint,
        "glue.access-key-id": KEY,
        "glue.secret-access-key": SECRET,
    }


def reader(store: ObjectStore, endpoint: str | None = None) -> RecordFormat:
    return create_record_format("glue-registry", options(store, endpoint))


def registered(store: ObjectStore, kind: str, text: Any) -> bytes:
    """The id of the first version of a new schema."""
    made = store.client("glue").create_schema(
        SchemaName=f"s{uuid.uuid4().hex}",
        DataFormat=kind,
        Compatibility="NONE",
        SchemaDefinition=text if isinstance(text, str) else json.dumps(text),
    )
    return uuid.UUID(made["SchemaVersionId"]).bytes


def framed(version: bytes, body: bytes, *, compressed: bool = False) -> bytes:
    if compressed:
        return b"\x03\x05" + version + zlib.compress(body)
    return b"\x03\x00" + version + body


def rows_of(made: RecordFormat, values: list[bytes], schema: pa.Schema = COLUMNS) -> Any:
    return made.decode(values, schema).to_pylist()


def bad_of(made: RecordFormat, values: list[bytes]) -> Mapping[int, str]:
    with pytest.raises(UndecodableRecords) as caught:
        made.decode(values, COLUMNS)
    return caught.value.bad


@pytest.fixture
def before_glue(object_store: ObjectStore) -> Iterator[StoreProxy]:
    """Glue, behind a proxy that can say something else."""
    with StoreProxy(object_store.port) as proxy:
        yield proxy


def glue_error(status: int, code: str, text: str = "said by a test") -> Answer:
    return Answer(status, json.dumps({"__type": code, "Message": text}).encode())


# --------------------------------------------------------------------------------------- values


def test_avro_json_and_protobuf_in_one_batch_are_read_by_their_data_format(
    object_store: ObjectStore,
) -> None:
    avro = registered(object_store, "AVRO", ROW)
    of_json = registered(object_store, "JSON", JSON_ROW)
    of_protobuf = registered(object_store, "PROTOBUF", TEXT)
    values, expected = [], []
    for number in range(60):
        row: dict[str, Any] = {"x": number, "y": f"y{number}"}
        text = row["y"].encode()
        front, body = [
            (avro, encoded(ROW, row)),
            (of_json, json.dumps(row).encode()),
            (of_protobuf, b"\x03\x08" + bytes([number]) + b"\x12" + bytes([len(text)]) + text),
        ][number % 3]
        values.append(framed(front, body, compressed=number % 2 == 0))
        expected.append(row)
    assert rows_of(reader(object_store), values) == expected


def test_messages_are_of_the_type_that_their_number_says_by_full_name(
    object_store: ObjectStore,
) -> None:
    version = registered(object_store, "PROTOBUF", TEXT)
    values = [
        framed(version, b"\x00\x08\x05"),
        framed(version, b"\x04\x0a\x01z"),
        framed(version, b"\x83\x00\x08\x07\x12\x01i"),
        framed(version, b"\x05"),
        framed(version, b""),
        framed(version, b"\x80"),
    ]
    bad = bad_of(reader(object_store), values)
    assert sorted(bad) == [3, 4, 5]
    assert "number leads to no message" in bad[3]
    assert bad[4] == bad[5] == "has no number of a message type behind its schema"
    assert rows_of(reader(object_store), values[:3]) == [
        {"x": 5, "y": None},
        {"x": None, "y": "z"},
        {"x": 7, "y": "i"},
    ]


def test_what_is_not_framed_or_not_compressed_as_it_says_is_a_bad_record(
    object_store: ObjectStore,
) -> None:
    version = registered(object_store, "AVRO", ROW)
    good = framed(version, encoded(ROW, {"x": 1, "y": "one"}), compressed=True)
    values = [
        good,
        b"",
        b"\x03",
        good[:17],
        b"\x00" + good[1:],
        b"\x03\x04" + good[2:],
        b"\x01",
        good[:-1],
        good + b"x",
        b"\x03\x05" + version + b"no zlib",
        b"\x03\x05" + version,
        b"\x03\x00" + uuid.uuid4().bytes + good[18:],
        good,
    ]
    bad = bad_of(reader(object_store), values)
    assert sorted(bad) == list(range(1, 12))
    assert {bad[n].split(":")[0] for n in range(1, 7)} == {
        "does not begin as a value of AWS Glue's serializers"
    }
    assert {bad[n][:36] for n in range(7, 11)} == {"is compressed, and is not what zlib "}
    assert bad[11].startswith("the registry does not know the schema ")


def test_a_zlib_bomb_is_a_bad_record_and_is_never_blown_up(object_store: ObjectStore) -> None:
    version = registered(object_store, "JSON", JSON_ROW)
    inside = zlib.compressobj(9)
    megabyte = bytes(1024 * 1024)
    bomb = b"".join([*(inside.compress(megabyte) for _ in range(500)), inside.flush()])
    long = json.dumps({"x": 1, "y": base64.b64encode(bytes(range(256)) * 90_000).decode()})
    small = json.dumps({"x": 2, "y": "0" * 60_000}).encode()
    values = [
        b"\x03\x05" + version + bomb,
        framed(version, long.encode(), compressed=True),
        framed(version, json.dumps({"x": 1, "y": "0" * 70_000}).encode(), compressed=True),
        framed(version, small, compressed=True),
    ]
    made = reader(object_store)
    tracemalloc.start()
    bad = bad_of(made, values)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(bomb) < 1024 * 1024
    assert peak_bytes < 100 * 1024 * 1024
    assert sorted(bad) == [0, 1, 2]
    assert {reason[:26] for reason in bad.values()} == {"is compressed, and longer "}


def test_a_connect_decimal_in_a_json_schema_of_glue_is_read_as_one(
    object_store: ObjectStore,
) -> None:
    price = {
        "type": "number",
        "title": "org.apache.kafka.connect.data.Decimal",
        "connect.version": 1,
        "connect.parameters": {"scale": "2"},
        "connect.type": "bytes",
    }
    schema = {"type": "object", "title": "Row", "properties": {"p": price}}
    version = registered(object_store, "JSON", schema)
    value = framed(version, b'{"p": "' + base64.b64encode(struct.pack(">h", 1234)) + b'"}')
    columns = pa.schema([("p", pa.decimal128(9, 2))])
    assert [str(row["p"]) for row in rows_of(reader(object_store), [value], columns)] == ["12.34"]


# ------------------------------------------------------------------------------------- the registry


def test_a_version_is_asked_for_once_and_compressed_or_not_is_the_same_schema(
    object_store: ObjectStore, before_glue: StoreProxy
) -> None:
    version = registered(object_store, "AVRO", ROW)
    body = encoded(ROW, {"x": 1, "y": "one"})
    values = [framed(version, body, compressed=compressed) for compressed in (False, True)]
    for _ in range(3):
        rows_of(reader(object_store, before_glue.uri), values)
    assert len(before_glue.seen) == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (glue_error(400, "ThrottlingException"), "ThrottlingException"),
        (glue_error(500, "InternalServiceException"), "InternalServiceException"),
        (Answer(404, b"<html>not here</html>"), "404"),
        (Answer(200, b"<html>hello</html>"), "holds no schema"),
        (RESETS, "ConnectionClosedError|EndpointConnectionError"),
        (HANGS, "ReadTimeoutError"),
    ],
)
def test_a_glue_in_trouble_fails_the_batch_and_not_the_record(
    object_store: ObjectStore, before_glue: StoreProxy, answer: Answer, reason: str
) -> None:
    version = registered(object_store, "AVRO", ROW)
    value = framed(version, encoded(ROW, {"x": 1, "y": "one"}))
    before_glue.refuse("POST", answer)
    with pytest.raises(Unreachable, match=f"({reason}).*asked at {before_glue.uri}/? in {REGION}"):
        rows_of(reader(object_store, before_glue.uri), [value])
    before_glue.pass_on()
    before_glue.let_go()
    assert rows_of(reader(object_store, before_glue.uri), [value]) == [{"x": 1, "y": "one"}]


def test_half_an_answer_of_glue_fails_the_batch(
    object_store: ObjectStore, before_glue: StoreProxy
) -> None:
    value = framed(registered(object_store, "AVRO", ROW), encoded(ROW, {"x": 1, "y": "one"}))
    before_glue.spoils("POST", CUTS)
    with pytest.raises(Unreachable, match="Glue"):
        rows_of(reader(object_store, before_glue.uri), [value])


@pytest.mark.parametrize("status", ["PENDING", "FAILURE", "DELETING"])
def test_a_version_that_is_not_available_is_asked_for_again(
    object_store: ObjectStore, before_glue: StoreProxy, status: str
) -> None:
    value = framed(registered(object_store, "AVRO", ROW), encoded(ROW, {"x": 1, "y": "one"}))
    before_glue.after = lambda _, body: body.replace(b"AVAILABLE", status.encode())
    with pytest.raises(Unreachable, match=f"is {status} in Glue"):
        rows_of(reader(object_store, before_glue.uri), [value])
    before_glue.after = lambda _, body: body
    assert rows_of(reader(object_store, before_glue.uri), [value]) == [{"x": 1, "y": "one"}]


@pytest.mark.parametrize(
    "code", ["AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException"]
)
def test_an_identity_that_glue_refuses_is_for_a_person_to_mend(
    object_store: ObjectStore, before_glue: StoreProxy, code: str
) -> None:
    value = framed(registered(object_store, "AVRO", ROW), b"")
    before_glue.refuse("POST", glue_error(400, code, f"not {SECRET} of {KEY}"))
    with pytest.raises(MissingRights, match=code) as caught:
        rows_of(reader(object_store, before_glue.uri), [value])
    assert SECRET not in str(caught.value)
    assert KEY not in str(caught.value)
    assert "glue:GetSchemaVersion" in str(caught.value)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [(403, "AccessDenied", MissingRights), (400, "Throttling", Unreachable)],
)
def test_a_refusal_of_the_role_is_named_without_the_words_of_aws(
    before_glue: StoreProxy,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    status: int,
    code: str,
    expected: type[Exception],
) -> None:
    (tmp_path / "token").write_text("of a pod")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/reader")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", before_glue.uri)
    said = f"<Error><Code>{code}</Code><Message>not {SECRET}</Message></Error>"
    before_glue.refuse("POST", Answer(status, f"<ErrorResponse>{said}</ErrorResponse>".encode()))
    told = {**QUICK, "glue.region": REGION, "glue.endpoint": before_glue.uri}
    with pytest.raises(expected, match=f"AssumeRoleWithWebIdentity: {code}") as caught:
        rows_of(create_record_format("glue-registry", told), [framed(uuid.uuid4().bytes, b"")])
    assert SECRET not in str(caught.value)


def test_a_version_whose_text_changes_stops_the_sink(
    object_store: ObjectStore, before_glue: StoreProxy
) -> None:
    value = framed(registered(object_store, "AVRO", ROW), encoded(ROW, {"x": 1, "y": "one"}))
    told = {**options(object_store, before_glue.uri), "registry.check.interval": "0"}
    rows_of(create_record_format("glue-registry", told), [value])
    before_glue.after = lambda _, body: body.replace(b"string", b"bytes")
    with pytest.raises(SchemaIdReused, match="HG-292"):
        rows_of(create_record_format("glue-registry", told), [value])


def test_without_credentials_or_a_region_the_message_says_what_to_set(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    value = framed(uuid.uuid4().bytes, b"")
    told = {**QUICK, "glue.endpoint": object_store.endpoint}
    with pytest.raises(ConfigurationError, match=r"region.*AWS_REGION"):
        rows_of(create_record_format("glue-registry", told), [value])
    told["glue.region"] = REGION
    with pytest.raises(MissingRights, match=r"finds no credentials.*AWS_ACCESS_KEY_ID"):
        rows_of(create_record_format("glue-registry", told), [value])
    with pytest.raises(ConfigurationError, match="AWS_REGION"):
        rows_of(
            create_record_format("glue-registry", {**told, "glue.profile-name": "none"}), [value]
        )


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"registry.url": "http://x"}, "there is no option 'registry.url'"),
        ({"glue.regoin": "x"}, "did you mean glue.region"),
        ({"glue.endpoint": "glue"}, "glue.endpoint is no address"),
        ({"glue.access-key-id": "x"}, "belong together"),
        ({"framing": "confluent"}, "framing cannot be 'confluent': it is glue"),
        ({"registry.timeout": "never"}, "registry.timeout cannot be 'never'"),
    ],
)
def test_options_that_glue_does_not_know_are_refused(given: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        create_record_format("glue-registry", given)
    create_record_format("glue-registry", {"framing": "glue"})


# ----------------------------------------------------------------------------- around a whole sink


def sections(store: ObjectStore) -> dict[str, Any]:
    return {
        "format": {"type": "glue-registry"},
        "format.options": options(store),
        "table.columns": {"columns": {"x": "long", "y": "string"}},
    }


def test_init_recognizes_glue_s_records_and_proposes_their_columns(
    object_store: ObjectStore,
) -> None:
    given = FormatSettings(options=options(object_store))  # type: ignore[arg-type]
    one = registered(object_store, "AVRO", ROW)
    two = registered(
        object_store, "JSON", {"type": "object", "properties": {"z": {"type": "number"}}}
    )
    values = [
        framed(one, encoded(ROW, {"x": 1, "y": "one"}), compressed=True),
        framed(two, b'{"z": 1.5}'),
    ]
    found = propose_from_records([(None, value) for value in values], given, is_format_given=False)
    assert found.format_name == "glue-registry"
    assert {each.name: each.type for each in found.proposal.columns} == {
        "x": "long",
        "y": "string",
        "z": "double",
    }


@pytest.mark.integration
@pytest.mark.spark
@pytest.mark.parametrize(
    "writer",
    ["in-process", pytest.param("spark", marks=pytest.mark.wide)],
)
def test_a_whole_sink_reads_glue_s_records_and_grows_with_their_schemas(
    deploy: Deploy, object_store: ObjectStore, writer: str
) -> None:
    spark = {"writer": writer, **({"master": "local[2]"} if writer == "spark" else {})}
    sink = deploy(
        {
            **sections(object_store),
            "spark": spark,
            "quarantine": {"policy": "quarantine", "per_thousand_max": 1_000},
            "table.schema": {"unknown_fields": "evolve"},
        }
    )
    wider = record(x="long", y="string", w={"type": "array", "items": "int"})
    first, second = (registered(object_store, "AVRO", schema) for schema in (ROW, wider))
    values = []
    for number in range(400):
        row = {"x": number, "y": f"y{number}"}
        if number == 393:
            values.append(framed(uuid.uuid4().bytes, b"x"))
        elif number >= 200:
            body = encoded(wider, {**row, "w": [number, 1]})
            values.append(framed(second, body, compressed=number % 2 == 0))
        else:
            values.append(framed(first, encoded(ROW, row), compressed=number % 2 == 0))
    produce(sink.bootstrap, sink.topics[0], values, partitions=sink.partitions)
    checked = {answer.what: answer for answer in check(sink.settings)}
    assert checked["records"].state is State.OK, checked["records"]
    assert "1 not to be read: the registry does not know" in checked["records"].detail
    sink.start()
    sink.wait_until_lag_zero(180)
    sink.stop()
    report = audit(sink.settings)
    assert report.findings == ()
    assert report.sum_over_partitions("in_quarantine") == 1
    found = {row["x"]: row for row in sink.rows().to_pylist()}
    assert sorted(found) == [number for number in range(400) if number != 393]
    assert all(row["y"] == f"y{number}" for number, row in found.items())
    assert all((row["w"] or []) == ([n, 1] if n >= 200 else []) for n, row in found.items())


@pytest.mark.integration
def test_keys_of_glue_replace_and_delete_rows(deploy: Deploy, object_store: ObjectStore) -> None:
    """Keys are read like values where a connector writes both."""
    settings = sections(object_store)
    columns = {"x": {"type": "long", "required": True}, "y": "string"}
    sink = deploy(
        {
            **settings,
            "table": {"key": ["x"], "properties": {"format-version": "3"}},
            "table.columns": {"columns": columns},
            "changes": {"envelope": "flattened"},
        }
    )
    flat = record(x="long", y="string", __deleted="string")
    of_values = registered(object_store, "AVRO", flat)
    of_keys = registered(object_store, "AVRO", {**record(x="long"), "name": "Key"})
    producer = Producer({"bootstrap.servers": sink.bootstrap, "enable.idempotence": True})
    fold: dict[int, str] = {}
    for number in range(600):
        row = {"x": number * 7919 % 100, "y": f"y{number}", "__deleted": "false"}
        key = framed(of_keys, encoded(record(x="long"), {"x": row["x"]}), compressed=True)
        value = framed(of_values, encoded(flat, row)) if number % 5 else None
        if value is None:
            fold.pop(row["x"], None)
        else:
            fold[row["x"]] = row["y"]
        producer.produce(sink.topics[0], value, key, partition=row["x"] % sink.partitions)
    assert producer.flush(30) == 0
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    assert {row["x"]: row["y"] for row in sink.rows().to_pylist()} == fold
    assert audit(sink.settings).findings == ()


@pytest.mark.integration
def test_glue_s_schemas_make_the_tables_that_they_describe(
    deploy: Deploy, object_store: ObjectStore
) -> None:
    sink = deploy({}, topics=2, partitions=1)
    sink.change(
        {
            "table": None,
            "table.columns": None,
            "table.record_columns": None,
            "format": {"type": "glue-registry"},
            "format.options": options(object_store),
            "tables": {"ledger": "db.ledger"},
            "tables.create": {"schema": "registry"},
            "tables.route": [{"topic": "^.*$", "to": "lake.{topic}"}],
            "quarantine": {"table": "db.rejected"},
        }
    )
    avro = registered(object_store, "AVRO", ROW)
    of_protobuf = registered(object_store, "PROTOBUF", TEXT)
    one, two = sink.topics
    values = [framed(avro, encoded(ROW, {"x": n, "y": f"y{n}"})) for n in range(100)]
    produce(sink.bootstrap, one, values, partitions=1)
    messages = [framed(of_protobuf, b"\x00\x08" + bytes([n])) for n in range(100)]
    produce(sink.bootstrap, two, messages, partitions=1)
    sink.start()
    sink.wait_until_lag_zero()
    sink.stop()
    tables = [rows_in(sink, f"lake.{_table(topic)}").to_pylist() for topic in (one, two)]
    assert sorted(row["x"] for row in tables[0]) == list(range(100))
    assert sorted((row["x"], row["at"]) for row in tables[1]) == [(n, None) for n in range(100)]
    assert audit(sink.settings).findings == ()


@pytest.mark.integration
def test_check_says_that_json_records_are_glue_s(deploy: Deploy, object_store: ObjectStore) -> None:
    sink = deploy({"table.columns": {"columns": {"x": "long"}}})
    version = registered(object_store, "AVRO", ROW)
    values = [framed(version, encoded(ROW, {"x": n, "y": ""})) for n in range(10)]
    produce(sink.bootstrap, sink.topics[0], values, partitions=sink.partitions)
    checked = {answer.what: answer for answer in check(sink.settings)}
    assert checked["records"].state is State.WRONG
    assert 'format.type = "glue-registry"' in checked["records"].hint


# --------------------------------------------------------------------------- AWS's own serializer


@pytest.mark.wide
def test_what_aws_s_own_serializer_writes_is_read(object_store: ObjectStore) -> None:
    file = nested_file("city")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    inside = message_factory.GetMessageClass(pool.FindMessageTypeByName("city.Second.Inside"))
    descriptor = base64.b64encode(file.SerializeToString()).decode()
    wanted, told = [], []
    for number in range(60):
        row = {"x": number, "y": f"y{number}" * (number + 1)}
        message = base64.b64encode(inside(**row).SerializeToString()).decode()
        kind, schema, value = [
            ("AVRO", json.dumps(ROW), json.dumps(row)),
            ("JSON", json.dumps(JSON_ROW), json.dumps(row)),
            ("PROTOBUF", descriptor, f"Second.Inside:{message}"),
        ][number % 3]
        compression = ("NONE", "ZLIB")[number // 3 % 2]
        told.append(Written(kind, compression, f"aws-{kind.lower()}", schema, value))
        wanted.append(row)
    values = serialize_as_aws(object_store, told)
    assert {value[:2] for value in values} == {b"\x03\x00", b"\x03\x05"}
    assert rows_of(reader(object_store), values) == wanted
