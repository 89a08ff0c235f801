"""Values nested in one another: a row or a bad record, whoever calls, and in bounded time."""

from __future__ import annotations

import json
from uuid import UUID

import pyarrow as pa
import pytest

from headgate.data_plane.formats.format_registry import create_record_format
from headgate.data_plane.formats.json import values
from headgate.data_plane.formats.json.values import DEPTH_MAX, BadValue, json_text
from headgate.data_plane.formats.record_format import UndecodableRecords

pytestmark = pytest.mark.usefixtures("either_loops")

TEXT = pa.schema([pa.field("a", pa.large_string())])
NUMBER = pa.schema([pa.field("a", pa.int64())])
OTHER = pa.schema([pa.field("b", pa.int64())])


def nested(levels: int) -> bytes:
    """An object with so many levels, its own included."""
    arrays = levels - 1
    return b'{"a":' + b"[" * arrays + b"]" * arrays + b"}"


@pytest.mark.parametrize("levels", [DEPTH_MAX + 1, 330, 500, 989, 2_000, 100_000])
@pytest.mark.parametrize("schema", [TEXT, NUMBER, OTHER], ids=["text", "number", "other"])
def test_json_nested_too_deeply_is_a_bad_record(levels: int, schema: pa.Schema) -> None:
    with pytest.raises(UndecodableRecords) as caught:
        create_record_format("json", {}).decode([b"{}", nested(levels), b"{}"], schema)
    assert caught.value.bad == {1: f"is nested more than {DEPTH_MAX} levels deep"}
    assert caught.value.rest.num_rows == 2


@pytest.mark.parametrize("levels", [2, 63, 64, 65, DEPTH_MAX])
def test_json_nested_less_deeply_is_a_row(levels: int) -> None:
    found = create_record_format("json", {}).decode([nested(levels)], TEXT)
    assert found.to_pylist() == [{"a": "[" * (levels - 1) + "]" * (levels - 1)}]
    assert create_record_format("json", {}).decode([nested(levels)], OTHER).to_pylist() == [
        {"b": None}
    ]


def test_the_depth_does_not_hang_on_the_callers() -> None:
    def called(frames: int) -> None:
        if frames:
            called(frames - 1)
        else:
            values.parse_record(nested(DEPTH_MAX))
            with pytest.raises(BadValue, match="levels deep"):
                values.parse_record(nested(DEPTH_MAX + 1))

    called(0)
    called(300)


@pytest.mark.parametrize("levels", [300, 600, 980, 5_000])
def test_connect_json_nested_too_deeply_is_a_bad_record(levels: int) -> None:
    schema = b'{"type":"array","items":' * levels + b'{"type":"int64"}' + b"}" * levels
    field = b'{"type":"struct","fields":[{"field":"a","type":"string"}]}'
    deep = b"[" * levels + b"]" * levels
    good = b'{"schema":%s,"payload":{"a":"x"}}' % field
    bad = [
        b'{"schema":%s,"payload":1}' % schema,
        b'{"schema":%s,"payload":{"a":%s}}' % (field, deep),
        b'{"payload":{"a":%s},"schema":null}' % deep,
        b'{"schema":{"type":"struct","fields":[{"field":"a","type":"array","items":%s}]},'
        b'"payload":{"a":[]}}' % schema,
    ]
    with pytest.raises(UndecodableRecords) as caught:
        create_record_format("connect-json", {}).decode([good, *bad, good], TEXT)
    assert set(caught.value.bad) == {1, 2, 3, 4}
    assert caught.value.rest.to_pylist() == [{"a": "x"}] * 2


def test_json_text_says_again_what_was_parsed() -> None:
    text = '{"a":[],"b":{},"c":[1,[true,null],{"d":"\\u00e9\\"","e":-1.50}],"f":"{\\"x\\":1}"}'
    assert json_text(values.parse_record(text.encode())) == text
    assert json.loads(json_text([1, [2, [3]]])) == [1, [2, [3]]]


UUIDS = pa.schema([pa.field("s", pa.struct([("u", pa.uuid()), ("l", pa.large_list(pa.uuid()))]))])


def test_uuids_inside_of_structs_are_read_one_by_one_too() -> None:
    uuid = "123e4567-e89b-12d3-a456-426614174000"
    sound = b'{"s":{"u":"%s","l":["%s",null]}}' % (uuid.encode(), uuid.encode())
    deep = sound[:-1] + b',"other":' + b"[" * 70 + b"]" * 70 + b"}"
    with pytest.raises(UndecodableRecords) as caught:
        create_record_format("json", {}).decode([sound, deep, b"{", b"{}"], UUIDS)
    assert list(caught.value.bad) == [2]
    row = {"s": {"u": UUID(uuid), "l": [UUID(uuid), None]}}
    assert caught.value.rest.to_pylist() == [row, row, {"s": None}]


UNION = {
    "type": "record",
    "name": "outer",
    "fields": [
        {
            "name": "a",
            "type": [
                "string",
                {"type": "record", "name": "q", "fields": [{"name": "x", "type": "long"}]},
            ],
        }
    ],
}
STRUCT = pa.schema([pa.field("a", pa.struct([pa.field("x", pa.int64())]))])


@pytest.mark.parametrize("records", [1, 2, 5])
def test_a_union_of_text_and_record_is_read_exactly_into_a_struct(records: int) -> None:
    reading = create_record_format("avro", {"schema": json.dumps(UNION)})
    found = reading.decode([b"\x02\x04"] * records, STRUCT)
    assert found.to_pylist() == [{"a": {"x": 2}}] * records


def test_its_other_branch_is_a_bad_record() -> None:
    reading = create_record_format("avro", {"schema": json.dumps(UNION)})
    with pytest.raises(UndecodableRecords) as caught:
        reading.decode([b"\x02\x04", b"\x00\x02h", b"\x02\x08"], STRUCT)
    assert list(caught.value.bad) == [1]
    assert "text cannot go into a column of type struct" in caught.value.bad[1]
    assert caught.value.rest.to_pylist() == [{"a": {"x": 2}}, {"a": {"x": 4}}]


@pytest.mark.parametrize("branch", ["string", "bytes", "int", "double", "boolean"])
@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([("x", pa.int64())]),
        pa.large_list(pa.int64()),
        pa.map_(pa.large_string(), pa.int64()),
        pa.uuid(),
        pa.time64("us"),
        pa.binary(3),
        pa.decimal128(9, 2),
    ],
    ids=str,
)
def test_a_branch_that_no_record_takes_ends(branch: str, kind: pa.DataType) -> None:
    schema = {**UNION, "fields": [{"name": "a", "type": ["null", branch, "long"]}]}
    reading = create_record_format("avro", {"schema": json.dumps(schema)})
    found = reading.decode([b"\x00"] * 3, pa.schema([pa.field("a", kind)]))
    assert found.column(0).null_count == 3
