"""Reads the events of Iceberg's Kafka Connect sink: two magic bytes, the writer's Avro schema as
text, and an Avro value."""

from __future__ import annotations

import io
import json
import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import fastavro

from headgate.control_protocol.identifiers import TopicPartition

MAGIC = b"\xc2\x01"
_SIZE = struct.Struct(">H")
_START, _WRITTEN, _COMPLETE, _TO_TABLE, _DONE = range(5)


@dataclass(frozen=True, slots=True)
class AnnouncedFile:
    """A data file as a worker announced it: Iceberg's own entry of a manifest, decoded.

    ``entry`` has the fields by their names, ``spec_id`` the partition spec.
    """

    path: str
    records: int
    spec_id: int
    entry: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FilesAnnounced:
    """A worker wrote these files of one table for one commit (DataWritten)."""

    group: str
    commit: str
    table: str
    table_uuid: str | None
    files: tuple[AnnouncedFile, ...]


@dataclass(frozen=True, slots=True)
class OffsetsAnnounced:
    """A worker has named all of its files of a commit, which go up to here (DataComplete).

    Partitions without an offset had nothing to read.
    """

    group: str
    commit: str
    time_ms: int
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class OtherEvent:
    """A coordinator asked for files, or said what it committed: the table itself says that."""

    group: str


Event = FilesAnnounced | OffsetsAnnounced | OtherEvent


def is_connector_event(value: bytes | None) -> bool:
    """Return whether a record's value is such an event, or is meant to be one."""
    return value is not None and value[:2] == MAGIC


def decode_event(value: bytes) -> Event:
    """Return the event. Raises ``ValueError`` for one that cannot be read, or is of no known kind.

    A skipped announcement would be a loss that is called exact, so nothing is skipped.
    """
    if value[:2] != MAGIC:
        raise ValueError("it is no event")
    try:
        (size,) = _SIZE.unpack(value[2:4])
        stream = io.BytesIO(value[4 + size :])
        event: Any = fastavro.schemaless_reader(stream, _parse_schema(value[4 : 4 + size]), None)
        rest = stream.read(1)
        read = _to_event(event)
    except _Unknown as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # whatever fastavro raises for arbitrary bytes
        raise ValueError(f"it cannot be read: {error!r}") from error
    if rest:
        raise ValueError("it has bytes behind its end")
    return read


class _Unknown(Exception):
    """An event that can be read, and whose meaning is not known."""


def _to_event(event: Mapping[str, Any]) -> Event:
    kind, payload, group = event["type"], event["payload"], event["group_id"]
    if kind == _WRITTEN:
        if payload.get("delete_files"):
            raise _Unknown("it announces delete files, which no release of Apache's writes")
        table = payload["table_reference"]
        table_uuid = table.get("table_uuid")
        return FilesAnnounced(
            group,
            _uuid_text(payload["commit_id"]),
            ".".join([*table["namespace"], table["name"]]),
            None if table_uuid is None else _uuid_text(table_uuid),
            tuple(_to_announced_file(entry) for entry in payload["data_files"] or []),
        )
    if kind == _COMPLETE:
        time = event["timestamp"]
        return OffsetsAnnounced(
            group,
            _uuid_text(payload["commit_id"]),
            int(time.timestamp() * 1000) if hasattr(time, "timestamp") else int(time),
            {
                TopicPartition(each["topic"], each["partition"]): each["offset"]
                for each in payload["assignments"]
                if each["offset"] is not None
            },
        )
    if kind in (_START, _TO_TABLE, _DONE):
        return OtherEvent(group)
    raise _Unknown(f"its type is {kind}, which no release up to 1.12 writes")


def _to_announced_file(entry: Mapping[str, Any]) -> AnnouncedFile:
    return AnnouncedFile(
        entry["file_path"], entry["record_count"], int(entry.get("spec_id") or 0), entry
    )


def _uuid_text(value: object) -> str:
    """Return an id as text; the events have its bytes."""
    return str(uuid.UUID(bytes=value) if isinstance(value, bytes) else value)


@lru_cache(maxsize=64)
def _parse_schema(text: bytes) -> Any:
    return fastavro.parse_schema(_without_namespaces(json.loads(text)))


def _without_namespaces(schema: Any) -> Any:
    """Drop namespaces: the events define a name in none and refer to it within one, which Avro's
    library in Java forgives."""
    if isinstance(schema, dict):
        return {
            key: _without_namespaces(value)
            for key, value in schema.items()
            if key != "namespace" or not isinstance(value, str)
        }
    return [_without_namespaces(each) for each in schema] if isinstance(schema, list) else schema
