"""Puts a connector's events together: what each worker announced in one transaction of Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headgate.control_protocol.errors import AnnouncementUnreadable
from headgate.control_protocol.identifiers import TopicPartition
from headgate.operations.kafka_connect.events import (
    AnnouncedFile,
    Event,
    FilesAnnounced,
    OffsetsAnnounced,
    decode_event,
    is_connector_event,
)
from headgate.operations.kafka_connect.takeover_plan import Announcement


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """A record of the control topic; ``time_ms`` as Kafka has it."""

    partition: int
    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class WorkerAnnouncement:
    """The files of one worker for one commit, by table, and the offsets that they go up to."""

    control_partition: int
    first: int
    last: int
    time_ms: int = 0
    files: dict[str, list[AnnouncedFile]] = field(default_factory=dict)
    table_uuids: dict[str, str | None] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    complete: bool = False

    def announcement_for_table(self, table: str) -> Announcement:
        """Return what of it concerns one table; files without rows are never committed."""
        files = {file.path: file.records for file in self.files.get(table, ()) if file.records}
        return Announcement(
            self.control_partition, self.first, self.last, self.time_ms, files, self.offsets
        )


def assemble_announcements(
    records: Iterable[ControlRecord], topic: str, group: str
) -> list[WorkerAnnouncement]:
    """Return what the group's workers announced, in the order of each control partition.

    Other records, and events of other groups, are left out. Raises ``AnnouncementUnreadable`` for
    an event that cannot be read, and for files without the offsets that belong to them.
    """
    found: list[WorkerAnnouncement] = []
    begun: dict[tuple[int, bytes | None, str], WorkerAnnouncement] = {}
    for record in records:
        if not is_connector_event(record.value):
            continue
        event = _decode_record(record, topic)
        if event.group != group or not isinstance(event, FilesAnnounced | OffsetsAnnounced):
            continue
        key = (record.partition, record.key, event.commit)
        announced = begun.get(key)
        if announced is None:
            announced = WorkerAnnouncement(record.partition, record.offset, record.offset)
            begun[key] = announced
            found.append(announced)
        announced.last = record.offset
        if isinstance(event, FilesAnnounced):
            announced.files.setdefault(event.table, []).extend(event.files)
            announced.table_uuids[event.table] = event.table_uuid
        else:
            announced.time_ms, announced.offsets = event.time_ms, event.offsets
            announced.complete = True
            del begun[key]
    if begun:
        left = min(begun.values(), key=lambda each: (each.control_partition, each.first))
        raise AnnouncementUnreadable(
            f"{topic}/{left.control_partition}, offset {left.first}: files were announced, and not "
            "the offsets that they go up to",
            "the beginning of this control topic may have expired in between: let the connector "
            "commit what is left, and stop it in order (PUT /connectors/NAME/stop)",
        )
    return found


def _decode_record(record: ControlRecord, topic: str) -> Event:
    assert record.value is not None, "looked at by is_connector_event"
    try:
        return decode_event(record.value)
    except ValueError as error:
        raise AnnouncementUnreadable(
            f"{topic}/{record.partition}, offset {record.offset}: an event of the connector is "
            f"not understood: {error}",
            "headgate reads those of releases 1.9 to 1.12; what it cannot read may be files that "
            "belong to the table, so nothing is skipped",
        ) from None
