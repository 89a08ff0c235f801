"""Loads a sink file, or a worker's (TOML). An error names file, line, key and remedy."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import tomllib
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from headgate.config.report_settings import require_receiver_named
from headgate.config.section_schema import Key, keys_of
from headgate.config.setting_types import (
    Properties,
    ReferenceRefused,
    WrongType,
    redacting_resolved_references,
)
from headgate.config.sink_settings import SinkSettings
from headgate.config.toml_positions import find_line_and_column_of_error
from headgate.config.worker_settings import WorkerSettings
from headgate.control_protocol.errors import ConfigurationError, HeadgateError
from headgate.data_plane.formats.column_options import Constant
from headgate.kafka import client_settings as kafka_keys

_EXPECTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "string_type": "a text",
    "tuple_type": "a list",
    "dataclass_type": "a section",
}
"""Pydantic's names of what is wrong with a type, and what a key of the type takes."""

_CHARACTERS_MAX = 600
_VERY_CLOSE = 0.85
"""From here on a key is misspelt, rather than one that stands in the wrong section."""


_Settings = TypeVar("_Settings", SinkSettings, WorkerSettings)


def load(path: str | Path) -> SinkSettings:
    """Read the file, resolve references and check it. Raises ``ConfigurationError``."""
    return _load_file(Path(path), SinkSettings, "headgate init NAME writes a sink file")


def load_worker_file(path: str | Path) -> WorkerSettings:
    """Do as ``load`` with the file that a fleet's workers and commands share."""
    return _load_file(Path(path), WorkerSettings, "docs/guides/fleet.md has an example")


def parse(text: str) -> SinkSettings:
    """Return the settings in a sink file's text. Raises ``ConfigurationError``."""
    return _build_settings(_parse_toml_and_lift_kafka_auth(text), SinkSettings)


def parse_worker_text(text: str) -> WorkerSettings:
    """Do as ``parse`` with the text of a worker's file."""
    return _build_settings(_parse_toml_and_lift_kafka_auth(text), WorkerSettings)


def parse_with_document(path_in_errors: Path, text: str) -> tuple[SinkSettings, Mapping[str, Any]]:
    """As ``parse``, with the document that the text is; an error names the file and its line."""
    return _parse_document_as(path_in_errors, text, SinkSettings)


def _load_file(path: Path, kind: type[_Settings], no_file_hint: str) -> _Settings:
    return _parse_document_as(path, read_text(path, no_file_hint), kind)[0]


def read_text(path: Path, no_file_hint: str = "") -> str:
    """Return a file's text. Raises ``ConfigurationError``, with this hint if there is none."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigurationError(
            f"{path}: cannot be read: {error.strerror}", no_file_hint
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: is not UTF-8 text") from None


def _parse_document_as(
    path_in_errors: Path, text: str, kind: type[_Settings]
) -> tuple[_Settings, Mapping[str, Any]]:
    try:
        document = _parse_toml_and_lift_kafka_auth(text)
        return _build_settings(document, kind), document
    except ConfigurationError as error:
        found = find_line_and_column_of_error(text, error.message)
        at = f"{path_in_errors}:{found[0]}:{found[1]}" if found else str(path_in_errors)
        raise type(error)(
            f"{at}: {_shorten_message(error.message)}", _shorten_message(error.hint)
        ) from None


def _parse_toml_and_lift_kafka_auth(text: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of numbers and lists that are too long
        raise ConfigurationError(f"is not valid TOML: {error}") from None
    kafka = document.get("kafka")
    if isinstance(kafka, dict) and isinstance(kafka.get("auth"), dict):
        document["kafka.auth"] = kafka.pop("auth")
    return document


@redacting_resolved_references()
def _build_settings(document: Mapping[str, Any], kind: type[_Settings]) -> _Settings:
    """Build the settings that a document says. Raises ``ConfigurationError``."""
    kafka = document.get("kafka")
    if isinstance(kafka, dict):
        _require_quoted_known_kafka_keys(kafka, kind)
    source = document.get("source")
    if isinstance(source, dict) and isinstance(source.get("start_at"), datetime):
        # TOML has moments, and the settings a text.
        source = {**source, "start_at": source["start_at"].isoformat()}
        document = {**document, "source": source}
    try:
        adapter = _build_settings_adapter(typing.cast("Any", kind))
        # As JSON: only there does a strict check take lists for tuples, and texts for choices.
        plain = json.dumps(_to_json_value_or_null(document, kind))
        settings = typing.cast("_Settings", adapter.validate_json(plain, strict=True))
        if isinstance(settings, SinkSettings):
            require_receiver_named(document, settings.lineage, settings.signal)
    except ValidationError as error:
        raise _translate_first_error(error, document, kind) from None
    except HeadgateError:
        raise
    except Exception as error:  # whatever a library raises: it ends no process that has a file
        raise _foreign_error(error) from error
    return settings


def _require_quoted_known_kafka_keys(kafka: Mapping[str, Any], kind_of_file: type) -> None:
    for key, value in kafka.items():
        if isinstance(value, dict):
            raise ConfigurationError(
                f"kafka.{key} is a section",
                "Kafka's keys contain dots, so write them in quotes: "
                f'"{_dotted_key_from_sections(key, value)}" = ...',
            )
        if kafka_keys.why_key_refused(key) == "":
            raise _unknown_key_error(f'kafka."{key}"', key, kafka_keys.ALLOWED, kind_of_file)


def _dotted_key_from_sections(key: str, value: Any) -> str:
    """Return the dotted key that became sections of each other for lack of quotes."""
    while isinstance(value, dict):
        inner = next(iter(value), "...")
        key, value = f"{key}.{inner}", value.get(inner)
    return key


def _shorten_message(text: str) -> str:
    """Cut out the middle of a message that repeats a very long name or value."""
    left_out = len(text) - _CHARACTERS_MAX
    half = _CHARACTERS_MAX // 2
    return text if left_out <= 0 else f"{text[:half]} ... {left_out} more ... {text[-half:]}"


@functools.cache
def _build_settings_adapter(kind: type) -> TypeAdapter[Any]:
    """Return what builds the settings, made once: a waiting command loads its file often."""
    for section in {kind, *_iterate_section_types(kind)}:
        forbid = ConfigDict(extra="forbid", hide_input_in_errors=True)
        section.__pydantic_config__ = forbid  # type: ignore[attr-defined]
    return TypeAdapter(kind)


def _iterate_section_types(section: type) -> Iterator[type]:
    for key in keys_of(section).values():
        if key.inner_section:
            yield key.inner_section
            yield from _iterate_section_types(key.inner_section)


def _to_json_value_or_null(value: Any, type_hint: Any) -> Any:
    """Return what JSON can hold of a value for a key of this type; null is what no key takes.

    A moment becomes a text, but only where constants may stand.
    """
    if isinstance(value, dict) and dataclasses.is_dataclass(type_hint):
        keys = keys_of(typing.cast("type", type_hint))
        return {
            k: _to_json_value_or_null(v, keys[k].hint) if k in keys else None
            for k, v in value.items()
        }
    if isinstance(value, dict) and (
        type_hint is Properties or typing.get_origin(type_hint) is Mapping
    ):
        return {name: _to_json_value_or_null(item, str) for name, item in value.items()}
    if isinstance(value, list) and typing.get_origin(type_hint) is tuple:
        return [_to_json_value_or_null(item, typing.get_args(type_hint)[0]) for item in value]
    if isinstance(value, date | time) and type_hint == Constant:
        return value.isoformat()
    return value if isinstance(value, str | int | float) else None


def _foreign_error(error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"a setting cannot be used: {type(error).__name__}: {error}",
        "correct it; if the message is about none of yours, please report it",
    )


def _translate_first_error(
    error: ValidationError, document: Mapping[str, Any], kind_of_file: type
) -> ConfigurationError:
    """Return the first mistake in our words. Pydantic's show values, which may be secrets."""
    every = error.errors(include_url=False, include_input=False)
    first = min(every, key=lambda each: _error_sort_key(each, document))
    kind, where, raised = first["type"], first["loc"], first.get("ctx", {}).get("error")
    if raised and not isinstance(raised, ReferenceRefused | WrongType):
        return _foreign_error(raised)
    *parents, last = where
    value: Any = document
    for part in parents:
        value = value[part]
    keys = _section_keys_at(parents, kind_of_file)
    at = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where)[1:]
    if kind == "unexpected_keyword_argument":
        return _unknown_key_error(at, str(last), keys, kind_of_file)
    if kind.startswith("missing"):
        return ConfigurationError(f"{at} is missing", keys[str(last)].description)
    value = value[last]
    if raised and raised.key is not None:
        at, value = f'{at}."{raised.key}"', value[raised.key]
    if isinstance(raised, ReferenceRefused):
        return ConfigurationError(f"{at} {raised.message}", raised.hint)
    if kind == "enum":
        return _not_a_choice_error(at, value, [str(member) for member in keys[str(last)].hint])
    return _wrong_type_error(at, raised.expected if raised else _EXPECTED[kind], value)


def _error_sort_key(error: Mapping[str, Any], document: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Sort by section, and in it: unknown keys, for they explain missing ones; those; the rest."""
    found: list[tuple[int, int]] = []
    at: Any = document
    for part in error["loc"]:
        place = list(at).index(part) if isinstance(at, dict) and part in at else part
        if not isinstance(place, int):
            return [*found, (1, 0)]
        found.append((2, place))
        at = at[part]
    return [*found[:-1], (0, found[-1][1])] if error["type"].startswith("unexpected") else found


def _section_keys_at(where: Iterable[str | int], kind_of_file: type) -> Mapping[str, Key]:
    """Return the keys of the section at this place of the file."""
    section: Any = kind_of_file
    for part in where:
        section = keys_of(section)[part].inner_section if isinstance(part, str) else section
    return keys_of(section) if section else {}


def _not_a_choice_error(at: str, value: Any, choices: Sequence[str]) -> ConfigurationError:
    return ConfigurationError(
        f"{at} cannot be {value!r}",
        f"it is one of {', '.join(choices)}{_did_you_mean_suffix(value, choices)}",
    )


def _unknown_key_error(
    at: str, key: str, known: Collection[str], kind_of_file: type
) -> ConfigurationError:
    homes = " or ".join(f"[{section}]" for section in _sections_with_key(key, kind_of_file))
    close = difflib.get_close_matches(key, known, n=1, cutoff=_VERY_CLOSE)
    hint = (
        f"{key} stands in {homes}"
        if homes and not close
        else _did_you_mean_suffix(key, known).lstrip("; ")
    )
    return ConfigurationError(f"{at} is not a known key", hint or "see docs/reference/settings.md")


def _sections_with_key(key: str, kind_of_file: type) -> list[str]:
    """Return the sections with a key of this name, in case it stands in the wrong one."""
    sections = keys_of(kind_of_file).values()
    return [s.name for s in sections if s.inner_section and key in keys_of(s.inner_section)]


def _did_you_mean_suffix(word: Any, known: Collection[str]) -> str:
    matches = difflib.get_close_matches(str(word), known, n=1, cutoff=0.5)
    return f"; did you mean {matches[0]}?" if matches else ""


def _wrong_type_error(at: str, expected: str, value: Any) -> ConfigurationError:
    got = {dict: "a section", list: "a list", str: "a text", bool: "a boolean"}.get(
        type(value), f"{type(value).__name__}"
    )
    shown = f" ({value!r})" if isinstance(value, str | int | float) else ""
    listed = expected == "a list" and isinstance(value, dict)
    hint = f"write [[{at}]] before the keys of each" if listed else ""
    return ConfigurationError(f"{at} must be {expected}, not {got}{shown}", hint)
