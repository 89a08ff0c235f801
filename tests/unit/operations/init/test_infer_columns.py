"""Columns proposed from records: as narrow as what was seen, and every record fits them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from headgate.config.sink_sections import FormatSettings
from headgate.data_plane.formats.column_options import ColumnRule, with_read_options_of_rule
from headgate.data_plane.formats.json.format import JsonRecords
from headgate.operations.init.infer_columns import (
    COLUMNS_MAX,
    FIELDS_MAX,
    ProposedColumn,
    propose_columns,
)
from headgate.operations.init.infer_record_format import propose_from_records
from headgate.tables.iceberg.type_parser import parse_columns


def columns(*documents: Any) -> dict[str, ProposedColumn]:
    made = propose_columns(documents).columns
    return {column.name: column for column in made}


def proposed(*documents: Any) -> dict[str, str]:
    return {name: column.type for name, column in columns(*documents).items()}


def reason(*documents: Any) -> dict[str, str]:
    return dict(propose_columns(documents).left_out)


def test_names_that_iceberg_keeps_for_itself_are_left_out_at_the_top() -> None:
    document = {"_file": 1, "a": {"_file": 1}}
    assert proposed(document) == {"a": "struct<_file: long>"}
    assert reason(document) == {"_file": "Iceberg keeps this name for itself"}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([True, None], "boolean"),
        ([1, 2**63 - 1, -(2**63)], "long"),
        ([1, 2**63], "decimal(38, 0)"),
        ([1, 1.5], "double"),
        (["a", "2026-01-31"], "string"),
        (["2026-01-31", "2026-02-28"], "date"),
        (["2026-01-31T06:00:00Z", "2026-01-31 06:00:00.5+02:00"], "timestamptz"),
        (["2026-01-31T06:00:00"], "timestamp"),
        (["2026-01-31T06:00:00", "2026-01-31T06:00:00Z"], "timestamp"),
        (["2026-01-31T06:00:00", "2026-01-31T06:00:00+05:30"], "timestamptz"),
        (["2026-01-31T06:00:00", 1_769_839_200_000], "timestamptz"),
        (["2026-13-31"], "string"),
        ([[1], [], [2.5]], "list<double>"),
        ([{"a": 1}, {"b": {"c": "x"}}], "struct<a: long, b: struct<c: string>>"),
        (["text", {"a": 1}, [1]], "string"),
    ],
)
def test_a_type_that_every_value_fits(values: list[object], kind: str) -> None:
    assert proposed(*({"x": value} for value in values)) == {"x": kind}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([None, None], "null or empty in every record"),
        ([[], []], "null or empty in every record"),
        ([[{"y": 1}, {"y": "a"}]], "no field of it has a type"),
        ([{}], "no field of it has a type"),
    ],
)
def test_what_has_no_type_is_left_out_with_the_reason(values: list[object], why: str) -> None:
    documents = [{"x": value} for value in values]
    assert proposed(*documents) == {}
    assert why in reason(*documents)["x"]


def test_names_that_no_column_can_have_are_left_out() -> None:
    document = {"Id": 1, "id": 2, "a b": 3, "": 4, "in": {"x y": 1, "z": 2}}
    assert proposed(document) == {"Id": "long", "in": "struct<z: long>"}
    assert set(reason(document)) == {"id", "a b", "", "in.x y"}


def test_many_keys_are_a_map_and_many_columns_have_a_bound() -> None:
    keys = {f"k{number}": number for number in range(FIELDS_MAX + 1)}
    assert proposed({"counts": keys}) == {"counts": "map<string, long>"}
    wide = {f"c{number}": number for number in range(COLUMNS_MAX + 1)}
    assert len(proposed(wide)) == COLUMNS_MAX
    assert f"{COLUMNS_MAX} columns" in reason(wide)[f"c{COLUMNS_MAX}"]
    wide = {f"n{number}": None for number in range(10)} | wide
    assert len(proposed(wide)) == COLUMNS_MAX, "what is left out takes no column's place"


def test_what_is_deep_is_text() -> None:
    deep: Any = 1
    for _ in range(8):
        deep = {"d": deep}
    assert "string" in proposed({"x": deep})["x"]


def test_records_that_are_no_objects_are_counted() -> None:
    values = (b'{"a": 1}', b"[1]", b"not json", b"[" * 100_000)
    given = FormatSettings(type="json")
    proposal = propose_from_records(
        [(None, value) for value in values], given, is_format_given=True
    ).proposal
    assert (proposal.records, proposal.others) == (4, 3)
    assert proposal.columns == (ProposedColumn("a", "long"),)


@pytest.mark.parametrize(
    "values",
    [
        [1, "a"],
        [True, 1],
        [10**38],
        [1, {"a": 1}],
        [[1, "a"], ["b"]],
        [[[1, True]]],
        ["2026-01-31T06:00:00", 17],
        ["2026-01-31T06:00:00", 1_769_839_200_000, 1_769_839_200],
        ["2026-01-31T06:00:00", 1_769_839_200.5],
    ],
)
def test_values_of_several_kinds_become_the_text_that_stands_in_the_record(
    values: list[object],
) -> None:
    found = columns(*({"x": value} for value in values))
    assert found == {"x": ProposedColumn("x", "string", as_text=True)}


@pytest.mark.parametrize(
    ("number", "unit"),
    [(1_769_839_200, "s"), (1_769_839_200_000_000, "us"), (1_769_839_200_000_000_000, "ns")],
)
def test_times_as_text_and_as_numbers_share_a_column_with_their_unit(
    number: int, unit: str
) -> None:
    found = columns({"x": "2026-01-31 06:00+02"}, {"x": number}, {"x": None})
    assert found == {"x": ProposedColumn("x", "timestamptz", unit=unit)}


def test_an_inner_field_of_several_kinds_becomes_a_column_of_its_own() -> None:
    documents = [{"a": {"b": {"c": 1, "d": 1}}}, {"a": {"b": {"c": "x"}}}]
    found = columns(*documents)
    assert found["a"].type == "struct<b: struct<d: long>>"
    assert found["a_b_c"] == ProposedColumn("a_b_c", "string", "a.b.c", as_text=True)
    assert "a column a_b_c" in reason(*documents, {"A_B_C": 1})["a.b.c"]


def test_a_column_of_text_that_is_nearly_one_of_times_says_which_value_is_none() -> None:
    times = [{"x": "2026-01-31T06:00:00Z"}] * 9
    assert columns(*times, {"x": ""})["x"].note.startswith("1 of 10 values are no times, such as")
    assert not columns(*times[:1], {"x": ""}, {"x": "a"})["x"].note


TIMES = st.integers(1_600_000_000, 1_700_000_000)
LEAVES = (
    st.none()
    | TIMES
    | TIMES.map(lambda seconds: seconds * 1000)
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.sampled_from(["2026-01-31", "2026-01-31T06:00:00Z", "", "x"])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abA"), inner),
    max_leaves=6,
)


@given(st.lists(st.dictionaries(st.sampled_from("xyXz"), VALUES, max_size=3), max_size=5))
def test_every_record_fits_the_columns_that_were_proposed_from_it(documents: list[Any]) -> None:
    values = [json.dumps(document).encode() for document in documents]
    proposal = propose_columns(documents)
    own = {each.name: each for each in proposal.columns if not each.path}
    if not own:  # a batch without columns has no rows
        return
    schema = schema_to_pyarrow(Schema(*parse_columns({k: each.type for k, each in own.items()})))
    rules = {k: ColumnRule(unit=each.unit, as_text=each.as_text) for k, each in own.items()}
    marked = pa.schema([with_read_options_of_rule(column, rules[column.name]) for column in schema])
    assert JsonRecords().decode(values, marked).num_rows == len(values)
