"""Decides which table a record goes to: the routes of a sink file (rules ROUTE-1 to ROUTE-3).

A route looks at the record alone, never at a clock or catalog, so that every participant decides
alike. The first route that matches wins; a record that none matches is *unmatched*.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from headgate.control_protocol.errors import RouteUnfit

NAME_CHARACTERS_MAX = 120
RAW_CHARACTERS_MAX = 1_000
"""A longer text names no table: proposals and the table's property bear it."""

RAW_NAME_PROPERTY = "headgate.raw-name"
"""A table's property: the name, before it was sanitised, whose records the table takes."""

TABLE_COLUMN = "_table"
"""The field that routes look at behind a transform, which gives it as a column (ROUTE-1)."""

_HASH_CHARACTERS = 16
_CUT_CHARACTERS = NAME_CHARACTERS_MAX - _HASH_CHARACTERS - 1
"""What is left of a name that is too long."""
_NOT_IN_NAMES = re.compile(r"[^a-z0-9_]")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_INPUTS = ("field", "header", "record")


@dataclass(frozen=True, slots=True)
class Route:
    """Describes one route: which records it takes, and the table that its placeholders make.

    ``topic``, ``value`` and ``record`` are names, or patterns that begin with ``^``. ``field`` is a
    path in the record's value, ``header`` a header's name; ``value`` says which of their values
    match (empty: any but none). ``merge``: other names may become the same table.
    """

    to: str
    topic: str = ""
    field: str = ""
    header: str = ""
    record: str = ""
    value: str = ""
    merge: bool = False

    @property
    def is_by_topic_alone(self) -> bool:
        """Return whether the topic alone decides."""
        return not (self.is_by_record_value or self.header)

    @property
    def is_by_record_value(self) -> bool:
        """Return whether the record's value decides too."""
        return bool(self.field or self.record)


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """Names a table, with the name that it was made of (``raw``)."""

    table: str
    raw: str
    merge: bool = False


@dataclass(frozen=True, slots=True)
class Routing:
    """Holds all routes of a sink, in order.

    ``keys``: patterns of whole names and the key of such tables, where some have one; the first
    that matches counts. ``creatable``: in the same way, whether such a table is ever made, and
    ``creates_others``, whether one of any other name is.
    """

    routes: tuple[Route, ...]
    keys: tuple[tuple[str, tuple[str, ...]], ...] = ()
    creatable: tuple[tuple[str, bool], ...] = ()
    creates_others: bool = True

    def key_of(self, table: str) -> tuple[str, ...]:
        """Return the columns of the table's key (KEY-1); none where every record adds a row."""
        return next(
            (key for match, key in self.keys if compile_pattern(match).fullmatch(table)), ()
        )

    def may_create(self, table: str) -> bool:
        """Return whether the settings let a missing table of this name be made (CREATE-1)."""
        return next(
            (made for match, made in self.creatable if compile_pattern(match).fullmatch(table)),
            self.creates_others,
        )

    def routes_of_topic(self, topic: str) -> Iterator[tuple[Route, Mapping[str, str]]]:
        """Return the topic's routes, with what the topic puts into their tables' names."""
        for route in self.routes:
            groups = _match_groups(route.topic, topic)
            if groups is not None:
                yield route, {"topic": topic, **groups}
                if route.is_by_topic_alone:
                    return

    def table_of_topic(self, topic: str) -> Target | None:
        """Return the table of the topic's records, where nothing but the topic decides."""
        for route, parts in self.routes_of_topic(topic):
            return target_of(route, parts) if route.is_by_topic_alone else None
        return None

    def tables_of_topics_winning_collisions(self, topics: Sequence[str]) -> Mapping[str, Target]:
        """Return, by topic, the tables that topics alone name.

        Of two raw names for one table one is left: that which is the table's own, else the first
        in order (ROUTE-3).
        """
        result = {topic: self.table_of_topic(topic) for topic in sorted(topics)}
        first: dict[str, Target] = {}
        for named in result.values():
            if named and (named.table not in first or named.raw == named.table):
                first[named.table] = named
        return {
            topic: named
            for topic, named in result.items()
            if named and (named.merge or first[named.table].raw == named.raw)
        }


def pattern_of_table_names(route: Route) -> re.Pattern[str]:
    """Return what the route can name; of names that it cuts only the beginning is compared."""
    namespace, _, name = route.to.rpartition(".")
    forms = [_pattern_of_template(name)]
    begin, *unknown = name.partition("{")
    if any(unknown) or len(name) > NAME_CHARACTERS_MAX:
        begin = begin[:_CUT_CHARACTERS]
        more = _CUT_CHARACTERS - len(begin)
        forms.append(f"{re.escape(begin)}[^.]{{{more}}}_[0-9a-f]{{{_HASH_CHARACTERS}}}")
    return re.compile(rf"{_pattern_of_template(namespace)}\.(?:{'|'.join(forms)})")


def _pattern_of_template(template: str) -> str:
    parts = _PLACEHOLDER.split(template)  # text, name, text, name, ...
    return "[a-z0-9_]+".join(map(re.escape, parts[::2]))


def known_beginning(route: Route) -> str:
    """Return how every name begins that the route can name."""
    namespace, dot, name = route.to.rpartition(".")
    return f"{namespace}{dot}{name[:_CUT_CHARACTERS]}".partition("{")[0]


def with_name_parts(route: Route, parts: Mapping[str, str]) -> Route:
    """Return the route whose table's name has these texts, as far as they are known."""
    known = {name: sanitise_name_part(text) for name, text in parts.items() if text}
    to = _PLACEHOLDER.sub(lambda found: known.get(found[1], found[0]), route.to)
    return replace(route, to=to)


def target_of(route: Route, parts: Mapping[str, str]) -> Target | None:
    """Return the route's table; ``None`` where a placeholder has nothing, or too much."""
    values = {name: parts.get(name) or "" for name in _PLACEHOLDER.findall(route.to)}
    if not all(values.values()):
        return None
    raw = _PLACEHOLDER.sub(lambda found: values[found[1]], route.to)
    if len(raw) > RAW_CHARACTERS_MAX:
        return None
    table = _PLACEHOLDER.sub(lambda found: sanitise_name_part(values[found[1]]), route.to)
    namespace, _, name = table.rpartition(".")
    return Target(f"{namespace}.{_shorten_name(name, raw)}", raw, route.merge)


def sanitise_name_part(value: str) -> str:
    """Put it in lower case, with an underscore for all but letters, digits and underscores
    (ROUTE-3)."""
    return _NOT_IN_NAMES.sub("_", value.lower())


def fold_case(table: str) -> str:
    """Return the name as the most forgiving catalog compares it: of any case and normal form."""
    return unicodedata.normalize("NFKC", table).casefold()


def _shorten_name(name: str, raw: str) -> str:
    if len(name) <= NAME_CHARACTERS_MAX:
        return name
    mark = hashlib.sha256(raw.encode(errors="surrogateescape")).hexdigest()[:_HASH_CHARACTERS]
    return f"{name[:_CUT_CHARACTERS]}_{mark}"


def name_parts_of_value(route: Route, value: str) -> Mapping[str, str] | None:
    """Return what the value of a field or header, or a record's name, puts into names.

    ``None``: it does not match.
    """
    wanted = route.record or route.value
    groups = _match_groups(wanted, value) if value else None
    if groups is None:
        return None
    name = "record" if route.record else "field" if route.field else "header"
    return {name: value, **groups}


@lru_cache(maxsize=4_096)
def compile_pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def _match_groups(name_or_pattern: str, text: str) -> Mapping[str, str] | None:
    """Return the groups of a pattern that matches; a name has none, nor has "", which takes all."""
    if not name_or_pattern.startswith("^"):
        return {} if name_or_pattern in ("", text) else None
    result = compile_pattern(name_or_pattern).search(text)
    return None if result is None else {k: v or "" for k, v in result.groupdict().items()}


def require_valid_route(route: Route, where: str) -> None:
    """Raises ``RouteUnfit``, a ``ConfigurationError``."""
    inputs = [name for name in _INPUTS if getattr(route, name)]
    if len(inputs) > 1:
        raise RouteUnfit(f"{where} has {' and '.join(inputs)}", "a route looks at one of them")
    if route.value and not (route.field or route.header):
        raise RouteUnfit(f"{where} has a value without a field or header", "name one of them")
    known = {"topic", *inputs}
    for name in ("topic", "value", "record"):
        text = getattr(route, name)
        if text.startswith("^"):
            try:
                known |= set(compile_pattern(text).groupindex)
            except re.error as error:
                raise RouteUnfit(
                    f"{where}: {name} is not a valid pattern: {error}", "mend it"
                ) from None
    unknown = sorted(set(_PLACEHOLDER.findall(route.to)) - known)
    if unknown:
        raise RouteUnfit(
            f"{where}: to = {route.to!r} names {unknown[0]!r}, which the route does not have",
            f"known are {', '.join(sorted(known))}; patterns, which begin with ^, name others, as "
            "(?P<name>...)",
        )
    plain = _PLACEHOLDER.sub("x", route.to)
    if "{" in plain or "}" in plain or not all(plain.split(".")) or plain.count(".") < 1:
        raise RouteUnfit(f"{where}: to cannot be {route.to!r}", 'write "namespace.{name}"')


@dataclass(slots=True)
class Names:
    """Remembers targets by value, per route and topic: each different value is looked at once."""

    route: Route
    parts: Mapping[str, str]
    _known: dict[str, Target | None] = field(default_factory=dict)

    def target_of_topic(self) -> Target | None:
        """Return the table where the topic alone decides."""
        return target_of(self.route, self.parts)

    def target_of_value(self, value: str) -> Target | None:
        """Return the table for a value of the route's field, header or record name."""
        if value not in self._known:
            if len(self._known) > _VALUES_KEPT_MAX:
                self._known.clear()
            more = name_parts_of_value(self.route, value)
            self._known[value] = (
                None if more is None else target_of(self.route, {**self.parts, **more})
            )
        return self._known[value]


_VALUES_KEPT_MAX = 100_000
