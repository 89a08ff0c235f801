"""Fetches writers' schemas from a registry with Confluent's API, and what they refer to."""

from __future__ import annotations

import base64
import binascii
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.data_plane.formats.avro.schema import Avro, UnfitSchema, parse_schema
from headgate.data_plane.formats.connect.json_schema_translation import (
    JsonSchema,
    translate_json_schema,
)
from headgate.data_plane.formats.protobuf.descriptors import (
    Types,
    UnfitTypes,
    file_name_of,
    parse_types,
)
from headgate.data_plane.formats.registry.client import (
    ClientOptions,
    NoSuchSchema,
    RegistryClient,
)
from headgate.data_plane.formats.registry.frames import CONTENT_ID, GLOBAL_ID, GUID, ID
from headgate.data_plane.formats.registry.proto_text import compile_proto_text
from headgate.data_plane.formats.registry.schema_cache import (
    Fetched,
    OtherKind,
    SchemaCache,
    describe_schema,
    fetched_with_digest,
    schema_id_text,
)

_REFERENCES_MAX = 100

_AVRO = "AVRO"
_SERIALIZED = {"format": "serialized"}
"""What to ask for a descriptor with; a registry that does not know it returns text."""

_APICURIO = ("apis", "registry", "v3")
_APICURIO_IDS = {CONTENT_ID: "contentIds", GLOBAL_ID: "globalIds"}

File = tuple[Types, str]


Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Answer:
    """A schema as a registry has it. ``references``: of each the name, and what it is asked by."""

    schema_type: str
    text: str
    references: tuple[tuple[str, Path], ...]

    @classmethod
    def from_json(cls, said: Any, what: str, context: str) -> _Answer:
        """Raises ``NoSuchSchema`` for an answer of another form."""
        try:
            text, schema_type = said["schema"], said.get("schemaType") or _AVRO
            references = tuple(
                (str(each["name"]), _version_path(each, context))
                for each in said.get("references") or ()
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            text, schema_type, references = None, "", ()
        if not isinstance(text, str) or not isinstance(schema_type, str):
            raise NoSuchSchema(f"the registry's answer for {what} holds no schema")
        return cls(schema_type, text, references)


@dataclass(slots=True)
class _References:
    """What a schema refers to. ``texts``: each version once, by the first name in use and after its
    own references; ``further_texts``: by their other names."""

    texts: dict[str, str] = field(default_factory=dict)
    by_path: dict[Path, str] = field(default_factory=dict)
    further_texts: dict[str, str] = field(default_factory=dict)

    @property
    def texts_by_any_name(self) -> dict[str, str]:
        return {**self.further_texts, **self.texts}


def _version_path(reference: Mapping[str, Any], context: str) -> Path:
    """Return what the version of a subject is asked by. Raises ``KeyError``, ``ValueError``..."""
    subject = str(reference["subject"])
    if context and not subject.startswith(":."):
        subject = f":.{context}:{subject}"
    return ("subjects", subject, "versions", str(int(reference["version"])))


def _artifact_references(said: Any, what: str) -> tuple[tuple[str, Path], ...]:
    """Return references as Apicurio's own API names them. Raises ``NoSuchSchema``."""
    try:
        return tuple(
            (
                str(each["name"]),
                (
                    *_APICURIO,
                    *("groups", str(each.get("groupId") or "default")),
                    *("artifacts", str(each["artifactId"])),
                    *("versions", str(each["version"])),
                ),
            )
            for each in said
        )
    except (AttributeError, KeyError, TypeError):
        raise NoSuchSchema(f"the registry's answer for {what} is no list of references") from None


class SchemaRegistry:
    """Caches answers; refusals are not cached.

    An id is as records have it: a zero byte and four bytes, a one and the 16 bytes of a GUID, or
    eight bytes behind the kind of an id of Apicurio's.
    """

    # A format is created for each batch. No client survives a fork.
    _kept: dict[tuple[int, tuple[tuple[str, str], ...]], SchemaRegistry] = {}  # noqa: RUF012 - shared
    _lock = threading.Lock()

    def __init__(self, settings: Mapping[str, str]) -> None:
        """Asks nothing yet. Raises ``ValueError`` for settings that cannot be."""
        options = ClientOptions.from_settings(settings)
        self._client = RegistryClient(options)
        self._context = options.texts.get("context", "").strip(":.")
        capacity = int(options.numbers["cache.capacity"])
        fresh_s = options.numbers["check.interval"]
        self._avro = SchemaCache[Avro](capacity, fresh_s)
        self._json = SchemaCache[JsonSchema](capacity, fresh_s)
        self._files = SchemaCache[File](capacity, fresh_s)

    @classmethod
    def shared_for_settings(cls, settings: Mapping[str, str]) -> SchemaRegistry:
        """Return this process's one for these settings. Raises as the constructor."""
        key = os.getpid(), tuple(sorted(settings.items()))
        with cls._lock:
            if key not in cls._kept:
                cls._kept[key] = cls(settings)
            return cls._kept[key]

    def read_avro_schema(self, schema_id: bytes) -> Avro:
        """Raises ``NoSuchSchema``, ``UnfitSchema``; ``Unreachable``, ``MissingRights`` and
        ``SchemaIdReused``."""
        return self._avro.get_or_fetch_unchanged(
            schema_id, lambda: self._fetch_avro_schema(schema_id)
        )

    def read_json_schema(self, schema_id: bytes) -> JsonSchema:
        """Raises as ``read_avro_schema``."""
        return self._json.get_or_fetch_unchanged(
            schema_id, lambda: self._fetch_json_schema(schema_id)
        )

    def read_protobuf_types(self, schema_id: bytes) -> File:
        """Return the types of messages, and the name of the schema's file.

        Raises ``NoSuchSchema``, ``UnfitTypes``, ``DescriptorUnfit``; ``Unreachable``,
        ``MissingRights`` and ``SchemaIdReused``.
        """
        return self._files.get_or_fetch_unchanged(
            schema_id, lambda: self._fetch_protobuf_types(schema_id)
        )

    def _fetch_avro_schema(self, schema_id: bytes) -> Fetched[Avro]:
        answer, what = self._fetch_answer_and_description(schema_id, _AVRO, "Avro")
        texts = self._fetch_references(answer).texts
        try:
            made = parse_schema(answer.text, list(texts.values()))
            return fetched_with_digest(made, (answer.text, *texts.values()))
        except UnfitSchema as error:
            raise UnfitSchema(f"{what}: {error}") from error

    def _fetch_json_schema(self, schema_id: bytes) -> Fetched[JsonSchema]:
        answer, what = self._fetch_answer_and_description(schema_id, "JSON", "JSON Schema")
        references = self._fetch_references(answer)
        try:
            return fetched_with_digest(
                translate_json_schema(answer.text, references.texts_by_any_name),
                (answer.text, *references.texts.values()),
            )
        except UnfitSchema as error:
            raise UnfitSchema(f"{what}: {error}") from error

    def _fetch_protobuf_types(self, schema_id: bytes) -> Fetched[File]:
        answer, what = self._fetch_answer_and_description(
            schema_id, "PROTOBUF", "Protobuf", **_SERIALIZED
        )
        texts = self._fetch_references(answer, **_SERIALIZED).texts
        try:
            files = _decode_or_compile_descriptors(answer.text, texts)
            made = parse_types(files), file_name_of(files[-1])
            return fetched_with_digest(made, (answer.text, *texts.values()))
        except UnfitTypes as error:
            raise UnfitTypes(f"{what}: {error}") from error

    def _fetch_answer_and_description(
        self, schema_id: bytes, schema_type: str, called: str, **asked: str
    ) -> tuple[_Answer, str]:
        """Return the answer for an id, and what to call it."""
        what, number = describe_schema(schema_id), schema_id_text(schema_id)
        if schema_id[0] in _APICURIO_IDS:
            by_id = (*_APICURIO, "ids", _APICURIO_IDS[schema_id[0]], number)
            return self._fetch_artifact(by_id, schema_type, what), what
        path: Path = ("schemas", "guids" if schema_id[0] == GUID else "ids", number)
        if schema_id[0] == ID and self._context:
            asked = {**asked, "subject": f":.{self._context}:"}
        answer = _Answer.from_json(self._client.get_json(path, what, **asked), what, self._context)
        if answer.schema_type != schema_type:
            raise OtherKind(f"{what} is {answer.schema_type[:20]}, not {called}")
        return answer, what

    def _fetch_artifact(self, path: Path, schema_type: str, what: str) -> _Answer:
        """Return what Apicurio's own API has there; it leaves open of which type a text is."""
        is_version = "versions" in path
        text = self._client.get_text((*path, "content") if is_version else path, what)
        said = self._client.get_json((*path, "references"), what)
        return _Answer(schema_type, text, _artifact_references(said, what))

    def _fetch_references(self, answer: _Answer, **asked: str) -> _References:
        """Return what the schema refers to, and what that refers to."""
        found = _References()
        self._fetch_references_into(answer, found, asked)
        return found

    def _fetch_references_into(
        self, answer: _Answer, found: _References, asked: Mapping[str, str]
    ) -> None:
        for name, path in answer.references:
            if path in found.by_path:  # also a circle, which no registry should have
                found.further_texts.setdefault(name, found.by_path[path])
                continue
            if len(found.by_path) == _REFERENCES_MAX:
                raise NoSuchSchema(f"a schema refers to more than {_REFERENCES_MAX} others")
            what = f"version {path[-1]} of {path[-3][:100]}"
            if path[0] == _APICURIO[0]:
                other = self._fetch_artifact(path, answer.schema_type, what)
            else:
                other = _Answer.from_json(
                    self._client.get_json(path, what, **asked), what, self._context
                )
            found.by_path[path] = other.text
            self._fetch_references_into(other, found, asked)
            found.texts.setdefault(name, other.text)


def _decode_or_compile_descriptors(text: str, imports: Mapping[str, str]) -> list[bytes]:
    """Return the descriptors of all files, the schema's own last. Raises ``UnfitTypes``."""
    try:
        return [base64.b64decode(each, validate=True) for each in (*imports.values(), text)]
    except (binascii.Error, ValueError):
        return compile_proto_text(text, imports)
