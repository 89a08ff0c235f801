"""Fetches writer schemas from a Confluent-compatible registry, each once per process."""

from __future__ import annotations

import base64
import binascii
import os
import threading
from collections.abc import Mapping
from typing import Any

from headgate.control_protocol.errors import (
    ConfigurationError,
    DescriptorUnfit,
    MissingRights,
    Unreachable,
)
from headgate.data_plane.formats.avro.schema import Avro, UnfitSchema, parse_schema
from headgate.data_plane.formats.protobuf.descriptors import Types, UnfitTypes, file_name, types_of

_DEFAULTS = {
    "timeout": "10",
    "max.retries": "2",
    "retries.wait.ms": "200",
    "retries.max.wait.ms": "2000",
}
_NUMBERS = {*_DEFAULTS, "cache.capacity"}
_NOT_FOUND, _DENIED = 404, {401, 403}
_REFERENCES_MAX = 100
_QUOTED_MAX = 300

_SERIALIZED = "serialized"
"""What to ask for a descriptor with; without it the registry returns text."""

_File = tuple[Types, str]
Connection = tuple[tuple[str, str], ...]


class NoSuchSchema(ValueError):
    """Says that the registry answered, and has no schema of this kind under the id."""


class SchemaRegistry:
    """Caches answers, since ids never change their meaning; refusals are not cached."""

    # A format is created for each batch. No client survives a fork.
    _kept: dict[tuple[int, Connection], tuple[Any, dict[int, Avro], dict[int, _File]]] = {}  # noqa: RUF012 - shared
    _lock = threading.Lock()

    def __init__(self, settings: Mapping[str, str]) -> None:
        """Asks nothing yet. Raises ``ValueError`` for settings that the client refuses."""
        settings = {**_DEFAULTS, **settings}
        self._where = settings.get("url", "")
        key = os.getpid(), tuple(sorted(settings.items()))
        with self._lock:
            if key not in self._kept:
                self._kept[key] = _client(settings), {}, {}
            self._client, self._known, self._files = self._kept[key]

    def schema(self, number: int) -> Avro:
        """Raises ``NoSuchSchema``, ``UnfitSchema``; ``Unreachable`` and ``MissingRights``."""
        known = self._known.get(number)
        if known is None:
            known = self._known[number] = self._fetch(number)
        return known

    def types(self, number: int) -> tuple[Types, str]:
        """Return the types of Protobuf messages, and the name of the schema's file.

        Raises ``NoSuchSchema``, ``UnfitTypes``, ``DescriptorUnfit``; ``Unreachable`` and
        ``MissingRights``.
        """
        known = self._files.get(number)
        if known is None:
            known = self._files[number] = self._fetch_types(number)
        return known

    def _fetch_types(self, number: int) -> _File:
        result = self._ask(
            lambda client: client.get_schema(number, fmt=_SERIALIZED), f"the schema {number}"
        )
        if result.schema_type != "PROTOBUF":
            raise NoSuchSchema(
                f"the schema {number} is {result.schema_type or 'AVRO'}, not Protobuf"
            )
        texts: dict[tuple[str, int], str] = {}
        self._collect(result, texts, fmt=_SERIALIZED)
        files = [_descriptor(text, number) for text in (*texts.values(), result.schema_str)]
        try:
            return types_of(files), file_name(files[-1])
        except UnfitTypes as error:
            raise UnfitTypes(f"the schema {number}: {error}") from error

    def _fetch(self, number: int) -> Avro:
        result = self._ask(lambda client: client.get_schema(number), f"the schema {number}")
        if result.schema_type not in (None, "AVRO"):
            raise NoSuchSchema(f"the schema {number} is {result.schema_type}, not Avro")
        texts: dict[tuple[str, int], str] = {}
        self._collect(result, texts)
        try:
            return parse_schema(result.schema_str, list(texts.values()))
        except UnfitSchema as error:
            raise UnfitSchema(f"the schema {number}: {error}") from error

    def _collect(self, schema: Any, texts: dict[tuple[str, int], str], **asked: str) -> None:
        """Collect what the schema refers to, each after its own references."""
        for reference in schema.references or []:
            at = (reference.subject, reference.version)
            if at in texts:
                continue
            if len(texts) >= _REFERENCES_MAX:
                raise NoSuchSchema(f"a schema refers to more than {_REFERENCES_MAX} others")
            what = f"version {reference.version} of {reference.subject}"
            result = self._ask(lambda client, at=at: client.get_version(*at, **asked), what).schema
            self._collect(result, texts, **asked)
            texts[at] = result.schema_str

    def _ask(self, question: Any, what: str) -> Any:
        from confluent_kafka.schema_registry import SchemaRegistryError

        try:
            return question(self._client)
        except SchemaRegistryError as error:
            if error.http_status_code == _NOT_FOUND:
                raise NoSuchSchema(f"the registry does not know {what}") from error
            if error.http_status_code in _DENIED:
                raise MissingRights(
                    f"the schema registry refuses {what}: {_quote(error.error_message)}",
                    "check format.options registry.basic.auth.user.info, and the rights there",
                ) from error
            reason = f"{error.http_status_code} {_quote(error.error_message)}"
        except Exception as error:  # noqa: BLE001 - the HTTP client's, of many kinds
            reason = f"{type(error).__name__} {_quote(str(error))}"
        raise Unreachable(
            f"the schema registry does not give {what}: {reason}", f"asked at {self._where}"
        )


def _quote(answer: str) -> str:
    """Return the beginning of an answer: a server may send anything, and without an end."""
    return answer if len(answer) <= _QUOTED_MAX else f"{answer[:_QUOTED_MAX]}..."


def _descriptor(text: str, number: int) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise DescriptorUnfit(
            f"the schema registry gives the schema {number} as text, not as a descriptor",
            "headgate has no compiler for .proto: use a registry that knows format=serialized, or "
            'type = "protobuf" with a descriptor',
        ) from error


def _client(settings: Mapping[str, str]) -> Any:
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise ConfigurationError(
            f"the schema registry's client cannot be loaded: {error}",
            'install "headgate[avro]"',
        ) from error
    if "url" not in settings:
        raise ValueError("its address is missing: set registry.url")
    try:
        typed = {k: float(v) if k in _NUMBERS else v for k, v in settings.items()}
        return SchemaRegistryClient(typed)
    except (ValueError, TypeError, OSError) as error:
        raise ValueError(f"the schema registry's client refuses its options: {error}") from error
