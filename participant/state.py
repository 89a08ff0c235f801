"""Holds everything a participant knows, as one immutable value made of six.

Each of the six has one module that makes changed copies of it; the others read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from headgate.control_protocol.errors import StopBefore
from headgate.control_protocol.events import (
    Destination,
    Limits,
    Proposal,
    StartCommit,
    TableStart,
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
from headgate.control_protocol.machine_io import OutgoingEvent, deadlines_with, is_waiting
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import Batch
from headgate.participant.settings import ParticipantSettings


class Phase(StrEnum):
    WAITING = "waiting"
    """No transaction is open for this participant."""
    WRITING = "writing"
    """A transaction is open; batches are read and written (RANGE-1)."""
    ANSWERING = "answering"
    """END was heard and not yet answered: the last batch is finished first (ANSWER-1)."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """Holds the contents of a START: where files go, and for which fixed set of partitions.

    ``suspended`` as in the newest START or settlement (SUSPEND-1).
    """

    number: TransactionNumber
    table: TableStart
    fixed: frozenset[TopicPartition]
    topic_ids: Mapping[str, TopicId]
    limits: Limits
    quarantine: TableStart | None = None
    secondaries: tuple[TableStart, ...] = ()
    folder: str = ""
    suspended: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_start(cls, number: TransactionNumber, start: StartCommit) -> OpenTransaction:
        table, *aside = start.tables
        fixed = frozenset(start.offsets)
        quarantine = aside[0] if aside else None
        return cls(
            number,
            table,
            fixed,
            start.topic_ids,
            start.limits,
            quarantine,
            tuple(aside[1:]),
            start.folder,
            start.suspended,
        )


@dataclass(frozen=True, slots=True)
class Ownership:
    """Describes one owned partition.

    ``presence`` is the sequence of the PRESENCE that names its gain, ``since`` the place of that
    one in the log (h of POSITION-2). ``work`` is the unannounced range, whose end is the position;
    ``None`` while the position is not known.
    """

    presence: int
    since: ControlOffset | None = None
    work: WrittenRange | None = None


@dataclass(frozen=True, slots=True)
class OwnStatus:
    """Holds an announced status that no settlement covers yet; ``offset`` is set once it was heard.

    ``said`` is kept, files and all: a repeated END gets this very event again (ANSWER-2).
    """

    said: OutgoingEvent
    status: WriteStatus
    offset: ControlOffset | None = None

    @property
    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        return {p: each.range for p, each in self.status.written.items()}


@dataclass(frozen=True, slots=True)
class Need:
    """Holds a proposal without an answer: what waits for it begins at ``proposal.first`` (rule
    SCHEMA-2).
    """

    said: OutgoingEvent
    proposal: Proposal
    since_ms: int
    heard: bool = False


@dataclass(frozen=True, slots=True)
class TableAnswer:
    """Holds what TABLES said of a table that START does not name.

    That there is none is forgotten at ``until_ms``, so that it is asked for again (CREATE-3)."""

    start: TableStart
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PendingStop:
    """Says that a record stops the sink once what lies before it is committed (BATCH-2).

    ``upto``: where reading ends in each partition of the batch that met it; others are read no
    further. ``cuts``: how often such a record was met on the way.
    """

    error: StopBefore
    upto: Offsets
    cuts: int = 1


class Timer(StrEnum):
    """Names what a participant does, or may do again, when a time has come."""

    LOOK = "look"
    """Not before it is the source asked again where it ends."""
    RETRY = "retry"
    """Not before it is a failed batch read again (BATCH-1)."""
    PACE = "pace"
    """Not before it does the next batch begin, where reading is bounded (BATCH-3); set only until
    then."""
    RESEND = "resend"
    """What was not heard by then is appended again (LOG-1)."""
    BATCH = "batch"
    """The batch that runs is given up; set exactly while one runs."""
    ALIVE = "alive"
    """The next PRESENCE that only says that it is alive."""


@dataclass(frozen=True, slots=True)
class Term:
    """Holds what this epoch's coordinator said. Only ``heard_coordinator`` makes a changed copy."""

    epoch: Epoch = Epoch(0)
    """Never falls, but by the START of a true coordinator that leads back from a false one
    (LOG-6)."""
    coordinator: Sender | None = None
    """Who began the epoch: the same epoch of another one is another epoch (EPOCH-3)."""
    settled_to: ControlOffset = ControlOffset(0)
    """L. Never falls within an epoch: an older settlement is ignored (POSITION-3)."""
    ended: TransactionNumber = TransactionNumber(0)
    """The newest END heard, at or above ``answered``."""
    answered: TransactionNumber = TransactionNumber(0)
    """The newest END answered: a participant answers each END once, however often it is heard."""
    paused: bool = False
    """As the newest START says: nothing is read (PAUSE-1)."""
    writing: OpenTransaction | None = None
    """The transaction whose folder takes new files."""
    following: OpenTransaction | None = None
    """The one whose START was heard while the answer to END is pending: set only then
    (COMMIT-1)."""

    @property
    def phase(self) -> Phase:
        if self.ended > self.answered:
            return Phase.ANSWERING
        return Phase.WRITING if self.writing else Phase.WAITING


@dataclass(frozen=True, slots=True)
class Work:
    """Holds what is owned, and read but not announced. Only ``batches`` makes a changed copy.

    A data file mixes partitions. Hence the ranges of all partitions, the files and the troubles are
    kept, announced or dropped together, and never one partition's alone (POSITION-3): where no
    range holds an offset, there is no file and no trouble.
    """

    owned: Mapping[TopicPartition, Ownership] = field(default_factory=dict)
    """As the group says, since a PRESENCE was appended for each (POSITION-1)."""
    leaving: frozenset[TopicPartition] = frozenset()
    """Owned ones that the group takes away as soon as what was read is announced."""
    files: tuple[WrittenFile, ...] = ()
    quarantine_files: tuple[WrittenFile, ...] = ()
    secondary_files: Mapping[Destination, tuple[WrittenFile, ...]] = field(default_factory=dict)
    """Of the primary table, of the quarantine, of other tables; in all at most ``files_max`` and
    what one batch writes."""
    troubles: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with tables that some of it should have gone to (SUSPEND-1)."""
    failure: str | None = None
    """Why the last batch failed: set exactly while ``failed`` names partitions."""
    failed: frozenset[TopicPartition] = frozenset()
    """Owned ones of a failed batch, until a later one has read them, or a settlement moves them:
    nobody may take them for idle."""
    announced_limit_steps: int = 0
    """The last step towards a limit that was said of this work (COMMIT-5)."""

    @property
    def has_unannounced_ranges(self) -> bool:
        """Return whether there is work that no status has named yet."""
        return any(own.work and not own.work.range.is_empty for own in self.owned.values())

    @property
    def unannounced_file_count(self) -> int:
        """Return how many files of all tables no status has named yet."""
        of_others = sum(map(len, self.secondary_files.values()))
        return len(self.files) + len(self.quarantine_files) + of_others

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """Return the next offset to read of every partition whose position is known."""
        return {p: own.work.range.end for p, own in self.owned.items() if own.work}


@dataclass(frozen=True, slots=True)
class BatchRun:
    """Describes the running batch, and those before it. Only ``batches`` makes a changed copy."""

    batch: Batch | None = None
    """At most one. Each of its ranges begins at the position of an owned partition: whatever moves
    a position, or loses a partition, abandons the batch."""
    number: int = 0
    """Of the newest batch: the outcome of an older one is not taken for it."""
    unforeseen: int = 0
    """How many batches in a row failed, or hung, so that trying again will hardly help."""
    outages: int = 0
    """How many in a row failed because of another system."""
    record_bytes: float = 0.0
    """Mean size of a record in the last batch that read any."""
    stop: PendingStop | None = None
    """The sink is about to stop before a record (BATCH-2)."""


@dataclass(frozen=True, slots=True)
class SourceEnds:
    """Says where the source ends. Only ``batches`` makes a changed copy."""

    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    looked: frozenset[TopicPartition] = frozenset()
    """Those whose end the last look brought, in this transaction: their ends are known."""
    last_read_done: bool = False
    """After END, what is there was looked for once more; true only while END is not answered."""


@dataclass(frozen=True, slots=True)
class Announced:
    """Holds what it said and what was heard of it. Only ``heard_coordinator`` makes a changed copy.

    Appended is not heard, even where the broker confirmed it: a log may lose its end (LOG-1).
    """

    pending: tuple[OwnStatus, ...] = ()
    """Statuses that no settlement covers: with ascending numbers, in log order, and where they were
    heard, at or behind L (POSITION-4)."""
    status_number: int = 0
    """The newest number of a status; never falls, or the coordinator takes one for a repetition."""
    unheeded: int = 0
    """How many statuses in a row came to nothing (LOG-6)."""
    unheard: tuple[OutgoingEvent, ...] = ()
    """Presences that name a gain; the position of the gained ones waits for them (POSITION-2)."""
    sequence: int = 0
    """Of the newest own event; never falls."""
    leapt: int = 0
    """What coordinators take for its highest number, where that lies too far above ``sequence``
    (LOG-6)."""

    @property
    def has_status_not_read_back(self) -> bool:
        """Return whether a status was appended and not yet heard: the next one has to wait."""
        return any(own.offset is None for own in self.pending)


@dataclass(frozen=True, slots=True)
class SchemaNeeds:
    """Lists columns and tables asked for. Only ``schema_proposals`` makes a changed copy."""

    open: tuple[Need, ...] = ()
    """Without an answer; one for a table, none with a number above ``number``."""
    number: int = 0
    """Of the newest proposal; never falls within a life."""
    answers: Mapping[str, TableAnswer] = field(default_factory=dict)
    """What TABLES said in this epoch of tables that routes name; the oldest are forgotten."""
    again: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where the batch ended that met the first of the needs, and is done again up to there
    (SCHEMA-3)."""
    ignored: frozenset[str] = frozenset()
    """Fields of which it was logged that they become no column (SCHEMA-6)."""


@dataclass(frozen=True, slots=True)
class State:
    """Holds all of it: ``table`` is the one that this participant's own sink file names,
    ``configuration`` the parts of the file that must be equal for all (CONFIG-1); both are
    constant, as sink, sender, settings and ``idle_intervals``.
    """

    sink: SinkName
    sender: Sender
    settings: ParticipantSettings
    table: str | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)
    idle_intervals: int = 1
    """Where the source had nothing new, so many intervals pass until it is looked at again."""
    term: Term = Term()
    work: Work = Work()
    run: BatchRun = BatchRun()
    source: SourceEnds = SourceEnds()
    said: Announced = Announced()
    needs: SchemaNeeds = SchemaNeeds()
    deadlines: Mapping[Timer, int] = field(default_factory=lambda: {Timer.ALIVE: 0})

    @property
    def phase(self) -> Phase:
        return self.term.phase

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """Return the next offset to read of every partition whose position is known."""
        return self.work.positions

    def with_deadline(self, timer: Timer, at_ms: int | None) -> State:
        """Return the state with this deadline set, or cleared (``None``)."""
        if self.deadlines.get(timer) == at_ms:
            return self
        return replace(self, deadlines=deadlines_with(self.deadlines, timer, at_ms))

    def is_not_held_back_by(self, timer: Timer, now_ms: int) -> bool:
        """Return whether what waits for this deadline may happen now."""
        return not is_waiting(self.deadlines, timer, now_ms)
