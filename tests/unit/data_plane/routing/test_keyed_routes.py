"""Which routes may lead to a table with a key: never no without reason (KEY-1, KEY-8)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.data_plane.routing.keyed_routes import (
    may_lead_to_keyed_table,
    may_lead_to_keyed_table_from,
    may_lead_to_table,
    possible_beginnings,
)
from headgate.data_plane.routing.routes import Names, Route, Routing, target_of

KEYS = (("lake.(orders|users_.+)", ("id",)),)


@pytest.mark.parametrize(
    ("pattern", "known"),
    [
        ("lake.orders", {"lake\0orders"}),
        (r"lake\.(orders|users)", {"lake.orders", "lake.users"}),
        (r"lake\.(orders|users_.*)x", {"lake.orders", "lake.users_"}),
        (r"lake\.(?:orders)?", {"lake."}),
        (r"lake\.orders?", {"lake.order"}),
        (r"lake\.a|pond\.(b|(c|d)e)", {"lake.a", "pond.b", "pond.c", "pond.d"}),
        (r"lake\.[)|]x", {"lake."}),
        (r"lake\.(?i:x)", {"lake."}),
        (r".*", {""}),
        ("", {""}),
    ],
)
def test_how_everything_begins_that_matches_a_pattern(pattern: str, known: set[str]) -> None:
    assert possible_beginnings(pattern) == known


_PIECES = st.sampled_from(
    ["a", "b", r"\.", ".", "a?", "b*", "a+", "[ab]", "[^]a]", "(a|b)", "(?:ab)?", "|", "a{0,2}"]
)


@given(st.lists(_PIECES, max_size=6).map("".join), st.text("ab.", max_size=6))
def test_no_text_that_matches_begins_otherwise(pattern: str, text: str) -> None:
    if re.fullmatch(pattern, text):
        known = [re.escape(begin).replace("\0", ".") for begin in possible_beginnings(pattern)]
        assert any(re.match(begin, text) for begin in known)


@pytest.mark.parametrize(
    ("route", "keyed"),
    [
        (Route(to="lake.{topic}"), True),
        (Route(to="lake.{topic}_b"), False),
        (Route(to="lake.{field}", field="type"), True),
        (Route(to="lake.event_{field}", field="type"), False),
        (Route(to="lake.users_{field}", field="type"), True),
        (Route(to="lake.{field}", field="type", value="orders"), True),
        (Route(to="lake.{field}", field="type", value="logs"), False),
        (Route(to="lake.{kind}", header="t", value="^(?P<kind>.+)$"), True),
        (Route(to="lake.{record}", record="Orders"), True),
        (Route(to="lake.orders", header="t"), True),
        (Route(to="lake.logs", header="t"), False),
        (Route(to="lake.orders", topic="another"), False),
    ],
)
def test_key_1_routes_that_may_lead_to_a_key(route: Route, keyed: bool) -> None:
    routing = Routing((route,), keys=KEYS)
    assert may_lead_to_keyed_table(routing, "orders") is keyed
    assert may_lead_to_table(routing, "orders", "lake.orders") is (
        keyed and "users" not in route.to
    )


def test_key_1_a_topic_is_judged_by_the_routes_that_it_comes_to() -> None:
    first = Route(topic="logs", to="lake.logs")
    routing = Routing((first, Route(to="lake.{field}", field="type")), keys=KEYS)
    assert not may_lead_to_keyed_table(routing, "logs")
    assert may_lead_to_keyed_table(routing, "other")
    assert not may_lead_to_keyed_table(Routing(routing.routes), "other")


@pytest.mark.parametrize("to", ["lake.{topic}", "lake.{topic}_x", "lake.{topic}_{field}"])
@pytest.mark.parametrize("size", [100, 103, 104, 130, 249])
def test_a_table_whose_name_was_cut_is_among_what_may_be(to: str, size: int) -> None:
    topic, route = "t" * size, Route(to=to, field="type" if "field" in to else "")
    found = target_of(route, {"topic": topic, "field": "orders"})
    assert found
    routing = Routing((route,), keys=((found.table.replace(".", r"\."), ("id",)),))
    assert may_lead_to_table(routing, topic, found.table)
    assert may_lead_to_keyed_table(routing, topic)


@given(st.sampled_from(["orders", "users_a", "logs", "x"]), st.sampled_from(["t", "lake"]))
def test_key_1_where_a_record_goes_was_among_what_may_be(value: str, topic: str) -> None:
    routes = (
        Route(topic="^(?P<g>.)", to="lake.{g}_{field}", field="t", value="^x|logs$"),
        Route(to="lake.{field}", field="t"),
    )
    routing = Routing(routes, keys=KEYS)
    for route, parts in routing.routes_of_topic(topic):
        if found := Names(route, parts).target_of_value(value):
            assert may_lead_to_table(routing, topic, found.table)
            assert may_lead_to_keyed_table(routing, topic) or not routing.key_of(found.table)
            return


@pytest.mark.parametrize(
    ("first", "second", "before"),
    [
        ("", "", True),
        ("events", "", True),
        ("events", "events", True),
        ("events", "orders", False),
        ("events", r"^shop\.", False),
        ("shop.events", r"^shop\.", True),
        (r"^log\.", r"^shop\.", False),
        (r"^shop\.(a|b)$", r"^shop\.c$", False),
        (r"^shop\.(a|b)$", r"^shop\..$", True),
        (r"^log\.|shop", r"^shop\.", True),
    ],
)
def test_key_1_what_a_route_leaves_may_come_to_a_key(first: str, second: str, before: bool) -> None:
    routes = (
        Route(topic=first, to="lake.logs", field="t"),
        Route(topic=second, to="lake.orders"),
    )
    assert may_lead_to_keyed_table_from(Routing(routes, keys=KEYS), 0) is before
    assert not may_lead_to_keyed_table_from(Routing(routes[::-1], keys=KEYS), 1)
