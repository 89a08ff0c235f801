"""Which routes may lead to a table with a key, where a record's contents decide of its name.

A name that is not known yet is compared by its beginning: an answer may be yes without need, and
is never no without reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from headgate.data_plane.batch.routes import (
    Route,
    Routing,
    filled,
    names_of,
    target,
    value_matches,
)

_ANY = frozenset({""})
_SOMETHING = "\0"
"""Stands for any one character."""
_CHARACTER = re.compile(r"(?:\\[^\w\s]|[^\\^$*+?{}\[\]|()])(?![*?{])")
"""One that must be there: itself, or any where it is a dot."""
_GROUP = re.compile(r"\((?:\?:|\?P<\w+>|(?!\?))")


def may_key(routing: Routing, topic: str) -> bool:
    """Whether a record of the topic may go to a table with a key."""
    return bool(routing.keys) and any(
        _keyed(routing, route, parts) for route, parts in routing.of_topic(topic)
    )


def may_name(routing: Routing, topic: str, table: str) -> bool:
    """Whether a record of the topic may go to this table."""
    return any(
        names_of(filled(route, _known(route, parts))).fullmatch(table) is not None
        for route, parts in routing.of_topic(topic)
    )


def before_keys(routing: Routing, number: int) -> bool:
    """Whether records that the route takes, or leaves to later ones, may be of a keyed table."""
    route = routing.routes[number]
    return any(
        _overlap(route.topic, other.topic) and _keyed(routing, other, {})
        for other in routing.routes[number:]
    )


def _keyed(routing: Routing, route: Route, parts: Mapping[str, str]) -> bool:
    known = _known(route, parts)
    if named := target(route, known):
        return bool(routing.key_of(named.table))
    begin, *unknown = filled(route, known).to.partition("{")
    return any(unknown) and any(
        key and _agree(beginnings(match), {begin}) for match, key in routing.keys
    )


def _known(route: Route, parts: Mapping[str, str]) -> Mapping[str, str]:
    """What the table's name is made of, as far as that is known before a record is looked at."""
    wanted = route.record or route.value
    return parts if wanted.startswith("^") else {**parts, **(value_matches(route, wanted) or {})}


def _overlap(one: str, other: str) -> bool:
    """Whether a topic may match both of these names or patterns."""
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
            *(beginnings(each[1:]) if each[:1] == "^" else _ANY for each in _branches(pattern))
        )
        for pattern in patterns
    )
    return _agree(first, second)


def _agree(some: frozenset[str], others: frozenset[str] | set[str]) -> bool:
    """Whether a text may begin with one of each."""
    return any(
        all(x == y or _SOMETHING in (x, y) for x, y in zip(a, b, strict=False))
        for a in some
        for b in others
    )


@lru_cache(maxsize=4_096)
def beginnings(pattern: str) -> frozenset[str]:
    """Texts with one of which everything begins that matches the whole pattern."""
    branches = list(_branches(pattern))
    if len(branches) > 1:
        return frozenset[str]().union(*map(beginnings, branches))
    begin, at = "", 0
    while found := _CHARACTER.match(pattern, at):
        letter = _SOMETHING if found[0] == "." else found[0][-1]
        begin, at = begin + letter, found.end()
    group = _GROUP.match(pattern, at)
    if group is None:
        return frozenset({begin})
    end = _closed(pattern, group.end())
    if pattern[end + 1 : end + 2] in ("*", "?", "{"):
        return frozenset({begin})
    return frozenset(begin + more for more in beginnings(pattern[group.end() : end]))


def _branches(pattern: str) -> Iterator[str]:
    """What stands between the bars that are in no group."""
    begin = 0
    for at, depth in _depths(pattern):
        if pattern[at] == "|" and depth == 0:
            yield pattern[begin:at]
            begin = at + 1
    yield pattern[begin:]


def _closed(pattern: str, begin: int) -> int:
    """Where the group ends that has begun before this place."""
    return next(
        at for at, depth in _depths(pattern) if at >= begin and pattern[at] == ")" and depth == 0
    )


def _depths(pattern: str) -> Iterator[tuple[int, int]]:
    """Each place that means something by itself, and in how many groups it is."""
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
