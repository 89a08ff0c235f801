"""Everything the coordinator knows, as one immutable value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from headgate.control_protocol.commit_record import PartitionCohorts, PendingCommit, Suspended
from headgate.control_protocol.events import (
    AbortCommit,
    AckCommit,
    Answer,
    Proposal,
    Tables,
    WriteStatus,
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
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import CommitAttempt, Staging, TableView
from headgate.control_protocol.quarantine_policy import BadRecordLimits
from headgate.control_protocol.schema_evolution import Refusal
from headgate.coordinator.commit_tokens import Issued
from headgate.coordinator.phases import Phase
from headgate.coordinator.refused_statuses import Refused
from headgate.coordinator.settings import CoordinatorSettings, Pace

# Tells the coordinator which of the routed tables have a key (rule U1).


class RoutedKeys(Protocol):
    """By names; the answers never change during a coordinator's life."""

    def of_table(self, table: str) -> bool:
        """Return whether records replace and delete rows of this table."""

    def of_topic(self, topic: str) -> bool:
        """Return whether records of this topic may go to such a table."""


class _None:
    """For a sink whose routes name no table with a key."""

    def of_table(self, table: str) -> bool:  # noqa: ARG002 - the port's
        return False

    def of_topic(self, topic: str) -> bool:  # noqa: ARG002 - the port's
        return False


NO_KEYS: RoutedKeys = _None()


Committed = Mapping[str, frozenset[str]]
"""Paths of data files that are in the table, by their folder."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who coordinates what; never changes during a coordinator's life.

    ``shared_with``: sinks that may fill the same branch from the same topics (rule T7).
    ``control_topic`` is for the record, ``configuration`` for START (rule P11). ``secondaries``:
    the names of the tables that are delivered for what the primary table decides, the quarantine
    first; ``routing``: the fingerprint of what decides where and what a row is (rule D3);
    ``routed``: whether the primary table is a ledger, and rows go to tables that no START names
    (rule R5); ``makes``: whether missing ones are made at all, ``makes_anew``: those too that were
    filled before (rule N5); ``evolves``: whether columns are taken up at all (rule S1); ``paces``:
    how long what tables are pending gathers, where the first that matches counts (rule V4);
    ``refresh_ms``: how far behind idle tables may be (rule V2); ``keyed``: whether records replace
    rows of their key in the primary table (rule U1); ``routed_keys``: and in which tables that rows
    are routed to; ``growth_ms``: how long partitions that are added to their topics are held at
    least; ``None``: they stop the sink; ``multiples_only``: keys are hashed by the number of
    partitions (rule U8); ``deleted_back``: a person said that records whose rows were deleted may
    be read again (rule T8).
    """

    sink: SinkName
    group_id: str
    sender: Sender
    shared_with: frozenset[str] = frozenset()
    control_topic: str | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)
    secondaries: tuple[str, ...] = ()
    routing: str | None = None
    routed: bool = False
    makes: bool = False
    makes_anew: bool = False
    evolves: bool = True
    paces: tuple[Pace, ...] = ()
    refresh_ms: int = 0
    keyed: bool = False
    routed_keys: RoutedKeys = NO_KEYS
    growth_ms: int | None = None
    multiples_only: bool = False
    deleted_back: bool = False


@dataclass(frozen=True, slots=True)
class HeardStatus:
    """A whole status, at the place of its last part."""

    offset: ControlOffset
    sender: Sender
    transaction: TransactionNumber
    status: WriteStatus


@dataclass(frozen=True, slots=True)
class HeardProposal:
    """A participant's unanswered proposal (S3), and its size in memory."""

    answer: Answer
    proposal: Proposal
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Activity:
    """When a partition's offsets last moved (monotonic ms), and its largest timestamp, if any."""

    at_ms: int
    timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class PauseRequest:
    """An operator's PAUSE or RESUME, and the newest transaction that the operator saw (C11)."""

    paused: bool
    seen: TransactionId


@dataclass(frozen=True, slots=True)
class Gathering:
    """A table's pending commits gather, up to the ``newest`` such transaction, until ``due_ms``
    (V4)."""

    due_ms: int
    newest: TransactionId


@dataclass(frozen=True, slots=True)
class Held:
    """Partitions ``first`` to ``upto`` of a topic, seen since ``since_ms``: nobody reads them (U8).

    ``ripe``: the sources are asked ``growth_ms`` after that, or later. ``marks``: where each of the
    older partitions ended then; these are read first.
    """

    topic: str
    topic_id: TopicId
    first: int
    upto: int
    since_ms: int
    ripe: bool = False
    marks: tuple[int, ...] | None = None

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(TopicPartition(self.topic, n) for n in range(self.first, self.upto))


@dataclass(frozen=True, slots=True)
class Sample:
    """Records that were judged together, and how many of them were bad (rule Q7)."""

    records: int = 0
    bad: int = 0


@dataclass(frozen=True, slots=True)
class Term:
    """What one epoch of this coordinator holds; gone with the epoch.

    ``number`` is the newest transaction with a START on the log, ``awaited`` the partitions of the
    first START and all that were gained or named since (C6). ``offsets`` is C,
    ``settled_to`` L, ``heard_to`` the next control offset to hear. ``issued``: some of the
    transactions whose START was said, and when, oldest first (P9). ``statuses`` lie behind L;
    ``judged``: the newest judged one per sender. ``overtaken``: others have moved the table since
    ``view``, as a look at ``looked_at_ms`` showed; ``look_soon``: a look is due with the next END.
    ``pause_answered``: the transaction that last stored another answer to PAUSE or RESUME (C11).
    ``committed``: this epoch's files, as long as their folders are allowed (C7).
    ``ends``: where the sources' logs ended when they were last described; ``asks_ends``: they are
    being asked for a judgement (C7); ``asks_tables``: so are tables that rows are routed to (R5).
    ``secondaries`` are as they were read last, ``pending_commits`` what they are pending by the
    primary table's record, oldest first; ``moved_at_ms``: when each one's tag was last moved, as
    far as known. ``decision`` is the attempt that waits for the manifests of ``drafts``.
    ``deliver_until_ms``: when the next END waits for deliveries no longer; ``asked``: deliveries
    were made since the secondary tables were read; ``pending_told``: what was logged when
    deliveries were last waited for no longer. ``gathering``: tables whose pending commits gather,
    until they are delivered (V4). ``unseen``: tables to be looked at, for they may be idle, as of
    ``unseen_at_ms`` (V2). ``started``: the epoch's first START was heard. ``held``: records and
    bytes that each participant says it holds since the newest START (C12).
    ``proposals`` wait for their answer since ``evolve_due_ms`` was set, ``answered`` have it;
    ``tables`` is the answer that was not heard yet, ``refused`` what becomes no column (S3).
    ``suspended``: tables that take nothing now; ``refusals`` and ``refused_deliveries``: how often
    in a row a table answered that it may not be used; ``resume_asked``: suspended tables that a
    person wants filled again (I5). ``forgotten``: tables that are gone, which the next decision
    forgets; ``listed_at_ms``: when it was last looked which tables are gone (N5). ``stamp`` and
    ``closing_stamp``: what the files of ``number`` bear, and those of the one before (P13);
    ``past_stamps``: those of some before, newest first; ``late``: how often in a row a sender's
    files bore one of them.
    ``cohorts``: which partitions of ``offsets`` are younger than others (U8). ``former_data``:
    where tables, by UUID, had their data earlier in this epoch, newest first (P9).
    """

    epoch: Epoch
    view: TableView
    offsets: Offsets
    topic_ids: Mapping[str, TopicId]
    paused: bool = False
    number: TransactionNumber = TransactionNumber(1)
    settled_to: ControlOffset = ControlOffset(0)
    heard_to: ControlOffset = ControlOffset(0)
    awaited: frozenset[TopicPartition] = frozenset()
    statuses: tuple[HeardStatus, ...] = ()
    judged: Mapping[Sender, int] = field(default_factory=dict)
    named_by_presence: frozenset[TopicPartition] = frozenset()
    settlement: AckCommit | AbortCommit | None = None
    activity: Mapping[TopicPartition, Activity] = field(default_factory=dict)
    valid_through_ms: int | None = None
    issued: Issued = ()
    end_due_ms: int = 0
    time_out_ms: int = 0
    committed_at_ms: int = 0
    looked_at_ms: int = 0
    overtaken: bool = False
    look_soon: bool = False
    sample: Sample = field(default_factory=Sample)
    pause_answered: TransactionNumber = TransactionNumber(0)
    committed: Committed = field(default_factory=dict)
    secondaries: Mapping[str, TableView] = field(default_factory=dict)
    pending_commits: tuple[PendingCommit, ...] = ()
    moved_at_ms: Mapping[str, int] = field(default_factory=dict)
    decision: CommitAttempt | None = None
    drafts: tuple[Staging, ...] = ()
    deliver_until_ms: int | None = None
    asked: bool = False
    pending_told: tuple[str, ...] = ()
    gathering: Mapping[str, Gathering] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()
    unseen_at_ms: int | None = None
    started: bool = False
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    asks_ends: bool = False
    proposals: tuple[HeardProposal, ...] = ()
    evolve_due_ms: int = 0
    answered: frozenset[Answer] = frozenset()
    tables: Tables | None = None
    refused: tuple[Refusal, ...] = ()
    asks_tables: bool = False
    held: Mapping[Sender, tuple[int, int]] = field(default_factory=dict)
    suspended: Mapping[str, Suspended] = field(default_factory=dict)
    refusals: Mapping[str, int] = field(default_factory=dict)
    refused_deliveries: Mapping[str, int] = field(default_factory=dict)
    resume_asked: frozenset[str] = frozenset()
    forgotten: frozenset[str] = frozenset()
    listed_at_ms: int = 0
    stamp: str = ""
    closing_stamp: str = ""
    past_stamps: tuple[str, ...] = ()
    late: Mapping[Sender, int] = field(default_factory=dict)
    cohorts: PartitionCohorts = field(default_factory=dict)
    former_data: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def closing(self) -> TransactionNumber:
        """Return the transaction being ended while ``number`` is open already (rule C4)."""
        return TransactionNumber(self.number - 1)

    @property
    def closing_id(self) -> TransactionId:
        return TransactionId(self.epoch, self.closing)


@dataclass(frozen=True, slots=True)
class State:
    """``attempt`` is set while a commit's outcome is not known; ``retry_at_ms`` while waiting.

    ``topics`` are the source topics as last described (a configured pattern names several);
    ``highest_epoch`` is the highest heard, ``table_epoch`` the highest that tables are known to
    hold; ``pause_asked`` is what an operator said while there was no term to remember it;
    ``rivals`` the newest word (sequence) of each other coordinator of the highest epoch, ``gains``
    the newest PRESENCE with a gain of each participant. ``wall_ahead_ms``: what the wall clock is
    ahead of the monotonic one, as of the last claim: where it jumps later, nothing grows older.
    ``doubted``: what a look at the secondary tables found wrong, to be confirmed by another;
    ``suspects``: tables that were delivered more than the primary table decided, as far as it was
    known; ``troubled``: tables that the next claim suspends besides those of the record;
    ``recovery_forgotten``: those that it forgets (N5); ``recovery_stamp``: of the first transaction
    of the claim (P13); ``held``: partitions that nobody reads yet, in their order (U8).
    ``unanswered_since_ms``: since when what it asks for fails; ``peers``: when other participants
    were heard last (E2). ``refused``: partitions whose claims are refused again and again, in this
    epoch or before (C13).
    """

    identity: Identity
    settings: CoordinatorSettings
    limits: BadRecordLimits = field(default_factory=BadRecordLimits)
    phase: Phase = Phase.FOLLOWING
    highest_epoch: Epoch = Epoch(0)
    table_epoch: Epoch = Epoch(0)
    rival_heard_ms: int | None = None
    rivals: Mapping[Sender, int] = field(default_factory=dict)
    gains: tuple[tuple[Sender, int], ...] = ()
    topics: frozenset[str] = frozenset()
    pause_asked: PauseRequest | None = None
    table_uuid: str | None = None
    recovery_view: TableView | None = None
    recovery_secondaries: Mapping[str, TableView] = field(default_factory=dict)
    recovery_wall_ms: int = 0
    wall_ahead_ms: int = 0
    doubted: frozenset[str] = frozenset()
    suspects: frozenset[str] = frozenset()
    recovery_suspended: Mapping[str, Suspended] = field(default_factory=dict)
    recovery_forgotten: frozenset[str] = frozenset()
    recovery_stamp: str = ""
    troubled: Mapping[str, Suspended] = field(default_factory=dict)
    held: tuple[Held, ...] = ()
    unanswered_since_ms: int | None = None
    peers: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[TopicPartition, Refused] = field(default_factory=dict)
    term: Term | None = None
    attempt: CommitAttempt | None = None
    retry_at_ms: int | None = None
    failures: int = 0
