"""Protobuf with a registry: ids, indexes, imports, and what becomes of each answer."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference
from google.protobuf import descriptor_pb2
from integration.conftest import Deploy
from integration.registry.server import RegistryServer
from integration.registry.test_asking import QUICK, registered, registered_schema
from unit.data_plane.formats.avro_worlds import record
from unit.data_plane.formats.protobuf_worlds import World, field

from headgate.control_protocol.errors import DescriptorUnfit
from headgate.data_plane.formats.format_registry import create_record_format
from headgate.data_plane.formats.record_format import RecordFormat, UndecodableRecords
from headgate.operations.audit.audit import audit
from headgate.operations.demo.producer import produce

COLUMNS = pa.schema([("x", pa.int64()), ("y", pa.large_string())])
WORLD = World("proto3")
IN_PROCESS = {"writer": "in-process"}
SPARK = {"writer": "spark", "master": "local[2]"}


def reader(url: str) -> RecordFormat:
    return create_record_format("protobuf-registry", {**QUICK, "registry.url": url})


def registered_file(url: str, subject: str, file: Any, *references: SchemaReference) -> int:
    text = base64.b64encode(file.SerializeToString()).decode()
    return registered_schema(url, subject, Schema(text, "PROTOBUF", list(references)))


def framed(number: int, indexes: bytes, message: bytes) -> bytes:
    return struct.pack(">bI", 0, number) + indexes + message


def nested_file(package: str) -> Any:
    """Two messages at the top; the second has two inside, the last of which has x and y."""
    made = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    field(made.message_type.add(name="First"), "x", 1, "int64")
    second = made.message_type.add(name="Second")
    second.nested_type.add(name="Empty")
    inside = second.nested_type.add(name="Inside")
    field(inside, "x", 1, "int64")
    field(inside, "y", 2, "string")
    return made


def test_several_types_in_one_batch_in_the_records_order(troubled: RegistryServer) -> None:
    one = registered_file(troubled.url, "one", nested_file("one"))
    two = registered_file(troubled.url, "two", nested_file("two"))
    fronts = [(one, b"\x00"), (one, b"\x04\x02\x02"), (two, b"\x02\x00"), (two, b"\x04\x02\x02")]
    values = [
        framed(*fronts[n % 4], b"\x08" + bytes([n % 100]) + (b"\x12\x01y" if n % 2 else b""))
        for n in range(400)
    ]
    rows = reader(troubled.url).decode(values, COLUMNS).to_pylist()
    assert rows == [{"x": n % 100, "y": "y" if n % 2 else None} for n in range(400)]
    asked = [path for path in troubled.asked if path.startswith("GET")]
    assert len(asked) == 2
    assert all("format=serialized" in path for path in asked)


def test_imports_are_followed(troubled: RegistryServer) -> None:
    shared = descriptor_pb2.FileDescriptorProto(name="s.proto", package="s", syntax="proto3")
    field(shared.message_type.add(name="Shared"), "x", 1, "int64")
    registered_file(troubled.url, "shared", shared)
    outer = descriptor_pb2.FileDescriptorProto(name="o.proto", package="o", syntax="proto3")
    outer.dependency.append("s.proto")
    field(outer.message_type.add(name="Outer"), "s", 1, ".s.Shared")
    reference = SchemaReference("s.proto", "shared", 1)
    number = registered_file(troubled.url, "outer", outer, reference)
    columns = pa.schema([("s", pa.struct([("x", pa.int64())]))])
    rows = reader(troubled.url).decode([framed(number, b"\0", b"\x0a\x02\x08\x05")], columns)
    assert rows.to_pylist() == [{"s": {"x": 5}}]


def test_what_has_no_schema_is_a_bad_record_and_no_other_is(
    troubled: RegistryServer,
) -> None:
    number = registered_file(troubled.url, "one", nested_file("one"))
    avro = registered(troubled.url, "avro", record(id="int"))
    good = framed(number, b"\0", b"\x08\x01")
    values = [
        good,
        b"",
        b"\x00\x00\x00\x00\x01",
        b"\x01" + good[1:],
        framed(999_999, b"\0", b""),
        framed(avro, b"\0", b""),
        framed(number, b"\x02\x08", b""),
        framed(number, b"\x80" * 11, b""),
        framed(number, b"\x7e", b""),
        framed(number, b"\0", b"\x08"),
        good,
    ]
    with pytest.raises(UndecodableRecords) as caught:
        reader(troubled.url).decode(values, COLUMNS)
    assert set(caught.value.bad) == set(range(1, len(values) - 1))
    assert caught.value.rest.to_pylist() == [{"x": 1, "y": None}] * 2
    assert "is AVRO, not Protobuf" in caught.value.bad[5]
    assert "message indexes" in caught.value.bad[6]


def test_a_registry_that_has_texts_only_is_read_by_their_compiler(
    troubled: RegistryServer,
) -> None:
    """Imports of each other, of what comes with every compiler, and a file that is broken."""
    shared = 'syntax = "proto3"; package s; message Shared { int64 x = 1; }'
    registered_schema(troubled.url, "shared", Schema(shared, "PROTOBUF"))
    text = """
        syntax = "proto3";
        import "inner/shared.proto";
        import "google/protobuf/timestamp.proto";
        message First { int32 a = 1; }
        message Outer { s.Shared s = 1; google.protobuf.Timestamp at = 2; }
    """
    reference = SchemaReference("inner/shared.proto", "shared", 1)
    number = registered_schema(troubled.url, "p", Schema(text, "PROTOBUF", [reference]))
    broken = registered_schema(troubled.url, "b", Schema("message M { int64 }", "PROTOBUF"))
    columns = pa.schema([("s", pa.struct([("x", pa.int64())])), ("at", pa.timestamp("us", "UTC"))])
    values = [
        framed(number, b"\x02\x02", b"\x0a\x02\x08\x05\x12\x02\x08\x07"),
        framed(broken, b"\0", b""),
    ]
    with pytest.raises(UndecodableRecords) as caught:
        reader(troubled.url).decode(values, columns)
    ((row),) = caught.value.rest.to_pylist()
    assert (row["s"], row["at"].timestamp()) == ({"x": 5}, 7)
    assert caught.value.bad[1].startswith(f"the schema {broken}: protoc refuses it")


@pytest.mark.parametrize(
    "name", ["../../etc/cron.proto", "/etc/x.proto", "google/protobuf/any.proto"]
)
def test_a_text_cannot_leave_its_folder_by_the_names_of_its_imports(
    troubled: RegistryServer, name: str
) -> None:
    registered_schema(troubled.url, "shared", Schema('syntax = "proto3";', "PROTOBUF"))
    schema = Schema(
        f'syntax = "proto3"; import "{name}"; message M {{ int64 x = 1; }}',
        "PROTOBUF",
        [SchemaReference(name, "shared", 1)],
    )
    number = registered_schema(troubled.url, "p", schema)
    with pytest.raises(UndecodableRecords) as caught:
        reader(troubled.url).decode([framed(number, b"\0", b"")], COLUMNS)
    assert name[:20] in caught.value.bad[0]


def test_without_a_compiler_a_text_stops_the_sink_by_name(
    troubled: RegistryServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "grpc_tools.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    text = 'syntax = "proto3"; message M { int64 x = 1; }'
    number = registered_schema(troubled.url, "p", Schema(text, "PROTOBUF"))
    with pytest.raises(DescriptorUnfit, match=r"HG-119.*as text.*headgate\[protobuf-text\]"):
        reader(troubled.url).decode([framed(number, b"\0", b"")], COLUMNS)


SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "table.columns": {
        "columns": {
            "id": {"type": "long", "from": "f_int64"},
            "big": {"type": "decimal(20, 0)", "from": "f_uint64"},
            "at": "timestamptz",
            "counts": "map<string, long>",
            "y": {"type": "string", "from": "inner.y"},
        }
    },
    "quarantine": {"policy": "quarantine", "per_thousand_max": 1_000},
}


def value(number: int) -> bytes:
    row = WORLD.row(f_int64=number, f_uint64=2**64 - 1 - number, counts={"n": number})
    row.at.seconds = number
    if number % 2:
        row.inner.y = f"y{number}"
    found: bytes = row.SerializeToString()
    return found if number % 100 != 7 else found + b"\x0f"


@pytest.mark.integration
@pytest.mark.spark
@pytest.mark.parametrize(
    ("format_name", "spark"),
    [
        pytest.param("protobuf", IN_PROCESS, marks=pytest.mark.wide),
        ("protobuf-registry", IN_PROCESS),
        pytest.param("protobuf", SPARK, marks=pytest.mark.soak),
        pytest.param("protobuf-registry", SPARK, marks=pytest.mark.wide),
    ],
)
def test_whole_sinks_are_filled_with_messages(
    deploy: Deploy, troubled: RegistryServer, spark: dict[str, str], format_name: str
) -> None:
    options: Mapping[str, str] = WORLD.options
    front = b""
    if format_name == "protobuf-registry":
        options = {"registry.url": troubled.url}
        front = framed(registered_file(troubled.url, "w", WORLD.file), b"\x02\x02", b"")
    format_ = {"format": {"type": format_name}, "format.options": options}
    sink = deploy({**SECTIONS, **format_, "spark": spark})
    values = [front + value(number) for number in range(300)]
    produce(sink.bootstrap, sink.topics[0], values, partitions=sink.partitions)
    sink.start()
    sink.wait_until_lag_zero(180)
    sink.stop()
    report = audit(sink.settings)
    assert report.findings == ()
    assert report.sum_over_partitions("in_quarantine") == 3
    with sink.table() as table:
        rows = {row["id"]: row for row in table.scan().to_arrow().to_pylist()}
    assert sorted(rows) == [n for n in range(300) if n % 100 != 7]
    for number, row in rows.items():
        assert row["big"] == 2**64 - 1 - number
        assert row["at"].timestamp() == number
        assert row["counts"] == [("n", number)]
        assert row["y"] == (f"y{number}" if number % 2 else None)
