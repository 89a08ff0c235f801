"""The cast and the props of the protocol's tests: names, tables, records, statuses."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.events import (
    Envelope,
    Event,
    LogRecord,
    Presence,
    PresenceKind,
    Proposal,
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
from headgate.control_protocol.ports import Lineage, TableView, TopicState

SINK = SinkName("rides")
GROUP = "rides-group"
TABLE = "lake.trips"
LOCATION = "s3://lake/trips"
TOPIC_ID = TopicId("trips-id-1")

P0, P1, P2, P3 = (TopicPartition("trips", number) for number in range(4))

COORDINATOR = Sender("worker-1", "c1")
RIVAL = Sender("worker-2", "c2")
ALICE = Sender("worker-1", "a1")
BOB = Sender("worker-2", "b1")


def offsets(*next_offsets: int) -> Offsets:
    """The next offsets of partitions 0, 1, ... of the topic ``trips``."""
    return Offsets({TopicPartition("trips", k): at for k, at in enumerate(next_offsets)})


def record(
    epoch: int,
    number: int,
    at: Offsets,
    coordinator: Sender = COORDINATOR,
    *,
    group: str = GROUP,
    topic_ids: Mapping[str, TopicId] | None = None,
    valid_through_ms: int | None = None,
    paused: bool = False,
) -> CommitRecord:
    return CommitRecord(
        sink=SINK,
        group_id=group,
        transaction=TransactionId(Epoch(epoch), TransactionNumber(number)),
        coordinator=coordinator,
        offsets=at,
        topic_ids={"trips": TOPIC_ID} if topic_ids is None else topic_ids,
        valid_through_ms=valid_through_ms,
        paused=paused,
    )


def view(
    under_tag: CommitRecord | None = None,
    *,
    snapshot: int | None = None,
    head: int | None = None,
    lineage: Lineage | None = None,
    uuid: str = "uuid-1",
    on_branch: CommitRecord | None = None,
    schema_id: int = 0,
) -> TableView:
    """The table with this record under its tag; without one, a table that never had a tag."""
    tag = snapshot if snapshot is not None else (100 if under_tag else None)
    return TableView(
        table=TABLE,
        uuid=uuid,
        location=LOCATION,
        schema_id=schema_id,
        spec_id=0,
        head=head if head is not None else tag,
        tag=tag,
        record=under_tag,
        lineage=lineage or (Lineage.CONTAINS_TAG if under_tag else Lineage.FRESH),
        branch_record=on_branch or under_tag,
    )


def topics(
    *logs: tuple[int, int], topic_id: TopicId = TOPIC_ID, name: str = "trips"
) -> dict[str, TopicState]:
    """One topic; per partition the readable range of its log."""
    ranges = {k: OffsetRange(begin, end) for k, (begin, end) in enumerate(logs)}
    return {name: TopicState(topic_id, ranges)}


def data_file(path: str, records: int) -> WrittenFile:
    return WrittenFile(path=path, records=records, size_bytes=10 * records)


def folder(epoch: int, transaction: int, incarnation: str = COORDINATOR.incarnation) -> str:
    """The prefix that the coordinator issued for this transaction (rule TOKEN-1 names its
    shape)."""
    return f"{LOCATION}/data/headgate/{SINK}/{epoch}-{incarnation}/{transaction}"


def proposal(
    number: int,
    *columns: Column,
    first: Mapping[TopicPartition, int] | None = None,
    uuid: str = "uuid-1",
    schema_id: int = 0,
) -> Proposal:
    """Columns that records need, from these offsets on."""
    wanted = Struct(columns or (Column("tip", "double"),))
    at = Offsets(first if first is not None else {P0: 12})
    return Proposal(number, TABLE, uuid, schema_id, wanted, at, records=1)


def status(
    number: int,
    claims: Mapping[TopicPartition, tuple[int, int]],
    *,
    unknown: Collection[TopicPartition] = (),
    files: tuple[WrittenFile, ...] | None = None,
    written_in: tuple[int, int] = (1, 1),
    timestamps: Mapping[TopicPartition, int] | None = None,
    failure: str | None = None,
) -> WriteStatus:
    """A status with one file that holds a row per offset, under ``written_in``'s prefix."""
    times = timestamps or {}
    made = {
        p: WrittenRange(
            OffsetRange(*claimed), claimed[1] - claimed[0], max_timestamp_ms=times.get(p)
        )
        for p, claimed in claims.items()
    }
    rows = sum(claim.records for claim in made.values())
    if files is None:
        held = "-".join(f"{p.partition}.{begin}" for p, (begin, _) in sorted(claims.items()))
        path = f"{folder(*written_in)}/{number}-{held}.parquet"
        files = (data_file(path, rows),) if rows else ()
    tables = (TableStatus(TABLE, files),) if files else ()
    return WriteStatus(number, made, tables, frozenset(unknown), failure)


def gain(*partitions: TopicPartition, kind: PresenceKind = PresenceKind.GAINED) -> Presence:
    return Presence(kind, frozenset(partitions), {})


def log_record(
    at: int,
    event: Event,
    sender: Sender,
    *,
    epoch: int,
    transaction: int = 0,
    sequence: int = 0,
) -> LogRecord:
    said = Envelope(
        sink=SINK,
        epoch=Epoch(epoch),
        transaction=TransactionNumber(transaction),
        sender=sender,
        sequence=sequence,
        time_ms=0,
        event=event,
    )
    return LogRecord(ControlOffset(at), said)
