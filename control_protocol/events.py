"""Defines the control topic's eleven events, and their envelope (PROTOCOL.md, section 5).

Plain frozen values. Their Avro form is ``event_codec.py`` with the schemas of ``headgate.schemas``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from headgate.control_protocol.columns import Struct
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

PROTOCOL_VERSION = 1
DIGEST = "sha256:"
"""The prefix of a value of ``StartCommit.configuration`` that is a digest."""


class FileKind(StrEnum):
    """Says what a written file holds."""

    ROWS = "rows"
    KEYS = "keys"
    """Keys of records that delete: a key file is read once, and never part of the table (KEY-2)."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """Describes one file as every table format knows it.

    ``detail`` is for the table adapter: what its commit needs besides, opaque to the protocol.
    """

    path: str
    records: int
    size_bytes: int
    kind: FileKind = FileKind.ROWS
    detail: bytes = b""


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """Asserts of one partition: "my files hold exactly these offsets" (rule RANGE-1).

    An empty range is *idle*: nothing was there to read. Each record of the source counts once: in
    ``records`` (rows of the files), ``deleted`` (in key files, rule KEY-2), ``quarantined`` (rows
    of the quarantine table) or ``skipped`` (in none, since the settings say so). ``bad`` are those
    of the last two that could not be converted. ``max_timestamp_ms`` is the largest record
    timestamp in the range (epoch milliseconds), ``None`` when the range held no record.
    """

    range: OffsetRange
    records: int = 0
    quarantined: int = 0
    skipped: int = 0
    bad: int = 0
    bytes_read: int = 0
    max_timestamp_ms: int | None = None
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class TableStart:
    """Tells those who write files for a table what START-COMMIT says of it.

    ``offsets``: only where they differ from the sink's. The first table is the primary table, which
    takes the rows unless they are routed; a second one is the quarantine. ``refused``: fields that
    were proposed and become no columns (rule SCHEMA-2); an entry without a path refuses any further
    field. Without a UUID there is no table of this name, and ``refused`` says why none is made;
    without a name, that holds for all other tables that the contents of records name (rule
    ROUTE-4).
    """

    table: str
    uuid: str
    schema_id: int
    spec_id: int
    file_prefix: str
    offsets: Offsets = field(default_factory=Offsets)
    refused: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds what every participant of a transaction does, as the coordinator sets it.

    With ``commit_records`` or ``commit_bytes`` held by all of them together it ends before its
    time (COMMIT-5); 0 is no limit.
    """

    target_file_bytes: int = 128 * 1024 * 1024
    commit_timeout_ms: int = 30_000
    commit_records: int = 0
    commit_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StartCommit:
    """Opens transaction ``n``. ``offsets`` (C) names its fixed set of partitions (rule COMMIT-1).

    C is settled up to ``settled_to`` (L): statuses at or behind that control offset are not in C
    yet. ``None`` marks an epoch's first START, whose L is the offset behind itself (rule EPOCH-2).
    ``folder``: where files of unnamed tables go, below the data of each; empty: such tables take
    nothing. ``configuration`` has the parts of the coordinator's sink file that must be equal for
    all participants, by name; long values and possible secrets as digests (CONFIG-1).
    ``suspended``: tables that take nothing now, with the reason (SUSPEND-1).
    """

    settled_to: ControlOffset | None
    offsets: Offsets
    topic_ids: Mapping[str, TopicId]
    tables: tuple[TableStart, ...]
    limits: Limits = field(default_factory=Limits)
    paused: bool = False
    folder: str = ""
    configuration: Mapping[str, str] = field(default_factory=dict)
    suspended: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndCommit:
    """Asks participants to finish what they write, and to answer with a status."""


@dataclass(frozen=True, slots=True, order=True)
class Destination:
    """Names a table that takes files, as their writer found it; without a UUID, as START says."""

    table: str
    uuid: str = ""
    schema_id: int = 0


@dataclass(frozen=True, slots=True)
class TableStatus:
    """Lists the files of a status that belong to one table.

    ``uuid`` and ``schema_id`` are the table's as its writer found it; empty and 0 where START named
    the table.
    """

    table: str
    files: tuple[WrittenFile, ...] = ()
    uuid: str = ""
    schema_id: int = 0


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Answers END-COMMIT, or says a participant's last word on partitions that it gives up.

    Every owned partition is named: in ``written``, or in ``unknown`` (no position yet, or the write
    failed: ``failure`` says why). The files of all ``tables`` together hold exactly these
    ranges (RANGE-2). A status too large for one message travels as ``parts`` messages with one
    ``status_number``; it counts once it is whole, at the place of its last part. ``troubles``: what
    is wrong with tables whose records went to the quarantine instead (rule SUSPEND-1).
    """

    status_number: int
    written: Mapping[TopicPartition, WrittenRange] = field(default_factory=dict)
    tables: tuple[TableStatus, ...] = ()
    unknown: frozenset[TopicPartition] = frozenset()
    failure: str | None = None
    part: int = 0
    parts: int = 1
    troubles: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableSettlement:
    """Says what a transaction did to one table; no ``snapshot_id``: nothing was committed."""

    table: str
    snapshot_id: int | None
    records: int = 0


@dataclass(frozen=True, slots=True)
class Settlement:
    """Says what became of a transaction: C, settled up to L, and what the tables hold.

    ``valid_through_ms``: no record with an older timestamp is still to come, as far as known.
    ``suspended`` as in START; it takes effect at once.
    """

    settled_to: ControlOffset
    offsets: Offsets
    tables: tuple[TableSettlement, ...] = ()
    valid_through_ms: int | None = None
    reason: str = ""
    suspended: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AckCommit(Settlement):
    """Says that the transaction was committed, or had nothing to commit."""


@dataclass(frozen=True, slots=True)
class AbortCommit(Settlement):
    """Says that a transaction admitted nothing (policy ``abort``): its ranges are written anew."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Asks for what a participant's records have and its table lacks; it waits for TABLES (rule
    SCHEMA-2).

    ``schema_id``: the schema under which they were read. ``columns``: only what has to be added,
    widened or made optional. ``first``: in each partition the first record that needs any of it;
    ``records``: how many do. ``source`` says where the types come from. Without a ``uuid`` there is
    no such table yet (rule CREATE-1), and ``raw`` is the name that a route made its name of.
    """

    number: int
    table: str
    uuid: str
    schema_id: int
    columns: Struct
    first: Offsets
    records: int
    source: str = ""
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """Names an answered proposal by its sender and number."""

    sender: Sender
    number: int


@dataclass(frozen=True, slots=True)
class Tables:
    """Answers proposals: says how the tables are now (rules SCHEMA-3, CREATE-1)."""

    answers: tuple[Answer, ...]
    tables: tuple[TableStart, ...]


class PresenceKind(StrEnum):
    JOINED = "joined"
    GAINED = "gained"
    LOST = "lost"
    ALIVE = "alive"


@dataclass(frozen=True, slots=True)
class PartitionPresence:
    """Describes one owned partition as its owner sees it; ``None``: not known (yet)."""

    position: int | None = None
    end_offset: int | None = None


class BufferedAmounts(NamedTuple):
    """How many records and bytes a participant's next status will hold, as far as it knows."""

    records: int
    octets: int


@dataclass(frozen=True, slots=True)
class Presence:
    """Shows that a participant lives. ``concerns``: the partitions joined, gained or lost
    (POSITION-1).

    ``buffered_records`` and ``buffered_bytes`` are what its next status will hold, as far as it
    knows (COMMIT-5).
    """

    kind: PresenceKind
    concerns: frozenset[TopicPartition]
    owned: Mapping[TopicPartition, PartitionPresence]
    state: str = ""
    buffered_records: int = 0
    buffered_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Pause:
    """Asks the sink, for an operator, to stop fetching."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Asks the sink, for an operator, to fetch again; or, with ``tables``, to fill these again
    (SUSPEND-5).
    """

    tables: tuple[str, ...] = ()


class NoticeKind(StrEnum):
    STARTED = "started"
    STOPPED = "stopped"
    ERROR = "error"
    RELOADED = "reloaded"
    ASKED = "asked"


@dataclass(frozen=True, slots=True)
class Notice:
    """Tells people what happened to a member, or what a person (``actor``) did; no rule reads it.

    *Started* and *stopped* are about a participant's process, stopped in order or with the error of
    this ``code``; *error* is what a coordinator tries in vain, and again after ``next_try_ms``.
    ``configuration`` is a digest of what all sink files must agree on; of *asked* it is that of the
    file which the person used.
    """

    kind: NoticeKind
    code: str = ""
    text: str = ""
    configuration: str = ""
    page: str = ""
    actor: str = ""
    next_try_ms: int | None = None


Event = (
    StartCommit
    | EndCommit
    | WriteStatus
    | AckCommit
    | AbortCommit
    | Presence
    | Pause
    | Resume
    | Notice
    | Proposal
    | Tables
)


@dataclass(frozen=True, slots=True)
class Envelope:
    """Carries an event with its sender. Participants stamp the highest epoch they have seen.

    ``transaction`` is the one the event opens, ends, answers or settles; 0 when it concerns none.
    ``time_ms`` (wall clock) is for people only; no decision reads it.
    """

    sink: SinkName
    epoch: Epoch
    transaction: TransactionNumber
    sender: Sender
    sequence: int
    time_ms: int
    event: Event
    version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class LogRecord:
    """Holds an envelope and its place in the control log."""

    offset: ControlOffset
    envelope: Envelope
