"""Loads a sink file (TOML) into ``SinkSettings``. An error names file, key and remedy."""

from __future__ import annotations

import base64
import dataclasses
import difflib
import functools
import re
import tomllib
import typing
from collections.abc import Collection, Mapping
from datetime import date, datetime, time
from enum import StrEnum
from pathlib import Path
from typing import Any

from headgate.control_protocol.errors import ConfigurationError
from headgate.data.formats.column_rules import Constant
from headgate.kafka import keys as kafka_keys
from headgate.sink.properties import NEVER_SECRET, Properties, Secret
from headgate.sink.settings import SinkSettings
from headgate.sink.table_settings import key_of
from headgate.tables.jvm_start import variable, withhold

_REFERENCE = re.compile(r"\$\{(env|file|base64):([^}]+)\}")
_CHARACTERS_MAX = 600
_VERY_CLOSE = 0.85
"""From here on a key is misspelt, rather than one that stands in the wrong section."""

_LIKE_ONE = re.compile(r"\$\{([\w-]+):[^}]*\}?")


def load(path: str | Path) -> SinkSettings:
    """Read the file, resolve references and check it. Raises ``ConfigurationError``."""
    path = Path(path)
    try:
        return parse(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(
            f"{path}: cannot be read: {error.strerror}", "headgate init NAME writes a sink file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: is not UTF-8 text") from None
    except ConfigurationError as error:
        raise type(error)(f"{path}: {_short(error.message)}", _short(error.hint)) from None


def parse(text: str) -> SinkSettings:
    """Return the settings in a sink file's text. Raises ``ConfigurationError``."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"is not valid TOML: {error}") from None
    kafka = document.get("kafka")
    if isinstance(kafka, dict):
        _check_kafka_keys(kafka)
    settings = _section(SinkSettings, document, "")
    assert isinstance(settings, SinkSettings)  # narrows the type
    return settings


def _check_kafka_keys(kafka: Mapping[str, Any]) -> None:
    for key, value in kafka.items():
        if isinstance(value, dict):
            raise ConfigurationError(
                f"kafka.{key} is a section",
                "Kafka's keys contain dots, so write them in quotes: "
                f'"{_whole(key, value)}" = ...',
            )
        if kafka_keys.refusal(key) == "":
            raise _unknown(f'kafka."{key}"', key, kafka_keys.ALLOWED)


def _whole(key: str, value: Any) -> str:
    """Return the dotted key that became sections of each other for lack of quotes."""
    while isinstance(value, dict):
        inner = next(iter(value), "...")
        key, value = f"{key}.{inner}", value.get(inner)
    return key


def _short(text: str) -> str:
    """Cut out the middle of a message that repeats a very long name or value."""
    left_out = len(text) - _CHARACTERS_MAX
    half = _CHARACTERS_MAX // 2
    return text if left_out <= 0 else f"{text[:half]} ... {left_out} more ... {text[-half:]}"


def _section(kind: type, table: Any, at: str) -> Any:
    """Build a dataclass from a TOML table.

    ``at`` is the section's dotted name, empty at the top.
    """
    if not isinstance(table, dict):
        raise _wrong_type(at, "a section", table)
    fields = {key_of(field): field for field in dataclasses.fields(kind)}
    types = _types(kind)
    hints = {key: types[field.name] for key, field in fields.items()}
    for key in table:
        if key not in fields:
            raise _unknown(_dotted(at, key), key, fields)
    for name, field in fields.items():
        if name not in table and _required(field):
            raise ConfigurationError(
                f"{_dotted(at, name)} is missing", field.metadata.get("sentence", "")
            )
    return kind(
        **{
            fields[key].name: _value(hints[key], value, _dotted(at, key))
            for key, value in table.items()
        }
    )


@functools.cache
def _types(kind: type) -> Mapping[str, Any]:
    """Return the declared type of each field, cached: a waiting command loads its file often."""
    return typing.get_type_hints(kind)


def _required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _value(kind: Any, value: Any, at: str) -> Any:
    """Convert a TOML value to the field's type."""
    if isinstance(kind, typing.NewType):
        kind = kind.__supertype__
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _section(kind, value, at)
    if kind is Properties or typing.get_origin(kind) is Mapping:
        return _properties(value, at)
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list):
            error = _wrong_type(at, "a list", value)
            if isinstance(value, dict):
                error.hint = f"write [[{at}]] before the keys of each"
            raise error
        element = typing.get_args(kind)[0]
        return tuple(_value(element, item, f"{at}[{i}]") for i, item in enumerate(value))
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _choice(kind, value, at)
    if kind is str:
        return _text(value, at)
    if kind is Secret:
        return _secret(value, at)
    if kind == Constant:
        return _constant(value, at)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _wrong_type(at, {bool: "true or false", int: "a whole number"}[kind], value)
    return value


def _text(value: Any, at: str) -> str:
    if at == "source.start_at":
        # The only key that TOML can express in three ways: text, a date-time, epoch milliseconds.
        if isinstance(value, datetime):
            return value.isoformat()
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    if not isinstance(value, str):
        raise _wrong_type(at, "a text", value)
    return _resolved(value, at)


def _constant(value: Any, at: str) -> Constant:
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, str):
        return _resolved(value, at)
    if not isinstance(value, bool | int | float):
        raise _wrong_type(at, "a text, a number, a boolean, a date or a time", value)
    return value


def _secret(value: Any, at: str) -> Secret:
    """Return a text that must come from outside the sink file; an error does not repeat it."""
    if not isinstance(value, str) or not _REFERENCE.fullmatch(value):
        raise ConfigurationError(
            f"{at} must be a reference to a secret", "write ${file:PATH} or ${env:NAME}"
        )
    _withhold(value)
    return Secret(_resolved(value, at))


def _choice(kind: type[StrEnum], value: Any, at: str) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        choices = [str(member) for member in kind]
        raise ConfigurationError(
            f"{at} cannot be {value!r}",
            f"it is one of {', '.join(choices)}{_nearest(value, choices)}",
        ) from None


def _properties(value: Any, at: str) -> Properties:
    """Return names and texts; integers and booleans become their text."""
    if not isinstance(value, dict):
        raise _wrong_type(at, "a section", value)
    values, secret_names = {}, set()
    parts: set[str] = set()
    for name, item in value.items():
        key = f'{at}."{name}"'
        if isinstance(item, bool):
            values[name] = str(item).lower()
        elif isinstance(item, int | float):
            values[name] = str(item)
        elif isinstance(item, str):
            values[name] = _resolved(item, key)
            if values[name] != item:
                secret_names.add(name)
                said = [] if name in NEVER_SECRET else _REFERENCE.finditer(item)
                parts.update(_resolved(each[0], key) for each in said)
                _withhold(item)
        else:
            raise _wrong_type(key, "a text, a number or a boolean", item)
    return Properties(values, frozenset(secret_names), frozenset(parts))


def _withhold(text: str) -> None:
    """Let no JVM inherit the variables that the text refers to."""
    for kind, name in _REFERENCE.findall(text):
        if kind == "env":
            withhold(name)


def _resolved(text: str, at: str) -> str:
    """Replace every reference in the text.

    References are ``${env:NAME}``, ``${file:PATH}``, and ``${base64:PATH}`` for a binary file.
    """

    def replacement(match: re.Match[str]) -> str:
        kind, name = match[1], match[2]
        if kind == "env":
            if (found := variable(name)) is None:
                raise ConfigurationError(
                    f"{at} refers to the environment variable {name}, which is not set",
                    f"export {name}=...",
                )
            return found
        try:
            if kind == "base64":
                return base64.b64encode(Path(name).read_bytes()).decode()
            return Path(name).read_text(encoding="utf-8").rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"{at} refers to the file {name}, which cannot be read",
                getattr(error, "strerror", None) or "it is not text",
            ) from None

    if strange := _LIKE_ONE.search(_REFERENCE.sub("", text)):
        raise ConfigurationError(
            f"{at} refers to {strange[0]!r}, which is no reference that headgate knows",
            "write ${env:NAME}, ${file:PATH}, or ${base64:PATH} for a binary file",
        )
    return _REFERENCE.sub(replacement, text)


def _dotted(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


def _unknown(at: str, key: str, known: Collection[str]) -> ConfigurationError:
    homes = " or ".join(f"[{section}]" for section in _sections_with(key))
    close = difflib.get_close_matches(key, known, n=1, cutoff=_VERY_CLOSE)
    hint = f"{key} stands in {homes}" if homes and not close else _nearest(key, known).lstrip("; ")
    return ConfigurationError(f"{at} is not a known key", hint or "see docs/reference.md")


def _sections_with(key: str) -> list[str]:
    """Return the sections with a key of this name, in case it stands in the wrong one."""
    sections = _types(SinkSettings).items()
    return [
        name
        for name, kind in sections
        if dataclasses.is_dataclass(kind)
        and key in {key_of(field) for field in dataclasses.fields(kind)}
    ]


def _nearest(word: Any, known: Collection[str]) -> str:
    matches = difflib.get_close_matches(str(word), known, n=1, cutoff=0.5)
    return f"; did you mean {matches[0]}?" if matches else ""


def _wrong_type(at: str, expected: str, value: Any) -> ConfigurationError:
    got = {dict: "a section", list: "a list", str: "a text", bool: "a boolean"}.get(
        type(value), f"{type(value).__name__}"
    )
    shown = f" ({value!r})" if isinstance(value, str | int | float) else ""
    return ConfigurationError(f"{at or 'the file'} must be {expected}, not {got}{shown}")
