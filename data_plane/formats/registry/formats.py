"""Implements the formats ``avro-registry``, ``json-registry`` and ``protobuf-registry``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from headgate.data_plane.formats.avro.format import AvroWriterFormat
from headgate.data_plane.formats.avro.schema import nullable_fields_with_default
from headgate.data_plane.formats.format_registry import require_known_options
from headgate.data_plane.formats.json.format import JsonRecords
from headgate.data_plane.formats.protobuf.format import ProtobufWriterFormat
from headgate.data_plane.formats.record_format import RecordNames
from headgate.data_plane.formats.registry.client import NoSuchSchema
from headgate.data_plane.formats.registry.framed_records import FramedRecords
from headgate.data_plane.formats.registry.frames import (
    APICURIO_HEADER,
    FRAMING,
    FRAMINGS,
    IDS_OF_HEADERS,
    message_indexes_of,
    schema_id_of,
    split_by_frame,
    split_by_message_frame,
)
from headgate.data_plane.formats.registry.json_schema_records import SchemaJsonRecords
from headgate.data_plane.formats.registry.schemas import SchemaRegistry

_PREFIX = "registry."
SCHEMA, USE, IGNORE = "schema", "use", "ignore"


class _SplitOptions(NamedTuple):
    """Options of a format that reads its schemas from a registry."""

    registry: dict[str, str]
    own: dict[str, str]


def _split_off_registry_options(
    options: Mapping[str, str], further_choices: Mapping[str, Sequence[str]] | None = None
) -> _SplitOptions:
    """Return the registry's options, and the rest with defaults. Raises ``ValueError``."""
    choices = {FRAMING: FRAMINGS, **(further_choices or {})}
    own = {name: value for name, value in options.items() if not name.startswith(_PREFIX)}
    taken = require_known_options(own, {name: values[0] for name, values in choices.items()})
    for name, values in choices.items():
        if taken[name] not in values:
            raise ValueError(f"{name} cannot be {taken[name]!r}: it is one of {', '.join(values)}")
    of_registry = {
        name.removeprefix(_PREFIX): value for name, value in options.items() if name not in own
    }
    return _SplitOptions(of_registry, taken)


def _require_schema_id(frame: bytes, framing: str) -> bytes:
    """Return the schema's id. Raises ``NoSuchSchema``."""
    found = schema_id_of(frame)
    if not found or (found[0] in IDS_OF_HEADERS and framing != APICURIO_HEADER):
        raise NoSuchSchema(
            "does not begin with a zero byte and a schema id of four bytes, nor with a one and a "
            "GUID (format.options framing says where producers put it)"
        )
    return found


class RegistryAvroRecords(FramedRecords):
    """Reads the id of the writer's schema, and an Avro value.

    Options ``registry.*`` say how the registry is asked (``registry.url`` is required). An id that
    the registry does not know makes its records bad; a registry that does not answer fails the
    batch, which is retried.
    """

    keeps_nulls = "value.converter.ignore.default.for.nullables=true"

    def __init__(self, options: Mapping[str, str]) -> None:
        of_registry, taken = _split_off_registry_options(options)
        registry = SchemaRegistry.shared_for_settings(of_registry)

        def open_writer_format(frame: bytes) -> AvroWriterFormat:
            return AvroWriterFormat(
                registry.read_avro_schema(_require_schema_id(frame, taken[FRAMING]))
            )

        super().__init__(split_by_frame, open_writer_format)

    def nullable_fields_with_default(self, values: Sequence[bytes]) -> list[str]:
        """Return what the writers' schemas say (``avro.schema.nullable_fields_with_default``)."""
        found = (
            nullable_fields_with_default(reader.writer)
            for _, reader in self.rows_and_readers_of(values)
        )
        return [*dict.fromkeys(name for names in found for name in names)]

    def names_of_records(self, values: Sequence[bytes]) -> RecordNames:
        """Do the same as ``AvroRecords``; without a schema in the registry there is no name."""
        codes, names = np.full(len(values), -1, np.int64), list[str]()
        for rows, reader in self.rows_and_readers_of(values):
            if reader.writer.called:
                codes[rows] = len(names)
                names.append(reader.writer.called)
        return RecordNames(codes, names)


class RegistryJsonRecords(FramedRecords):
    """Reads the id of a JSON Schema, and a JSON object.

    Values are read as the format ``json`` does. The schema says what they cannot: which text is a
    decimal of Kafka Connect, and which columns there are. With ``schema = "ignore"`` nobody is
    asked.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        of_registry, taken = _split_off_registry_options(options, {SCHEMA: (USE, IGNORE)})
        registry = SchemaRegistry.shared_for_settings(of_registry)

        def open_writer_format(frame: bytes) -> JsonRecords | SchemaJsonRecords:
            schema_id = _require_schema_id(frame, taken[FRAMING])
            if taken[SCHEMA] == IGNORE:
                return JsonRecords()  # its own: each is asked what its frame's last values lacked
            return SchemaJsonRecords(registry.read_json_schema(schema_id))

        super().__init__(split_by_frame, open_writer_format)


class RegistryProtobufRecords(FramedRecords):
    """Reads the id of a schema, message indexes, and the message.

    The indexes locate the message type in its file.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        of_registry, taken = _split_off_registry_options(options)
        if taken[FRAMING] == APICURIO_HEADER:
            raise ValueError(
                f"{FRAMING} cannot be {APICURIO_HEADER} here: such a message has its type in a "
                "header of its own; let Apicurio's serializer write as Confluent's does"
            )
        registry = SchemaRegistry.shared_for_settings(of_registry)

        def open_writer_format(frame: bytes) -> ProtobufWriterFormat:
            schema_id = _require_schema_id(frame, taken[FRAMING])
            if len(frame) == len(schema_id):
                raise NoSuchSchema("has a schema id, and no message indexes behind it")
            types, file = registry.read_protobuf_types(schema_id)
            return ProtobufWriterFormat(
                types, types.message_by_indexes(file, message_indexes_of(frame))
            )

        super().__init__(split_by_message_frame, open_writer_format)
