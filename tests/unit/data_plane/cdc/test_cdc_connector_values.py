"""Values that connectors write and tables have no type for: exact, or bad; never a guess."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from support.changes_desk import ChangesDesk, Done, Message
from support.local_catalog import local_catalog
from unit.data_plane.formats.avro_worlds import encoded, physical

from headgate.control_protocol.errors import SourceTruncated
from headgate.control_protocol.ports import BatchFailed
from headgate.data_plane.cdc.policy import Changes, Envelope
from headgate.data_plane.formats.column_options import ColumnRule
from headgate.data_plane.formats.connect.schema_inference import columns_of

Schema = dict[str, Any]

ID: Schema = {"type": "int64", "field": "id"}
VARIABLE: Schema = {
    "type": "struct",
    "name": "io.debezium.data.VariableScaleDecimal",
    "fields": [{"type": "int32", "field": "scale"}, {"type": "bytes", "field": "value"}],
}
SPARSE: Schema = {
    "type": "struct",
    "name": "io.debezium.data.SparseVector",
    "fields": [
        {"type": "int16", "field": "dimensions"},
        {
            "type": "map",
            "keys": {"type": "int16"},
            "values": {"type": "double"},
            "field": "vector",
        },
    ],
}


def decimal_of(scale: int) -> Schema:
    name = "org.apache.kafka.connect.data.Decimal"
    return {"type": "bytes", "name": name, "parameters": {"scale": str(scale)}}


def of_time(name: str, kind: str) -> Schema:
    return {"type": kind, "name": f"io.debezium.time.{name}"}


def digits(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def deleted(fields: Sequence[Schema], before: dict[str, Any], key: int) -> Message:
    schema = {"type": "struct", "fields": [ID]}
    return json.dumps({"schema": schema, "payload": {"id": key}}).encode(), said(
        "d", fields, before=before
    )


def unscaled(number: int) -> str:
    return base64.b64encode(digits(number)).decode()


def variable(number: int, scale: int) -> dict[str, Any]:
    return {"scale": scale, "value": unscaled(number)}


def said(op: str, fields: Sequence[Schema], **rows: Any) -> bytes:
    inside = {"type": "struct", "fields": fields, "optional": True}
    envelope = {
        "type": "struct",
        "fields": [
            {**inside, "field": "before"},
            {**inside, "field": "after"},
            {"type": "string", "field": "op"},
        ],
    }
    payload = {"before": None, "after": None, "op": op, **rows}
    return json.dumps({"schema": envelope, "payload": payload}).encode()


def written(
    home: Path, column: str, schema: Schema, values: Sequence[Any], rule: ColumnRule | None = None
) -> Done:
    desk = ChangesDesk(
        local_catalog(home),
        Changes(("id",), Envelope.DEBEZIUM),
        columns={"id": "long not null", "v": column},
        format_name="connect-json",
        rules={"v": rule} if rule else {},
    )
    fields = [ID, {**schema, "field": "v", "optional": True}]
    return desk.write(
        *((None, said("c", fields, after={"id": at, "v": v})) for at, v in enumerate(values))
    )


EXACT: list[tuple[str, Schema, list[tuple[Any, Any]]]] = [
    (
        "decimal(38, 3)",
        VARIABLE,
        [
            (variable(12345, 2), Decimal("123.450")),
            (variable(-7, 0), Decimal("-7.000")),
            (None, None),
            (variable(12, -3), Decimal("12000.000")),
            (variable(5 * 10**40, 41), Decimal("0.500")),
            (variable(0, 2**31 - 1), Decimal("0.000")),
        ],
    ),
    ("long", VARIABLE, [(variable(7, 0), 7), (variable(700, 2), 7), (variable(7, -2), 700)]),
    ("double", VARIABLE, [(variable(12345, 2), 123.45)]),
    (
        "struct<scale: int, value: binary>",
        VARIABLE,
        [(variable(7, 1), {"scale": 1, "value": b"\x07"})],
    ),
    ("decimal(20, 0)", decimal_of(-2), [(unscaled(5), Decimal(500)), (None, None)]),
    ("date", of_time("IsoDate", "string"), [("2023-11-21Z", date(2023, 11, 21))]),
    ("time", of_time("IsoTime", "string"), [("12:30:15.5Z", time(12, 30, 15, 500_000))]),
    ("time", of_time("ZonedTime", "string"), [("12:30:15Z", time(12, 30, 15))]),
    ("int", of_time("Year", "int32"), [(2024, 2024)]),
    ("long", of_time("MicroDuration", "int64"), [(-1_000_000, -1_000_000)]),
]


@pytest.mark.parametrize(("column", "schema", "values"), EXACT)
def test_values_of_connectors_are_exact(
    tmp_path: Path, column: str, schema: Schema, values: list[tuple[Any, Any]]
) -> None:
    done = written(tmp_path, column, schema, [value for value, _ in values])
    assert not done.bad
    assert [row["v"] for row in done.rows] == [expected for _, expected in values]


def test_decimals_become_text_where_that_is_asked_for(tmp_path: Path) -> None:
    values = [variable(12345, 2), None, variable(1, 200), variable(-1, -1)]
    done = written(tmp_path, "string", VARIABLE, values, ColumnRule(as_text=True))
    assert [row["v"] for row in done.rows] == ["123.45", None, "-10"]
    assert set(done.bad) == {2}


REFUSED: list[tuple[str, Schema, Any]] = [
    ("date", of_time("Year", "int32"), 2024),
    ("time", of_time("MicroDuration", "int64"), 1_000_000),
    ("timestamp", of_time("NanoDuration", "int64"), 1_000_000),
    ("time", of_time("ZonedTime", "string"), "12:30:15+02:00"),
    ("double", {"type": "double"}, "NaN"),
    ("timestamptz", of_time("ZonedTimestamp", "string"), "infinity"),
    ("timestamp", of_time("MicroTimestamp", "int64"), 9_223_372_036_825_200_000),
    ("decimal(38, 3)", VARIABLE, variable(12345, 4)),
    ("decimal(38, 3)", VARIABLE, variable(1, 2**31 - 1)),
    ("decimal(38, 3)", VARIABLE, variable(1, -(2**31))),
    ("decimal(38, 3)", VARIABLE, {"scale": None, "value": "Bw=="}),
    ("string", VARIABLE, variable(7, 0)),
    ("decimal(20, 5)", decimal_of(127), unscaled(5)),
    ("map<string, double>", SPARSE["fields"][1], [[1, 1.5]]),
]


@pytest.mark.parametrize(("column", "schema", "value"), REFUSED)
def test_quarantine_4_what_no_column_can_hold_is_a_bad_record_and_no_other(
    tmp_path: Path, column: str, schema: Schema, value: Any
) -> None:
    done = written(tmp_path, column, schema, [None, value, None])
    assert [row["id"] for row in done.rows] == [0, 2]
    assert "v" in done.bad[1]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (decimal_of(127), unscaled(5)),
        (SPARSE, {"dimensions": 5, "vector": [[1, 1.5]]}),
        ({"type": "novelty"}, [{"x": 1}]),
        ({"type": "novelty"}, 5),
        ({"type": "struct", "fields": "none"}, {}),
    ],
)
def test_a_field_that_cannot_be_read_spoils_no_record_that_lets_it_be(
    tmp_path: Path, schema: Schema, value: Any
) -> None:
    desk = ChangesDesk(
        local_catalog(tmp_path), Changes(("id",), Envelope.DEBEZIUM), format_name="connect-json"
    )
    fields = [ID, {**schema, "field": "other", "optional": True}]
    rows = ({"id": 1, "other": value}, {"id": 2, "other": None})
    done = desk.write(*((None, said("c", fields, after=row)) for row in rows))
    assert [row["id"] for row in done.rows] == [1, 2]


def test_no_column_is_proposed_that_nobody_could_fill() -> None:
    fields = [
        {**decimal_of(-2), "field": "whole"},
        {**decimal_of(127), "field": "fine"},
        {**SPARSE["fields"][1], "field": "by_number"},
        {"type": "novelty", "field": "new"},
    ]
    (column,) = columns_of({"type": "struct", "fields": fields}).fields
    assert (column.name, column.type) == ("whole", "decimal(0, 0)")


def test_a_key_may_be_a_decimal_of_any_scale(tmp_path: Path) -> None:
    desk = ChangesDesk(
        local_catalog(tmp_path),
        Changes(("ID",), Envelope.DEBEZIUM),
        columns={"ID": "decimal(38, 0) not null"},
        format_name="connect-json",
    )
    fields = [{**VARIABLE, "field": "ID"}]
    schema = {"type": "struct", "fields": fields}
    key = json.dumps({"schema": schema, "payload": {"ID": variable(7, 0)}}).encode()
    done = desk.write(
        (key, said("c", fields, after={"ID": variable(7, 0)})),
        (key, said("d", fields, before={"ID": variable(70, 1)})),
        (key, None),
    )
    assert [row["ID"] for row in done.rows] == [Decimal(7)]
    assert done.deletes == {1: (Decimal(7),), 2: (Decimal(7),)}


def test_decimals_of_any_scale_in_avro(tmp_path: Path) -> None:
    variable_scale = {
        "type": "record",
        "name": "VariableScaleDecimal",
        "namespace": "io.debezium.data",
        "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    }
    row = {
        "type": "record",
        "name": "Value",
        "fields": [{"name": "id", "type": "long"}, {"name": "v", "type": ["null", variable_scale]}],
    }
    schema = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", row]},
            {"name": "after", "type": ["null", "Value"]},
            {"name": "op", "type": "string"},
        ],
    }
    desk = ChangesDesk(
        local_catalog(tmp_path),
        Changes(("id",), Envelope.DEBEZIUM),
        columns={"id": "long not null", "v": "decimal(12, 2)"},
        format_name="avro",
        key_format="string",
        options={"schema": json.dumps(schema)},
    )
    values = [{"scale": 2, "value": digits(-12345)}, None, {"scale": 0, "value": digits(3)}]
    done = desk.write(
        *(
            (
                b"1",
                encoded(physical(schema), {"before": None, "after": {"id": at, "v": v}, "op": "c"}),
            )
            for at, v in enumerate(values)
        )
    )
    assert [row["v"] for row in done.rows] == [Decimal("-123.45"), None, Decimal(3)]


FILLED: list[tuple[Envelope, dict[str, Any]]] = [
    (Envelope.FLATTENED, {"id": 1, "n": "", "__deleted": "true"}),
    (Envelope.FLATTENED, {"n": "", "__op": "d"}),
    (Envelope.DMS, {"data": {"id": 1, "n": "x"}, "metadata": {"operation": "delete"}}),
    (Envelope.DMS, {"Op": "D", "id": 1, "n": "x"}),
]


@pytest.mark.parametrize(("envelope", "value"), FILLED)
def test_a_delete_goes_by_its_key_whatever_else_is_in_its_row(
    tmp_path: Path, envelope: Envelope, value: dict[str, Any]
) -> None:
    marks = {"Op": "I"} if envelope is Envelope.DMS else {}
    sound, bad = ({"id": key, "n": n, **marks} for key, n in ((5, 1), (6, "x")))
    values = [sound, value, bad, value, sound]
    messages: list[Message] = [(b'{"id": 1}', json.dumps(each).encode()) for each in values]
    done = ChangesDesk(local_catalog(tmp_path), Changes(("id",), envelope)).write(*messages)
    assert [row["id"] for row in done.rows] == [5, 5]
    assert done.deletes == {1: (1,), 3: (1,)}
    assert set(done.bad) == {2}


def test_a_truncate_of_dms_stops_the_sink(tmp_path: Path) -> None:
    control = [
        {"control": {}, "metadata": {"record-type": "control", "operation": operation}}
        for operation in ("drop-table", "create-table", "truncate-table")
    ]
    desk = ChangesDesk(local_catalog(tmp_path), Changes(("id",), Envelope.DMS))
    outcome = desk.outcome([(None, json.dumps(value).encode()) for value in control])
    assert isinstance(outcome, BatchFailed)
    assert isinstance(outcome.fatal, SourceTruncated)
    assert set(outcome.fatal.first.values()) == {2}
    assert "offset 2" in outcome.reason


def test_quarantine_4_a_key_of_another_format_than_the_values_says_what_is_to_be_set(
    tmp_path: Path,
) -> None:
    desk = ChangesDesk(
        local_catalog(tmp_path), Changes(("id",), Envelope.DEBEZIUM), format_name="connect-json"
    )
    done = desk.write((b'{"id": 1}', None), (b"Struct{id=1}", None))
    assert all("format.key_type" in reason for reason in done.bad.values())
    assert len(done.bad) == 2


def test_what_no_column_takes_makes_no_record_bad(tmp_path: Path) -> None:
    """PostgreSQL's NaN came as text in the row before, and the delete was a bad record."""
    ratio: Schema = {"type": "double", "field": "ratio", "optional": True}
    other: Schema = {"type": "int32", "field": "other", "optional": True}
    fields = [ID, ratio, other]
    changes = Changes(("id",), Envelope.DEBEZIUM)
    columns = {"id": "long not null", "ratio": "double"}
    desk = ChangesDesk(
        local_catalog(tmp_path), changes, columns=columns, format_name="connect-json"
    )
    done = desk.write(
        (None, said("c", fields, after={"id": 1, "ratio": 0.5, "other": "NaN"})),
        deleted(fields, {"id": 2, "ratio": "NaN", "other": "NaN"}, 2),
        (None, said("u", fields, before={"id": 3, "ratio": "NaN"}, after={"id": 3, "ratio": 1})),
        (None, said("u", fields, after={"id": 4, "ratio": "NaN"})),
    )
    assert done.rows == [{"id": 1, "ratio": 0.5}, {"id": 3, "ratio": 1.0}]
    assert done.deletes == {1: (2,)}
    assert [*done.bad] == [3]
    assert "after.ratio" in done.bad[3]
