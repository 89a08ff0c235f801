"""Which field goes into which column: name mapping, and matching regardless of case."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.data_plane.formats.avro_worlds import encoded, record

from headgate.data_plane.formats import field_names
from headgate.data_plane.formats.avro.format import AvroRecords
from headgate.data_plane.formats.connect.format import ConnectJsonRecords
from headgate.data_plane.formats.json.format import JsonRecords
from headgate.data_plane.formats.record_format import RecordFormat, UndecodableRecords

TEXT = pa.large_string()


def column(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


INNER = pa.struct([column("deep", pa.int64(), 3)])
SCHEMA = pa.schema(
    [
        column("id", pa.int64(), 1),
        column("s", INNER, 2),
        column("l", pa.large_list(pa.field("element", INNER)), 4),
        column("m", pa.map_(TEXT, INNER), 5),
    ]
)
MAPPING = json.dumps(
    [
        {"field-id": 1, "names": ["id", "record_id"]},
        {"field-id": 2, "names": ["s"], "fields": [{"field-id": 3, "names": ["was_deep"]}]},
    ]
)


def avro(rows: Sequence[Mapping[str, Any]]) -> tuple[RecordFormat, list[bytes]]:
    """All rows written with the first one's fields."""
    number = iter(range(100))

    def kind(value: Any) -> Any:
        if isinstance(value, int):
            return "long"
        if isinstance(value, list):
            return {"type": "array", "items": kind(value[0])}
        if value.keys() == {"k"}:
            return {"type": "map", "values": kind(value["k"])}
        fields = {name: kind(inner) for name, inner in value.items()}
        return {**record(**fields), "name": f"R{next(number)}"}

    schema = kind(rows[0])
    return AvroRecords({"schema": json.dumps(schema)}), [encoded(schema, row) for row in rows]


def plain_json(rows: Sequence[Mapping[str, Any]]) -> tuple[RecordFormat, list[bytes]]:
    return JsonRecords(), [json.dumps(row, ensure_ascii=False).encode() for row in rows]


def connect(rows: Sequence[Mapping[str, Any]]) -> tuple[RecordFormat, list[bytes]]:
    values = [json.dumps({"schema": None, "payload": row}).encode() for row in rows]
    return ConnectJsonRecords({}), values


def connect_with_schema(rows: Sequence[Mapping[str, Any]]) -> tuple[RecordFormat, list[bytes]]:
    """All rows written with the first one's fields."""

    def kind(value: Any, name: str = "") -> dict[str, Any]:
        known: dict[str, Any] = {"type": "int64"}
        if isinstance(value, Mapping):
            known = {"type": "struct", "fields": [kind(v, k) for k, v in value.items()]}
        return {**known, "optional": True, "field": name}

    schema = kind(rows[0])
    values = [json.dumps({"schema": schema, "payload": row}).encode() for row in rows]
    return ConnectJsonRecords({}), values


Written = Callable[[Sequence[Mapping[str, Any]]], tuple[RecordFormat, list[bytes]]]
every_format = pytest.mark.parametrize("written", [avro, plain_json, connect])


def decoded(written: Written, schema: pa.Schema, *rows: Mapping[str, Any]) -> list[dict[str, Any]]:
    records, values = written(rows)
    return records.decode(values, schema).to_pylist()


def bad_rows(written: Written, schema: pa.Schema, *rows: Mapping[str, Any]) -> dict[int, str]:
    records, values = written(rows)
    try:
        records.decode(values, schema)
    except UndecodableRecords as error:
        return error.bad
    return {}


@every_format
def test_t18_a_column_is_found_by_the_names_that_its_mapping_lists(written: Written) -> None:
    schema = field_names.with_lookup_names(SCHEMA, MAPPING, caseless=False)
    old = {"record_id": 1, "s": {"was_deep": 2}}
    new = {"id": 3, "s": {"was_deep": 4}}
    rest = {"l": None, "m": None}
    assert decoded(written, schema, old) == [{"id": 1, "s": {"deep": 2}, **rest}]
    assert decoded(written, schema, new) == [{"id": 3, "s": {"deep": 4}, **rest}]


@every_format
def test_t18_a_name_that_the_mapping_does_not_list_is_not_the_columns(written: Written) -> None:
    schema = field_names.with_lookup_names(SCHEMA, MAPPING, caseless=False)
    assert decoded(written, schema, {"id": 1, "s": {"deep": 2}})[0]["s"] == {"deep": None}


@pytest.mark.parametrize("list_of", [pa.large_list, pa.list_])
@every_format
def test_t19_case_matters_unless_it_was_said_not_to(
    written: Written, list_of: Callable[[pa.Field], pa.DataType]
) -> None:
    place = SCHEMA.get_field_index("l")
    columns = SCHEMA.set(place, column("l", list_of(pa.field("element", INNER)), 4))
    row = {"ID": 1, "S": {"Deep": 2}, "L": [{"DEEP": 3}], "M": {"k": {"dEEP": 4}}}
    nothing = {"id": None, "s": None, "l": None, "m": None}
    assert decoded(written, columns, row) == [nothing]
    schema = field_names.with_lookup_names(columns, None, caseless=True)
    assert decoded(written, schema, row) == [
        {"id": 1, "s": {"deep": 2}, "l": [{"deep": 3}], "m": [("k", {"deep": 4})]}
    ]


@pytest.mark.parametrize("written", [plain_json, connect, connect_with_schema])
def test_t19_letters_are_lowered_and_not_folded(written: Written) -> None:
    """To a table, straße and strasse are two columns."""
    inner = pa.struct([column("straße", pa.int64(), 2), column("no", pa.int64(), 3)])
    columns = pa.schema([column("maße", inner, 1), column("id", pa.int64(), 4)])
    schema = field_names.with_lookup_names(columns, None, caseless=True)
    row = {"MAßE": {"STRAßE": 1, "NO": 2}, "ID": 3}
    assert decoded(written, schema, row) == [{"maße": {"straße": 1, "no": 2}, "id": 3}]
    row = {"MASSE": {"STRASSE": 1, "NO": 2}, "ID": 3}
    assert decoded(written, schema, row) == [{"maße": None, "id": 3}]


def test_t19_so_are_the_keys_of_a_map_that_becomes_a_struct() -> None:
    inner = pa.struct([column("straße", pa.int64(), 2), column("strasse", pa.int64(), 3)])
    columns = pa.schema([column("m", inner, 1)])
    schema = field_names.with_lookup_names(columns, None, caseless=True)
    kind = json.dumps(record(m={"type": "map", "values": "long"}))
    value = encoded(json.loads(kind), {"m": {"STRAßE": 1, "Strasse": 2}})
    read = AvroRecords({"schema": kind}).decode([value], schema)
    assert read.to_pylist() == [{"m": {"straße": 1, "strasse": 2}}]


@every_format
def test_t19_two_fields_for_one_column_are_a_bad_record(written: Written) -> None:
    schema = field_names.with_lookup_names(SCHEMA, None, caseless=True)
    assert list(bad_rows(written, schema, {"id": 1, "ID": 2})) == [0]
    inside = bad_rows(written, schema, {"id": 1, "s": {"deep": 1, "Deep": 1}})
    assert "both belong into the column deep" in inside[0]


def test_t19_json_records_that_spell_otherwise_do_not_disturb_each_other() -> None:
    schema = field_names.with_lookup_names(SCHEMA, None, caseless=True)
    rows = [{"id": 0}, {"ID": 1}, {"Id": "x"}, {"iD": 3, "s": {"DEEP": 4}}]
    records, values = plain_json(rows)
    values.append(rb'{"\u0069D": 5, "other": "\"ID\":"}')
    values.append(b'{"ID": 6, "other": {"id": 7}}')
    with pytest.raises(UndecodableRecords) as caught:
        records.decode(values, schema)
    assert caught.value.bad == {2: 'Id: "x" is not a number'}
    assert caught.value.rest.column(0).to_pylist() == [0, 1, 3, 5, 6]


keys = st.sampled_from(["id", "ID", "s", "S", "deep", ":k", '"', "\\", "\u0130d", "\x00", ""])
values = st.recursive(
    st.integers(0, 9) | st.text('"\\:,{}aI', max_size=6),
    lambda inner: st.dictionaries(keys, inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=6,
)


@given(row=st.dictionaries(keys, values, max_size=5), ascii_only=st.booleans())
def test_t19_whatever_the_keys_json_finds_what_a_plain_look_finds(
    row: dict[str, Any], ascii_only: bool
) -> None:
    schema = field_names.with_lookup_names(pa.schema([("id", TEXT)]), None, caseless=True)
    found = [value for key, value in row.items() if key.lower() == "id"]
    try:
        value = json.dumps(row, ensure_ascii=ascii_only).encode()
        read = JsonRecords().decode([value], schema).column(0).to_pylist()
    except UndecodableRecords:
        assert len(found) > 1 or isinstance(found[0], int)
        return
    assert len(found) <= 1
    if not found:
        assert read == [None]
    elif isinstance(found[0], str):
        assert read == found
    else:
        assert json.loads(read[0]) == found[0]


def test_columns_that_one_name_would_fill_are_refused() -> None:
    two = pa.schema([column("id", TEXT, 1), column("ID", TEXT, 2)])
    with pytest.raises(ValueError, match="'id'"):
        field_names.with_lookup_names(two, None, caseless=True)
    mapping = json.dumps([{"field-id": 1, "names": ["x"]}, {"field-id": 2, "names": ["x"]}])
    with pytest.raises(ValueError, match="'x'"):
        field_names.with_lookup_names(two, mapping, caseless=False)


def test_a_mapping_that_is_none_is_refused() -> None:
    for text in ("{", "7", "[7]"):
        with pytest.raises(ValueError, match=r"mapping|Expecting"):
            field_names.with_lookup_names(SCHEMA, text, caseless=False)
