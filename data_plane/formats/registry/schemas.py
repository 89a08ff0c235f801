"""Fetches writers' schemas from a registry, and keeps them: ids never change their meaning."""

from __future__ import annotations

import base64
import binascii
import os
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from headgate.data_plane.formats.avro.schema import Avro, UnfitSchema, parse_schema
from headgate.data_plane.formats.connect.json_schema import JsonSchema, json_schema_of
from headgate.data_plane.formats.protobuf.descriptors import (
    Types,
    UnfitTypes,
    file_name,
    parse_types,
)
from headgate.data_plane.formats.registry.client import (
    ClientOptions,
    NoSuchSchema,
    RegistryClient,
)
from headgate.data_plane.formats.registry.proto_text import compile_text

_REFERENCES_MAX = 100
_KEPT_CHARACTERS_MAX = 32 * 1024 * 1024

_AVRO = "AVRO"
_SERIALIZED = {"format": "serialized"}
"""What to ask for a descriptor with; a registry that does not know it returns text."""

File = tuple[Types, str]
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class _Answer:
    """A schema as a registry has it. ``references``: name, subject and version of each."""

    kind: str
    text: str
    references: tuple[tuple[str, str, int], ...]

    @classmethod
    def of(cls, said: Any, what: str) -> _Answer:
        """Raises ``NoSuchSchema`` for an answer of another form."""
        try:
            text, kind = said["schema"], said.get("schemaType") or _AVRO
            references = tuple(
                (str(each["name"]), str(each["subject"]), int(each["version"]))
                for each in said.get("references") or ()
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            text, kind, references = None, "", ()
        if not isinstance(text, str) or not isinstance(kind, str):
            raise NoSuchSchema(f"the registry's answer for {what} holds no schema")
        return cls(kind, text, references)


class _Kept(Generic[_Kind]):
    """Keeps what was made of schemas, within bounds: what was used last stays."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._found: OrderedDict[bytes, tuple[_Kind, int]] = OrderedDict()
        self._characters = 0
        self._lock = threading.Lock()

    def get(self, front: bytes, fetch: Callable[[], tuple[_Kind, int]]) -> _Kind:
        """Return what is kept for this id; else fetch it, with how many characters it has."""
        with self._lock:
            if front in self._found:
                self._found.move_to_end(front)
                return self._found[front][0]
        made, characters = fetch()
        with self._lock:
            if front not in self._found:
                self._found[front] = made, characters
                self._characters += characters
            while len(self._found) > 1 and self._is_full():
                _, (_, dropped) = self._found.popitem(last=False)
                self._characters -= dropped
        return made

    def _is_full(self) -> bool:
        return len(self._found) > self._count_max or self._characters > _KEPT_CHARACTERS_MAX


class SchemaRegistry:
    """Caches answers; refusals are not cached.

    An id is as records have it: a zero byte and four bytes, or a one and the 16 bytes of a GUID.
    """

    # A format is created for each batch. No client survives a fork.
    _kept: dict[tuple[int, tuple[tuple[str, str], ...]], SchemaRegistry] = {}  # noqa: RUF012 - shared
    _lock = threading.Lock()

    def __init__(self, settings: Mapping[str, str]) -> None:
        """Asks nothing yet. Raises ``ValueError`` for settings that cannot be."""
        options = ClientOptions.of(settings)
        self._client = RegistryClient(options)
        self._context = options.texts.get("context", "").strip(":.")
        capacity = int(options.numbers["cache.capacity"])
        self._avro, self._json = _Kept[Avro](capacity), _Kept[JsonSchema](capacity)
        self._files = _Kept[File](capacity)

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> SchemaRegistry:
        """Return this process's one for these settings. Raises as the constructor."""
        key = os.getpid(), tuple(sorted(settings.items()))
        with cls._lock:
            if key not in cls._kept:
                cls._kept[key] = cls(settings)
            return cls._kept[key]

    def avro(self, front: bytes) -> Avro:
        """Raises ``NoSuchSchema``, ``UnfitSchema``; ``Unreachable`` and ``MissingRights``."""
        return self._avro.get(front, lambda: self._fetch_avro(front))

    def json(self, front: bytes) -> JsonSchema:
        """Raises as ``avro``."""
        return self._json.get(front, lambda: self._fetch_json(front))

    def protobuf(self, front: bytes) -> File:
        """Return the types of messages, and the name of the schema's file.

        Raises ``NoSuchSchema``, ``UnfitTypes``, ``DescriptorUnfit``; ``Unreachable`` and
        ``MissingRights``.
        """
        return self._files.get(front, lambda: self._fetch_protobuf(front))

    def _fetch_avro(self, front: bytes) -> tuple[Avro, int]:
        answer, what = self._answer(front, _AVRO, "Avro")
        texts = self._references(answer)
        try:
            return parse_schema(answer.text, list(texts.values())), _size(answer, texts)
        except UnfitSchema as error:
            raise UnfitSchema(f"{what}: {error}") from error

    def _fetch_json(self, front: bytes) -> tuple[JsonSchema, int]:
        answer, what = self._answer(front, "JSON", "JSON Schema")
        texts = self._references(answer)
        try:
            return json_schema_of(answer.text, texts), _size(answer, texts)
        except UnfitSchema as error:
            raise UnfitSchema(f"{what}: {error}") from error

    def _fetch_protobuf(self, front: bytes) -> tuple[File, int]:
        answer, what = self._answer(front, "PROTOBUF", "Protobuf", **_SERIALIZED)
        texts = self._references(answer, **_SERIALIZED)
        try:
            files = _descriptors(answer.text, texts)
            return (parse_types(files), file_name(files[-1])), _size(answer, texts)
        except UnfitTypes as error:
            raise UnfitTypes(f"{what}: {error}") from error

    def _answer(self, front: bytes, kind: str, called: str, **asked: str) -> tuple[_Answer, str]:
        """Return the answer for an id, and what to call it."""
        if len(front) == 1 + 16:
            number = str(uuid.UUID(bytes=front[1:]))
            path = ("schemas", "guids", number)
        else:
            number = str(int.from_bytes(front[1:], "big"))
            path = ("schemas", "ids", number)
            if self._context:
                asked = {**asked, "subject": f":.{self._context}:"}
        what = f"the schema {number}"
        answer = _Answer.of(self._client.get(path, what, **asked), what)
        if answer.kind != kind:
            raise NoSuchSchema(f"{what} is {answer.kind[:20]}, not {called}")
        return answer, what

    def _references(self, answer: _Answer, **asked: str) -> dict[str, str]:
        """Return what the schema refers to by the names in use, each after its own references."""
        texts: dict[str, str] = {}
        self._collect(answer, texts, set(), asked)
        return texts

    def _collect(
        self,
        answer: _Answer,
        texts: dict[str, str],
        seen: set[tuple[str, int]],
        asked: Mapping[str, str],
    ) -> None:
        for name, subject, version in answer.references:
            if (subject, version) in seen:  # also a circle, which no registry should have
                continue
            seen.add((subject, version))
            if len(seen) > _REFERENCES_MAX:
                raise NoSuchSchema(f"a schema refers to more than {_REFERENCES_MAX} others")
            what = f"version {version} of {subject[:100]}"
            inside = f":.{self._context}:{subject}" if self._context else subject
            place = ("subjects", subject if subject.startswith(":.") else inside)
            said = self._client.get((*place, "versions", str(version)), what, **asked)
            found = _Answer.of(said, what)
            self._collect(found, texts, seen, asked)
            texts.setdefault(name, found.text)


def _size(answer: _Answer, texts: Mapping[str, str]) -> int:
    return len(answer.text) + sum(map(len, texts.values()))


def _descriptors(text: str, imports: Mapping[str, str]) -> list[bytes]:
    """Return the descriptors of all files, the schema's own last. Raises ``UnfitTypes``."""
    try:
        return [base64.b64decode(each, validate=True) for each in (*imports.values(), text)]
    except (binascii.Error, ValueError):
        return compile_text(text, imports)
