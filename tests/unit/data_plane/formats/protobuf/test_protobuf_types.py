"""What Protobuf's types become in a table, and what is refused by name."""

from __future__ import annotations

import base64
import signal
import subprocess
import time
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from unit.data_plane.formats.protobuf_worlds import INNER, World, field, read

from headgate.control_protocol.errors import DescriptorUnfit, Unreachable
from headgate.data_plane.formats.column_options import ColumnRule, parse_path
from headgate.data_plane.formats.field_names import with_lookup_names
from headgate.data_plane.formats.format_with_column_options import RuledColumns
from headgate.data_plane.formats.protobuf.decoder import Broken, read_fields
from headgate.data_plane.formats.protobuf.descriptors import UnfitTypes, parse_types
from headgate.data_plane.formats.protobuf.format import ProtobufRecords
from headgate.data_plane.formats.registry import proto_text
from headgate.data_plane.formats.registry.frames import split_by_message_frame
from headgate.data_plane.formats.registry.proto_text import compile_proto_text

pytestmark = pytest.mark.usefixtures("either_loops")

WORLD = World("proto3")
TEXT = pa.large_string()


def column(name: str, kind: pa.DataType) -> pa.Schema:
    return pa.schema([(name, kind)])


def values_of(name: str, kind: pa.DataType, *values: bytes) -> tuple[list[Any], dict[int, str]]:
    rows, bad = WORLD.read(values, column(name, kind))
    return [row[name] for row in rows], bad


def row(**values: Any) -> bytes:
    made: bytes = WORLD.row(**values).SerializeToString()
    return made


def test_unsigned_64_goes_where_it_fits() -> None:
    values = [row(f_uint64=n) for n in (0, 2**63 - 1, 2**63, 2**64 - 1)]
    assert values_of("f_uint64", pa.decimal128(20), *values)[0] == [0, 2**63 - 1, 2**63, 2**64 - 1]
    found, bad = values_of("f_uint64", pa.int64(), *values)
    assert (found, set(bad)) == ([0, 2**63 - 1], {2, 3})
    assert bad[2].startswith("f_uint64: 9223372036854775808 ")


def test_enums_are_names_or_numbers() -> None:
    values = [row(color=7), row(color=5), row()]
    assert values_of("color", pa.int32(), *values)[0] == [7, 5, 0]
    found, bad = values_of("color", TEXT, *values)
    assert found == ["GREEN", "RED"]
    assert bad == {1: "color: holds a number that the enum t.Color has no name for"}


def test_what_the_writer_tells_from_zero_is_null_when_it_is_not_there() -> None:
    values = [row(), row(f_int32=0, o_int32=0), row(o_int32=1)]
    assert values_of("f_int32", pa.int32(), *values)[0] == [0, 0, 0]
    assert values_of("o_int32", pa.int32(), *values)[0] == [None, 0, 1]
    assert values_of("wrapped", pa.int64(), *values, row(wrapped={"value": 0}))[0] == [None] * 3 + [
        0
    ]
    assert values_of("r_int32", pa.large_list(pa.int32()), *values)[0] == [[], [], []]
    assert values_of("inner", INNER, row(), row(inner={}))[0] == [None, {"x": 0, "y": ""}]


def test_times_are_exact_or_bad() -> None:
    at = {"seconds": 1_785_585_600, "nanos": 123_456_789}
    micro, nano = pa.timestamp("us", tz="UTC"), pa.timestamp("ns", tz="UTC")
    assert values_of("at", nano, row(at=at))[0] == [1_785_585_600_123_456_789]
    assert values_of("at", micro, row(at=at))[1] == {0: "at: is finer than the column's unit (us)"}
    far = [{"seconds": s} for s in (253_402_300_800, -62_135_596_801, 2**63 - 1)]
    odd = [{"seconds": 1, "nanos": n} for n in (-1, 10**9)]
    values = [row(at=one) for one in (*far, *odd)]
    assert len(values_of("at", micro, *values)[1]) == len(values_of("at", nano, *values)[1]) == 5
    struct = pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())])
    assert values_of("at", struct, row(at=at))[0] == [at]


def test_packed_and_unpacked_are_the_same() -> None:
    kind = pa.large_list(pa.int32())
    packed = row(r_int32=[1, -2])
    number = WORLD.row.DESCRIPTOR.fields_by_name["r_int32"].number
    tag = number << 3
    single = bytes([tag & 127 | 128, tag >> 7, 7])
    assert values_of("r_int32", kind, packed + single + packed)[0] == [[1, -2, 7, 1, -2]]
    cut = bytes([number << 3 & 127 | 128 | 2, tag >> 7, 2, 1, 0x80])
    assert set(values_of("r_int32", kind, cut)[1]) == {0}


def test_a_map_s_last_entry_counts() -> None:
    twice = row(counts={"a": 1, "b": 2}) + row(counts={"a": 3})
    kind = pa.map_(TEXT, pa.int64())
    assert values_of("counts", kind, twice, row(), twice)[0] == [
        [("a", 3), ("b", 2)],
        [],
        [("a", 3), ("b", 2)],
    ]


@pytest.mark.parametrize("caseless", [False, True])
def test_a_map_by_number_is_no_struct_by_name(caseless: bool) -> None:
    metadata = {"PARQUET:field_id": "1"}
    columns = pa.schema([pa.field("byid", pa.struct([("7", INNER)]), metadata=metadata)])
    schema = with_lookup_names(columns, None, caseless=caseless)
    rows, bad = WORLD.read([row(byid={7: {"x": 1}})], schema)
    assert rows == []
    assert bad[0].startswith("byid: a map by int32 cannot go into a column of type struct<7: ")


def test_the_last_of_a_oneof_counts_also_where_nobody_wants_it() -> None:
    value = row(either="x") + row(third=4)
    assert values_of("either", TEXT, value, row(either=""))[0] == [None, ""]
    parts = row(other={"x": 1}) + row(either="y") + row(other={"y": "z"})
    assert values_of("other", INNER, parts)[0] == [{"x": 0, "y": "z"}]


def test_messages_become_text_but_not_those_that_hold_themselves() -> None:
    assert values_of("inner", TEXT, row(inner={"x": 3}))[0] == ['{"x":3,"y":""}']
    with pytest.raises(DescriptorUnfit, match=r"HG-119.*may hold itself"):
        values_of("next", TEXT, row())


def test_unknown_fields_and_groups_are_passed_over_but_sound() -> None:
    group = b"\xa3\x06" + b"\x08\x01" + b"\x0b\x0c" + b"\xa4\x06"  # field 100, with one inside
    kind = pa.int32()
    assert values_of("f_int32", kind, group + row(f_int32=4))[0] == [4]
    open_, other = b"\xa3\x06", b"\xa3\x06\xac\x06"
    deep = b"\xa3\x06" * 101 + b"\xa4\x06" * 101
    wrong = [open_, other, b"\xa4\x06", deep, b"\x00\x00", b"\x0e", b"\x0f", b"\xf8" * 11]
    assert set(values_of("f_int32", kind, *wrong)[1]) == set(range(len(wrong)))
    assert values_of("f_int32", kind, b"\xa3\x06" * 100 + b"\xa4\x06" * 100)[0] == [0]


def test_a_wire_type_of_another_kind_is_no_value() -> None:
    number = WORLD.row.DESCRIPTOR.fields_by_name["o_int32"].number
    tag = number << 3 | 2
    assert values_of("o_int32", pa.int32(), bytes([tag & 127 | 128, tag >> 7, 1, 5]))[0] == [None]


def test_numbers_too_wide_for_their_type_are_bad() -> None:
    tag = bytes([WORLD.row.DESCRIPTOR.fields_by_name["f_int32"].number << 3])
    found, bad = values_of("f_int32", pa.int32(), tag + b"\xff\xff\xff\xff\x0f")
    assert (found, bad) == ([], {0: "f_int32: holds a number of more than 32 bits"})


def test_required_fields_that_are_not_there_are_bad() -> None:
    made = descriptor_pb2.FileDescriptorProto(name="r.proto", package="r")
    message = made.message_type.add(name="R")
    field(message, "a", 1, "int32", label=descriptor_pb2.FieldDescriptorProto.LABEL_REQUIRED)
    options = {"descriptor": as_set(made), "message": "r.R"}
    rows, bad = read(options, [b"\x08\x01", b""], column("a", pa.int64()))
    assert rows == [{"a": 1}]
    assert bad == {1: "a: a required field is missing"}


def test_rules_of_columns_go_with_messages() -> None:
    rules = {
        "x": ColumnRule(parse_path("inner.x"), as_text=True),
        "at": ColumnRule(parse_path("f_int64"), unit="ms"),
        "none": ColumnRule(parse_path("inner.no"), default=3),
        "o_int32": ColumnRule(default=8),
    }
    moment = pa.timestamp("us", tz="UTC")
    columns = [("x", TEXT), ("at", moment), ("none", pa.int64()), ("o_int32", pa.int32())]
    schema = pa.schema(columns)
    made = RuledColumns(ProtobufRecords(WORLD.options), rules, schema)
    values = [row(inner={"x": 5}, f_int64=1_500, o_int32=0), row()]
    found = made.decode(values, schema)
    assert found.column("x").to_pylist() == ["5", None]
    assert found.column("at").cast(pa.int64()).to_pylist() == [1_500_000, 0]
    assert found.column("none").to_pylist() == [3, 3]
    assert found.column("o_int32").to_pylist() == [0, 8]


def as_set(*files: Any) -> str:
    octets: bytes = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
    return base64.b64encode(octets).decode()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"descriptor": "%", "message": "t.Row"}, "not base64"),
        ({"descriptor": "", "message": "t.Row"}, "'descriptor' is missing"),
        ({"descriptor": base64.b64encode(b"\xff").decode(), "message": "m"}, "is cut off"),
        ({**WORLD.options, "message": "t.Rwo"}, "did you mean t.Row"),
    ],
)
def test_descriptors_that_cannot_be_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises((DescriptorUnfit, ValueError), match=r".") as caught:
        ProtobufRecords(options)
    assert said in str(caught.value)


def test_editions_and_groups_are_refused_by_name() -> None:
    made = descriptor_pb2.FileDescriptorProto(name="e.proto", syntax="editions")
    with pytest.raises(UnfitTypes, match=r"e\.proto is written in an edition"):
        parse_types([made.SerializeToString()])
    made = descriptor_pb2.FileDescriptorProto(name="g.proto", package="g")
    message = made.message_type.add(name="G")
    field(message, "a", 1, ".g.G").type = descriptor_pb2.FieldDescriptorProto.TYPE_GROUP
    options = {"descriptor": as_set(made), "message": "g.G"}
    with pytest.raises(DescriptorUnfit, match=r"g\.G\.a is a group"):
        read(options, [b""], column("a", TEXT))


def test_broken_descriptors_end_in_words() -> None:
    sound = WORLD.file.SerializeToString()
    for at in range(0, len(sound), 7):
        for broken in (sound[:at], sound[:at] + b"\xff" + sound[at + 1 :]):
            try:
                parse_types([broken])
            except UnfitTypes as error:
                assert str(error)


def test_fields_are_read_one_by_one_too() -> None:
    assert list(read_fields(b"\x08\x96\x01", 0, 3)) == [(1, 0, 150, 0)]
    with pytest.raises(Broken):
        list(read_fields(b"\x08", 0, 1))


def test_many_messages_in_parts_are_put_together_in_no_time() -> None:
    parts = [row(inner={"x": n}) + row(inner={"y": "y"}) for n in range(3_000)]
    begun_s = time.process_time()
    found, bad = values_of("inner", INNER, *parts)
    assert time.process_time() - begun_s < 5
    assert bad == {}
    assert found == [{"x": n, "y": "y"} for n in range(3_000)]


def test_a_large_message_takes_memory_as_its_bytes_do() -> None:
    many = 500_000
    number = WORLD.row.DESCRIPTOR.fields_by_name["r_bool"].number
    tag = number << 3 | 2
    packed = bytes([tag & 127 | 128, tag >> 7]) + b"\xa0\xc2\x1e" + b"\x01" * many
    before = pa.total_allocated_bytes()
    found, _ = values_of("r_bool", pa.large_list(pa.bool_()), packed)
    assert len(found[0]) == many
    assert pa.total_allocated_bytes() - before < 100 * many


def test_types_may_be_named_from_within_as_registries_do() -> None:
    made = descriptor_pb2.FileDescriptorProto(name="n.proto", package="a.b", syntax="proto3")
    outside = made.message_type.add(name="Kind")
    field(outside, "x", 1, "int64")
    message = made.message_type.add(name="M")
    inside = message.nested_type.add(name="Kind")
    field(inside, "y", 1, "string")
    message.enum_type.add(name="E").value.add(name="ZERO", number=0)
    for number, name in enumerate(["Kind", "M.Kind", "b.Kind", ".a.b.Kind", "E"], start=1):
        message.field.add(name=f"f{number}", number=number, label=1, type_name=name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(made)
    descriptor = pool.FindMessageTypeByName("a.b.M")
    found = parse_types([made.SerializeToString()]).require_message("a.b.M").fields
    for part, theirs in zip(found, descriptor.fields, strict=True):
        kind = theirs.message_type or theirs.enum_type
        assert (part.name, part.type_name) == (theirs.name, kind.full_name)
        assert part.presence == theirs.has_presence
        assert (part.type == "enum") == (theirs.enum_type is not None)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["a.proto", "a.proto/b.proto"], "a file and a folder of one name"),
        (["a.proto/b.proto", "./a.proto"], "a file and a folder of one name"),
        (["a.proto", "a.proto/b/c.proto"], "a file and a folder of one name"),
        (["headgate.schema.proto/b.proto"], "a file and a folder of one name"),
        (["ä" * 150 + ".proto"], "which is no name of a .proto file"),
    ],
)
def test_imports_whose_names_no_folder_holds_are_the_schema_s_fault(
    names: list[str], says: str
) -> None:
    with pytest.raises(UnfitTypes, match=says):
        compile_proto_text("", dict.fromkeys(names, ""))


def _end_protoc_as(monkeypatch: pytest.MonkeyPatch, code: int, stderr: bytes) -> None:
    ended = subprocess.CompletedProcess[bytes]([], code, b"", stderr)
    monkeypatch.setattr(proto_text.subprocess, "run", lambda *_, **__: ended)


@pytest.mark.parametrize(
    ("code", "stderr"),
    [
        (-signal.SIGKILL, b""),
        (-signal.SIGTERM, b""),
        (-signal.SIGINT, b"KeyboardInterrupt"),
        (1, b"headgate.schema.proto:1:1: warning: x\nout.desc: No space left on device\n"),
    ],
)
def test_a_compiler_that_was_ended_or_has_no_space_says_nothing_of_the_schema(
    monkeypatch: pytest.MonkeyPatch, code: int, stderr: bytes
) -> None:
    _end_protoc_as(monkeypatch, code, stderr)
    with pytest.raises(Unreachable, match="protoc cannot compile a schema here"):
        compile_proto_text("", {})


@pytest.mark.parametrize(
    ("code", "stderr"),
    [
        (1, b'headgate.schema.proto:1:32: "int3" is not defined.\n'),
        (1, b"out.desc: File too large\n"),
        (-signal.SIGABRT, b"terminate called after throwing an instance of 'std::bad_alloc'"),
        (-signal.SIGSEGV, b""),
    ],
)
def test_a_schema_that_is_wrong_or_takes_too_much_is_refused(
    monkeypatch: pytest.MonkeyPatch, code: int, stderr: bytes
) -> None:
    _end_protoc_as(monkeypatch, code, stderr)
    with pytest.raises(UnfitTypes, match="protoc refuses it"):
        compile_proto_text("", {})


@pytest.mark.parametrize("behind", [b"", b'{"a":1}', b"\xff" * 20])
@pytest.mark.parametrize("front", [b"\0\0\0\0\1", b"\1" + b"g" * 16])
def test_an_id_without_message_indexes_is_seen(front: bytes, behind: bytes) -> None:
    good = front + b"\0" + b"x"
    frames = {
        tuple(rows.tolist()): frame
        for frame, rows, _ in split_by_message_frame([front + behind, good])
    }
    assert frames == {(0,): front, (1,): front + b"\0"}


def test_what_is_shorter_than_an_id_has_no_frame() -> None:
    assert [frame for frame, *_ in split_by_message_frame([b"\0\0\0", b"\1" * 8, b""])] == [b""]
