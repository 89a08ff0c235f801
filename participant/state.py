"""Everything a participant knows, as one immutable value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headgate.control_protocol.errors import StopBefore
from headgate.control_protocol.events import (
    Claim,
    Destination,
    Limits,
    Proposal,
    StartCommit,
    TableStart,
    WriteStatus,
    WrittenFile,
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
from headgate.control_protocol.machine_io import OutgoingEvent
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import Batch
from headgate.participant.settings import ParticipantSettings


class Phase(StrEnum):
    WAITING = "waiting"
    """No transaction is open for this participant."""
    WRITING = "writing"
    """A transaction is open; batches are read and written (P2)."""
    ANSWERING = "answering"
    """END was heard and not yet answered: the last batch is finished first (P3)."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The contents of a START: where files go, and for which fixed set of partitions.

    ``suspended`` as in the newest START or settlement (I1).
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
    def by(cls, number: TransactionNumber, start: StartCommit) -> OpenTransaction:
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
    """One owned partition. ``presence`` is the sequence of the PRESENCE that names its gain,
    ``since`` where that one stands in the log (h of rule P6). ``work`` is the unannounced claim;
    its end is the position; ``None`` while the position is not known.
    """

    presence: int
    since: ControlOffset | None = None
    work: Claim | None = None


@dataclass(frozen=True, slots=True)
class OwnStatus:
    """An announced status that no settlement covers yet; ``offset`` is set once it was heard."""

    draft: OutgoingEvent
    status: WriteStatus
    offset: ControlOffset | None = None

    @property
    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        return {p: claim.range for p, claim in self.status.claims.items()}


@dataclass(frozen=True, slots=True)
class Need:
    """A proposal without an answer: what waits for it begins at ``proposal.first`` (rule S2)."""

    draft: OutgoingEvent
    proposal: Proposal
    since_ms: int
    heard: bool = False


@dataclass(frozen=True, slots=True)
class TableAnswer:
    """The statement of TABLES on a table that START does not name; a missing one expires."""

    start: TableStart
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PendingStop:
    """A record stops the sink once what lies before it is committed (P14).

    ``upto``: where reading ends in each partition of the batch that met it; others are read no
    further. ``cuts``: how often such a record was met on the way.
    """

    error: StopBefore
    upto: Offsets
    cuts: int = 1


@dataclass(frozen=True, slots=True)
class State:
    """``coordinator`` is who began the epoch. ``writing`` is the transaction whose folder takes
    new files, ``following`` the one whose START was heard while an answer to END is still pending.
    ``files``, ``quarantined`` and ``followed`` (of other secondary tables) hold the unannounced
    work, ``troubles`` what is wrong with tables that it should have gone to (I1).
    ``ended`` and ``answered`` are the newest END heard and answered. ``failed`` are the
    partitions of a batch that failed, for the reason ``failure``, until a later one reads them.
    ``unheard``: presences appended but not yet heard; ``unheeded``: how many statuses in a row came
    to nothing. ``looked`` are the partitions whose end the
    last look of the open transaction brought. ``batch_due_ms``: when the batch has to be done;
    ``hopeless``: how many in a row failed so that trying again will hardly help; ``foreign``: how
    many because of another system. ``table`` is the one that this participant's own sink file
    names, ``configuration`` the parts of the file that must be equal for all (rule P11).
    ``needs`` wait for TABLES, ``proposals`` counts what was proposed; ``told``: what TABLES said in
    this epoch of tables that routes name; ``again``: where the batch ended that met the first of
    the needs, and is done again up to there; ``ignored`` are the fields
    of which was told that they become no columns (S2, S6).
    ``stop``: the sink is about to stop before a record.
    ``record_bytes`` is the mean of the last batch, ``steps`` the last one that was said (P12).
    """

    sink: SinkName
    sender: Sender
    settings: ParticipantSettings
    epoch: Epoch = Epoch(0)
    coordinator: Sender | None = None
    writing: OpenTransaction | None = None
    following: OpenTransaction | None = None
    ended: TransactionNumber = TransactionNumber(0)
    answered: TransactionNumber = TransactionNumber(0)
    settled_to: ControlOffset = ControlOffset(0)
    paused: bool = False
    owned: Mapping[TopicPartition, Ownership] = field(default_factory=dict)
    leaving: frozenset[TopicPartition] = frozenset()
    files: tuple[WrittenFile, ...] = ()
    quarantined: tuple[WrittenFile, ...] = ()
    followed: Mapping[Destination, tuple[WrittenFile, ...]] = field(default_factory=dict)
    troubles: Mapping[str, str] = field(default_factory=dict)
    batch: Batch | None = None
    batch_due_ms: int = 0
    batches: int = 0
    hopeless: int = 0
    foreign: int = 0
    last_read_done: bool = False
    looked: frozenset[TopicPartition] = frozenset()
    failure: str | None = None
    failed: frozenset[TopicPartition] = frozenset()
    pending: tuple[OwnStatus, ...] = ()
    unheard: tuple[OutgoingEvent, ...] = ()
    statuses: int = 0
    unheeded: int = 0
    sequence: int = 0
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    ends_due_ms: int = 0
    resend_at_ms: int | None = None
    retry_at_ms: int | None = None
    alive_due_ms: int = 0
    table: str | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[Need, ...] = ()
    proposals: int = 0
    told: Mapping[str, TableAnswer] = field(default_factory=dict)
    again: Mapping[TopicPartition, int] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    stop: PendingStop | None = None
    record_bytes: float = 0.0
    steps: int = 0

    @property
    def phase(self) -> Phase:
        if self.ended > self.answered:
            return Phase.ANSWERING
        return Phase.WRITING if self.writing else Phase.WAITING

    @property
    def unconfirmed(self) -> bool:
        """Return whether a status was appended and not yet heard: the next one has to wait."""
        return any(own.offset is None for own in self.pending)

    @property
    def files_waiting(self) -> int:
        """Return how many files of all tables no status has named yet."""
        followed = sum(map(len, self.followed.values()))
        return len(self.files) + len(self.quarantined) + followed

    @property
    def unannounced(self) -> bool:
        """Return whether there is work that no status has named yet."""
        return any(own.work and not own.work.range.empty for own in self.owned.values())

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """Return the next offset to read of every partition whose position is known."""
        return {p: own.work.range.end for p, own in self.owned.items() if own.work}
