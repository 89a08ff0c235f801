"""What is written keeps its bytes: messages of the control topic, and commit records in summaries.

``golden_bytes.json`` was written by the program before its codecs went by declared types. Long ones
are there as digests. A record's compressed texts are compared as they read, for another zlib may
compress them otherwise.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from support.control_envelopes import EXAMPLES, WRITTEN_FILE, envelope

from headgate.control_protocol import commit_record_codec, message_encoding
from headgate.control_protocol.commit_record import (
    REREAD,
    CommitRecord,
    KeyCounts,
    PendingCommit,
    Replayed,
    Suspended,
)
from headgate.control_protocol.events import (
    AckCommit,
    Event,
    FileKind,
    PartitionPresence,
    Presence,
    PresenceKind,
    StartCommit,
    TableSettlement,
    TableStart,
    TableStatus,
    WriteStatus,
    WrittenFile,
    WrittenRange,
)
from headgate.control_protocol.identifiers import (
    ControlOffset,
    Epoch,
    Sender,
    SinkName,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.schema_evolution import Refusal

GOLDEN: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("golden_bytes.json").read_text("utf-8")
)
RELEASED: dict[str, str] = json.loads(
    Path(__file__).with_name("control_messages_v1.json").read_text("utf-8")
)
SINK = SinkName("orders")
PLACES = [TopicPartition(f"topic.{n % 3}", n // 3) for n in range(300)]
TOPIC_IDS = {f"topic.{n}": TopicId(f"{n}" * 22) for n in range(3)}


def large_events() -> dict[str, Event]:
    offsets = Offsets({at: 1_000 * n for n, at in enumerate(PLACES)})
    claims = {
        at: WrittenRange(OffsetRange(n, 3 * n), n, 1, 2, 3, 512 * n, 1_700_000_000_000 + n, n % 2)
        for n, at in enumerate(PLACES)
    }
    files = tuple(
        WrittenFile(
            f"s3://lake/t/{n}.parquet",
            10 * n,
            4_096 * n,
            FileKind.KEYS if n % 5 == 0 else FileKind.ROWS,
            bytes([n % 256]) * 700,
        )
        for n in range(200)
    )
    tables = tuple(
        TableStart(
            f"lake.t{n}", f"uuid-{n}", n, 1, f"s3://lake/{n}/x-", refused=(Refusal((), "z"),)
        )
        for n in range(50)
    )
    return {
        "status of 200 files": WriteStatus(
            9, claims, (TableStatus("lake.t", files), TableStatus("lake.q", files[:2], "u", 4))
        ),
        "status of one file": WriteStatus(
            1,
            {PLACES[0]: WrittenRange(OffsetRange(0, 90), 90)},
            (TableStatus("lake.t", (WRITTEN_FILE,)),),
        ),
        "part of a status": WriteStatus(2, unknown=frozenset(PLACES), part=3, parts=1024),
        "idle status": WriteStatus(3, {PLACES[0]: WrittenRange(OffsetRange(7, 7))}),
        "START of an epoch, 300 partitions, 50 tables": StartCommit(
            None, offsets, TOPIC_IDS, tables, suspended={"lake.t7": "HG-102 gone"}
        ),
        "START of 300 partitions": StartCommit(
            ControlOffset(2**40), offsets, TOPIC_IDS, tables[:1]
        ),
        "presence of 300 partitions": Presence(
            PresenceKind.ALIVE,
            frozenset(PLACES[::2]),
            {at: PartitionPresence(n, n + 5 if n % 2 else None) for n, at in enumerate(PLACES)},
        ),
        "ACK of 50 tables": AckCommit(
            ControlOffset(5),
            offsets,
            tuple(TableSettlement(f"lake.t{n}", -n if n else None, n) for n in range(50)),
            -5,
        ),
    }


def pending(number: int, **fields: Any) -> PendingCommit:
    values: dict[str, Any] = {
        "transaction": TransactionId(Epoch(5), TransactionNumber(number)),
        "coordinator": Sender("wörker-1", "c1"),
        "secondary": "9c2e4a5c-6d0f",
        "table": "lake.trips_quarantine",
        "manifest": f"s3://lake/q/metadata/headgate/trips/5-c1/{number}-m0.avro",
        "size_bytes": 6_812,
        "rows": 12,
        "since_ms": 1_700_000_000_000,
        **fields,
    }
    return PendingCommit(**values)


def record(**fields: Any) -> CommitRecord:
    values: dict[str, Any] = {
        "sink": SINK,
        "group_id": "group",
        "transaction": TransactionId(Epoch(3), TransactionNumber(7)),
        "coordinator": Sender("m", "1"),
        "offsets": Offsets({TopicPartition("a", 0): 12, TopicPartition("a", 2): 5}),
        "topic_ids": {"a": TopicId("kS0b"), "idle": TopicId("x")},
        **fields,
    }
    return CommitRecord(**values)


FULL: dict[str, Any] = {
    "records": 5,
    "quarantined": 2,
    "skipped": 1,
    "valid_through_ms": -1,
    "paused": True,
    "control_topic": "control",
    "control_topic_id": TopicId("id"),
    "command": REREAD,
    "actor": "änn",
    "stopped": True,
    "primary": "uuid-p",
    "secondaries": {"lake.q": "uuid-q", "lake.b": "uuid-b"},
    "pending_commits": (pending(1), pending(2, rows=0, deletes=7), pending(0, manifest="")),
    "expired": (pending(3),),
    "routing": "f1",
    "suspended": (Suspended("lake.b", "HG-102 dropped", 1_700_000_000_000, True),),
    "keys": KeyCounts(1, 2, 3, 4, 5),
    "replayed": Replayed(
        Offsets({TopicPartition("a", 0): 7}),
        {"a": TopicId("kS0b")},
        TransactionId(Epoch(4), TransactionNumber(17)),
    ),
}
RECORDS: dict[str, CommitRecord] = {
    "version 2, least": record(),
    "version 2, zeros and empty texts": record(valid_through_ms=0, command="", primary=""),
    "version 2, everything": record(**FULL),
    "version 3, a rollback has begun": record(**FULL, going_back="4.17"),
    "version 4, added partitions": record(**FULL, cohorts={"trips": (2, 6), "orders": (1,)}),
    "large": record(
        offsets=Offsets({at: 1_000 * n for n, at in enumerate(PLACES)}),
        topic_ids=TOPIC_IDS,
        secondaries={f"lake.t{n}": f"uuid-{n}" for n in range(200)},
        pending_commits=tuple(pending(n) for n in range(200)),
        suspended=tuple(Suspended(f"lake.t{n}", "HG-102 dropped", n) for n in range(100)),
    ),
}
"""Version 1 is in ``tables_v1.json``."""


def readable(summary: dict[str, str]) -> dict[str, str]:
    """The summary with what is compressed in it as a digest of its text."""
    return {
        name: hashlib.sha256(commit_record_codec.decompress_text(text, 10**7).encode()).hexdigest()
        if text.startswith("zlib:")
        else text
        for name, text in summary.items()
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_event_is_written_in_the_released_bytes(name: str) -> None:
    assert message_encoding.encode_envelope(envelope(EXAMPLES[name])).hex() == RELEASED[name]


@pytest.mark.parametrize("name", large_events())
def test_a_large_event_keeps_its_bytes_and_comes_back(name: str) -> None:
    sent = envelope(large_events()[name])
    message = message_encoding.encode_envelope(sent)
    assert hashlib.sha256(message).hexdigest() == GOLDEN["messages"][name]
    assert message_encoding.decode_envelope(message) == sent


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_keeps_its_properties_and_comes_back(name: str) -> None:
    summary = commit_record_codec.encode_record(RECORDS[name])
    assert readable(summary) == GOLDEN["records"][name]
    assert commit_record_codec.decode_record(SINK, summary) == RECORDS[name]
