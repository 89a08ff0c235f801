"""Says as Protocols what the roles need from the world. No foreign type appears here.

Every port has one adapter per foreign system and one fake in ``control_protocol.testing``; both
pass the same contract tests (``tests/contract``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.errors import HeadgateError, TableMissing
from headgate.control_protocol.events import (
    Destination,
    Envelope,
    LogRecord,
    TableStart,
    WrittenFile,
)
from headgate.control_protocol.identifiers import (
    ControlOffset,
    Epoch,
    Sender,
    SinkName,
    TopicId,
    TopicPartition,
    TransactionId,
)
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.rows_deleted_by_people import DeletedRecords
from headgate.control_protocol.schema_evolution import Refusal

# What participants need of tables that no START names, and the results (SCHEMA-2, SCHEMA-3,
# CREATE-1).


@dataclass(frozen=True, slots=True)
class TableNeed:
    """Says what a batch's records need of one table that a route names.

    ``at`` is the table as the writer found it; without a UUID there is none yet, and ``raw`` is the
    name from which the route made its name. ``first`` and ``records`` are as in ``BatchNeeds``.
    """

    at: Destination
    columns: Struct
    first: Offsets
    records: int
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Want:
    """Joins what all waiting proposals ask of one table; fields as in ``TableNeed``."""

    at: Destination
    columns: Struct
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Changed:
    """Shows a table after changes to it were asked for. ``data``: where its data files go.

    ``changes`` says in words what was done, ``refused`` which fields become no column. Without a
    ``uuid`` there is no such table: it is not made for the reason ``why``, and if ``any_other`` is
    set, neither is any other that the contents of records name (ROUTE-4); ``dropped``: it was there
    once, and rows went to it (LEDGER-2). ``failure``: the outcome is unknown, so ask again
    (SCHEMA-8).
    """

    table: str
    uuid: str = ""
    schema_id: int = 0
    spec_id: int = 0
    data: str = ""
    changes: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()
    why: str = ""
    any_other: bool = False
    dropped: bool = False
    failure: str = ""


class Clock(Protocol):
    """Tells the time: durations by ``monotonic_ms``; ``wall_ms`` (epoch) only informs people."""

    def monotonic_ms(self) -> int: ...

    def wall_ms(self) -> int: ...


class ControlLog(Protocol):
    """Appends to the control topic, and reads it: one partition, totally ordered."""

    def append(self, envelopes: Sequence[Envelope]) -> None:
        """Append in order and wait until the broker has confirmed all of them.

        Raises ``AppendUnconfirmed`` (each may be in the log, or not), ``Unreachable`` (none is).
        """

    def read(self, timeout_ms: int) -> list[LogRecord]:
        """Return the next records of any sink, in order; an empty list after ``timeout_ms`` with
        none. Raises ``LogDiscontinuity`` when the place to read is no longer there."""

    def seek(self, offset: ControlOffset) -> None:
        """Read from here."""

    def end_offset(self) -> ControlOffset:
        """Return the offset that the next appended record will have at least."""

    def close(self) -> None: ...


class Lineage(StrEnum):
    """Says where the branch's head stands to the sink's tag (rule TABLE-4)."""

    FRESH = "fresh"
    """No tag, and the table never had one."""

    CONTAINS_TAG = "contains-tag"
    ROLLED_BACK = "rolled-back"
    UNDECIDABLE = "undecidable"
    TAG_MISSING = "tag-missing"


@dataclass(frozen=True, slots=True)
class TableView:
    """Shows a table as one read found it. ``head`` and ``tag`` are snapshot ids.

    ``record`` is the commit record under the tag; ``branch_record`` the newest one that the branch
    itself still holds (they differ after a rollback). ``others``: what other sinks' tags on this
    branch say that they read (rule TABLE-5). ``data_location``: where the table wants its data
    files, if not under ``location``. ``filled``: of a ledger, the UUIDs of the tables that it has
    filled (rule LEDGER-2). ``deleted``: what people deleted from it (rule COMPACTION-1).
    ``only_tags_above``: each snapshot of the branch above the tag is under another sink's tag.
    """

    table: str
    uuid: str
    location: str
    schema_id: int
    spec_id: int
    head: int | None
    tag: int | None
    record: CommitRecord | None
    lineage: Lineage
    branch_record: CommitRecord | None = None
    others: Mapping[SinkName, Mapping[str, TopicId]] = field(default_factory=dict)
    data_location: str = ""
    filled: Mapping[str, str] = field(default_factory=dict)
    deleted: DeletedRecords = field(default_factory=DeletedRecords)
    only_tags_above: bool = False

    @property
    def is_tag_behind(self) -> bool:
        """Return whether others have moved the branch on, so that the tag has to move (TABLE-4)."""
        return self.head != self.tag and not self.only_tags_above

    @property
    def current_record(self) -> CommitRecord | None:
        """Return the record under the tag; without a tag the newest that the branch holds."""
        return self.record or self.branch_record

    @property
    def data_root(self) -> str:
        """Return the folder below which the table wants its data files."""
        return self.data_location or f"{self.location}/data"

    def offsets_ahead_of(self, offsets: Offsets, topic_ids: Mapping[str, TopicId]) -> Offsets:
        """Return where this secondary table may be ahead of the offsets: its primary table went
        back (QUARANTINE-3)."""
        return (
            self.current_record.offsets_ahead_of(offsets, topic_ids)
            if self.current_record
            else Offsets()
        )


@dataclass(frozen=True, slots=True)
class CommitAttempt:
    """Describes one try to move ``base`` forward: files in, record under the tag, all or nothing
    (TABLE-3).

    A decision is one on the primary table, with ``files``. A delivery is one on a secondary table:
    it adds the manifests of ``pending_commits``, which were written before the decision (rule
    PENDING-5). ``forgets``: tables that a ledger has filled and that are no longer to be remembered
    (rule LEDGER-2). ``transactions``: where pending commits came to ``files``, the place of each
    file's transaction in their order. ``fence``: properties of the snapshot that keep another
    system from committing (rule TAKEOVER-11). ``changes_deletes``: a person's claim, from whose
    offsets on deletes do to rows what the settings say (KEY-13).
    """

    base: TableView
    record: CommitRecord
    files: tuple[WrittenFile, ...] = ()
    pending_commits: tuple[PendingCommit, ...] = ()
    forgets: frozenset[str] = frozenset()
    transactions: tuple[int, ...] = ()
    fence: Mapping[str, str] = field(default_factory=dict)
    changes_deletes: bool = False


@dataclass(frozen=True, slots=True)
class Landed:
    """Says that the catalog accepted the attempt. ``view`` is the table as the commit left it."""

    snapshot_id: int
    view: TableView


@dataclass(frozen=True, slots=True)
class Refused:
    """Says that the catalog provably did not accept the attempt: a requirement did not hold;
    ``for_good``: nor will it ever accept these files.

    Only now may the table delete what it wrote for this attempt itself (manifests, logs). The data
    files stay: the next attempt brings them again, and what none brings is an orphan (ORPHAN-1).
    """

    reason: str
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class Unknown:
    """Says that nobody knows whether the attempt landed, or still will: read the table before going
    on; ``rights``: the catalog answered that the sink has no right to.

    Nothing that was written for it may be deleted: the table may hold it by the next moment.
    """

    reason: str
    rights: bool = False


CommitOutcome = Landed | Refused | Unknown


@dataclass(frozen=True, slots=True)
class EvolvedTable:
    """Shows a table after its columns were asked for: ``changes`` says in words what was done to
    it, ``refused`` which fields it will not have.
    """

    view: TableView
    changes: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()


class SinkTable(Protocol):
    """Reads a table and commits to it, for one sink. It never retries or rebases by itself."""

    def read(self) -> TableView:
        """Read the table. Raises ``Unreachable``, ``TableMissing``, ``RecordUnreadable``."""

    def commit(self, attempt: CommitAttempt) -> CommitOutcome:
        """Make one catalog call that requires the base's UUID, tag and branch head (rule TABLE-3).
        Raises ``StopSink`` only for what no repetition can mend (a file of an unknown spec)."""

    def close(self) -> None: ...


class PrimaryTable(SinkTable, Protocol):
    """Commits to the table whose commit decides (rule PENDING-1), and which can get new columns."""

    def evolve(self, base: TableView, columns: Struct) -> EvolvedTable:
        """Add what these columns need and the table lacks, in one call (rules SCHEMA-3, SCHEMA-5).

        The call requires UUID, tag, head, schema and last column id as they are read now. If UUID
        or tag differ from the base's, nothing is done. Columns that are there already need no call
        (rule SCHEMA-8). Raises ``RetryLater`` when they are not there, or perhaps not.
        """


@dataclass(frozen=True, slots=True)
class Staging:
    """Names files of one transaction that a secondary table shall receive (rule PENDING-2).

    ``table`` is the secondary table as it was read last. ``since_ms`` (epoch): the files are not
    older.
    """

    table: TableView
    transaction: TransactionId
    coordinator: Sender
    files: tuple[WrittenFile, ...]
    since_ms: int = 0


class SecondaryTable(PrimaryTable, Protocol):
    """Stages files for a table that receives what the primary table decides, and commits them.

    It is read and committed to as the primary table is.
    """

    def stage(self, staging: Staging) -> tuple[PendingCommit, ...]:
        """Write the files into manifests without a snapshot id, one per partition spec.

        Anybody may commit them later. Raises ``RetryLater``, and ``StopSink`` for files that cannot
        be committed to this table.
        """

    def delete_undecided_manifests(
        self, before_epoch: Epoch, pending_manifests: frozenset[str]
    ) -> None:
        """Delete manifests that are not pending, and that coordinators of epochs before this one
        staged and never decided; never raises."""

    def delete_delivered_key_files(self, delivered_commits: Sequence[PendingCommit]) -> None:
        """Delete the key files of pending commits that a read shows as delivered (PENDING-7); never
        raises."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """Describes a source topic now: its id, and per partition the readable range of the log.

    ``silent`` partitions exist, but have no leader to ask.
    """

    topic_id: TopicId
    partitions: Mapping[int, OffsetRange]
    silent: frozenset[int] = frozenset()


class SourceTopics(Protocol):
    """Answers the coordinator's questions to the source cluster."""

    def describe(self) -> Mapping[str, TopicState]:
        """Describe every configured topic, up to the last stable offset. Raises ``Unreachable``."""

    def offsets_at(self, timestamp_ms: int) -> Offsets:
        """Return, per partition, the first offset at or after the time, else the end."""

    def committed_offset_metadata(self) -> str | None:
        """Return the metadata string beside the group's committed offsets, ``None`` without any."""

    def close(self) -> None: ...


class GroupMember(Protocol):
    """Takes part in the consumer group; every partition stays paused."""

    def poll(self, timeout_ms: int) -> None:
        """Poll the group. Calls the revocation handler before partitions are released."""

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the owned partitions, as of the last poll."""

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the last stable offsets (``read_committed``'s limit). Raises ``Unreachable``."""

    def is_buffer_full(self) -> bool:
        """Return whether the source will show no more until some of it is read."""

    def copy_offsets_to_group(self, offsets: Offsets, metadata: str) -> None:
        """Copy settled offsets of owned partitions to the group, for lag tools; best effort."""

    def close(self) -> None:
        """Leave the group."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Describes a writer's unit of work: read these ranges, write them under the table's prefix.

    ``topic_ids`` are what the topics must be; a re-created one holds other records. ``quarantine``
    takes the bad records, if the sink has such a table: below its ``offsets`` it may hold some of
    the ranges' records already (rule QUARANTINE-3). ``secondaries`` are what START names besides,
    ``folder`` is where files of tables go that it does not name; ``changed_tables`` are those that
    TABLES named lately, ``suspended`` says why some take nothing (SUSPEND-1).
    """

    number: int
    transaction: TransactionId
    table: TableStart
    ranges: Mapping[TopicPartition, OffsetRange]
    target_file_bytes: int
    topic_ids: Mapping[str, TopicId] = field(default_factory=dict)
    quarantine: TableStart | None = None
    secondaries: tuple[TableStart, ...] = ()
    folder: str = ""
    suspended: Mapping[str, str] = field(default_factory=dict)
    changed_tables: tuple[TableStart, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """Counts a batch's records in one partition: see ``WrittenRange`` for the units.

    ``filtered``: those of the ``skipped`` that a condition or a transform leaves out.
    """

    range: OffsetRange
    records: int
    bytes_read: int
    max_timestamp_ms: int | None = None
    quarantined: int = 0
    skipped: int = 0
    bad: int = 0
    deleted: int = 0
    filtered: int = 0


@dataclass(frozen=True, slots=True)
class BatchWritten:
    """Says that the batch is on storage: exactly these ranges in exactly these files of its tables.

    ``quarantined`` are the quarantine's, ``secondary_files`` those of other secondary tables.
    ``ignored``: per field path the number of records with a field that becomes no column (rule
    SCHEMA-6). ``troubles``: what is wrong with tables that could not take their records (rule
    SUSPEND-1).
    """

    number: int
    partitions: Mapping[TopicPartition, PartitionResult]
    files: tuple[WrittenFile, ...] = field(default=())
    quarantined: tuple[WrittenFile, ...] = field(default=())
    secondary_files: Mapping[Destination, tuple[WrittenFile, ...]] = field(default_factory=dict)
    ignored: Mapping[str, int] = field(default_factory=dict)
    troubles: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_files(self) -> tuple[WrittenFile, ...]:
        """Return the files of all tables."""
        secondary = (file for files in self.secondary_files.values() for file in files)
        return (*self.files, *self.quarantined, *secondary)


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """Says that nothing of the batch counts. ``fatal``: an error that repeating it cannot mend.

    ``unforeseen``: no other system gave the reason, so repeating it probably will not help.
    """

    number: int
    reason: str
    fatal: HeadgateError | None = None
    unforeseen: bool = False


@dataclass(frozen=True, slots=True)
class BatchNeeds:
    """Says that some of the batch's records have what their table lacks; nothing of it was written
    (SCHEMA-2).

    ``columns``: only what has to be added, widened or made optional. ``first``: in each partition
    the first record that needs any of it; ``records``: how many do. ``tables``: the same of each
    table that routes name, where nothing is said of START's.
    """

    number: int
    columns: Struct = field(default_factory=Struct)
    first: Offsets = field(default_factory=Offsets)
    records: int = 0
    source: str = ""
    tables: tuple[TableNeed, ...] = ()


BatchOutcome = BatchWritten | BatchFailed | BatchNeeds


class BatchWriter(Protocol):
    """Turns offset ranges into data files, in the background; one batch at a time."""

    def submit(self, batch: Batch) -> None:
        """Begin the batch. One before it that still runs was abandoned: its outcome is dropped."""

    def wait_for_outcome(self, timeout_ms: int) -> BatchOutcome | None:
        """Return the submitted batch's outcome once, when there is one within the time."""

    def close(self) -> None:
        """Stop; wait for what runs, bounded."""


class Leadership(Protocol):
    """Stands for the coordinator before its participant: leadership is a level, never an edge."""

    def on_assignment(self, partitions: frozenset[TopicPartition]) -> None:
        """Take this member's assignment as of a fresh poll; called after every poll.

        A coordinator runs while it holds the election partition. When it does not, the coordinator
        is stopped and its thread joined before this returns.
        """

    def failure(self) -> BaseException | None:
        """Return why the coordinator stopped for good, if it did."""

    def close(self) -> None:
        """Stop and join, whatever is assigned."""


# The port to all secondary tables of a sink at once. Its adapter is ``SecondaryTables``.


class AllSecondaryTables(Protocol):
    """Reaches all secondary tables of a sink, by table name; several are called at once.

    Where the sink can do without one of them, its error is an answer like any other (SUSPEND-1).
    """

    def try_read_views(self, tables: Collection[str]) -> Mapping[str, TableView | HeadgateError]:
        """Return the views by table name, or a table's own trouble, or the ``RetryLater`` of one
        that cannot be read now; one that is busy is left out.

        Raises ``TableMissing``, ``RecordUnreadable``, ``StopSink`` for those that must be there.
        """

    def find_missing_tables(self, tables: Collection[str]) -> Mapping[str, TableMissing]:
        """Return those that no longer exist (rule LEDGER-2); cheap where most of them do.

        Raises ``Unreachable``.
        """

    def stage(
        self, stagings: Sequence[Staging]
    ) -> Mapping[str, tuple[PendingCommit, ...] | HeadgateError]:
        """Return, by table name, the pending commits of its staging, or its own trouble; raises
        other errors as ``SecondaryTable.stage``."""

    def create_or_change_tables(self, wants: Sequence[Want]) -> tuple[Changed, ...]:
        """Make or change the tables, in order; makes missing ones without UUID. Never raises."""

    def deliver(
        self, deliveries: Sequence[CommitAttempt], timeout_ms: int
    ) -> Mapping[str, CommitOutcome | HeadgateError]:
        """Return each table's outcome by its name; make one call per delivery, or one for all that
        go together (PENDING-5).

        A call that takes longer is ``Unknown``, and goes on meanwhile. A table still busy with an
        earlier call is left out.
        """

    def delete_undecided_manifests(
        self, before_epoch: Epoch, pending_manifests: frozenset[str]
    ) -> None:
        """Do as ``SecondaryTable.delete_undecided_manifests``, for all of them."""

    def delete_delivered_key_files(self, delivered_commits: Sequence[PendingCommit]) -> None:
        """Do as ``SecondaryTable.delete_delivered_key_files``, for all of them."""

    def close(self) -> None: ...
