"""Proposes columns for a first sink file, from records that exist already.

A proposal is as narrow as what was seen: whole numbers are ``long``, fractions ``double``, and text
in which every value is a time ``timestamptz``, ``timestamp`` or ``date``. Objects and arrays mixed
with text, or below a certain depth, are text. If no type fits all values, or a name cannot be a
column, nothing is proposed and a note says why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headgate.control_protocol.schema_evolution import RESERVED
from headgate.data_plane.formats.casting.times import days_of, timestamp_of

DEPTH_MAX = 5
COLUMNS_MAX = 500
FIELDS_MAX = 200
"""More fields in one object are taken for keys of a map."""

_LONG = range(-(2**63), 2**63)
_NAME = re.compile(r"[\w$-]+")


@dataclass(frozen=True, slots=True)
class Proposal:
    """``columns``: name and type. ``left_out``: name and reason. ``records``: how many were read.

    ``others``: how many of them are not JSON objects.
    """

    columns: tuple[tuple[str, str], ...]
    left_out: tuple[tuple[str, str], ...]
    records: int
    others: int


class _NoType(Exception):
    """No column type fits all values."""


def propose_columns(values: Iterable[bytes | None]) -> Proposal:
    """Return the columns of these records' values, in the order in which their fields appeared."""
    documents = [_document(value) for value in values]
    guess = _ColumnGuess()
    columns = guess.guess_fields([document for document in documents if document is not None], "")
    others = documents.count(None)
    return Proposal(tuple(columns), tuple(guess.left_out), len(documents), others)


def _document(value: bytes | None) -> Mapping[str, Any] | None:
    try:
        document = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


class _ColumnGuess:
    def __init__(self) -> None:
        self.left_out: list[tuple[str, str]] = []
        self._columns = 0

    def guess_fields(
        self, objects: Iterable[Mapping[str, Any]], path: str
    ) -> list[tuple[str, str]]:
        """Return name and type of what these objects hold, counting every depth together."""
        contents: dict[str, list[Any]] = {}
        for some in objects:
            for name, content in some.items():
                contents.setdefault(name, []).append(content)
        typed: list[tuple[str, str]] = []
        lowered: set[str] = set()
        for name, there in contents.items():
            try:
                typed.append((name, self._guess_field_type(name, there, f"{path}{name}", lowered)))
            except _NoType as unclear:
                self.left_out.append((f"{path}{name}", str(unclear)))
        return typed

    def _guess_field_type(
        self, name: str, contents: list[Any], path: str, lowered: set[str]
    ) -> str:
        if not _NAME.fullmatch(name):
            raise _NoType("a column cannot have this name")
        if path == name and name.lower() in RESERVED:
            raise _NoType("Iceberg keeps this name for itself")
        if name.lower() in lowered:
            raise _NoType("another column has this name but for case")
        if self._columns == COLUMNS_MAX:
            raise _NoType(f"there are {COLUMNS_MAX} columns already")
        self._columns += 1
        kind = self._guess_type(contents, path)
        lowered.add(name.lower())
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
            return (
                f"list<{self._guess_type([each for some in there for each in some], f'{path}[]')}>"
            )
        if kinds <= {str, dict, list}:
            return "string"
        raise _NoType(
            "its values are of several kinds: " + ", ".join(sorted(map(_json_type_name, kinds)))
        )

    def _guess_object_type(self, objects: list[dict[str, Any]], path: str) -> str:
        if path.count(".") + path.count("[]") >= DEPTH_MAX:
            return "string"
        if len({name for some in objects for name in some}) > FIELDS_MAX:
            contents = [content for some in objects for content in some.values()]
            return f"map<string, {self._guess_type(contents, f'{path}[]')}>"
        fields = self.guess_fields(objects, f"{path}.")
        if not fields:
            raise _NoType("no field of it has a type")
        return f"struct<{', '.join(f'{name}: {kind}' for name, kind in fields)}>"


def _integer_type(numbers: list[int]) -> str:
    if all(number in _LONG for number in numbers):
        return "long"
    if max(map(abs, numbers)) < 10**38:
        return "decimal(38, 0)"
    raise _NoType("its numbers have more than 38 digits")


def _json_type_name(kind: type) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "text", dict: "object"}
    return names.get(kind, "array")


def _parses(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def fits(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return fits


def _parse_zoned(text: str) -> None:
    if not re.search(r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$", text):
        raise ValueError
    timestamp_of(text, "us", zoned=True)


def _parse_unzoned(text: str) -> None:
    timestamp_of(text, "us", zoned=False)


_TIMES: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("date", _parses(days_of)),
    ("timestamptz", _parses(_parse_zoned)),
    ("timestamp", _parses(_parse_unzoned)),
)
