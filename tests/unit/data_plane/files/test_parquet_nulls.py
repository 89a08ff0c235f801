"""A struct that is null may have required fields: its row is written, and is null again."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.data_plane.files.parquet import (
    columns_with_required_inside_optional,
    fill_required_inside_null_structs,
)
from headgate.data_plane.formats.casting.relabel import array_from_python

TEXT = pa.large_string()
INNER = pa.struct([pa.field("u", pa.uuid(), nullable=False), pa.field("n", pa.int64())])
OUTER = pa.struct(
    [
        pa.field("x", pa.int64()),
        pa.field("y", TEXT, nullable=False),
        pa.field("inner", INNER, nullable=False),
        pa.field("list", pa.large_list(pa.int64()), nullable=False),
        pa.field("fix", pa.binary(3), nullable=False),
    ]
)
GOOD: dict[str, Any] = {
    "x": 1,
    "y": "a",
    "inner": {"u": b"1" * 16, "n": None},
    "list": [1],
    "fix": b"abc",
}


def stored(table: pa.Table) -> list[Any]:
    file = io.BytesIO()
    pq.write_table(
        fill_required_inside_null_structs(
            table, columns_with_required_inside_optional(table.schema)
        ),
        file,
    )
    rows: list[Any] = pq.read_table(file).to_pylist()
    return rows


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (OUTER, [None, GOOD, None]),
        (OUTER, [None]),
        (pa.large_list(OUTER), [[None, GOOD], None, [], [GOOD]]),
        (pa.map_(TEXT, OUTER), [[("a", None), ("b", GOOD)], None, []]),
        (pa.struct([pa.field("s", OUTER)]), [{"s": None}, None, {"s": GOOD}]),
    ],
    ids=str,
)
def test_a_null_struct_with_required_fields_is_written(
    kind: pa.DataType, values: list[Any]
) -> None:
    table = pa.table([array_from_python(values, kind)], schema=pa.schema([pa.field("c", kind)]))
    expected = table.to_pylist()
    assert columns_with_required_inside_optional(table.schema) == (0,)
    assert stored(table) == expected
    assert stored(table.slice(1)) == expected[1:]


def test_a_null_in_a_record_that_is_there_is_still_refused() -> None:
    values = [{**GOOD, "y": None}, None]
    table = pa.table([array_from_python(values, OUTER)], schema=pa.schema([pa.field("c", OUTER)]))
    with pytest.raises(pa.ArrowInvalid, match="non-nullable"):
        stored(table)


def test_columns_without_such_fields_are_left_alone() -> None:
    plain = pa.schema([("a", pa.int64()), ("b", pa.struct([("x", TEXT)])), ("c", pa.uuid())])
    assert columns_with_required_inside_optional(plain) == ()
    table = plain.empty_table()
    assert fill_required_inside_null_structs(table, ()) is table
