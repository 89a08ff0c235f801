"""Finds record formats by name: headgate's own, and those that other packages register.

A package offers a format through an entry point in the group ``headgate.formats``. The entry
point's name is what the sink file says; its object is a callable that takes the options (text to
text) and returns a ``RecordFormat``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

from headgate.control_protocol.errors import ConfigurationError

if TYPE_CHECKING:  # a sink file is checked before Arrow is needed
    from headgate.data_plane.formats.record_format import RecordFormat

ENTRY_POINT_GROUP = "headgate.formats"

FormatFactory = Callable[[Mapping[str, str]], "RecordFormat"]

_OURS = {
    "avro": ("avro.format", "AvroRecords"),
    "avro-registry": ("registry.formats", "RegistryAvroRecords"),
    "bytes": ("csv_and_strings", "BytesRecords"),
    "connect-json": ("connect.format", "ConnectJsonRecords"),
    "csv": ("csv_and_strings", "CsvRecords"),
    "glue-registry": ("registry.glue", "GlueRecords"),
    "json": ("json.format", "JsonRecords"),
    "json-registry": ("registry.formats", "RegistryJsonRecords"),
    "protobuf": ("protobuf.format", "ProtobufRecords"),
    "protobuf-registry": ("registry.formats", "RegistryProtobufRecords"),
    "string": ("csv_and_strings", "StringRecords"),
}
"""Module and class: a format is imported when a sink names it, not by every command."""


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """Splits options into those that every format has and the rest, which are the format's own.

    ``caseless``: whether a field goes into the column of its name regardless of case.
    """

    caseless: bool
    of_format: Mapping[str, str]

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> ValueOptions:
        """Raises ``ConfigurationError``."""
        rest = dict(options)
        result = {name: rest.pop(name, choices[0]) for name, choices in _OF_ALL.items()}
        for name, choices in _OF_ALL.items():
            if result[name] not in choices:
                raise ConfigurationError(
                    f"format.options: {name} cannot be {result[name]!r}",
                    f"use {' or '.join(choices)}",
                )
        return cls(result["case-insensitive"] == "true", rest)


_OF_ALL = {"case-insensitive": ("false", "true")}


def create_record_format(name: str, options: Mapping[str, str]) -> RecordFormat:
    """Return a new instance.

    Raises ``ConfigurationError`` for unknown names and invalid options.
    """
    factory = find_format_factory(name)
    try:
        return factory(options)
    except ValueError as error:
        raise ConfigurationError(f"record format {name}: {error}") from error


def find_format_factory(name: str) -> FormatFactory:
    """Return what makes instances. Raises ``ConfigurationError`` for unknown names."""
    factory = _find_built_in_format(name) or _find_registered_format(name)
    if factory is None:
        known = known_format_names()
        raise ConfigurationError(
            f"there is no record format {name!r}",
            f"known are: {', '.join(known)}{did_you_mean_suffix(name, known)}",
        )
    return factory


def known_format_names() -> list[str]:
    """Return all names that ``create_record_format`` knows, sorted."""
    from importlib.metadata import entry_points

    return sorted({*_OURS, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def _find_built_in_format(name: str) -> FormatFactory | None:
    if name not in _OURS:
        return None
    module, kind = _OURS[name]
    return cast("FormatFactory", getattr(import_module(f"{__package__}.{module}"), kind))


def _find_registered_format(name: str) -> FormatFactory | None:
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        return cast("FormatFactory", point.load())
    return None


# ------------------------------------------------------------------------------------------ options


def require_known_options(
    options: Mapping[str, str],
    defaults: Mapping[str, str] | None = None,
    *,
    required: Sequence[str] = (),
) -> dict[str, str]:
    """Return the options over their defaults; an unknown one is never ignored.

    Raises ``ValueError``.
    """
    known = {*(defaults or {}), *required}
    unknown = sorted(set(options) - known)
    if unknown:
        raise ValueError(
            f"there is no option {unknown[0]!r}{did_you_mean_suffix(unknown[0], known)}"
        )
    missing = [name for name in required if not options.get(name)]
    if missing:
        raise ValueError(f"the option {missing[0]!r} is missing")
    return {**(defaults or {}), **options}


def did_you_mean_suffix(word: str, known: Sequence[str] | set[str]) -> str:
    """Return the end of an error's sentence that proposes the most similar known word."""
    matches = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]}?" if matches else ""
