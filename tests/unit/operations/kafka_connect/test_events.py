"""Events as Iceberg's sink 1.11 and 1.12 wrote them, byte by byte but for a folder's name."""

from __future__ import annotations

import base64
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.control_protocol.errors import AnnouncementUnreadable
from headgate.control_protocol.identifiers import TopicPartition
from headgate.operations.kafka_connect.events import (
    FilesAnnounced,
    OffsetsAnnounced,
    OtherEvent,
    decode_event,
    is_connector_event,
)
from headgate.operations.kafka_connect.transaction_events import (
    ControlRecord,
    assemble_announcements,
)

RELEASES = ("1.11.0", "1.12.0")
GROUP = "connect-golden"


def golden(release: str) -> list[ControlRecord]:
    text = Path(__file__).with_name(f"control-topic-{release}.json").read_text()
    return [
        ControlRecord(
            each["partition"],
            each["offset"],
            1_000 + each["offset"],
            each["key"].encode(),
            base64.b64decode(each["value"]),
        )
        for each in json.loads(text)
    ]


def values(release: str) -> list[bytes]:
    return [record.value for record in golden(release) if record.value is not None]


@pytest.mark.parametrize("release", RELEASES)
def test_every_event_is_read(release: str) -> None:
    kinds = [type(decode_event(value)) for value in values(release)]
    assert kinds == [
        OtherEvent,
        *(FilesAnnounced, OffsetsAnnounced),
        *(FilesAnnounced, OffsetsAnnounced),
        *(OtherEvent, OtherEvent),
    ]


@pytest.mark.parametrize("release", RELEASES)
def test_two_workers_announce_their_files_and_offsets(release: str) -> None:
    announced = assemble_announcements(golden(release), "control", GROUP)
    assert len(announced) == 2
    assert {at: end for each in announced for at, end in each.offsets.items()} == {
        TopicPartition("trips", 0): 20,
        TopicPartition("trips", 1): 20,
    }
    for each in announced:
        files = each.files["lake.trips"]
        assert sum(file.records for file in files) == 20
        assert {file.entry["partition"]["zone"] for file in files} == {"a", "b"}
        assert each.announcement_for_table("lake.trips").files == {
            file.path: file.records for file in files
        }
        assert each.announcement_for_table("lake.other").files == {}
        assert each.complete
        assert re.fullmatch(
            r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", each.table_uuids["lake.trips"] or ""
        )


def test_events_of_other_groups_and_other_records_are_left_out() -> None:
    records = golden("1.12.0")
    strange = replace(records[0], value=b"\x00not an event")
    assert assemble_announcements([strange, *records], "control", "connect-other") == []


def test_files_without_their_offsets_are_refused_with_their_place() -> None:
    records = [r for r in golden("1.11.0") if not _ends(r)]
    with pytest.raises(AnnouncementUnreadable, match=r"control/\d+, offset \d+: files were"):
        assemble_announcements(records, "control", GROUP)


def _ends(record: ControlRecord) -> bool:
    assert record.value is not None
    return isinstance(decode_event(record.value), OffsetsAnnounced)


@pytest.mark.parametrize("release", RELEASES)
def test_a_damaged_event_is_an_error_and_never_skipped(release: str) -> None:
    """TAKEOVER-3."""
    chance = random.Random(7)
    for value in values(release):
        for _ in range(60):
            cut = value[: chance.randrange(2, len(value))]
            with pytest.raises(ValueError, match=r"cannot be read|no release|behind its end"):
                decode_event(cut)
        with pytest.raises(ValueError, match="behind its end"):
            decode_event(value + b"\x00")


def test_a_record_with_the_magic_alone_stops() -> None:
    record = ControlRecord(0, 3, 0, b"key", b"\xc2\x01")
    assert is_connector_event(record.value)
    with pytest.raises(AnnouncementUnreadable, match="control/0, offset 3"):
        assemble_announcements([record], "control", GROUP)
