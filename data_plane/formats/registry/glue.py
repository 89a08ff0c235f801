"""Implements the format ``glue-registry``: what AWS Glue's serializers write."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Mapping
from typing import Any

from headgate.data_plane.formats.avro.format import AvroWriterFormat
from headgate.data_plane.formats.avro.schema import Avro, UnfitSchema, parse_schema
from headgate.data_plane.formats.connect.json_schema_translation import (
    JsonSchema,
    translate_json_schema,
)
from headgate.data_plane.formats.format_registry import require_known_options
from headgate.data_plane.formats.protobuf.decoder import Broken
from headgate.data_plane.formats.protobuf.descriptors import UnfitTypes, file_name_of, parse_types
from headgate.data_plane.formats.protobuf.format import ProtobufWriterFormat
from headgate.data_plane.formats.registry.client import NoSuchSchema
from headgate.data_plane.formats.registry.framed_records import FramedRecords
from headgate.data_plane.formats.registry.frames import (
    BROKEN_DATA,
    FRAMING,
    GLUE,
    NO_FRAME,
    TOO_LONG,
    inflate_and_split_by_version,
    message_number_of,
    split_by_message_number,
)
from headgate.data_plane.formats.registry.glue_client import GlueClient, GlueOptions
from headgate.data_plane.formats.registry.json_schema_records import SchemaJsonRecords
from headgate.data_plane.formats.registry.proto_text import compile_proto_text
from headgate.data_plane.formats.registry.schema_cache import (
    Fetched,
    SchemaCache,
    describe_schema,
    fetched_with_digest,
)
from headgate.data_plane.formats.registry.schemas import File

_WRONG = {
    NO_FRAME: "does not begin as a value of AWS Glue's serializers: with a three, a zero or a five "
    "for its compression, and the 16 bytes of a schema version's id",
    BROKEN_DATA: "is compressed, and is not what zlib writes, or is cut off",
    TOO_LONG: "is compressed, and longer than 20 MiB, or longer than 64 KiB and than 200 times "
    "what it takes",
}


class GlueRegistry:
    """Caches answers; refusals are not cached. An id is a three and the 16 bytes of a UUID."""

    # A format is created for each batch. No client survives a fork.
    _known: dict[tuple[int, tuple[tuple[str, str], ...]], GlueRegistry] = {}  # noqa: RUF012 - shared
    _lock = threading.Lock()

    def __init__(self, options: GlueOptions) -> None:
        """Asks nothing yet."""
        self._client = GlueClient(options)
        numbers = options.numbers
        self._kept = SchemaCache[Avro | JsonSchema | File](
            int(numbers["cache.capacity"]), numbers["check.interval"]
        )

    @classmethod
    def shared_for_settings(cls, settings: Mapping[str, str]) -> GlueRegistry:
        """Return this process's one for these settings. Raises ``ValueError``."""
        key = os.getpid(), tuple(sorted(settings.items()))
        with cls._lock:
            if key not in cls._known:
                cls._known[key] = cls(GlueOptions.from_settings(settings))
            return cls._known[key]

    def read_schema(self, schema_id: bytes) -> Avro | JsonSchema | File:
        """Return the schema in the form of its data format.

        Raises ``NoSuchSchema``, ``UnfitSchema``, ``UnfitTypes``, ``DescriptorUnfit``;
        ``Unreachable``, ``MissingRights``, ``ConfigurationError`` and ``SchemaIdReused``.
        """
        return self._kept.get_or_fetch_unchanged(schema_id, lambda: self._fetch_schema(schema_id))

    def _fetch_schema(self, schema_id: bytes) -> Fetched[Avro | JsonSchema | File]:
        what = describe_schema(schema_id)
        kind, text = self._client.fetch_schema_version(str(uuid.UUID(bytes=schema_id[1:])), what)
        try:
            return fetched_with_digest(_parse_schema(kind, text), (kind, text))
        except UnfitSchema as error:
            raise UnfitSchema(f"{what}: {error}") from error
        except UnfitTypes as error:
            raise UnfitTypes(f"{what}: {error}") from error


def _parse_schema(kind: str, text: str) -> Avro | JsonSchema | File:
    match kind:
        case "AVRO":
            return parse_schema(text)
        case "JSON":
            return translate_json_schema(text, {})
        case "PROTOBUF":
            files = compile_proto_text(text, {})
            return parse_types(files), file_name_of(files[-1])
        case _:
            raise UnfitSchema(f"it is {kind[:20]}, which is none of AVRO, JSON and PROTOBUF")


class GlueRecords(FramedRecords):
    """Reads the id of a schema version, and what its data format says: Avro, JSON or Protobuf.

    Options ``glue.*`` say how Glue is asked. A version that Glue does not know makes its records
    bad; where Glue does not answer, or has not made a version available yet, the batch fails and is
    retried.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        own = {name: value for name, value in options.items() if name == FRAMING}
        if require_known_options(own, {FRAMING: GLUE})[FRAMING] != GLUE:
            raise ValueError(f"{FRAMING} cannot be {own[FRAMING]!r}: it is {GLUE}")
        registry = GlueRegistry.shared_for_settings(
            {k: v for k, v in options.items() if k not in own}
        )

        def open_writer_format(frame: bytes) -> Any:
            if frame in _WRONG:
                raise NoSuchSchema(_WRONG[frame])
            match registry.read_schema(frame):
                case Avro() as written:
                    return AvroWriterFormat(written)
                case JsonSchema() as written:
                    return SchemaJsonRecords(written)
                case file:
                    return _NumberedMessages(file)

        super().__init__(inflate_and_split_by_version, open_writer_format)


class _NumberedMessages(FramedRecords):
    """Reads Protobuf messages behind the number of their type among those of the file, by name."""

    def __init__(self, file: File) -> None:
        types, name = file

        def open_writer_format(frame: bytes) -> ProtobufWriterFormat:
            try:
                number = message_number_of(frame)
            except Broken:
                raise NoSuchSchema("has no number of a message type behind its schema") from None
            return ProtobufWriterFormat(types, types.message_by_sorted_index(name, number))

        super().__init__(split_by_message_number, open_writer_format)
