"""Proposals join like sets, and a table only ever grows by them (SCHEMA-5 to SCHEMA-7)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.control_protocol.columns import (
    Column,
    ListOf,
    MapOf,
    Struct,
    Type,
    describe_schema_growth,
    struct_from_json,
    struct_to_json_without_ids,
    unify_columns,
)
from headgate.control_protocol.schema_evolution import (
    Former,
    Growth,
    Refusal,
    can_widen,
    collect_former_columns,
    grow_columns,
)

NAMES = ("a", "b", "c", "A")
PRIMITIVES = (
    *("boolean", "int", "long", "float", "double", "date", "timestamptz", "string", "binary"),
    *(
        "decimal(9, 0)",
        "decimal(9, 2)",
        "decimal(12, 2)",
        "decimal(12, 4)",
        "decimal(38, 0)",
        "decimal(38, 20)",
    ),
)


def _columns(types: st.SearchStrategy[Type]) -> st.SearchStrategy[tuple[Column, ...]]:
    column = st.builds(Column, st.sampled_from(NAMES), types, st.booleans())
    return st.lists(column, max_size=2, unique_by=lambda c: c.name).map(tuple)


def _nested(types: st.SearchStrategy[Type]) -> st.SearchStrategy[Type]:
    item = st.builds(Column, st.just(""), types, st.booleans())
    maps = st.builds(MapOf, st.just("string"), item)
    return st.one_of(st.builds(Struct, _columns(types)), st.builds(ListOf, item), maps)


TYPES = st.recursive(st.sampled_from(PRIMITIVES), _nested, max_leaves=4)
STRUCTS = st.builds(Struct, _columns(TYPES))
TABLES = STRUCTS.map(lambda s: Struct(tuple({c.name.lower(): c for c in s.fields}.values())))


def same(one: Type, other: Type) -> bool:
    """Equal, but for the order of fields."""
    match one, other:
        case Struct(), Struct():
            theirs = {column.name: column for column in other.fields}
            names = {column.name for column in one.fields}
            return names == theirs.keys() and all(
                c.required == theirs[c.name].required and same(c.type, theirs[c.name].type)
                for c in one.fields
            )
        case ListOf(a), ListOf(b):
            return a.required == b.required and same(a.type, b.type)
        case MapOf(k, a), MapOf(m, b):
            return a.required == b.required and same(k, m) and same(a.type, b.type)
        case _:
            return one == other


@given(STRUCTS, STRUCTS)
def test_a_join_is_commutative(one: Struct, other: Struct) -> None:
    assert same(unify_columns(one, other), unify_columns(other, one))


@given(STRUCTS, STRUCTS, STRUCTS)
def test_a_join_is_associative(one: Struct, two: Struct, three: Struct) -> None:
    assert same(
        unify_columns(unify_columns(one, two), three), unify_columns(one, unify_columns(two, three))
    )


@given(STRUCTS)
def test_a_join_is_idempotent(one: Struct) -> None:
    assert unify_columns(one, one) == one


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("int", "decimal(38, 0)", "decimal(38, 0)"),
        ("long", "decimal(9, 2)", "decimal(21, 2)"),
        ("long", "decimal(38, 20)", "string"),
        ("double", "decimal(38, 0)", "string"),
    ],
)
def test_two_kinds_of_numbers_join_to_one_that_takes_both_exactly_or_else_to_text(
    one: str, other: str, both: str
) -> None:
    columns = [Struct((Column("n", kind),)) for kind in (one, other)]
    assert unify_columns(*columns)["n"].type == both


@given(TABLES, STRUCTS)
def test_a_table_has_grown_when_it_has(table: Struct, proposed: Struct) -> None:
    once = grow_columns(table, proposed)
    again = grow_columns(once.columns, proposed)
    assert again.columns == once.columns
    assert {r.path for r in again.refused} == {r.path for r in once.refused}


@given(TABLES, STRUCTS, STRUCTS)
def test_a_table_that_has_what_both_propose_needs_neither(
    table: Struct, one: Struct, other: Struct
) -> None:
    both = grow_columns(table, unify_columns(one, other))
    refused = {refusal.path for refusal in both.refused}
    for alone in (one, other):
        assert {r.path for r in grow_columns(both.columns, alone).refused} <= refused


@given(TABLES, STRUCTS)
def test_a_table_only_grows(table: Struct, proposed: Struct) -> None:
    assert_grew(table, grow_columns(table, proposed).columns)


def assert_grew(before: Struct, after: Struct) -> None:
    """Every column is still there, in its place, under its name, and takes what it took."""
    assert len(after.fields) >= len(before.fields)
    for old, new in zip(before.fields, after.fields, strict=False):
        assert (new.name, new.field_id) == (old.name, old.field_id)
        assert old.required or not new.required
        _assert_takes(old.type, new.type)
    assert not any(new.required for new in after.fields[len(before.fields) :])


def _assert_takes(old: Type, new: Type) -> None:
    match old, new:
        case Struct(), Struct():
            assert_grew(old, new)
        case ListOf(a), ListOf(b):
            assert a.required or not b.required
            _assert_takes(a.type, b.type)
        case MapOf(k, a), MapOf(m, b):
            assert k == m
            assert a.required or not b.required
            _assert_takes(a.type, b.type)
        case str(), str():
            assert old == new or can_widen(old, new)
        case _:
            pytest.fail(f"{old} became {new}")


@given(STRUCTS)
def test_columns_travel_as_json(columns: Struct) -> None:
    assert struct_from_json(struct_to_json_without_ids(columns)) == columns


@pytest.mark.parametrize("text", ["", "1", "[]", "{}", '{"type": "list"}', '{"type": "map"}'])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no columns|Expecting"):
        struct_from_json(text)


TABLE = Struct(
    (
        Column("id", "long", required=True, field_id=1),
        Column("pax", "int", required=False, field_id=2),
        Column("fare", "decimal(9, 2)", required=False, field_id=3),
        Column(
            "user",
            Struct((Column("name", "string", required=False, field_id=5),)),
            required=False,
            field_id=4,
        ),
        Column(
            "stops",
            ListOf(
                Column(
                    "",
                    Struct((Column("zone", "string", required=False, field_id=8),)),
                    required=False,
                    field_id=7,
                )
            ),
            required=False,
            field_id=6,
        ),
        Column(
            "tags",
            MapOf("string", Column("", "int", required=True, field_id=11)),
            required=False,
            field_id=9,
        ),
    )
)


def _of(*columns: Column) -> Struct:
    return Struct(columns)


def test_what_is_added_widened_and_made_optional() -> None:
    proposed = _of(
        Column("tip", "double"),
        Column("pax", "long"),
        Column("fare", "decimal(12, 2)"),
        Column("id", "long", required=False),
        Column("user", _of(Column("vip", "boolean"))),
        Column("stops", ListOf(Column("", _of(Column("at", "timestamptz"))))),
        Column("tags", MapOf("string", Column("", "long", required=False))),
    )
    after = grow_columns(TABLE, proposed)
    assert after.refused == ()
    assert describe_schema_growth(TABLE, after.columns) == (
        *("id: optional", "pax: long", "fare: decimal(12, 2)", "+user.vip", "+stops.at"),
        *("tags: optional", "tags: long", "+tip"),
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("id", "int"),
        ("id", "string"),
        ("id", "double"),
        ("fare", "decimal(12, 4)"),
        ("user", "string"),
        ("tags", "string"),
    ],
)
def test_nothing_is_narrowed_or_changed_in_kind(name: str, kind: str) -> None:
    assert grow_columns(TABLE, _of(Column(name, kind))) == Growth(TABLE)


def test_names_that_differ_only_in_case_are_refused() -> None:
    after = grow_columns(TABLE, _of(Column("Pax", "long"), Column("x", "int"), Column("X", "int")))
    assert [refusal.path for refusal in after.refused] == [("Pax",), ("X",)]
    assert describe_schema_growth(TABLE, after.columns) == ("+x",)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "x" * 201])
def test_names_that_no_column_can_have_are_refused(name: str) -> None:
    assert [r.path for r in grow_columns(TABLE, _of(Column(name, "long"))).refused] == [(name,)]
    inside = Column("new", _of(Column(name, "long"), Column("good", "long")))
    after = grow_columns(TABLE, _of(inside))
    assert [r.path for r in after.refused] == [("new", name)]
    assert describe_schema_growth(TABLE, after.columns) == ("+new",)
    assert after.columns["new"].type == _of(Column("good", "long", required=False))


@pytest.mark.parametrize("name", ["_deleted", "_FILE", "_partition"])
def test_schema_7_names_that_iceberg_keeps_for_itself_are_refused_at_the_top(name: str) -> None:
    inside = Column("new", _of(Column(name, "long", required=False)), required=False)
    after = grow_columns(TABLE, _of(Column(name, "long"), inside))
    assert after.refused == (Refusal((name,), "Iceberg keeps this name for itself"),)
    assert after.columns["new"] == inside


def test_a_column_of_which_nothing_is_left_is_refused() -> None:
    after = grow_columns(TABLE, _of(Column("new", ListOf(Column("", _of(Column("", "long")))))))
    assert after.columns == TABLE
    assert [r.path for r in after.refused] == [("new", ""), ("new",)]


def test_there_are_bounds_on_the_number_and_depth_of_columns() -> None:
    wild = _of(*(Column(f"c{n}", "long") for n in range(10)))
    after = grow_columns(TABLE, wild, columns_max=11)
    assert describe_schema_growth(TABLE, after.columns) == ("+c0", "+c1", "+c2")
    assert len(after.refused) == 7
    deep = Column("f", "long")
    for name in "edcba":
        deep = Column(name, _of(deep, Column("too", "long")))
    deeper = grow_columns(TABLE, _of(deep))
    assert [r.path for r in deeper.refused] == [
        tuple("abcdef"),
        (*tuple("abcde"), "too"),
        tuple("abcde"),
    ]


RENAMED = Struct(
    (
        Column("id", "long", required=True, field_id=1),
        Column("passengers", "int", required=False, field_id=2),
        Column("user", Struct((Column("full", "string", False, 5),)), False, 4),
    )
)


def test_a_former_name_goes_into_the_column_that_has_another_now() -> None:
    past = collect_former_columns(RENAMED, [TABLE])
    assert past.renamed == {0: {"pax": "passengers"}, 4: {"name": "full"}}
    proposed = _of(Column("pax", "long"), Column("user", _of(Column("name", "string"))))
    after = grow_columns(RENAMED, proposed, past)
    assert describe_schema_growth(RENAMED, after.columns) == ("passengers: long",)
    assert after.refused == ()


def test_a_dropped_column_does_not_come_back_by_itself() -> None:
    past = collect_former_columns(RENAMED, [TABLE])
    assert past.dropped[0] == {"fare", "stops", "tags"}
    after = grow_columns(RENAMED, _of(Column("fare", "double")), past)
    assert after == Growth(RENAMED, (Refusal(("fare",), "its column was dropped"),))
    assert describe_schema_growth(
        RENAMED, grow_columns(RENAMED, _of(Column("fare", "double"))).columns
    ) == ("+fare",)


def test_a_name_that_a_column_has_now_is_nobodys_former_one() -> None:
    now = Struct((Column("a", "long", False, 2), Column("b", "long", False, 1)))
    before = Struct((Column("a", "long", False, 1), Column("b", "long", False, 2)))
    assert collect_former_columns(now, [before]) == Former({}, {})


def test_the_newest_meaning_of_a_former_name_counts() -> None:
    first = Struct((Column("a", "long", False, 1),))
    second = Struct((Column("b", "long", False, 1), Column("a", "string", False, 2)))
    now = Struct((Column("b", "long", False, 1), Column("c", "string", False, 2)))
    assert collect_former_columns(now, [first, second]).renamed == {0: {"a": "c"}}


def test_new_columns_have_no_ids_and_require_nothing() -> None:
    new = Column("n", _of(Column("x", ListOf(Column("", "int", True, 9)), True, 8)), True, 7)
    added = grow_columns(TABLE, _of(new)).columns["n"]
    inside = Column("x", ListOf(Column("", "int", required=False)), required=False)
    assert added == Column("n", _of(inside), required=False)
    assert added.field_id == 0


@pytest.mark.parametrize(
    "kind",
    [
        *("gibberish", "", "unknown", "variant", "geometry", "long not null", "list<long>", "LONG"),
        *("decimal(99, 2)", "decimal(9, -2)", "decimal(2, 9)", "decimal(0, 0)", "x" * 1_000),
        *("fixed[0]", "fixed[99999999999]", "fixed[1048577]", "fixed(x)", "decimal(\u0661, 0)"),
        *("timestamp_ns", "timestamptz_ns"),
    ],
)
def test_a_type_that_no_column_can_have_is_refused(kind: str) -> None:
    """Whoever may write to the control topic may propose anything."""
    for wanted in (kind, ListOf(Column("", kind)), MapOf("string", Column("", kind))):
        after = grow_columns(
            TABLE, _of(Column("new", wanted), Column("x", "int")), nanoseconds=False
        )
        assert [refusal.path for refusal in after.refused] == [("new",)]
        assert describe_schema_growth(TABLE, after.columns) == ("+x",)
    (refusal,) = grow_columns(TABLE, _of(Column("new", kind)), nanoseconds=False).refused
    assert refusal.reason.startswith("no column here can have the type")
    assert len(refusal.reason) < 100


@pytest.mark.parametrize("kind", ["timestamp_ns", "fixed(16)", "fixed[16]", "decimal(38, 38)"])
def test_other_types_are_taken_up(kind: str) -> None:
    assert describe_schema_growth(TABLE, grow_columns(TABLE, _of(Column("new", kind))).columns) == (
        "+new",
    )


@pytest.mark.parametrize("key", [Struct(), _of(Column("a", "int")), "gibberish"])
def test_keys_of_maps_are_primitive(key: Type) -> None:
    after = grow_columns(TABLE, _of(Column("new", MapOf(key, Column("", "int")))))
    assert [refusal.path for refusal in after.refused] == [("new",)]


def test_lists_in_lists_are_bounded() -> None:
    def lists(levels: int) -> Type:
        return ListOf(Column("", lists(levels - 1))) if levels else "int"

    assert grow_columns(TABLE, _of(Column("new", lists(16)))).refused == ()
    (refusal,) = grow_columns(TABLE, _of(Column("new", lists(17)))).refused
    assert "more than 16 levels" in refusal.reason


def test_what_is_no_schema_is_a_value_error() -> None:
    for text in (
        "[" * 100_000,
        '{"type":"struct","fields":[{"name":"a","type":"int","id":1e999}]}',
    ):
        with pytest.raises(ValueError, match="no columns"):
            struct_from_json(text)
