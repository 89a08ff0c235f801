"""A bad record is named, whatever stands around it; good ones never depend on neighbours."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from unit.data_plane.formats.json_tables import decoded, document, one_column, reasons

from headgate.control_protocol.errors import ConfigurationError
from headgate.data_plane.formats.format_registry import create_record_format
from headgate.data_plane.formats.json.columns import decode_block_or_raise
from headgate.data_plane.formats.json.format import JsonRecords
from headgate.data_plane.formats.record_format import UndecodableRecords
from headgate.native.byte_arrays import Packed

BROKEN = [
    b"",
    b" ",
    b"null",
    b"1",
    b"[]",
    b'[{"v":1}]',
    b'"{}"',
    b"{",
    b'{"v":1',
    b'{"v":1}}',
    b'{"v":1}{"v":2}',
    b'{"v":1},{"v":2}',
    b'{"v":1}\n{"v":2}',
    b'{"v":"',
    b'{"v":"}',
    b'{"v":"\\',
    b'","v":1}',
    b'{"v":{}',
    b"{'v':1}",
    b"\xef\xbb\xbf{}",
    b'{"w":"\xff"}',
    b'{"v":nul}',
    b'{"v":1} x',
    b'{"v":' + b"[" * 100_000,
]


@pytest.mark.parametrize("broken", BROKEN)
def test_what_is_not_one_json_object_is_bad_alone_and_among_others(broken: bytes) -> None:
    good = [document(str(number)) for number in range(100)]
    assert list(reasons(one_column("int"), [broken])) == [0]
    assert list(reasons(one_column("int"), [*good, broken, *good])) == [100]


def test_broken_records_cannot_make_up_for_each_other() -> None:
    # Joined without care, the first two would be one object and the third two: three again.
    values = [b'{"v":1,"w":"x}', b'{","v":2}', b'{"v":3}{"v":4}']
    assert sorted(reasons(one_column("int"), values)) == [0, 1, 2]


def test_bad_records_are_named_one_by_one_and_the_rest_keeps_its_order() -> None:
    chance = random.Random(5)
    bad = sorted(chance.sample(range(3000), 40))
    values = [document('"x"' if row in bad else str(row)) for row in range(3000)]
    with pytest.raises(UndecodableRecords) as caught:
        JsonRecords().decode(values, one_column("int"))
    assert sorted(caught.value.bad) == bad
    assert caught.value.rest.column(0).to_pylist() == [r for r in range(3000) if r not in bad]
    assert caught.value.bad[bad[0]] == 'v: "x" is not a number'


@pytest.mark.usefixtures("either_loops")
def test_control_characters_in_strings_are_good_whoever_is_beside_them() -> None:
    lax = b'{"w":"\t","v":1}'
    assert decoded(one_column("int"), [lax]) == [{"v": 1}]
    assert list(reasons(one_column("int"), [lax, b"x", lax])) == [1]


@pytest.mark.usefixtures("either_loops")
@pytest.mark.parametrize(
    "value",
    [
        *(
            b'{"v":01}',
            b'{"v":1.}',
            b'{"v":-}',
            b'{"v":+1}',
            b'{"v":1,}',
            b'{,"v":1}',
            b'{"v":1,,"w":2}',
        ),
        *(b'{"v":1 "w":2}', b'{"w":null "v":1}', b'{"w":[1 2],"v":1}', b'{"w":[1,],"v":1}'),
        *(b'{"w":{"a":1,},"v":1}', b'{"w":1-2,"v":1}', b'{"w":1e,"v":1}', b'{"w":--1,"v":1}'),
    ],
)
def test_what_only_a_lax_parser_takes_is_bad(value: bytes) -> None:
    good = b'{"v":1}'
    assert list(reasons(one_column("int"), [value])) == [0]
    assert list(reasons(one_column("int"), [good, value, good])) == [1]
    assert reasons(one_column("int"), [value])[0].startswith("not a JSON object: ")


def test_reasons_say_where() -> None:
    values = [b'{"v":{"a":1.5}}', b'{"v":{"b":"soon"}}']
    assert reasons(one_column("struct"), values) == {
        0: "v.a: 1.5 is not a whole number",
        1: 'v.b: "soon" is not a timestamp like 2026-08-01T12:30:15.123456Z',
    }


def test_no_values_are_no_rows() -> None:
    assert decoded(one_column("int"), []) == []


def test_one_decoder_serves_tables_and_topics_that_change_their_spelling() -> None:
    records = JsonRecords()
    for text in ('"2026-08-01"', "20666", '"2026-08-01"'):
        batch = records.decode([document(text)] * 100, one_column("date"))
        assert batch.column(0).cast("int32").to_pylist() == [20666] * 100


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="json"):
        create_record_format("jsn", {})


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="lenient"):
        create_record_format("json", {"lenient": "true"})


def test_few_long_records_leave_nothing_of_the_parser_behind() -> None:
    """Rows that wait for their file are counted by their size: nothing else may wait with them."""
    values = Packed.from_values([document(f'"{"x" * 1_000}"') for _ in range(1_000)])
    before = pa.total_allocated_bytes()
    rows = decode_block_or_raise(values, one_column("string"), {})
    assert rows.nbytes > 1_000_000
    assert pa.total_allocated_bytes() - before >= rows.nbytes


class Spellings(dict[pa.Schema, dict[str, bool]]):
    """Counts how often it was asked."""

    asked = 0

    def __getitem__(self, schema: pa.Schema) -> dict[str, bool]:
        self.asked += 1
        return super().__getitem__(schema)


def test_a_wide_table_is_looked_up_as_seldom_as_a_narrow_one() -> None:
    """To hash a schema costs as much as it has columns: 4,000 of them cost a minute per batch."""
    asked = set()
    for width in (1, 1_000):
        records = JsonRecords()
        records._spellings = spellings = Spellings()
        schema = pa.schema([pa.field(f"c{number}", pa.int64()) for number in range(width)])
        assert records.decode([b"{}", b'{"c0":1}'], schema).num_rows == 2
        asked.add(spellings.asked)
    assert len(asked) == 1
