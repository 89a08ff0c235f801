"""Reads a connector's configuration as people have it: JSON as Connect's REST takes and gives it,
or properties as a standalone worker reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headgate.control_protocol.errors import ConnectorFileUnfit

_SEPARATOR = re.compile(r"(?<!\\)(?:\s*[=:]\s*|\s+)")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_LINE_END = re.compile(r"\r\n|\r|\n")
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SHAPES = (
    'take what Connect\'s REST gives, {"name": ..., "config": {...}}, its config alone, or a file '
    "of properties (key=value)"
)


def read_connector_file(path: Path) -> dict[str, str]:
    """Return the connector's keys and values, its name among them.

    Raises ``ConnectorFileUnfit``, which names the place.
    """
    text = _read_text(path)
    found = (
        _parse_json(path, text)
        if text.lstrip()[:1] in ("{", "[")
        else _parse_properties(path, text)
    )
    if not found:
        raise ConnectorFileUnfit(f"{path}: has no keys", _SHAPES)
    return found


def read_connect_worker_file(path: Path) -> dict[str, str]:
    """Return the properties of a Connect worker. Raises ``ConnectorFileUnfit``."""
    return read_connector_file(path)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConnectorFileUnfit(f"{path}: cannot be read: {error.strerror}", _SHAPES) from None
    except UnicodeDecodeError:
        raise ConnectorFileUnfit(f"{path}: is not UTF-8 text", _SHAPES) from None


def _parse_json(path: Path, text: str) -> dict[str, str]:
    repeated: list[str] = []

    def note_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                repeated.append(key)
            seen[key] = value
        return seen

    try:
        document = json.loads(text, object_pairs_hook=note_repeated_keys)
    except json.JSONDecodeError as error:
        raise ConnectorFileUnfit(
            f"{path}:{error.lineno}:{error.colno}: is not valid JSON: {error.msg}", _SHAPES
        ) from None
    except ValueError as error:  # a number with more digits than Python parses
        raise ConnectorFileUnfit(f"{path}: cannot be read: {error}", _SHAPES) from None
    except RecursionError:
        raise ConnectorFileUnfit(f"{path}: is nested too deeply", _SHAPES) from None
    if repeated:
        raise ConnectorFileUnfit(
            f"{_file_and_line_of_key(path, text, repeated[0])}: {repeated[0]} is there twice",
            "remove one of them",
        )
    if isinstance(document, list):
        raise ConnectorFileUnfit(f"{path}: is a list", "import one connector at a time")
    return _flatten_document(path, text, document)


def _flatten_document(path: Path, text: str, document: Mapping[str, Any]) -> dict[str, str]:
    outer = "config" if "config" in document else "connectorConfiguration"
    inner = document.get(outer)
    if inner is not None and not isinstance(inner, dict):
        raise ConnectorFileUnfit(
            f"{_file_and_line_of_key(path, text, outer)}: {outer} is no object", _SHAPES
        )
    found: dict[str, str] = {}
    for key, value in (document if inner is None else inner).items():
        if value is None:
            continue  # Connect takes a null for a key that is not there
        if isinstance(value, dict | list):
            raise ConnectorFileUnfit(
                f"{_file_and_line_of_key(path, text, key)}: {key} is {_describe_kind(value)}, "
                "not a text",
                _SHAPES,
            )
        found[key] = str(value).lower() if isinstance(value, bool) else str(value)
    name = document.get("name")
    if inner is not None and isinstance(name, str):
        found.setdefault("name", name)
    return found


def _describe_kind(value: object) -> str:
    return "a list" if isinstance(value, list) else "an object"


def _file_and_line_of_key(path: Path, text: str, key: str) -> str:
    """Return the file with the line in which the key stands last."""
    written = "|".join(re.escape(json.dumps(key, ensure_ascii=way)) for way in (True, False))
    places = [found.start() for found in re.finditer(rf"(?<!\\)(?:{written})\s*:", text)]
    return f"{path}:{text.count(chr(10), 0, places[-1]) + 1}" if places else str(path)


def _parse_properties(path: Path, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key, value = _split_key_and_value(line)
        if not key or value is None:
            raise ConnectorFileUnfit(f"{path}:{number}: is neither key=value nor JSON", _SHAPES)
        found[key] = value  # of a repeated key Java takes the last
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines as Java joins them: a backslash at the end continues one."""
    begun, joined = 0, ""
    for number, line in enumerate(_LINE_END.split(text), 1):
        stripped = line.lstrip()
        if not joined and (not stripped or stripped[0] in "#!"):
            continue
        begun = begun if joined else number
        joined += stripped
        if (len(joined) - len(joined.rstrip("\\"))) % 2:
            joined = joined[:-1]
            continue
        yield begun, joined
        joined = ""
    if joined:
        yield begun, joined


def _split_key_and_value(line: str) -> tuple[str, str | None]:
    found = _SEPARATOR.search(line)
    if found is None:
        return _unescape(line), None
    return _unescape(line[: found.start()]), _unescape(line[found.end() :].rstrip())


def _unescape(text: str) -> str:
    def unescape_match(match: re.Match[str]) -> str:
        what = match[1]
        if len(what) > 1:
            return chr(int(what[1:], 16))
        return _CONTROL.get(what, what)

    # Java's escapes are UTF-16: two of them may be one character, and one alone is none.
    units = _ESCAPE.sub(unescape_match, text).encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "replace")
