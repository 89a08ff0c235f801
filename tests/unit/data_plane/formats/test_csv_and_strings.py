"""Lines of cells, texts and bytes: values that name no fields."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.data_plane.formats.json_tables import COLUMNS, plain_rows

from headgate.control_protocol.errors import ConfigurationError
from headgate.data_plane.formats.format_registry import create_record_format
from headgate.data_plane.formats.record_format import UndecodableRecords


def schema_of(*names: str) -> pa.Schema:
    return pa.schema([(name, COLUMNS[name]) for name in names])


def decoded(
    name: str, values: Sequence[bytes], schema: pa.Schema, **options: str
) -> list[dict[str, Any]]:
    return plain_rows(create_record_format(name, options).decode(values, schema))


def reasons(
    name: str, values: Sequence[bytes], schema: pa.Schema, **options: str
) -> Mapping[int, str]:
    try:
        create_record_format(name, options).decode(values, schema)
    except UndecodableRecords as error:
        assert error.rest.num_rows + len(error.bad) == len(values)
        return error.bad
    return {}


def test_t7_to_t17_cells_become_what_their_columns_are() -> None:
    schema = schema_of(
        *("int", "double", "decimal", "boolean", "string", "date", "time", "timestamptz", "binary")
    )
    line = b"1,0.1,123.45,true,a b,2026-08-01,12:30:15.123,2026-08-01 12:00:00+0000,AAECAw==\r\n"
    expected = {
        "int": 1,
        "double": 0.1,
        "decimal": Decimal("123.45"),
        "boolean": True,
        "string": "a b",
        "date": 20666,
        "time": 45_015_123_000,
        "timestamptz": 1_785_585_600_000_000,
        "binary": b"\x00\x01\x02\x03",
    }
    assert decoded("csv", [line, line], schema) == [expected] * 2
    quoted = line.replace(b"a b", b'"a b"')
    assert decoded("csv", [line, quoted], schema) == [expected] * 2


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("int", b"1.5"),
        ("int", b"0x10"),
        ("int", b"3000000000"),
        ("int", b" 1"),
        ("boolean", b"yes"),
        ("boolean", b"True"),
        ("decimal", b"0.125"),
        ("date", b"01.08.2026"),
        ("double", b"nan"),
        ("struct", b"{}"),
        ("string", b"\xff"),
        ("string", b"two,cells"),
        ("string", b'"open'),
        ("string", b'in"side'),
        ("string", b'"a"b'),
    ],
)
def test_what_is_refused_is_bad_alone_and_beside_others(column: str, cell: bytes) -> None:
    schema = schema_of(column)
    assert list(reasons("csv", [cell], schema)) == [0]
    assert list(reasons("csv", [b"", cell, b""], schema)) == [1]


def test_an_empty_cell_is_null_and_an_empty_quoted_one_is_text() -> None:
    schema = schema_of("string", "int")
    assert decoded("csv", [b",", b'"",1'], schema) == [
        {"string": None, "int": None},
        {"string": "", "int": 1},
    ]
    options = {"null": "NULL"}
    assert decoded("csv", [b",1", b"NULL,1", b'"NULL",1'], schema, **options) == [
        {"string": "", "int": 1},
        {"string": None, "int": 1},
        {"string": "NULL", "int": 1},
    ]


def test_cells_may_be_named_dropped_and_delimited_otherwise() -> None:
    schema = schema_of("string", "int", "long")
    options = {"columns": "long,,string", "delimiter": "|"}
    assert decoded("csv", [b"7|dropped|x"], schema, **options) == [
        {"string": "x", "int": None, "long": 7}
    ]


cells = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\n\0"), max_size=5)


@given(lines=st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=5))
def test_what_pythons_csv_writes_is_read(lines: list[tuple[str, str, str]]) -> None:
    values = []
    for line in lines:
        out = io.StringIO()
        csv.writer(out, quoting=csv.QUOTE_ALL).writerow(line)
        values.append(out.getvalue().encode())
    schema = pa.schema([(name, pa.large_string()) for name in "abc"])
    found = decoded("csv", values, schema)
    assert [tuple(row.values()) for row in found] == lines


numbers = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, places=9).map(str),
    st.tuples(st.integers(-(10**20), 10**20), st.integers(-400, 400)).map(
        lambda t: f"{t[0]}e{t[1]}"
    ),
    st.sampled_from(["0x10", "1.", ".5", "+1", "-0", "1_0", "٣", "inf", "1e400", "1e39", ""]),
)


@pytest.mark.parametrize("column", ["int", "long", "float", "double"])
@given(text=numbers)
def test_numbers_in_text_mean_what_they_mean_in_json(column: str, text: str) -> None:
    schema, values = schema_of(column), [text.encode()]
    document = b'{"%s":"%s"}' % (column.encode(), text.encode())
    bad = reasons("json", [document], schema)
    assert bool(reasons("string", values, schema)) == bool(bad)
    if not bad:
        found = decoded("string", values, schema), decoded("json", [document], schema)
        assert repr(found[0]).replace("-0.0", "0.0") == repr(found[1]).replace("-0.0", "0.0")


@given(values=st.lists(st.text('",ab\n', max_size=7).map(str.encode), max_size=4))
def test_whether_a_line_is_bad_depends_on_it_alone(values: list[bytes]) -> None:
    schema = pa.schema([("a", pa.large_string()), ("b", pa.large_string())])
    together = set(reasons("csv", values, schema))
    assert together == {at for at, v in enumerate(values) if reasons("csv", [v], schema)}


@pytest.mark.parametrize(
    "options", [{"delimiter": ",,"}, {"delimiter": '"'}, {"columns": "a,a"}, {"header": "true"}]
)
def test_options_that_cannot_be_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="csv"):
        create_record_format("csv", options)


def test_whole_values_fill_one_column() -> None:
    assert decoded("string", ["é".encode(), b""], schema_of("string")) == [
        {"string": "é"},
        {"string": ""},
    ]
    assert decoded("string", [b"7"], schema_of("int")) == [{"int": 7}]
    assert decoded("bytes", [b"\xff\x00"], schema_of("binary")) == [{"binary": b"\xff\x00"}]
    assert decoded("bytes", [b"\xff"], schema_of("int", "binary"), column="binary") == [
        {"int": None, "binary": b"\xff"}
    ]
    assert list(reasons("string", [b"ok", b"\xff"], schema_of("string"))) == [1]
    assert list(reasons("bytes", [b"four", b"five5"], schema_of("fixed"))) == [1]
    assert list(reasons("bytes", [b"x"], schema_of("string"))) == [0]


def test_which_column_takes_the_value_must_be_clear() -> None:
    for options in ({}, {"column": "gone"}):
        with pytest.raises(ConfigurationError, match="int, binary"):
            create_record_format("bytes", options).decode([b"x"], schema_of("int", "binary"))
