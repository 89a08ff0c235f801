"""Envelopes for tests: one example per event, and strategies for any of them."""

from __future__ import annotations

from hypothesis import strategies as st

from headgate.control_protocol.columns import Column, ListOf, Struct
from headgate.control_protocol.events import (
    AbortCommit,
    AckCommit,
    Answer,
    EndCommit,
    Envelope,
    Event,
    Limits,
    Notice,
    NoticeKind,
    PartitionPresence,
    Pause,
    Presence,
    PresenceKind,
    Proposal,
    Resume,
    StartCommit,
    Tables,
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
    TransactionNumber,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.schema_evolution import Refusal

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)

WRITTEN_FILE = WrittenFile(
    path="s3://lake/orders/data/headgate-3.7-ab/00000.parquet",
    records=90,
    size_bytes=12_345,
    detail=bytes(range(90)),
)

EXAMPLES: dict[str, Event] = {
    "start-commit": StartCommit(
        settled_to=ControlOffset(41),
        offsets=Offsets({P0: 100, P1: 2**40}),
        topic_ids={"orders": TopicId("kS0bJ3m8RZ2l1cT5uXvYwA")},
        tables=(
            TableStart(
                "lake.orders",
                "uuid-1",
                3,
                1,
                "s3://lake/x-",
                Offsets({P1: 7}),
                (Refusal(("user", "Name"), "was dropped"),),
            ),
        ),
        limits=Limits(1_000, 2_000, 3_000, 4_000),
        paused=True,
        folder="headgate/orders/3-a1/7",
        configuration={"table.branch": "main", "format": "sha256:1f"},
        suspended={"lake.gone": "HG-102 dropped"},
    ),
    "end-commit": EndCommit(),
    "write-status": WriteStatus(
        status_number=5,
        written={P0: WrittenRange(OffsetRange(100, 200), 90, 4, 6, 7, 4_096, 1_700_000_000_000, 2)},
        tables=(
            TableStatus("lake.orders", (WRITTEN_FILE,), "uuid-1", 3),
            TableStatus("lake.empty"),
        ),
        unknown=frozenset({P1}),
        failure="disk full",
        troubles={"lake.gone": "HG-102 dropped"},
    ),
    "ack-commit": AckCommit(
        ControlOffset(44),
        Offsets({P0: 200}),
        (TableSettlement("lake.orders", 2**62, 90), TableSettlement("lake.empty", None)),
        1_700_000_000_000,
        "landed",
        {"lake.gone": "HG-102 dropped"},
    ),
    "abort-commit": AbortCommit(ControlOffset(44), Offsets({P0: 100}), reason="time-out"),
    "presence": Presence(
        PresenceKind.GAINED,
        frozenset({P1}),
        {P0: PartitionPresence(100, 300), P1: PartitionPresence()},
        "writing",
        10,
        2_000,
    ),
    "pause": Pause(),
    "resume": Resume(("lake.gone",)),
    "notice": Notice(
        NoticeKind.ERROR, "HG-401", "commit not confirmed", "0a1b", "127.0.0.1:8080", "ann", 500
    ),
    "proposal": Proposal(
        4,
        "lake.orders",
        "uuid-1",
        3,
        Struct((Column("tags", ListOf(Column("", "string"))), Column("id", "long", False))),
        Offsets({P1: 7}),
        12,
        "schema 9",
    ),
    "tables": Tables(
        (Answer(Sender("worker-1", "f00d"), 4),),
        (TableStart("lake.orders", "uuid-1", 4, 1, "s3://lake/x-"),),
    ),
}


def envelope(event: Event, **fields: object) -> Envelope:
    """An envelope around the event, with ordinary values where ``fields`` gives none."""
    values: dict[str, object] = {
        "sink": SinkName("orders"),
        "epoch": Epoch(3),
        "transaction": TransactionNumber(7),
        "sender": Sender("worker-1", "f00d"),
        "sequence": 12,
        "time_ms": 1_700_000_000_000,
        "event": event,
        **fields,
    }
    return Envelope(**values)  # type: ignore[arg-type]


_NATURALS = st.integers(0, 2**62 - 1)
_OPTIONAL = st.none() | _NATURALS
_TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
_PARTITIONS = st.builds(
    TopicPartition, st.sampled_from(["a", "b.c", "ü"]), st.integers(0, 2**31 - 1)
)
_SETS = st.frozensets(_PARTITIONS, max_size=5)
_OFFSETS = st.dictionaries(_PARTITIONS, _NATURALS, max_size=5).map(Offsets)
_RANGES = st.tuples(_NATURALS, _NATURALS).map(lambda two: OffsetRange(min(two), max(two)))
_FILES = st.builds(WrittenFile, _TEXT, _NATURALS, _NATURALS, detail=st.binary(max_size=20))
_COUNTED = (_NATURALS,) * 5
_CLAIMS = st.builds(WrittenRange, _RANGES, *_COUNTED, _OPTIONAL)
_TABLES = st.lists(
    st.builds(
        TableStatus,
        _TEXT,
        st.lists(_FILES, max_size=3).map(tuple),
        _TEXT,
        st.integers(0, 9),
    ),
    max_size=3,
    unique_by=lambda table: (table.table, table.uuid),
).map(tuple)

STATUSES = st.builds(
    WriteStatus,
    status_number=_NATURALS,
    written=st.dictionaries(_PARTITIONS, _CLAIMS, max_size=4),
    tables=_TABLES,
    unknown=_SETS,
    failure=st.none() | _TEXT,
    troubles=st.dictionaries(_TEXT, _TEXT, max_size=2),
)
_SETTLED: tuple[st.SearchStrategy[object], ...] = (
    _NATURALS.map(ControlOffset),
    _OFFSETS,
    st.lists(st.builds(TableSettlement, _TEXT, _OPTIONAL, _NATURALS), max_size=3).map(tuple),
    _OPTIONAL,
    _TEXT,
    st.dictionaries(_TEXT, _TEXT, max_size=2),
)
_REFUSALS = st.builds(Refusal, st.lists(_TEXT, max_size=3).map(tuple), _TEXT)
_STARTS = st.builds(
    TableStart,
    _TEXT,
    _TEXT,
    st.integers(0, 9),
    st.integers(0, 9),
    _TEXT,
    _OFFSETS,
    st.lists(_REFUSALS, max_size=2).map(tuple),
)
_COLUMNS = st.builds(Column, _TEXT, st.sampled_from(["long", "string"]), st.booleans())
_STRUCTS = st.lists(_COLUMNS, max_size=3).map(lambda some: Struct(tuple(some)))
_SENDERS = st.builds(Sender, _TEXT, _TEXT)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        StartCommit,
        settled_to=_OPTIONAL.map(lambda at: None if at is None else ControlOffset(at)),
        offsets=_OFFSETS,
        topic_ids=st.dictionaries(_TEXT, _TEXT.map(TopicId), max_size=3),
        tables=st.lists(_STARTS, min_size=1, max_size=3).map(tuple),
        limits=st.builds(Limits, _NATURALS, _NATURALS),
        paused=st.booleans(),
        folder=_TEXT,
        configuration=st.dictionaries(_TEXT, _TEXT, max_size=3),
        suspended=st.dictionaries(_TEXT, _TEXT, max_size=3),
    ),
    st.just(EndCommit()),
    STATUSES,
    st.builds(AckCommit, *_SETTLED),
    st.builds(AbortCommit, *_SETTLED),
    st.builds(
        Presence,
        st.sampled_from(PresenceKind),
        _SETS,
        st.dictionaries(
            _PARTITIONS, st.builds(PartitionPresence, _OPTIONAL, _OPTIONAL), max_size=4
        ),
        _TEXT,
        _NATURALS,
        _NATURALS,
    ),
    st.just(Pause()),
    st.builds(Resume, st.lists(_TEXT, max_size=2).map(tuple)),
    st.builds(Notice, st.sampled_from(NoticeKind), _TEXT, _TEXT, _TEXT, _TEXT, _TEXT, _OPTIONAL),
    st.builds(
        Proposal,
        _NATURALS,
        _TEXT,
        _TEXT,
        st.integers(0, 9),
        _STRUCTS,
        _OFFSETS,
        _NATURALS,
        _TEXT,
    ),
    st.builds(
        Tables,
        st.lists(st.builds(Answer, _SENDERS, _NATURALS), max_size=3).map(tuple),
        st.lists(_STARTS, max_size=3).map(tuple),
    ),
)
ENVELOPES = st.builds(
    Envelope,
    sink=_TEXT.map(SinkName),
    epoch=_NATURALS.map(Epoch),
    transaction=_NATURALS.map(TransactionNumber),
    sender=_SENDERS,
    sequence=_NATURALS,
    time_ms=st.integers(-(2**63), 2**63 - 1),
    event=EVENTS,
)
