"""A few bad records among many: what is bad, and what the others are, is as if each were alone."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from unit.data_plane.formats.json_tables import COLUMNS, document

from headgate.data_plane.formats.json import bad_record_search, columns
from headgate.data_plane.formats.json.format import JsonRecords
from headgate.data_plane.formats.record_format import UndecodableRecords
from headgate.native.byte_arrays import Packed

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("small", pa.int32()),
        ("ratio", pa.float32()),
        ("price", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("zone", pa.large_string()),
        ("ok", pa.bool_()),
        ("token", pa.uuid()),
        ("blob", pa.large_binary()),
        ("inside", pa.struct([("n", pa.int64()), ("tags", pa.large_list(pa.large_string()))])),
    ]
)
GOOD = (
    '{"id":%d,"small":7,"ratio":0.5,"price":"1.25","at":"2026-08-01T00:00:00.5Z","day":"2026-08-01",'
    '"zone":"bronx","ok":true,"token":"123e4567-e89b-12d3-a456-426614174000","blob":"aGk=",'
    '"inside":{"n":1,"tags":["a"]}}'
)
CHANGES = [
    ('"small":7', '"small":7.5'),
    ('"small":7', '"small":99999999999'),
    ('"small":7', '"small":"seven"'),
    ('"small":7', '"small":"7"'),
    ('"small":7', '"small":[7]'),
    ('"small":7', '"small":-2147483648'),
    ('"ratio":0.5', '"ratio":1e300'),
    ('"ratio":0.5', '"ratio":true'),
    ('"price":"1.25"', '"price":"1.255"'),
    ('"price":"1.25"', '"price":1.25'),
    ('"price":"1.25"', '"price":"12345678901.00"'),
    ('"at":"2026', '"at":"x2026'),
    ("00:00.5Z", "00:00.5+02:00"),
    ("00:00.5Z", "00:00.5"),
    ("00:00.5Z", "00:61.5Z"),
    ('"day":"2026-08-01"', '"day":"2026-02-30"'),
    ('"day":"2026-08-01"', '"day":20666'),
    ('"zone":"bronx"', '"zone":5'),
    ('"zone":"bronx"', '"zone":{"a":1}'),
    ('"zone":"bronx"', '"zone":"\\ud800"'),
    ('"zone":"bronx"', '"zone":"\\ud842\\udfb7"'),
    ('"zone":"bronx"', '"zone":"\\u0000"'),
    ('"zone":"bronx"', '"zone":"a\tb"'),
    ('"ok":true', '"ok":"yes"'),
    ('"ok":true', '"ok":1'),
    ("123e4567", "123e456x"),
    ('"blob":"aGk="', '"blob":"a"'),
    ('"n":1', '"n":"one"'),
    ('"n":1', '"n":1.5'),
    ('"tags":["a"]', '"tags":[5]'),
    ('"tags":["a"]', '"tags":"a"'),
    ('"inside":{', '"inside":[{'),
    ('"id":', '"ident":'),
    ('"at":"2026-08-01T00', '"at":"2026-08-01T25'),
    (',"small"', ' "small"'),
    ('"small":', '"small" '),
    ('"small":7', '"small":'),
    ('"ratio":0.5', '"ratio":0.5.5'),
    ('"ratio":0.5', '"ratio":NaN'),
    ('"bronx"', '"bro"nx""'),
    ('["a"]', '["a"'),
    ('["a"]', '["a","b":5]'),
    ('"n":1', '"other":[[[[{"b" 2}]]]],"n":1'),
    ('"small":7', '"small":07'),
    ('"small":7', '"small":7,'),
    ('"bronx"', '"bronx'),
    ("}}", "}"),
    ("}}", "}}}"),
    ("}}", "}},{}"),
    ("}}", '}}\n{"id":1}'),
    ("}}", "}} "),
]
NO_UTF8 = (GOOD % 5).encode().replace(b"bronx", b"br\xe9")
WHOLE = ["", "{", "null", "[]", "<html></html>", "not json", '"text"', "{}"]


def odd_ones() -> list[bytes]:
    changed = [(GOOD % 5).replace(old, new, 1) for old, new in CHANGES]
    assert all(text != GOOD % 5 for text in changed)
    return [*(text.encode() for text in [*changed, *WHOLE]), NO_UTF8]


def verdict(records: JsonRecords, values: list[bytes]) -> tuple[dict[int, str], list[object]]:
    """Bad rows with their reasons, and the other rows."""
    try:
        return {}, records.decode(values, SCHEMA).to_pylist()
    except UndecodableRecords as error:
        return error.bad, error.rest.to_pylist()


def learned() -> JsonRecords:
    """One that knows how the topic spells its values."""
    records = JsonRecords()
    records.decode([(GOOD % 1).encode()] * 20, SCHEMA)
    return records


@pytest.mark.parametrize("odd", odd_ones(), ids=lambda odd: odd[-60:].decode(errors="replace"))
def test_a_record_is_judged_among_good_ones_as_it_is_alone(odd: bytes) -> None:
    bad, rows = verdict(learned(), [odd])
    values = [(GOOD % number).encode() for number in range(300)]
    for places in ([0], [150], [299], [3, 4, 5, 200]):
        mixed = list(values)
        for place in places:
            mixed[place] = odd
        records = learned()
        for _ in range(2):  # and again, now that it knows what to look for
            found, others = verdict(records, mixed)
            assert found == dict.fromkeys(places if bad else [], bad.get(0))
            expected = [verdict(learned(), [values[k]])[1][0] for k in (1, 298)]
            assert [row for row in others if row["id"] in (1, 298)] == expected
            assert len(others) == 300 - len(found)
            if not bad:
                assert others[places[0]] == rows[0]


@pytest.mark.parametrize("seed", range(3))
def test_many_kinds_in_one_block_do_not_disturb_each_other(seed: int) -> None:
    dice = random.Random(seed)
    odd = odd_ones()
    alone = {value: verdict(learned(), [value]) for value in odd}
    records = learned()
    for _ in range(3):
        share = dice.choice([0.002, 0.01, 0.1, 0.6])
        values = [
            dice.choice(odd) if dice.random() < share else (GOOD % number).encode()
            for number in range(500)
        ]
        bad, rows = verdict(records, values)
        wanted = {k: alone[v][0][0] for k, v in enumerate(values) if v in alone and alone[v][0]}
        assert bad == wanted
        left = [v for k, v in enumerate(values) if k not in wanted]
        assert len(rows) == len(left)
        for value, row in zip(left, rows, strict=True):
            if value in alone:
                assert row == alone[value][1][0]


@pytest.mark.parametrize(
    "value",
    [
        b" { } ",
        b'{"a":-1.5e-7,"b":[],"c":{},"d":null,"e":true}',
        '{"a":"\u00e9\u20ac\U0001f600 \\u00e9\\ud83d\\ude00 \\"\\n"}'.encode(),
        b'{ "a" : [ { "b" : [ [ { "c" : [ 1 , { "d" : [ ] } ] } ] ] } ] }\n',
    ],
)
@pytest.mark.usefixtures("either_loops")
def test_what_is_well_formed_is_not_suspected(value: bytes) -> None:
    assert bad_record_search.flag_suspect_records(Packed.from_values([value]).array)[
        0
    ].tolist() == [False]


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"5", b'"a"', b"[{}]", b'{"a":1', b'{"a":1}}', b'{"a":1},{}', b'{"a":"}'),
        *(b'{"a" 1}', b'{"a","b":1}', b'{"a":}', b'{"a":,"b":1}', b'{"a":1,}', b"{'a':1}"),
        *(b'{"a":1 "b":2}', b'{"a":1.2.3}', b'{"a":NaN}', b'{"a":"b"c""}', b'{"a":"\\x"}'),
        *(b'{"a":[1}', b'{"a":[1,"b":2]}', b'{"a":{"b":[1}}}', b'{"a":[[[[[{"b" 2}]]]]]}'),
        *(b'{"a":"\xe9"}', b'{"a":"\x00"}', b'{"a":"\\u0000"}', b'{"a":"\\ud842\\udfb7"}'),
    ],
)
@pytest.mark.usefixtures("either_loops")
def test_what_the_parser_does_not_take_is_suspected(value: bytes) -> None:
    assert bad_record_search.flag_suspect_records(Packed.from_values([value]).array)[
        0
    ].tolist() == [True]


@pytest.mark.parametrize("column", sorted(COLUMNS))
def test_a_column_of_any_type_is_taken_apart(column: str) -> None:
    schema = pa.schema([("v", COLUMNS[column])])
    values = [document("null")] * 200
    values[77] = document('{"no":["such","value"]}') if column != "string" else document("5")
    if column in ("struct", "map", "deep"):
        values[77] = document("5")
    records = JsonRecords()
    with pytest.raises(UndecodableRecords) as caught:
        records.decode(values, schema)
    assert list(caught.value.bad) == [77]
    assert caught.value.rest.num_rows == 199


def test_what_was_learned_of_bad_records_is_forgotten_with_them() -> None:
    watch = bad_record_search.Watch()
    good = [(GOOD % number).encode() for number in range(100)]
    spelling: columns.Spelling = {}
    for field in SCHEMA:
        columns.learn_number_or_text(spelling, field, {"price": "1.25"}.get(field.name))

    def apart(*values: bytes) -> bad_record_search.BadRecordSearch:
        return bad_record_search.BadRecordSearch(
            Packed.from_values([*good, *values]), SCHEMA, spelling, watch, learn=lambda: False
        )

    assert apart(b"{broken").refused == {100: ""}
    assert not watch.has_seen_bad_values
    assert apart(good[0].replace(b"true", b'"yes"')).refused == {100: "ok"}
    assert watch.has_seen_bad_values
    assert apart(good[0].replace(b":7", b":7.5")).refused == {100: "small"}
    assert apart().refused == {}
    assert not watch.has_seen_bad_values


def test_a_new_spelling_is_learned_where_there_are_too_many_to_be_bad() -> None:
    records = learned()
    values = [(GOOD % n).replace('"price":"1.25"', '"price":1.25').encode() for n in range(300)]
    values[7] = b"{broken"
    bad, rows = verdict(records, values)
    assert list(bad) == [7]
    assert len(rows) == 299
