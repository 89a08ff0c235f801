"""Proposes columns for a first sink file, from records that exist already.

A proposal is as narrow as what was seen: whole numbers are ``long``, fractions ``double``, and text
in which every value is a time ``timestamptz``, ``timestamp`` or ``date``. Values of several kinds
get a column as well: ``timestamptz`` if all are times as text or numbers, else ``string`` with
``as_text`` (docs/guides/columns.md). Every record that was seen fits. Where no column can take a
field, a note says why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headgate.control_protocol.schema_evolution import RESERVED
from headgate.data_plane.formats.casting.times import parse_date, parse_timestamp

DEPTH_MAX = 5
COLUMNS_MAX = 500
FIELDS_MAX = 200
"""More fields in one object are taken for keys of a map."""

_LONG = range(-(2**63), 2**63)
_NAME = re.compile(r"[\w$-]+")

_TIME_S = range(946_684_800, 4_102_444_800)
"""From 2000 to 2099: a whole number that stands beside times as text counts from 1970."""
_UNITS = {"ms": 10**3, "s": 1, "us": 10**6, "ns": 10**9}
_MANY = 0.8
"""From this share of times on, the file names the values that keep a column from being one."""


@dataclass(frozen=True, slots=True)
class ProposedColumn:
    """A column and its rules. ``note``: what a person should know about its values."""

    name: str
    type: str
    path: str = ""
    unit: str = ""
    as_text: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Proposal:
    """``left_out``: name and reason. ``records``: how many were read.

    ``others``: how many of them have no fields.
    """

    columns: tuple[ProposedColumn, ...]
    left_out: tuple[tuple[str, str], ...]
    records: int
    others: int


class _NoType(Exception):
    """No column type fits all values."""


class _NeedsRule(Exception):
    """Only a column with this rule takes all values; a field within another one has no rules."""

    def __init__(self, kind: str = "string", unit: str = "") -> None:
        super().__init__(kind)
        self.kind = kind
        self.unit = unit

    def proposed_column(self, name: str, path: str = "") -> ProposedColumn:
        return ProposedColumn(name, self.kind, path, self.unit, as_text=not self.unit)


def propose_columns(documents: Iterable[Mapping[str, Any] | None]) -> Proposal:
    """Return the columns of these records' values, in the order in which their fields appeared.

    None stands for a value that has no fields.
    """
    values = list(documents)
    guess = _ColumnGuess()
    columns = guess.guess_columns([document for document in values if document is not None])
    return Proposal(tuple(columns), tuple(guess.left_out), len(values), values.count(None))


class _FieldGuess(NamedTuple):
    """What objects hold under a name: its type, or why that needs a rule, and the values."""

    name: str
    type: str | _NeedsRule
    values: list[Any]


@dataclass(slots=True)
class _ColumnGuess:
    left_out: list[tuple[str, str]] = field(default_factory=list)
    _apart: list[ProposedColumn] = field(default_factory=list)
    _count: int = 0

    def guess_columns(self, objects: Sequence[Mapping[str, Any]]) -> list[ProposedColumn]:
        """Return the columns of the records, with those of inner fields that need a rule."""
        columns: list[ProposedColumn] = []
        for name, kind, values in self._guess_fields(objects, ""):
            column = kind.proposed_column(name) if isinstance(kind, _NeedsRule) else None
            columns.append(
                column
                or ProposedColumn(
                    name, str(kind), note=_describe_few_values_not_times(str(kind), values)
                )
            )
        taken = {column.name.lower() for column in columns}
        for column in self._apart:
            if column.name.lower() in taken:
                why = f"its values are of several kinds, and there is a column {column.name}"
                self.left_out.append((column.path, why))
                continue
            taken.add(column.name.lower())
            columns.append(column)
        return columns

    def _guess_fields(self, objects: Iterable[Mapping[str, Any]], path: str) -> list[_FieldGuess]:
        """Guess the fields of these objects; note in ``left_out`` those that cannot be columns."""
        contents: dict[str, list[Any]] = {}
        for some in objects:
            for name, content in some.items():
                contents.setdefault(name, []).append(content)
        typed: list[_FieldGuess] = []
        taken_names: set[str] = set()
        for name, there in contents.items():
            try:
                kind = self._guess_type_and_take_name(name, there, f"{path}{name}", taken_names)
                typed.append(_FieldGuess(name, kind, there))
            except _NoType as unclear:
                self.left_out.append((f"{path}{name}", str(unclear)))
            except _NeedsRule as rule:
                taken_names.add(name.lower())
                if not path:
                    typed.append(_FieldGuess(name, rule, there))
                elif "[]" in path:
                    why = "its values are of several kinds: " + _kinds_text(there)
                    self.left_out.append((f"{path}{name}", why))
                else:
                    own = f"{path}{name}".replace(".", "_")
                    self._apart.append(rule.proposed_column(own, f"{path}{name}"))
        return typed

    def _guess_type_and_take_name(
        self, name: str, contents: list[Any], path: str, taken_names: set[str]
    ) -> str:
        if not _NAME.fullmatch(name):
            raise _NoType("a column cannot have this name")
        if path == name and name.lower() in RESERVED:
            raise _NoType("Iceberg keeps this name for itself")
        if name.lower() in taken_names:
            raise _NoType("another column has this name but for case")
        if self._count == COLUMNS_MAX:
            raise _NoType(f"there are {COLUMNS_MAX} columns already")
        self._count += 1
        try:
            kind = self._guess_type(contents, path)
        except _NoType:
            self._count -= 1  # what is left out takes no column's place
            raise
        taken_names.add(name.lower())
        return kind

    def _guess_type(self, contents: Iterable[Any], path: str) -> str:
        there = [content for content in contents if content is not None]
        kinds = {type(content) for content in there}
        if not kinds:
            raise _NoType("it is null or empty in every record")
        if kinds == {bool}:
            return "boolean"
        if kinds == {int}:
            return _integer_type(there)
        if kinds <= {int, float}:
            return "double"
        if kinds == {str}:
            return next((name for name, fits in _TIMES if all(map(fits, there))), "string")
        if kinds == {dict}:
            return self._guess_object_type(there, path)
        if kinds == {list}:
            items = [each for some in there for each in some]
            return f"list<{self._guess_item_type(items, f'{path}[]')}>"
        if kinds <= {str, dict, list}:
            return "string"
        return _timestamptz_or_needs_rule(there)

    def _guess_item_type(self, items: list[Any], path: str) -> str:
        """Return the type of items; those that need a rule make the whole column text."""
        try:
            return self._guess_type(items, path)
        except _NeedsRule:
            raise _NeedsRule from None

    def _guess_object_type(self, objects: list[dict[str, Any]], path: str) -> str:
        if path.count(".") + path.count("[]") >= DEPTH_MAX:
            return "string"
        if len({name for some in objects for name in some}) > FIELDS_MAX:
            contents = [content for some in objects for content in some.values()]
            return f"map<string, {self._guess_item_type(contents, f'{path}[]')}>"
        fields = self._guess_fields(objects, f"{path}.")
        if not fields:
            raise _NoType("no field of it has a type")
        return f"struct<{', '.join(f'{name}: {kind}' for name, kind, _ in fields)}>"


def _integer_type(numbers: list[int]) -> str:
    if all(number in _LONG for number in numbers):
        return "long"
    if max(map(abs, numbers)) < 10**38:
        return "decimal(38, 0)"
    raise _NeedsRule


def _timestamptz_or_needs_rule(values: list[Any]) -> str:
    """Return ``timestamptz`` if all are times, and numbers among them milliseconds.

    Raises ``_NeedsRule``.
    """
    numbers = [value for value in values if type(value) is int]
    texts = [value for value in values if isinstance(value, str)]
    if len(numbers) + len(texts) < len(values) or not all(map(_is_time, texts)):
        raise _NeedsRule
    for unit, per_s in _UNITS.items():
        if all(number // per_s in _TIME_S for number in numbers):
            if unit == "ms":  # what numbers count without a rule
                return "timestamptz"
            raise _NeedsRule("timestamptz", unit)
    raise _NeedsRule


def _describe_few_values_not_times(kind: str, contents: list[Any]) -> str:
    """Name the values that keep a column of text from being one of times."""
    texts = [content for content in contents if isinstance(content, str)]
    others = [text for text in texts if not _is_time(text)] if kind == "string" else []
    if not others or len(texts) - len(others) < _MANY * len(texts):
        return ""
    return (
        f"{len(others)} of {len(texts)} values are no times, such as {others[0][:40]!r}: as "
        "timestamptz, their records would be bad"
    )


def _kinds_text(values: Iterable[Any]) -> str:
    kinds = {type(value) for value in values if value is not None}
    return ", ".join(sorted({_json_type_name(kind) for kind in kinds}))


def _json_type_name(python_type: type) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "text", dict: "object"}
    return names.get(python_type, "array")


def _predicate_of_parser(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def fits(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return fits


def _require_zoned_time(text: str) -> None:
    if not re.search(r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$", text):
        raise ValueError
    parse_timestamp(text, "us", zoned=True)


def _require_unzoned_time(text: str) -> None:
    parse_timestamp(text, "us", zoned=False)


def _require_time(text: str) -> None:
    parse_timestamp(text, "us", zoned=True)


_is_time = _predicate_of_parser(_require_time)
"""Return whether a ``timestamptz`` takes the text; without a zone it is UTC."""

_TIMES: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("date", _predicate_of_parser(parse_date)),
    ("timestamptz", _predicate_of_parser(_require_zoned_time)),
    ("timestamp", _predicate_of_parser(_require_unzoned_time)),
    ("timestamptz", _is_time),
)
