"""Tells which routes may lead to a keyed table, where a record's contents decide its name.

A name that is not known yet is compared by its beginning: an answer may be yes without need, and
is never no without reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from headgate.data_plane.routing.routes import (
    Route,
    Routing,
    known_beginning,
    name_parts_of_value,
    pattern_of_table_names,
    target_of,
    with_name_parts,
)

_ANY = frozenset({""})
_SOMETHING = "\0"
"""Stands for any one character."""
_CHARACTER = re.compile(r"(?:\\[^\w\s]|[^\\^$*+?{}\[\]|()])(?![*?{])")
"""One that must be there: itself, or any where it is a dot."""
_GROUP = re.compile(r"\((?:\?:|\?P<\w+>|(?!\?))")


def may_lead_to_keyed_table(routing: Routing, topic: str) -> bool:
    """Return whether a record of the topic may go to a table with a key."""
    return bool(routing.keys) and any(
        _route_may_lead_to_keyed_table(routing, route, parts)
        for route, parts in routing.routes_of_topic(topic)
    )


def may_lead_to_table(routing: Routing, topic: str, table: str) -> bool:
    """Return whether a record of the topic may go to this table."""
    return any(
        pattern_of_table_names(with_name_parts(route, _known_name_parts(route, parts))).fullmatch(
            table
        )
        is not None
        for route, parts in routing.routes_of_topic(topic)
    )


def may_lead_to_keyed_table_from(routing: Routing, route_number: int) -> bool:
    """Return whether records of the route, or of those after it, may be a keyed table's."""
    route = routing.routes[route_number]
    return any(
        _may_match_same_topic(route.topic, other.topic)
        and _route_may_lead_to_keyed_table(routing, other, {})
        for other in routing.routes[route_number:]
    )


def _route_may_lead_to_keyed_table(
    routing: Routing, route: Route, parts: Mapping[str, str]
) -> bool:
    known = _known_name_parts(route, parts)
    if named := target_of(route, known):
        return bool(routing.key_of(named.table))
    more = with_name_parts(route, known)
    return "{" in more.to and any(
        key and _may_begin_alike(possible_beginnings(match), {known_beginning(more)})
        for match, key in routing.keys
    )


def _known_name_parts(route: Route, parts: Mapping[str, str]) -> Mapping[str, str]:
    """Return what the table's name is made of, as far as known before a record is read."""
    wanted = route.record or route.value
    return (
        parts if wanted.startswith("^") else {**parts, **(name_parts_of_value(route, wanted) or {})}
    )


def _may_match_same_topic(one: str, other: str) -> bool:
    """Return whether a topic may match both of these names or patterns."""
    if not (one and other):
        return True
    patterns = [text for text in (one, other) if text.startswith("^")]
    if len(patterns) == 1:
        (name,) = {one, other} - set(patterns)
        return re.search(patterns[0], name) is not None
    if not patterns:
        return one == other
    first, second = (
        frozenset().union(
            *(
                possible_beginnings(each[1:]) if each[:1] == "^" else _ANY
                for each in _split_alternatives(pattern)
            )
        )
        for pattern in patterns
    )
    return _may_begin_alike(first, second)


def _may_begin_alike(some: frozenset[str], others: frozenset[str] | set[str]) -> bool:
    """Return whether a text may begin with one of each."""
    return any(
        all(x == y or _SOMETHING in (x, y) for x, y in zip(a, b, strict=False))
        for a in some
        for b in others
    )


@lru_cache(maxsize=4_096)
def possible_beginnings(pattern: str) -> frozenset[str]:
    """Return texts with one of which everything begins that matches the whole pattern."""
    branches = list(_split_alternatives(pattern))
    if len(branches) > 1:
        return frozenset[str]().union(*map(possible_beginnings, branches))
    begin, at = "", 0
    while result := _CHARACTER.match(pattern, at):
        letter = _SOMETHING if result[0] == "." else result[0][-1]
        begin, at = begin + letter, result.end()
    group = _GROUP.match(pattern, at)
    if group is None:
        return frozenset({begin})
    end = _group_end(pattern, group.end())
    if pattern[end + 1 : end + 2] in ("*", "?", "{"):
        return frozenset({begin})
    return frozenset(begin + more for more in possible_beginnings(pattern[group.end() : end]))


def _split_alternatives(pattern: str) -> Iterator[str]:
    """Return what stands between the bars that are in no group."""
    begin = 0
    for at, depth in _indexes_and_group_depths(pattern):
        if pattern[at] == "|" and depth == 0:
            yield pattern[begin:at]
            begin = at + 1
    yield pattern[begin:]


def _group_end(pattern: str, begin: int) -> int:
    """Return where the group ends that has begun before this place."""
    return next(
        at
        for at, depth in _indexes_and_group_depths(pattern)
        if at >= begin and pattern[at] == ")" and depth == 0
    )


def _indexes_and_group_depths(pattern: str) -> Iterator[tuple[int, int]]:
    """Return each place that means something by itself, and in how many groups it is."""
    at, depth, listed = 0, 0, -1
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            at += 2
            continue
        if listed >= 0:
            if letter == "]" and at > listed:
                listed = -1
        elif letter == "[":
            listed = at + (2 if pattern[at + 1 : at + 2] == "^" else 1)
        else:
            depth -= letter == ")"
            yield at, depth
            depth += letter == "("
        at += 1
