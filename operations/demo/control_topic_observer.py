"""Folds the conversation on the control topic into a state, as any listener can. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.control_protocol.events import (
    AbortCommit,
    AckCommit,
    EndCommit,
    Envelope,
    PartitionPresence,
    Presence,
    StartCommit,
    WriteStatus,
)
from headgate.control_protocol.identifiers import Epoch, TopicPartition, TransactionId
from headgate.control_protocol.offsets import Offsets


@dataclass(frozen=True, slots=True)
class ParticipantArrived:
    """A participant was given its first partitions."""

    member: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class CoordinatorLeads:
    """A coordinator opened its first transaction."""

    member: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class TransactionEnding:
    """A transaction's END-COMMIT: participants write, and nothing of it is committed yet."""

    member: str
    transaction: TransactionId


@dataclass(frozen=True, slots=True)
class FilesReported:
    """A participant has written its files of a transaction."""

    member: str
    transaction: TransactionId
    records: int


@dataclass(frozen=True, slots=True)
class TransactionCommitted:
    """A transaction is in the table."""

    transaction: TransactionId
    snapshot_id: int
    records: int


Happening = (
    ParticipantArrived | CoordinatorLeads | TransactionEnding | FilesReported | TransactionCommitted
)


@dataclass(frozen=True, slots=True)
class ParticipantSeen:
    """A participant, as its last sign of life shows it."""

    owned: Mapping[TopicPartition, PartitionPresence]
    state: str


@dataclass(slots=True)
class Observation:
    """The conversation so far. ``settled``: next offsets in the table, as last reported."""

    epoch: Epoch = Epoch(0)
    coordinator: str | None = None
    opened: TransactionId | None = None
    ended: TransactionId | None = None
    commits: int = 0
    settled: Offsets = field(default_factory=Offsets)
    participants: dict[str, ParticipantSeen] = field(default_factory=dict)

    @property
    def table_record_count(self) -> int:
        """Return the records in the table: each partition begins at 0 and has no gaps here."""
        return sum(self.settled.values())

    def partition_end_offsets(self) -> dict[TopicPartition, int]:
        """Return where each partition ended, as far as its owner has said."""
        ends = dict(self.settled)
        for seen in self.participants.values():
            for at, presence in seen.owned.items():
                ends[at] = max(ends.get(at, 0), presence.end_offset or 0)
        return ends

    def on_event(self, envelope: Envelope) -> Happening | None:
        """Take one whole event, in the order of the log."""
        match envelope.event:
            case Presence() as presence:
                return self._on_presence(envelope.sender.member, presence)
            case WriteStatus(written=ranges):
                records = sum(each.records for each in ranges.values())
                return FilesReported(envelope.sender.member, _transaction_of(envelope), records)
        if envelope.epoch < self.epoch:
            return None  # a fenced coordinator's last words
        match envelope.event:
            case StartCommit(offsets=offsets):
                return self._on_start_commit(envelope, offsets)
            case EndCommit():
                self.ended = _transaction_of(envelope)
                return TransactionEnding(envelope.sender.member, self.ended)
            case AckCommit() | AbortCommit() as settlement:
                self.settled = self.settled.with_offsets(settlement.offsets)
                return self._on_settlement(_transaction_of(envelope), settlement)
        return None

    def _on_start_commit(self, envelope: Envelope, offsets: Offsets) -> CoordinatorLeads | None:
        self.opened = _transaction_of(envelope)
        self.settled = self.settled.with_offsets(offsets)
        if envelope.epoch == self.epoch:
            return None
        self.epoch, self.ended = envelope.epoch, None
        self.coordinator = envelope.sender.member
        return CoordinatorLeads(self.coordinator, self.epoch)

    def _on_settlement(
        self, transaction: TransactionId, settlement: AckCommit | AbortCommit
    ) -> TransactionCommitted | None:
        if self.ended == transaction:
            self.ended = None
        for table in settlement.tables:
            if table.snapshot_id is not None:
                self.commits += 1
                return TransactionCommitted(transaction, table.snapshot_id, table.records)
        return None

    def _on_presence(self, member: str, presence: Presence) -> ParticipantArrived | None:
        before = self.participants.get(member)
        self.participants[member] = ParticipantSeen(presence.owned, presence.state)
        if presence.owned and not (before and before.owned):
            return ParticipantArrived(member, tuple(sorted(presence.owned)))
        return None


def _transaction_of(envelope: Envelope) -> TransactionId:
    return TransactionId(envelope.epoch, envelope.transaction)


def pid_of(member: str) -> int:
    """Return the process id of a member: ``<host>-<pid>``."""
    return int(member.rpartition("-")[2])
