"""Fetches writers' schemas from a registry, and keeps them: ids must not change their meaning.

A registry that was emptied or replaced may give an id anew. Avro has no names in its bytes, so the
wrong schema makes wrong rows, and no bad record. Hence each schema is asked for again from time to
time, and its digest stays when the schema itself is dropped.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from headgate.control_protocol.errors import MissingRights, SchemaIdReused, Unreachable
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
_DIGESTS_MAX = 100_000
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


class _OtherKind(NoSuchSchema):
    """Says that there is a schema under the id, and it is of another format."""


@dataclass(frozen=True, slots=True)
class _Fetched(Generic[_Kind]):
    """What was made of a schema, how many characters it has, and the digest of what it says."""

    made: _Kind
    characters: int
    digest: bytes


class _Kept(Generic[_Kind]):
    """Keeps what was made of schemas, within bounds: what was used last stays.

    What is older than ``fresh_s`` is fetched again, and must say the same; if nobody answers, it
    stays. Digests outlast the schemas.
    """

    def __init__(self, count_max: int, fresh_s: float) -> None:
        self._count_max = count_max
        self._fresh_s = fresh_s
        self._found: OrderedDict[bytes, tuple[_Fetched[_Kind], float]] = OrderedDict()
        self._digests: OrderedDict[bytes, bytes] = OrderedDict()
        self._characters = 0
        self._asked_in_vain_until_s = 0.0
        self._lock = threading.Lock()

    def get(self, front: bytes, fetch: Callable[[], _Fetched[_Kind]]) -> _Kind:
        """Return what is kept for this id; else fetch it.

        Raises what ``fetch`` raises, and ``SchemaIdReused``.
        """
        with self._lock:
            known, asked_s = self._found.get(front, (None, 0.0))
            if known is not None:
                self._found.move_to_end(front)
                now_s = time.monotonic()
                if now_s - asked_s < self._fresh_s or now_s < self._asked_in_vain_until_s:
                    return known.made
        try:
            found = fetch()
        except (_OtherKind, UnfitSchema, UnfitTypes) as error:
            if known is None:
                raise
            raise _reused(front) from error
        except (NoSuchSchema, Unreachable, MissingRights):
            if known is None:
                raise
            # Not once more for each of the other schemas: each question may take half a minute.
            self._asked_in_vain_until_s = time.monotonic() + self._fresh_s
            found = known
        with self._lock:
            self._require_same(front, found.digest)
            self._keep(front, known or found)
        return (known or found).made

    def _require_same(self, front: bytes, digest: bytes) -> None:
        before = self._digests.setdefault(front, digest)
        self._digests.move_to_end(front)
        if len(self._digests) > _DIGESTS_MAX:
            self._digests.popitem(last=False)
        if before != digest:
            raise _reused(front)

    def _keep(self, front: bytes, kept: _Fetched[_Kind]) -> None:
        if front not in self._found:
            self._characters += kept.characters
        self._found[front] = kept, time.monotonic()
        while len(self._found) > 1 and self._is_full():
            _, (dropped, _) = self._found.popitem(last=False)
            self._characters -= dropped.characters

    def _is_full(self) -> bool:
        return len(self._found) > self._count_max or self._characters > _KEPT_CHARACTERS_MAX


def _reused(front: bytes) -> SchemaIdReused:
    return SchemaIdReused(
        f"the registry gives another schema than before as {_name_of(front)}",
        "was it emptied, restored or replaced? restore its ids, then restart",
    )


def _name_of(front: bytes) -> str:
    return f"the schema {_id_text(front)}"


def _id_text(front: bytes) -> str:
    """Return the registry's spelling of an id as records have it."""
    if len(front) == 1 + 16:
        return str(uuid.UUID(bytes=front[1:]))
    return str(int.from_bytes(front[1:], "big"))


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
        fresh_s = options.numbers["check.interval"]
        self._avro = _Kept[Avro](capacity, fresh_s)
        self._json = _Kept[JsonSchema](capacity, fresh_s)
        self._files = _Kept[File](capacity, fresh_s)

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> SchemaRegistry:
        """Return this process's one for these settings. Raises as the constructor."""
        key = os.getpid(), tuple(sorted(settings.items()))
        with cls._lock:
            if key not in cls._kept:
                cls._kept[key] = cls(settings)
            return cls._kept[key]

    def avro(self, front: bytes) -> Avro:
        """Raises ``NoSuchSchema``, ``UnfitSchema``; ``Unreachable``, ``MissingRights`` and
        ``SchemaIdReused``."""
        return self._avro.get(front, lambda: self._fetch_avro(front))

    def json(self, front: bytes) -> JsonSchema:
        """Raises as ``avro``."""
        return self._json.get(front, lambda: self._fetch_json(front))

    def protobuf(self, front: bytes) -> File:
        """Return the types of messages, and the name of the schema's file.

        Raises ``NoSuchSchema``, ``UnfitTypes``, ``DescriptorUnfit``; ``Unreachable``,
        ``MissingRights`` and ``SchemaIdReused``.
        """
        return self._files.get(front, lambda: self._fetch_protobuf(front))

    def _fetch_avro(self, front: bytes) -> _Fetched[Avro]:
        answer, what = self._answer(front, _AVRO, "Avro")
        texts = self._references(answer)
        try:
            return _fetched(parse_schema(answer.text, list(texts.values())), answer, texts)
        except UnfitSchema as error:
            raise UnfitSchema(f"{what}: {error}") from error

    def _fetch_json(self, front: bytes) -> _Fetched[JsonSchema]:
        answer, what = self._answer(front, "JSON", "JSON Schema")
        texts = self._references(answer)
        try:
            return _fetched(json_schema_of(answer.text, texts), answer, texts)
        except UnfitSchema as error:
            raise UnfitSchema(f"{what}: {error}") from error

    def _fetch_protobuf(self, front: bytes) -> _Fetched[File]:
        answer, what = self._answer(front, "PROTOBUF", "Protobuf", **_SERIALIZED)
        texts = self._references(answer, **_SERIALIZED)
        try:
            files = _descriptors(answer.text, texts)
            return _fetched((parse_types(files), file_name(files[-1])), answer, texts)
        except UnfitTypes as error:
            raise UnfitTypes(f"{what}: {error}") from error

    def _answer(self, front: bytes, kind: str, called: str, **asked: str) -> tuple[_Answer, str]:
        """Return the answer for an id, and what to call it."""
        what, number = _name_of(front), _id_text(front)
        if len(front) == 1 + 16:
            path = ("schemas", "guids", number)
        else:
            path = ("schemas", "ids", number)
            if self._context:
                asked = {**asked, "subject": f":.{self._context}:"}
        answer = _Answer.of(self._client.get(path, what, **asked), what)
        if answer.kind != kind:
            raise _OtherKind(f"{what} is {answer.kind[:20]}, not {called}")
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


def _fetched(made: _Kind, answer: _Answer, texts: Mapping[str, str]) -> _Fetched[_Kind]:
    every = (answer.text, *texts.values())
    digest = hashlib.sha256(repr([*map(_normal_form, every)]).encode("utf-8", "surrogatepass"))
    return _Fetched(made, sum(map(len, every)), digest.digest())


def _normal_form(text: str) -> str:
    """Return the text without what a registry may write otherwise: JSON's blanks and order."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _descriptors(text: str, imports: Mapping[str, str]) -> list[bytes]:
    """Return the descriptors of all files, the schema's own last. Raises ``UnfitTypes``."""
    try:
        return [base64.b64decode(each, validate=True) for each in (*imports.values(), text)]
    except (binascii.Error, ValueError):
        return compile_text(text, imports)
