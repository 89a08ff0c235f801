"""The fast path and the slow one are two accounts of the same rules: they must agree."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from unit.data_plane.formats.json_tables import COLUMNS, document, plain_rows

from headgate.data_plane.formats.json import columns, values
from headgate.data_plane.formats.json.columns import Unfit
from headgate.native.byte_arrays import Packed

digits = st.integers(0, 40).flatmap(lambda n: st.text("0123456789", min_size=n, max_size=n))
number_texts = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.sampled_from([2**31, 2**53, 2**63, 10**8, 10**28]).flatmap(
        lambda edge: st.integers(-edge - 3, -edge + 3).map(lambda n: str(-n))
    ),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.tuples(st.integers(-(10**12), 10**12), digits.filter(bool)).map(lambda t: f"{t[0]}.{t[1]}"),
    st.tuples(st.integers(-(10**30), 10**30), st.integers(-60, 60)).map(lambda t: f"{t[0]}e{t[1]}"),
)
dates = st.dates().map(str)
times = st.times().map(str)
zones = st.sampled_from(["", "Z", "+00", "-00:00", "+0000", "+05:30", "-1100", "+24:00", "z"])
moments = st.tuples(dates, st.sampled_from("T _"), times, digits, zones).map(
    lambda t: f"{t[0]}{t[1]}{t[2]}{t[3][:3]}{t[4]}"
)
words = st.one_of(
    number_texts,
    dates,
    times,
    moments,
    st.uuids().map(str),
    st.binary(max_size=6).map(lambda b: __import__("base64").b64encode(b).decode()),
    st.text(max_size=8),
    st.sampled_from(["2026-08-01T12", "12", "2026-02-29", "1900-02-29", "24:00:00", "9999-12-31"]),
)
plain = st.one_of(number_texts, words.map(json.dumps), st.sampled_from(["true", "false", "null"]))
nested = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda texts: f"[{','.join(texts)}]"),
        st.lists(
            st.tuples(st.sampled_from(["a", "b", "m", "k"]), inner),
            max_size=3,
            unique_by=lambda pair: pair[0],
        ).map(lambda pairs: "{" + ",".join(f'"{key}":{text}' for key, text in pairs) + "}"),
    ),
    max_leaves=5,
)


@pytest.mark.parametrize("column", COLUMNS)
@settings(max_examples=examples(100), deadline=None)
@given(text=st.one_of(plain, nested))
def test_what_the_fast_path_takes_the_slow_one_takes_alike(column: str, text: str) -> None:
    schema = pa.schema([("v", COLUMNS[column])])
    record = values.parse_record(document(text))
    spelling: columns.Spelling = {}
    columns.learn_number_or_text(spelling, schema.field(0), record["v"])
    try:
        fast = columns.decode_block_or_raise(Packed.from_values([document(text)]), schema, spelling)
    except Unfit:
        return
    assert _shown(fast) == _shown(_slowly(record, schema))


@pytest.mark.parametrize("column", sorted(set(COLUMNS) - {"string", "map", "deep"}))
@settings(max_examples=examples(100), deadline=None)
@given(text=st.one_of(plain, nested))
def test_what_the_slow_path_refuses_the_fast_one_refuses(column: str, text: str) -> None:
    schema = pa.schema([("v", COLUMNS[column])])
    record = values.parse_record(document(text))
    try:
        _slowly(record, schema)
    except values.BadValue:
        # Whatever it has learned about how the topic spells its values.
        ambiguous = pa.types.is_temporal(COLUMNS[column]) or pa.types.is_decimal(COLUMNS[column])
        for spelling in ({}, {".v": True}, {".v": False}) if ambiguous else ({},):
            with pytest.raises(Unfit):
                columns.decode_block_or_raise(
                    Packed.from_values([document(text)]), schema, spelling
                )


def _slowly(record: dict[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    row = {field.name: values.convert_field(field, record) for field in schema}
    return pa.RecordBatch.from_pylist([row], schema)


def _shown(batch: pa.RecordBatch) -> str:
    """Text that tells -0.0 from 0.0, which are equal."""
    return repr(plain_rows(batch))
