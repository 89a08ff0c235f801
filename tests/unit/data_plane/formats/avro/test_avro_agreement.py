"""Whatever the schema: what fastavro wrote is read as it was; what is broken is found, alone."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples
from unit.data_plane.formats.avro_worlds import (
    World,
    decoded,
    encoded,
    normal,
    reasons,
    record,
    worlds,
)

from headgate.data_plane.formats.avro.format import AvroRecords
from headgate.data_plane.formats.avro.schema import UnfitSchema, parse_schema
from headgate.data_plane.formats.record_format import UndecodableRecords

pytestmark = pytest.mark.usefixtures("either_loops")

slow = settings(
    max_examples=examples(250),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(autouse=True, params=[0, 128], ids=["together", "one by one"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of passing over the items of arrays and maps must do for everything."""
    monkeypatch.setattr("headgate.data_plane.formats.avro.columns._FEW", request.param)


def row_schema(world: World) -> tuple[Any, pa.Schema]:
    columns = pa.schema([("a", pa.int64()), ("v", world[1]), ("z", pa.large_string())])
    return record(a="long", v=world[0], z="string"), columns


@slow
@given(data=st.data(), world=worlds)
def test_t2_t3_t4_what_was_written_is_read(data: st.DataObject, world: World) -> None:
    schema, columns = row_schema(world)
    values = data.draw(st.lists(world[2], max_size=8))
    rows = [{"a": at, "v": value, "z": f"z{at}"} for at, value in enumerate(values)]
    found = decoded(schema, [encoded(schema, row) for row in rows], columns)
    expected = [{**row, "v": normal(row["v"], world[1])} for row in rows]
    assert repr(found) == repr(expected)


@slow
@given(data=st.data(), world=worlds)
def test_fields_that_the_table_does_not_have_are_passed_over(
    data: st.DataObject, world: World
) -> None:
    schema, columns = row_schema(world)
    values = data.draw(st.lists(world[2], min_size=1, max_size=8))
    rows = [{"a": at, "v": value, "z": f"z{at}"} for at, value in enumerate(values)]
    outer = pa.schema([columns.field("z"), columns.field("a")])
    found = decoded(schema, [encoded(schema, row) for row in rows], outer)
    assert found == [{"z": row["z"], "a": row["a"]} for row in rows]


@slow
@given(data=st.data(), world=worlds)
def test_a_broken_record_harms_nobody_and_crashes_nothing(
    data: st.DataObject, world: World
) -> None:
    schema, columns = row_schema(world)
    values = data.draw(st.lists(world[2], min_size=1, max_size=4))
    good = [encoded(schema, {"a": 7, "v": value, "z": "end"}) for value in values]
    at = data.draw(st.integers(0, len(good) - 1))
    broken = bytearray(good[at])
    if data.draw(st.booleans()):
        del broken[data.draw(st.integers(0, len(broken) - 1)) :]
        certain = True
    else:
        place = data.draw(st.integers(0, len(broken) - 1))
        broken[place] = data.draw(st.integers(0, 255))
        certain = False
    batch = [*good, bytes(broken), *good]
    bad = reasons(schema, batch, columns)
    assert set(bad) <= {len(good)}
    assert not certain or set(bad) == {len(good)}
    # Skipping it must find the same faults as reading it, but for text that is not UTF-8.
    outer = pa.schema([columns.field("a"), columns.field("z")])
    unread = reasons(schema, batch, outer)
    assert set(unread) <= set(bad)
    assert unread or not bad or "UTF-8" in bad[len(good)] or "twice" in bad[len(good)]


@slow
@given(world=worlds, values=st.lists(st.binary(max_size=40), max_size=8))
def test_hostile_bytes_are_bad_records_at_most(world: World, values: list[bytes]) -> None:
    schema, columns = row_schema(world)
    reasons(schema, values, columns)


@slow
@given(world=worlds, values=st.lists(st.binary(max_size=30), max_size=6))
def test_whether_a_record_is_bad_depends_on_it_alone(world: World, values: list[bytes]) -> None:
    schema, columns = row_schema(world)
    together = set(reasons(schema, values, columns))
    alone = {at for at, value in enumerate(values) if reasons(schema, [value], columns)}
    assert together == alone


def test_an_array_of_nothing_costs_no_memory() -> None:
    schema = record(v={"type": "array", "items": "null"})
    columns = pa.schema([("v", pa.large_list(pa.int32()))])
    short = encoded(schema, {"v": [None] * 256})
    assert decoded(schema, [short], columns) == [{"v": [None] * 256}]
    huge = bytes.fromhex("fe" + "ff" * 7 + "7f") + b"\x00"
    assert list(reasons(schema, [short, huge], columns)) == [1]


def test_a_short_schema_of_endless_types_is_refused_at_once() -> None:
    """Each record holds the one before it twice."""
    kind: Any = {"type": "record", "name": "R0", "fields": []}
    for n in range(1, 31):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"R{n - 1}"}]
        kind = {"type": "record", "name": f"R{n}", "fields": fields}
    with pytest.raises(UnfitSchema, match="more than 50000 types"):
        parse_schema(json.dumps(kind))


def test_schemas_that_nothing_can_hold_are_refused_once_and_for_all() -> None:
    itself = record(next=["null", "Row"])
    for schema in (itself, [], "Unknown", {"type": "record", "name": "R"}, {"type": "fixed"}):
        try:
            AvroRecords({"schema": json.dumps(schema)})
        except ValueError as error:
            assert str(error)
        else:
            raise AssertionError(schema)


def test_bad_records_leave_the_rest_in_order() -> None:
    schema, columns = record(v="long"), pa.schema([("v", pa.int64())])
    values = [encoded(schema, {"v": at}) for at in range(1000)]
    values[500] = b""
    try:
        AvroRecords({"schema": json.dumps(schema)}).decode(values, columns)
    except UndecodableRecords as error:
        assert error.bad == {500: "v: ends too early, or is not Avro"}
        assert error.rest.column(0).to_pylist() == [at for at in range(1000) if at != 500]
    else:
        raise AssertionError
