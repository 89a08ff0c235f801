"""Which table a record's topic and values name, and what may not be (rules ROUTE-1 to ROUTE-3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.control_protocol.errors import RouteUnfit
from headgate.data_plane.routing.routes import (
    NAME_CHARACTERS_MAX,
    RAW_CHARACTERS_MAX,
    Names,
    Route,
    Routing,
    Target,
    fold_case,
    known_beginning,
    pattern_of_table_names,
    require_valid_route,
    sanitise_name_part,
    target_of,
    with_name_parts,
)

SHOP = Route(topic=r"^shop\.(?P<name>.+)$", to="lake.{name}")


def test_the_first_route_that_matches_wins() -> None:
    routing = Routing((Route(topic="shop.orders", to="lake.first"), SHOP, Route(to="lake.rest")))
    assert routing.table_of_topic("shop.orders") == Target("lake.first", "lake.first")
    assert routing.table_of_topic("shop.returns") == Target("lake.returns", "lake.returns")
    assert routing.table_of_topic("else") == Target("lake.rest", "lake.rest")
    assert Routing((SHOP,)).table_of_topic("else") is None


def test_names_are_sanitised_and_remember_what_they_were() -> None:
    assert Routing((SHOP,)).table_of_topic("shop.eu.Order-Lines") == Target(
        "lake.eu_order_lines", "lake.eu.Order-Lines"
    )


@pytest.mark.parametrize(
    "other", ["db.STRASSE", "DB.Straße", "db.\uff53trasse", "db.stra\u017f\u017fe"]
)
def test_names_that_some_catalog_takes_for_one_are_one(other: str) -> None:
    assert fold_case(other) == fold_case("db.straße")
    assert fold_case("db.strase") != fold_case("db.straße")


@given(st.text())
def test_any_text_becomes_a_name(text: str) -> None:
    assert set(sanitise_name_part(text)) <= set("abcdefghijklmnopqrstuvwxyz0123456789_")


def test_long_names_are_cut_and_stay_different() -> None:
    long = "x" * 200
    one, two = (Routing((SHOP,)).table_of_topic(f"shop.{long}{end}") for end in "ab")
    assert one
    assert two
    assert one.table != two.table
    assert {len(found.table) - len("lake.") for found in (one, two)} == {NAME_CHARACTERS_MAX}


@pytest.mark.parametrize(
    "to", ["lake.{topic}", "lake.{topic}_events", "lake.{topic}__{field}", "{topic}.a_{field}_cdc"]
)
def test_a_name_that_was_cut_is_one_that_its_route_can_make(to: str) -> None:
    route = Route(to=to, field="type")
    for size in (*range(90, 125), 249):
        parts = {"topic": "t" * size, "field": "f" * size}
        found = target_of(route, parts)
        assert found
        for known in (route, with_name_parts(route, {"topic": parts["topic"]})):
            assert pattern_of_table_names(known).fullmatch(found.table)
            assert found.table.startswith(known_beginning(known))


def test_only_names_as_long_as_those_that_are_cut_end_otherwise() -> None:
    hashed = "0" * 16
    pattern = pattern_of_table_names(Route(to="lake.a_{topic}_events"))
    assert not pattern.fullmatch(f"lake.a_{'t' * 90}_{hashed}")
    assert not pattern.fullmatch(f"lake.b_{'t' * 101}_{hashed}")
    fixed = pattern_of_table_names(Route(to="{topic}.orders"))
    assert not fixed.fullmatch(f"lake.orders{'t' * 97}_{hashed}")


def test_of_two_topics_for_one_table_one_is_left() -> None:
    topics = ["shop.a-b", "shop.a.b", "shop.c"]
    routing = Routing((SHOP,))
    assert set(routing.tables_of_topics_winning_collisions(topics)) == {"shop.a-b", "shop.c"}
    assert set(routing.tables_of_topics_winning_collisions([*topics, "shop.a_b"])) == {
        "shop.a_b",
        "shop.c",
    }
    merging = Routing((Route(topic=SHOP.topic, to=SHOP.to, merge=True),))
    assert set(merging.tables_of_topics_winning_collisions(topics)) == set(topics)


def test_topics_that_a_route_names_the_same_do_not_collide() -> None:
    routing = Routing((Route(topic=r"^shop\.", to="lake.all"),))
    assert set(routing.tables_of_topics_winning_collisions(["shop.a", "shop.b"])) == {
        "shop.a",
        "shop.b",
    }


def test_a_value_puts_its_groups_into_the_name() -> None:
    route = Route(topic="events", field="type", value=r"^(?P<kind>\w+)/v\d$", to="lake.{kind}")
    names = Names(route, {"topic": "events"})
    assert names.target_of_value("click/v1") == Target("lake.click", "lake.click")
    assert names.target_of_value("click") is None
    assert names.target_of_value("") is None


def test_nothing_to_stand_for_is_no_name() -> None:
    assert target_of(Route(to="lake.{field}", field="type"), {"field": ""}) is None


@pytest.mark.parametrize(
    ("route", "why"),
    [
        (Route(to="lake.{field}", field="a", header="b"), "field and header"),
        (Route(to="lake.{name}"), "names 'name'"),
        (Route(to="lake.x", topic="^("), "not a valid pattern"),
        (Route(to="x"), "cannot be 'x'"),
        (Route(to="lake.{x"), "cannot be"),
        (Route(to="lake.x", value="y"), "without a field"),
    ],
)
def test_a_route_that_cannot_be_is_refused_by_name(route: Route, why: str) -> None:
    with pytest.raises(RouteUnfit, match=why) as caught:
        require_valid_route(route, "route 1")
    assert caught.value.code == "HG-134"


def test_a_text_that_is_too_long_names_no_table() -> None:
    """A proposal bears it, and so does the table's property."""
    route = Route("lake.{field}", field="kind")
    longest = "n" * (RAW_CHARACTERS_MAX - len("lake."))
    named = target_of(route, {"field": longest})
    assert named is not None
    assert len(named.raw) == RAW_CHARACTERS_MAX
    assert target_of(route, {"field": longest + "n"}) is None
