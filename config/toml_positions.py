"""Finds where in a sink file a key and its value stand: ``tomllib`` does not tell. Pure."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

Where = tuple[str | int, ...]
"""Names of sections and keys, and indexes in lists, from the outermost inwards."""

_KEY = re.compile(r'"(?P<basic>(?:[^"\\]|\\.)*)"|\'(?P<literal>[^\']*)\'|(?P<bare>[\w-]+)')
_BLANK = re.compile(r"[ \t]*")
_EMPTY = re.compile(r"(?:\s|#[^\n]*)*")
_TEXT = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'', re.DOTALL
)
_PLAIN = re.compile(r"[^,\]}\n#]+")
_NAMED = re.compile(r'(\w+)((?:\.\w+|\."[^"]+"|\[\d+\])*)')
_STEP = re.compile(r'\.(\w+)|\."([^"]+)"|\[(\d+)\]')


@dataclass(frozen=True, slots=True)
class Position:
    """``key`` and ``value``: offsets in the text."""

    key: int
    value: int


def find_line_and_column_of_error(toml_text: str, error_message: str) -> tuple[int, int] | None:
    """Return line and column, from 1, of what a message about a sink file begins with.

    It is the place of a key that should not be there, else of the value; of the section, if the key
    is missing. ``toml_text`` is valid TOML.
    """
    where = _path_in_message(error_message)
    try:
        known = _Scan(toml_text).scan_positions()
    except (ValueError, RecursionError):  # a place is not worth another error
        return None
    while where and where not in known:
        where = where[:-1]
    if not where:
        return None
    found = known[where]
    at = (
        found.key
        if " is not a known key" in error_message or " is missing" in error_message
        else found.value
    )
    return toml_text.count("\n", 0, at) + 1, at - toml_text.rfind("\n", 0, at)


def _path_in_message(message: str) -> Where:
    found = _NAMED.match(message)
    if not found:
        return ()
    steps = _STEP.findall(found[2])
    return (found[1], *(int(index) if index else name or quoted for name, quoted, index in steps))


class _Scan:
    """Reads a valid document once, from the left to the right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._known: dict[Where, Position] = {}

    def scan_positions(self) -> dict[Where, Position]:
        section: Where = ()
        lists: Counter[Where] = Counter()
        self._skip_pattern(_EMPTY)
        while self._at < len(self._text):
            begin = self._at
            if self._text.startswith("[", begin):
                listed = self._text.startswith("[[", begin)
                self._at += 1 + listed
                section = self._path_with_newest_list_indexes(self._scan_dotted_key(), lists)
                self._at = self._text.index("]", self._at) + 1 + listed
                if listed:
                    self._known.setdefault(section, Position(begin, begin))
                    section = (*section, lists[section])
                    lists[section[:-1]] += 1
                self._known.setdefault(section, Position(begin, begin))
            else:
                self._scan_pair(section)
            self._skip_pattern(_EMPTY)
        return self._known

    def _path_with_newest_list_indexes(self, names: Where, list_lengths: Counter[Where]) -> Where:
        """Return the path with the index of the newest element of each list on the way."""
        path: Where = ()
        for name in names[:-1]:
            path = (*path, name)
            if list_lengths[path]:
                path = (*path, list_lengths[path] - 1)
        return (*path, *names[-1:])

    def _scan_pair(self, section: Where) -> None:
        begin = self._at
        path = (*section, *self._scan_dotted_key())
        self._at = self._text.index("=", self._at) + 1
        self._skip_pattern(_BLANK)
        self._known[path] = Position(begin, self._at)
        for depth in range(len(section) + 1, len(path)):
            self._known.setdefault(path[:depth], Position(begin, begin))
        self._scan_value(path)

    def _scan_dotted_key(self) -> Where:
        names: list[str | int] = []
        while True:
            self._skip_pattern(_BLANK)
            found = _KEY.match(self._text, self._at)
            if found is None:
                raise ValueError("no key")
            names.append(found["basic"] or found["literal"] or found["bare"] or "")
            self._at = found.end()
            self._skip_pattern(_BLANK)
            if not self._text.startswith(".", self._at):
                return tuple(names)
            self._at += 1

    def _scan_value(self, path: Where) -> None:
        if self._text.startswith("[", self._at):
            self._scan_items(path, "]")
        elif self._text.startswith("{", self._at):
            self._scan_items(path, "}")
        else:
            found = _TEXT.match(self._text, self._at) or _PLAIN.match(self._text, self._at)
            if found is None:
                raise ValueError("no value")
            self._at = found.end()

    def _scan_items(self, path: Where, end: str) -> None:
        self._at += 1
        index = 0
        self._skip_pattern(_EMPTY)
        while not self._text.startswith(end, self._at):
            if self._text.startswith(",", self._at):
                self._at += 1
            elif end == "}":
                self._scan_pair(path)
            else:
                self._known[(*path, index)] = Position(self._at, self._at)
                self._scan_value((*path, index))
                index += 1
            self._skip_pattern(_EMPTY)
        self._at += 1

    def _skip_pattern(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
