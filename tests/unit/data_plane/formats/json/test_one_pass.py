"""One pass in C takes what the rules take, with the same values, and leaves the rest to them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from unit.data_plane.formats.json.random_records import (
    random_record,
    random_schema,
    with_rules,
)
from unit.data_plane.formats.json_tables import COLUMNS, EVERYTHING, as_json, plain_rows

from headgate.control_protocol.columns import Path
from headgate.data_plane.formats.column_options import ColumnRule, with_read_options_of_rule
from headgate.data_plane.formats.json import one_pass
from headgate.data_plane.formats.json.format import JsonRecords
from headgate.data_plane.formats.record_format import UndecodableRecords
from headgate.data_plane.formats.unknown_fields import UnknownFieldFinder
from headgate.native.byte_arrays import Packed
from headgate.native.kernels import InC, loops

pytestmark = pytest.mark.skipif(not isinstance(loops(), InC), reason="no C code")


class RulesAlone(JsonRecords):
    """Reads everything by the rules, which are the specification."""

    def _plan_for(self, schema: pa.Schema) -> None:
        return None


def outcome(
    reader: JsonRecords, values: Sequence[bytes], schema: pa.Schema, ignored: Sequence[Path] = ()
) -> tuple[list[str], dict[int, str], Any, int]:
    """The rows, the bad records with their reasons, what the table lacks, what was ignored."""
    bad: dict[int, str] = {}
    finder = UnknownFieldFinder(schema, (), ignored, caseless=False)
    reader.watch_unknown_fields(finder)
    try:
        batch = reader.decode(values, schema)
    except UndecodableRecords as error:
        batch, bad = error.rest, error.bad
    batch.validate(full=True)
    assert batch.schema.equals(schema, check_metadata=True)
    unknown = [
        (rows.tolist(), needs) for rows, needs in reader.unknown_columns_of_last_decode(values, bad)
    ]
    # Text tells -0.0 from 0.0, which are equal.
    return (
        [repr(row) for row in plain_rows(batch)],
        bad,
        unknown,
        reader.record_count_with_ignored_fields,
    )


def require_agreement(seed: int, count: int) -> int:
    """Compare both ways on random records of a random schema; how many the pass took."""
    dice = random.Random(seed)
    schema = random_schema(dice)
    if dice.random() < 0.5:
        schema = with_rules(dice, schema)
    values = [random_record(dice, schema) for _ in range(count)]
    ignored: list[Path] = [("old",)] if dice.random() < 0.5 else []
    one, other = (
        outcome(reader, values, schema, ignored) for reader in (JsonRecords(), RulesAlone())
    )
    (rows, bad, *rest), (true_rows, true_bad, *true_rest) = one, other
    # Which of several faults a reason names has always depended on the neighbours.
    _require_equal(seed, sorted(bad), sorted(true_bad))
    for row, true_row in zip(rows, true_rows, strict=True):
        _require_equal(seed, row, true_row)
    _require_equal(seed, rest, true_rest)
    plan = one_pass.compile_plan(schema, None)
    taken = one_pass.read_in_one_pass(Packed.from_values(values), plan) if plan else None
    return taken.batch.num_rows if taken else 0


def _require_equal(seed: int, one: Any, other: Any) -> None:
    if one != other:
        pytest.fail(f"seed {seed}: the pass says {one!r}, the rules say {other!r}")


ONE_FAULT = [
    *(f'"{name}":{text}' for name in COLUMNS for text in ('"?"', "[[]]", "1e999", "{", "tru")),
    *('"int":2147483648', '"long":1.5', '"decimal":1.234', '"boolean":1', '"string":7'),
    *('"date":"2026-02-29"', '"time":86400000', '"timestamp":"2026-01-01T00:00+01"'),
    *('"timestamptz_ns":"1600-01-01"', '"uuid":"1"', '"fixed":"AAAA"', '"binary":"A"'),
    *('"struct":{"a":true}', '"list":[1,null,"x"]', '"map":{"k":1,"k":1}', '"deep":[{"m":[]}]'),
    *(
        '"int":1,"int":1',
        '"x":{"a":1,"a":2}',
        '"string":"\\ud800"',
        '"x":01',
        '"x":1e999999999999999999999999',
        '"x":"\x00"',
    ),
]


@pytest.mark.parametrize("text", ONE_FAULT)
def test_a_bad_record_among_good_ones_has_the_reason_that_it_had(text: str) -> None:
    values = [as_json({"int": at, "string": "x"}) for at in range(20)]
    values[7] = b"{%s}" % text.encode("utf-8", "surrogatepass")
    one, other = (outcome(reader, values, EVERYTHING) for reader in (JsonRecords(), RulesAlone()))
    assert one == other


def test_every_column_is_taken_by_the_pass() -> None:
    row: dict[str, Any] = {
        "int": -1, "long": 2**62, "float": 0.5, "double": 1e-7, "decimal": 1.25, "wide_decimal": 7,
        "boolean": True, "string": "é\n", "date": "2026-08-01", "time": "12:30:15.5",
        "timestamp": "2026-08-01 12:30:15Z", "timestamptz": "2026-08-01T12:30+02:00",
        "timestamp_ns": 1785585600000, "timestamptz_ns": "2026-08-01T12:30:15.123456789-0330",
        "uuid": "123e4567-e89b-12d3-a456-426614174000", "fixed": "AAECAw==", "binary": "",
        "struct": {"b": "2026-08-01", "x": {"y": 1}}, "list": [1, None, 3], "map": {"k": 1, "é": 2},
        "deep": [{"m": {"k": [0, None], "l": None}}, None],
    }  # fmt: skip
    values = [as_json(row), b"{}", as_json(dict(reversed(row.items()))), as_json({"é": 1})]
    plan = one_pass.compile_plan(EVERYTHING, None)
    assert plan is not None
    taken = one_pass.read_in_one_pass(Packed.from_values(values), plan)
    assert taken is not None
    assert taken.found.tolist() == [0, 0, 0, 0]
    assert plain_rows(taken.batch) == plain_rows(RulesAlone().decode(values, EVERYTHING))


def test_columns_with_a_unit_and_such_that_take_anything_are_taken_by_the_pass() -> None:
    fields = [
        with_read_options_of_rule(pa.field("seconds", pa.timestamp("us")), ColumnRule(unit="s")),
        with_read_options_of_rule(
            pa.field("nanos", pa.timestamp("us", "UTC")), ColumnRule(unit="ns")
        ),
        with_read_options_of_rule(pa.field("clock", pa.time64("ns")), ColumnRule(unit="us")),
        with_read_options_of_rule(pa.field("text", pa.large_string()), ColumnRule(as_text=True)),
    ]
    schema = pa.schema([*fields, pa.field("s", pa.struct([pa.field("a", pa.int32()), *fields]))])
    row = b'{"seconds":-1,"nanos":1785585600123456000,"clock":86399999999,"text":%s}'
    texts = [b'[1, {"a":null}]', b"1.50", b"true", b'"x"', b"null", b'{"a" :"\\u00e9"}']
    values = [b'{"s":' + row % text + b"," + row[1:] % text for text in texts]
    plan = one_pass.compile_plan(schema, None)
    assert plan is not None
    taken = one_pass.read_in_one_pass(Packed.from_values(values), plan)
    assert taken is not None
    assert taken.found.tolist() == [0] * 6
    assert plain_rows(taken.batch) == plain_rows(RulesAlone().decode(values, schema))
    assert taken.batch.column("text").to_pylist()[::2] == ['[1, {"a":null}]', "true", None]


@pytest.mark.parametrize(
    "text",
    [
        *(b'{"t":1.0005}', b'{"t":86400000}', b'{"t":-1}', b'{"t":true}', b'{"t":"x"}'),
        *(b'{"n":1785585600123456001}', b'{"n":1e30}', b'{"x":{"a":1,"a":2}}', b'{"x":[1,]}'),
    ],
)
def test_a_bad_record_of_such_columns_has_the_reason_that_it_had(text: bytes) -> None:
    schema = pa.schema(
        [
            with_read_options_of_rule(pa.field("t", pa.time64("us")), ColumnRule(unit="ms")),
            with_read_options_of_rule(pa.field("n", pa.timestamp("us")), ColumnRule(unit="ns")),
            with_read_options_of_rule(pa.field("x", pa.string()), ColumnRule(as_text=True)),
        ]
    )
    values = [as_json({"t": at, "x": at}) for at in range(20)]
    values[7] = text
    one, other = (outcome(reader, values, schema) for reader in (JsonRecords(), RulesAlone()))
    assert one == other
    assert list(one[1]) == [7]


@pytest.mark.parametrize("others", [[], [pa.field("plain", pa.int64())]])
@pytest.mark.parametrize("reader", [JsonRecords, RulesAlone])
def test_a_required_part_may_be_absent_where_an_optional_struct_around_it_is(
    reader: type[JsonRecords], others: list[pa.Field]
) -> None:
    """Also where the struct has nothing that is read without a rule."""
    marked = pa.field("text", pa.string(), nullable=False)
    part = with_read_options_of_rule(marked, ColumnRule(as_text=True))
    inner = pa.field("inner", pa.struct([part, *others]), nullable=False)
    schema = pa.schema([pa.field("outer", pa.struct([inner]))])
    values = [
        *(b'{"outer":{"inner":{"text":1}}}', b"{}", b'{"outer":null}'),
        *(b'{"outer":{"inner":{"text":null}}}', b'{"outer":{"inner":null}}', b'{"outer":{}}'),
    ]
    rows, bad, *_ = outcome(reader(), values, schema)
    assert sorted(bad) == [3, 4, 5]
    assert [row.count("None") for row in rows] == [len(others), 1, 1]


def test_one_name_with_two_rules_is_read_by_either() -> None:
    """Schemas are equal whatever their fields are marked with."""
    plain = pa.schema([("t", pa.timestamp("us"))])
    seconds = pa.schema([with_read_options_of_rule(plain.field("t"), ColumnRule(unit="s"))])
    reader, values = JsonRecords(), [b'{"t":1000}'] * 3
    for schema, wanted in ((plain, 1), (seconds, 1000), (plain, 1)):
        read = reader.decode(values, schema).column("t").cast(pa.int64()).to_pylist()
        assert read == [wanted * 1_000_000] * 3


def test_columns_grow_beyond_what_was_expected_of_them() -> None:
    schema = pa.schema([("v", pa.large_list(pa.large_string())), ("w", pa.string())])
    values = [as_json({"v": ["x" * 999, None] * 300, "w": "y" * 10**5})] + [b"{}"] * 3
    assert JsonRecords().decode(values, schema).equals(RulesAlone().decode(values, schema))


def test_a_slice_is_read_from_where_it_begins() -> None:
    values = Packed.from_values([as_json({"int": at}) for at in range(20)])[5:9]
    assert [row["int"] for row in plain_rows(JsonRecords().decode(values, EVERYTHING))] == [
        5,
        6,
        7,
        8,
    ]


@pytest.mark.parametrize(
    "column",
    [
        pa.field("v", pa.map_(pa.int32(), pa.int32())),
        pa.field('a "quoted" name', pa.int64()),
        pa.field("v", pa.decimal256(50, 2)),
        pa.field("v", pa.struct([])),
    ],
)
def test_what_no_plan_can_express_is_read_by_the_rules(column: pa.Field) -> None:
    assert one_pass.compile_plan(pa.schema([column]), None) is None


def test_a_plan_is_kept_for_the_next_batch_of_the_same_schema() -> None:
    def finder(column: pa.Field) -> UnknownFieldFinder:
        return UnknownFieldFinder(pa.schema([column]), ("at",), [("old",)], caseless=False)

    def plan(column: pa.Field) -> one_pass.Plan | None:
        return one_pass.compile_plan(pa.schema([column]), finder(column).fields)

    text = pa.field("text", pa.string())
    assert plan(text) is plan(pa.field("text", pa.string()))
    assert plan(text) is not plan(with_read_options_of_rule(text, ColumnRule(as_text=True)))
    assert plan(text) is not one_pass.compile_plan(pa.schema([text]), None)


MANY = 200
"""More than are decoded one by one whatever they are."""


@pytest.mark.parametrize("fault", ['{"int":"x"}', '{"int":1', '{"int":1.5}'])
def test_many_bad_records_are_not_searched_for_in_a_block(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [as_json({"int": at}) for at in range(8 * MANY)]
    values[::8] = [fault.encode()] * MANY
    values[8] = b'{"int":"7"}'  # the pass leaves it, and it is good
    schema = pa.schema([EVERYTHING.field("int")])
    wanted = outcome(RulesAlone(), values, schema)
    monkeypatch.delattr("headgate.data_plane.formats.json.bad_record_search.BadRecordSearch")
    assert outcome(JsonRecords(), values, schema) == wanted
    assert len(wanted[1]) == MANY - 1


def test_many_good_records_that_the_pass_leaves_are_a_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = [as_json({"int": at}) for at in range(8 * MANY)]
    values[::8] = [b'{"int":"7"}'] * MANY
    schema = pa.schema([EVERYTHING.field("int")])
    wanted = outcome(RulesAlone(), values, schema)
    monkeypatch.delattr(JsonRecords, "_decode_one_by_one")
    assert outcome(JsonRecords(), values, schema) == wanted


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_pass_and_the_rules_agree_on_random_records_of_random_schemas(seed: int) -> None:
    require_agreement(seed, 60)


@pytest.mark.wide
@pytest.mark.parametrize(
    "block", [0, 1, *(pytest.param(block, marks=pytest.mark.soak) for block in range(2, 8))]
)
def test_the_pass_and_the_rules_agree_on_a_hundred_thousand_records(block: int) -> None:
    taken = sum(require_agreement(1000 + block * 25 + at, 500) for at in range(25))
    assert taken > 1000, "it has to be the pass that is compared"
