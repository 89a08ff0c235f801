"""Holds everything the coordinator knows, as one immutable value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from headgate.control_protocol.commit_record import PartitionCohorts, PendingCommit, Suspended
from headgate.control_protocol.events import (
    AbortCommit,
    AckCommit,
    Answer,
    BufferedAmounts,
    Proposal,
    Tables,
    WriteStatus,
)
from headgate.control_protocol.identifiers import (
    LEAP_MAX,
    ControlOffset,
    Epoch,
    Sender,
    SinkName,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.machine_io import deadlines_with, is_due
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import CommitAttempt, Staging, TableView
from headgate.control_protocol.quarantine_policy import BadRecordLimits
from headgate.control_protocol.schema_evolution import Refusal
from headgate.coordinator.file_admission import Tokens
from headgate.coordinator.inputs_and_actions import Look, Looked
from headgate.coordinator.phases import Phase
from headgate.coordinator.settings import CoordinatorSettings, DeliveryLinger


class RoutedKeys(Protocol):
    """Tells which of the routed tables have a key (KEY-1); the answers never change in a life."""

    def replaces_rows_of(self, table: str) -> bool:
        """Return whether records replace and delete rows of this table."""

    def may_feed_keyed_table(self, topic: str) -> bool:
        """Return whether records of this topic may go to such a table."""


class _NoKeys:
    """Serves a sink whose routes name no table with a key."""

    def replaces_rows_of(self, table: str) -> bool:  # noqa: ARG002 - the port's
        return False

    def may_feed_keyed_table(self, topic: str) -> bool:  # noqa: ARG002 - the port's
        return False


NO_KEYS: RoutedKeys = _NoKeys()


class Timer(StrEnum):
    """Names what a coordinator does, or may do again, when a time has come."""

    RETRY = "retry"
    """What failed is tried again, or what was not heard is said again; nothing else is before it
    (LOG-1, OUTCOME-2)."""
    END = "end"
    """The transaction that is open is ended; set from the epoch's first START on (COMMIT-1)."""
    TIME_OUT = "time-out"
    """What was heard is judged, whoever is missing; counts in COLLECTING (RANGE-2)."""
    CHANGES = "changes"
    """The tables are asked for what is proposed; set while something is (SCHEMA-3)."""
    DELIVERY = "delivery"
    """The next END waits for deliveries no longer; set exactly in DELIVERING (PENDING-7)."""
    LOOK = "look"
    """The next END checks the tables (TABLE-4)."""


OVERDUE = 0
"""A deadline that is over already."""

WINDOW = 1_024
"""Of so many numbers of a participant it is known which were heard (LOG-5): more than an hour's."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Says who coordinates what: constant in a coordinator's life, as the sink file says."""

    # Who it is.

    sink: SinkName
    group_id: str
    sender: Sender
    first_interval: float = field(default=1.0, kw_only=True)
    """The share of its interval after which an epoch's first transaction is ended (COMMIT-1)."""
    shared_with: frozenset[str] = frozenset()
    """Sinks that may fill the same branch from the same topics (TABLE-5)."""
    control_topic: str | None = None
    """For the record."""
    configuration: Mapping[str, str] = field(default_factory=dict)
    """For START (CONFIG-1)."""

    # Its tables.

    secondaries: tuple[str, ...] = ()
    """Those that receive what the primary table decides, and that START names; the quarantine
    first."""
    routing: str | None = None
    """The fingerprint of what decides where a row goes, and what it is (PENDING-3)."""
    routed: bool = False
    """Whether the primary table is a ledger, and rows go to tables that no START names
    (LEDGER-1)."""
    keyed: bool = False
    """Whether records replace rows of their key in the primary table (KEY-1)."""
    routed_keys: RoutedKeys = NO_KEYS
    """And in which tables that rows are routed to."""

    # What it may do to them.

    makes: bool = False
    """Whether missing tables are made at all."""
    makes_anew: bool = False
    """Those too that were filled before (LEDGER-2)."""
    evolves: bool = True
    """Whether columns are taken up at all (SCHEMA-1)."""
    paces: tuple[DeliveryLinger, ...] = ()
    """How long what is pending for tables gathers; the first that matches counts (LINGER-1)."""
    refresh_ms: int = 0
    """How far behind idle tables may be (FRESH-2); 0: as far as they are."""
    growth_ms: int | None = None
    """How long partitions that are added to topics of keyed tables are held at least; ``None``:
    they stop the sink (KEY-8)."""
    multiples_only: bool = False
    """Keys are hashed by the number of partitions (KEY-8)."""
    deleted_back: bool = False
    """A person said that records whose rows were deleted may be read again (COMPACTION-1)."""

    @property
    def may_have_keyed_tables(self) -> bool:
        """Return whether any table may have a key: then partitions cannot simply be added
        (KEY-8)."""
        return self.keyed or self.routed_keys is not NO_KEYS


@dataclass(frozen=True, slots=True)
class HeardStatus:
    """Holds a whole status, at the place of its last part."""

    offset: ControlOffset
    sender: Sender
    transaction: TransactionNumber
    status: WriteStatus


class Fault(StrEnum):
    """Says what is wrong with a status, whatever the words for it are."""

    RANGES = "written ranges do not begin at the next offset"
    OVERTAKEN = "another participant's ranges of the same partitions came first"
    BEYOND = "written ranges end beyond the log"
    UNREADABLE = "a table cannot be read now"
    TABLE = "files of a table that takes none, or is another one"
    FOLDER = "files outside of their folders"
    STALE = "files of an earlier transaction, which alone could bring them"
    COUNTS = "counts do not add up"
    IMPOSSIBLE = "not possible with these settings, or in the table already"


@dataclass(frozen=True, slots=True)
class Objection:
    """Says why a status is refused whole; ``table``: the one that alone is at fault, if there is
    one.
    """

    fault: Fault
    text: str
    table: str = ""


@dataclass(frozen=True, slots=True)
class RefusedStatus:
    """Names a status that was refused whole, by its sender and the partitions of its ranges."""

    sender: Sender
    number: int
    objection: Objection
    partitions: frozenset[TopicPartition]

    def __str__(self) -> str:
        return f"status {self.number} of {self.sender}: {self.objection.text}"


@dataclass(frozen=True, slots=True)
class RepeatedRefusal:
    """Counts how often in a row ranges of a partition were refused for the same reason (RANGE-3).

    ``looked``: the tables were read afresh because of it.
    """

    sender: Sender
    objection: Objection
    times: int = 1
    since_ms: int = 0
    looked: bool = False

    def is_same_fault(self, other: RepeatedRefusal) -> bool:
        """Return whether it is the same participant with the same fault, whatever its words."""
        ours, theirs = self.objection, other.objection
        alike = (ours.fault, ours.table) == (theirs.fault, theirs.table)
        return alike and self.sender == other.sender


@dataclass(frozen=True, slots=True)
class HeardProposal:
    """Holds a participant's unanswered proposal (SCHEMA-3), and its size in memory."""

    answer: Answer
    proposal: Proposal
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Activity:
    """Says when a partition's offsets last moved (monotonic ms), and its largest timestamp."""

    at_ms: int
    timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class PauseRequest:
    """Holds an operator's PAUSE or RESUME, and the newest transaction that the operator saw
    (PAUSE-1).
    """

    paused: bool
    seen: TransactionId


@dataclass(frozen=True, slots=True)
class Lingering:
    """Says that a table's pending commits gather, up to the ``newest`` such transaction, until
    ``due_ms`` (LINGER-1).
    """

    due_ms: int
    newest: TransactionId


@dataclass(frozen=True, slots=True)
class HeldPartitions:
    """Names partitions ``first`` to ``upto`` of a topic, seen since ``since_ms``: nobody reads them
    (KEY-8).

    ``ripe``: the sources are asked ``growth_ms`` after that, or later. ``marks``: where each of the
    older partitions ended then; these are read first. ``admitted``: they are in C, which is in the
    table only after the next commit.
    """

    topic: str
    topic_id: TopicId
    first: int
    upto: int
    since_ms: int
    ripe: bool = False
    marks: tuple[int, ...] | None = None
    admitted: bool = False

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(TopicPartition(self.topic, n) for n in range(self.first, self.upto))


@dataclass(frozen=True, slots=True)
class Sample:
    """Counts records that were judged together, and the bad ones of them (rule QUARANTINE-5)."""

    records: int = 0
    bad: int = 0


@dataclass(frozen=True, slots=True)
class SchemaChanges:
    """Holds what participants ask of the tables, and what they were told (SCHEMA-2, SCHEMA-3)."""

    proposals: tuple[HeardProposal, ...] = ()
    """In log order, each once."""

    tables: Tables | None = None
    """The answer that was said and not heard yet: set only in EVOLVING."""

    answered_in: TransactionNumber = TransactionNumber(0)
    """The transaction that was open when an answer was heard last."""

    refused: tuple[Refusal, ...] = ()
    """What becomes no column, each field once, small enough for every START."""


@dataclass(frozen=True, slots=True)
class RefusedAccess:
    """Counts how often in a row a table could not be read, staged for, or delivered to, for want of
    rights."""

    times: int

    oldest: PendingCommit | None = None
    """The oldest that was pending for it. While it is pending nobody has delivered to the table;
    else counting begins anew."""


@dataclass(frozen=True, slots=True)
class AccessRefusals:
    """Lists tables, by name, to which access is refused for want of rights (SUSPEND-1)."""

    reads: Mapping[str, RefusedAccess] = field(default_factory=dict)
    deliveries: Mapping[str, RefusedAccess] = field(default_factory=dict)
    """Apart from reads, which are often allowed where deliveries are not."""
    stagings: Mapping[str, RefusedAccess] = field(default_factory=dict)
    """Of manifests, which the storage refuses, and of reads between tries to write them."""

    def without_tables(self, tables: Collection[str]) -> AccessRefusals:
        return self._restricted_to(lambda name, _: name not in tables)

    def restricted_to_pending_tables(self) -> AccessRefusals:
        """Keep what another epoch may count on: where nothing is pending, nothing tells whether
        others filled the table meanwhile."""
        return self._restricted_to(lambda _, refused: bool(refused.oldest))

    def _restricted_to(self, keeps: Callable[[str, RefusedAccess], bool]) -> AccessRefusals:
        counts = (self.reads, self.deliveries, self.stagings)
        return AccessRefusals(
            *({name: each for name, each in of.items() if keeps(name, each)} for of in counts)
        )


@dataclass(frozen=True, slots=True)
class Suspensions:
    """Lists tables that take nothing now, and those about to (SUSPEND-1 to SUSPEND-5, LEDGER-2)."""

    suspended: Mapping[str, Suspended] = field(default_factory=dict)
    """By name, at most as many as a record and a START can name (SUSPEND-4)."""

    refused_access: AccessRefusals = field(default_factory=AccessRefusals)
    """Of no suspended table. Where epochs are short, none would count to the end: the next one goes
    on."""

    resume_asked: frozenset[str] = frozenset()
    """Suspended tables that a person wants filled again (SUSPEND-5)."""

    forgotten: frozenset[str] = frozenset()
    """Tables that are gone, until the decision that forgets them has landed: none of them is among
    the secondary tables of the epoch (LEDGER-2)."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Holds the secondary tables, what is pending for them, and how far its delivery is (PENDING-2
    to PENDING-9).
    """

    secondaries: Mapping[str, TableView] = field(default_factory=dict)
    """By name, as they were read last."""

    pending: tuple[PendingCommit, ...] = ()
    """What is pending by the primary table's record, in the order of its decisions. Only a read
    takes anything out of it, never an answer (PENDING-7)."""

    moved_at_ms: Mapping[str, int] = field(default_factory=dict)
    """When each table's tag was last moved, as far as known: the primary table's too (TABLE-4,
    QUARANTINE-2)."""

    decision: CommitAttempt | None = None
    """The attempt that waits for the manifests of ``drafts``: set exactly in DRAFTING."""

    drafts: tuple[Staging, ...] = ()
    """The files of secondary tables in the attempt under way; none between two transactions."""

    asked: bool = False
    """Deliveries were made since the secondary tables were read."""

    told: tuple[str, ...] = ()
    """What was logged when deliveries were last waited for no longer."""

    lingering: Mapping[str, Lingering] = field(default_factory=dict)
    """Tables whose pending commits gather, until they are delivered (LINGER-1)."""

    unseen: tuple[str, ...] = ()
    """Filled tables that the epoch has not seen, and that the next ENDs look at (FRESH-2)."""

    def with_secondaries(self, secondaries: Mapping[str, TableView]) -> Delivery:
        return replace(self, secondaries=secondaries)

    def with_tables_left_to_check(self, tables: tuple[str, ...]) -> Delivery:
        return replace(self, unseen=tables)

    def with_decided_commits(
        self, primary_table: str, pending: tuple[PendingCommit, ...], now_ms: int
    ) -> Delivery:
        """Take in a decision that has landed: its drafts are pending commits now."""
        moved = {**self.moved_at_ms, primary_table: now_ms}
        return replace(self, pending=pending, drafts=(), moved_at_ms=moved)


@dataclass(frozen=True, slots=True)
class SourceState:
    """Holds the source topics, as the newest START knows them."""

    topic_ids: Mapping[str, TopicId]
    """Of all topics that C has offsets of: offsets mean nothing without them (TABLE-2)."""

    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where the logs of exactly these topics ended when they were last described (RANGE-2)."""

    cohorts: PartitionCohorts = field(default_factory=dict)
    """Which partitions of C are younger than others (KEY-8)."""

    def with_known_ends(self, ends: Mapping[TopicPartition, int]) -> SourceState:
        """Learn where logs end now; where nothing was learned, the known end stays."""
        return replace(self, ends={**self.ends, **ends})


@dataclass(frozen=True, slots=True)
class PauseState:
    """Says whether participants read (PAUSE-1)."""

    paused: bool = False
    """What the next START says; the table's record follows with the next commit."""

    answered: TransactionNumber = TransactionNumber(0)
    """The transaction that last stored another answer to PAUSE or RESUME; one that landed."""

    def with_request_answered_in(self, answered: TransactionNumber) -> PauseState:
        return replace(self, answered=answered)


@dataclass(frozen=True, slots=True)
class PrimaryState:
    """Holds the primary table, as it is known (TABLE-4)."""

    view: TableView
    """Its record is the newest commit of this epoch that has landed, as far as known."""

    overtaken: bool = False
    """A table check found that others have moved a table since; a commit that lands ends it
    (TABLE-4)."""

    def with_view(self, view: TableView) -> PrimaryState:
        """Take in a read."""
        return replace(self, view=view)

    def with_branch_moved_by_others(self) -> PrimaryState:
        return replace(self, overtaken=True)

    def with_landed(self, view: TableView) -> PrimaryState:
        return replace(self, view=view, overtaken=False)


@dataclass(frozen=True, slots=True)
class StatusCollection:
    """Collects what participants have said since the newest settlement, and when to judge it
    (COMMIT-1 to RANGE-2).
    """

    statuses: tuple[HeardStatus, ...] = ()
    """In log order, behind L."""

    awaited: frozenset[TopicPartition] = frozenset()
    """The partitions of the first START, and all that were gained or named since; it only grows."""

    named_by_presence: frozenset[TopicPartition] = frozenset()
    """Partitions that a gain names "unknown"; gone with the statuses that are judged."""

    buffered: Mapping[Sender, BufferedAmounts] = field(default_factory=dict)
    """Records and bytes that each participant says it holds since the newest START (COMMIT-5)."""

    sample: Sample = field(default_factory=Sample)

    def with_status(self, heard: HeardStatus, named: frozenset[TopicPartition]) -> StatusCollection:
        """Take in a status; what its sender held is in it. ``named``: the partitions it names."""
        return replace(
            self,
            statuses=(*self.statuses, heard),
            awaited=self.awaited | named,
            buffered={of: held for of, held in self.buffered.items() if of != heard.sender},
        )

    def with_gain(self, gained: frozenset[TopicPartition]) -> StatusCollection:
        """COMMIT-2: a gain names its partitions "unknown"."""
        return replace(
            self,
            named_by_presence=self.named_by_presence | gained,
            awaited=self.awaited | gained,
        )

    def with_buffered_amounts(self, sender: Sender, amounts: BufferedAmounts) -> StatusCollection:
        return replace(self, buffered={**self.buffered, sender: amounts})

    def without_heard_before_first_start(self) -> StatusCollection:
        """Begin with the epoch's first START: what was heard before it counts for nothing.

        Those who gained partitions before L take their position from there, and name them again.
        """
        return replace(self, statuses=(), named_by_presence=frozenset(), buffered={})

    def without_buffered_amounts(self) -> StatusCollection:
        """Note that END and the next START are heard: the answers come, or do not until the time-
        out.
        """
        return replace(self, buffered={})

    def without_judged(self, sample: Sample | None = None) -> StatusCollection:
        """Forget what was judged, statuses and named partitions together.

        Nothing is judged twice: a status that comes again is known by its number (LOG-5), so it is
        forgotten here whole, whatever becomes of the commit.
        """
        return replace(
            self, statuses=(), named_by_presence=frozenset(), sample=sample or self.sample
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """Says how far the epoch is: transactions, C and L, and the log."""

    offsets: Offsets
    """C. It moves with L, in one place only: when a transaction is settled (COMMIT-4)."""

    number: TransactionNumber = TransactionNumber(1)
    """The newest transaction with a START on the log, or about to be; one is being ended at most:
    the one before it (COMMIT-1)."""

    settled_to: ControlOffset = ControlOffset(0)
    """L, at most ``heard_to``; 0 until the epoch's first START was heard (EPOCH-2)."""

    heard_to: ControlOffset = ControlOffset(0)
    """The next control offset to hear."""

    settlement: AckCommit | AbortCommit | None = None
    """Of the transaction that was judged last."""

    activity: Mapping[TopicPartition, Activity] = field(default_factory=dict)
    valid_through_ms: int | None = None
    """Up to which time the table is complete (COMMIT-4); within an epoch it never falls."""

    def with_heard_offset(self, offset: ControlOffset) -> Progress:
        return replace(self, heard_to=ControlOffset(offset + 1))

    def with_settled_to_first_start(self) -> Progress:
        """EPOCH-2: take for L of an epoch's first START its own place in the log."""
        return replace(self, settled_to=self.heard_to)

    def with_next_transaction(self, offsets: Offsets) -> Progress:
        """COMMIT-1: open the next transaction. ``offsets``: C, with what is new in the sources."""
        return replace(self, offsets=offsets, number=TransactionNumber(self.number + 1))

    def with_settlement_prepared(
        self, settlement: AckCommit | AbortCommit, activity: Mapping[TopicPartition, Activity]
    ) -> Progress:
        """Keep what is to be said of the transaction once its outcome is known."""
        return replace(self, settlement=settlement, activity=activity)

    def with_settlement_applied(self, settlement: AckCommit | AbortCommit) -> Progress:
        """COMMIT-4: move C and L here, and nowhere else.

        A participant chains its late statuses onto exactly this pair (POSITION-3).
        """
        return replace(
            self,
            settlement=settlement,
            offsets=settlement.offsets,
            settled_to=settlement.settled_to,
            valid_through_ms=settlement.valid_through_ms,
        )


@dataclass(frozen=True, slots=True)
class Term:
    """Holds what one epoch of this coordinator has; it is gone with the epoch.

    Each value has one owner, which alone changes it: tests/unit/coordinator/test_state_owners.py.
    What is promised above the fields holds in every state (tests/support/coordinator_states.py).
    """

    epoch: Epoch
    progress: Progress
    primary: PrimaryState
    sources: SourceState
    changes: SchemaChanges = field(default_factory=SchemaChanges)
    suspensions: Suspensions = field(default_factory=Suspensions)
    delivery: Delivery = field(default_factory=Delivery)
    pause: PauseState = field(default_factory=PauseState)
    collection: StatusCollection = field(default_factory=StatusCollection)
    tokens: Tokens = field(default_factory=Tokens)

    @property
    def previous_transaction_number(self) -> TransactionNumber:
        """Return the transaction being ended while the next one is open already (rule COMMIT-1)."""
        return TransactionNumber(self.progress.number - 1)

    @property
    def closing_transaction_id(self) -> TransactionId:
        return TransactionId(self.epoch, self.previous_transaction_number)

    @property
    def has_heard_first_start(self) -> bool:
        """Return whether the epoch's first START was heard."""
        return self.progress.settled_to > 0


@dataclass(frozen=True, slots=True)
class ReplayWindow:
    """Remembers which of the newest numbers of one participant were heard (LOG-5)."""

    highest: int = 0
    heard: int = 0
    """Bit n stands for ``highest - n``."""

    def has_number_or_none(self, number: int) -> bool | None:
        """Return whether it was heard; ``None`` below the window, where nobody knows it."""
        behind = self.highest - number
        if not 0 <= behind <= LEAP_MAX:
            return False
        return bool(self.heard >> behind & 1) if behind < WINDOW else None

    def with_number(self, number: int) -> ReplayWindow:
        """Take in a number. One that nobody can have counted to, from the highest or to it, begins
        another window (LOG-6)."""
        ahead = number - self.highest
        if abs(ahead) > LEAP_MAX:
            return ReplayWindow(number, 1)
        heard = self.heard << ahead | 1 if ahead > 0 else self.heard | 1 << -ahead
        return ReplayWindow(max(number, self.highest), heard & ((1 << WINDOW) - 1))


@dataclass(frozen=True, slots=True)
class Recovery:
    """Holds what the next epoch begins with: set from a read of the table to the epoch's first
    event.
    """

    found: Looked
    """As of the last look; the primary table is the one that was read before it (PENDING-9)."""

    suspended: Mapping[str, Suspended] = field(default_factory=dict)
    """What the claim names as suspended: by the record, and by what was found (SUSPEND-1)."""

    forgotten: frozenset[str] = frozenset()
    """What the claim forgets (LEDGER-2); none of it is suspended."""

    @property
    def secondaries(self) -> Mapping[str, TableView]:
        """Return the secondary tables that answered."""
        return self.found.secondaries.views if self.found.secondaries else {}

    @property
    def wall_ms(self) -> int:
        """Return the wall time of the look before the claim."""
        assert self.found.wall_ms is not None, "nothing has an age by a clock that nobody asked"
        return self.found.wall_ms

    @property
    def stamp(self) -> str:
        """Return the stamp of the epoch's first transaction, where files bear one (TOKEN-2)."""
        return self.found.sources.stamp if self.found.sources else ""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Holds what an epoch found out that the next claim looks into; a recovery does not end it."""

    doubted: str = ""
    """What the last look at the secondary tables found wrong; another confirms it (PENDING-9)."""

    beyond: frozenset[str] = frozenset()
    """Tables that hold more than the primary table has decided, as far as it was known: the claim
    reads them, though nothing is pending for them (LEDGER-1)."""

    troubled: Mapping[str, Suspended] = field(default_factory=dict)
    """Tables that the claim suspends besides those of the record (SUSPEND-1); a coordinator that
    is superseded leaves them to the next one."""

    refused_access: AccessRefusals = field(default_factory=AccessRefusals)
    """What was refused in the last epoch of this coordinator: the next one counts on
    (SUSPEND-1)."""

    def with_unconfirmed_error(self, message: str) -> Suspicion:
        return replace(self, doubted=message)

    def with_secondaries_ahead(self, tables: frozenset[str]) -> Suspicion:
        return replace(self, beyond=tables)

    def with_troubled_tables(self, found: Mapping[str, Suspended]) -> Suspicion:
        return replace(self, troubled={**self.troubled, **found})

    def with_access_refusals_of_term(self, term: Term | None) -> Suspicion:
        """Keep what the term counted, if it is one that ends."""
        if term is None:
            return self
        return replace(
            self, refused_access=term.suspensions.refused_access.restricted_to_pending_tables()
        )

    def without_troubled_tables(self) -> Suspicion:
        return replace(self, troubled={})


@dataclass(frozen=True, slots=True)
class Call:
    """Holds what is asked of tables, sources and catalog, and not answered yet."""

    attempt: CommitAttempt | None = None
    """The commit whose outcome is not known: set exactly in CLAIMING and COMMITTING (OUTCOME-2)."""

    asked: Look | None = None
    """The question whose answer the phase waits for, which is repeated after a failure; it ends
    with the phase."""

    failures: int = 0
    """How often in a row that failed: each wait is longer than the one before."""

    unanswered_since_ms: int | None = None
    """Since when; a phase that was entered with an answer begins without (ELECTION-2)."""

    def with_attempt(self, attempt: CommitAttempt) -> Call:
        """Send the same commit again, on another base."""
        return replace(self, attempt=attempt)

    def with_question(self, question: Look) -> Call:
        return replace(self, asked=question)

    def with_question_answered(self) -> Call:
        """Note that the question is answered; another answer to it is ignored."""
        return replace(self, asked=None)

    def with_failure_counted(self) -> Call:
        return replace(self, failures=self.failures + 1)

    def without_failures(self) -> Call:
        return replace(self, failures=0)


@dataclass(frozen=True, slots=True)
class EpochWatch:
    """Remembers what others were heard saying, whoever leads; it outlives every epoch."""

    highest_epoch: Epoch = Epoch(0)
    """The highest heard. It falls only where a claim finds that nobody can have counted to it
    (LOG-6)."""

    table_epoch: Epoch = Epoch(0)
    """The highest that the tables were known to hold at the last claim; what leaps further ahead
    of it is not heard (LOG-6)."""

    superseded_ms: int | None = None
    """Since when a term of others has ended its own; set until it leads again, and never while it
    does (EPOCH-4)."""

    windows: Mapping[Sender, ReplayWindow] = field(default_factory=dict)
    """What each participant was heard saying, the one heard last at the end (LOG-5)."""

    peers: Mapping[str, int] = field(default_factory=dict)
    """When other participants were heard last; never this one (ELECTION-2)."""

    def with_replay_windows(self, windows: Mapping[Sender, ReplayWindow]) -> EpochWatch:
        return replace(self, windows=windows)

    def with_peers(self, peers: Mapping[str, int]) -> EpochWatch:
        return replace(self, peers=peers)

    def with_heard_epoch(self, epoch: Epoch) -> EpochWatch:
        return replace(self, highest_epoch=max(self.highest_epoch, epoch))

    def with_superseded(self, epoch: Epoch, now_ms: int) -> EpochWatch:
        """Note that others lead, in this epoch at least."""
        return replace(self.with_heard_epoch(epoch), superseded_ms=now_ms)

    def with_table_epoch(self, epoch: Epoch) -> EpochWatch:
        """Note the epoch that a claim has read in the tables."""
        return replace(self, table_epoch=epoch)

    def with_claim_landed(self, epoch: Epoch) -> EpochWatch:
        """Note that a claim has landed."""
        return replace(self, highest_epoch=epoch, table_epoch=epoch, superseded_ms=None)


@dataclass(frozen=True, slots=True)
class State:
    """Holds three constants, five values, and a few facts that outlive an epoch.

    Each has one owner, which alone changes it: tests/unit/coordinator/test_state_owners.py. What is
    promised above the fields holds in every state (tests/support/coordinator_states.py).
    """

    identity: Identity
    settings: CoordinatorSettings
    """As the sink file says; other ones are adopted between two transactions."""
    limits: BadRecordLimits = field(default_factory=BadRecordLimits)

    phase: Phase = Phase.FOLLOWING
    deadlines: Mapping[Timer, int] = field(default_factory=dict)
    """What is due when; what belongs to a term is gone with it."""
    call: Call = field(default_factory=Call)
    watch: EpochWatch = field(default_factory=EpochWatch)
    recovery: Recovery | None = None
    """Set only in RECOVERING and CLAIMING."""
    suspicion: Suspicion = field(default_factory=Suspicion)
    term: Term | None = None
    """Set exactly while an epoch of its own has begun."""

    topics: frozenset[str] = frozenset()
    """The source topics as last described: a configured pattern names several."""
    held: tuple[HeldPartitions, ...] = ()
    """Partitions that were added, by topic, those of a topic in their order: nobody reads those
    that were not admitted (KEY-8)."""
    pause_asked: PauseRequest | None = None
    """What an operator said while there was no term to remember it: never set in one (PAUSE-1)."""
    table_uuid: str | None = None
    """Of the table that it claimed last: another one was created in its place (TABLE-2)."""
    wall_ahead_ms: int | None = None
    """What the wall clock was ahead of the monotonic one at the last claim: where it jumps later,
    nothing grows older. Set in each term."""
    refused: Mapping[TopicPartition, RepeatedRefusal] = field(default_factory=dict)
    """Partitions whose ranges are refused again and again, in this epoch or before (RANGE-3)."""

    def wall_ms(self, now_ms: int) -> int:
        """Return the wall time, by the clock as the last claim found it (PENDING-8)."""
        assert self.wall_ahead_ms is not None, "nothing has an age by a clock that nobody asked"
        return now_ms + self.wall_ahead_ms

    def with_deadline(self, timer: Timer, at_ms: int | None) -> State:
        """Set a deadline, or clear it (``None``)."""
        return replace(self, deadlines=deadlines_with(self.deadlines, timer, at_ms))

    def with_end_due_by(self, due_ms: int) -> State:
        """Let END come then at the latest."""
        return self.with_deadline(Timer.END, min(self.deadlines.get(Timer.END, due_ms), due_ms))

    def is_due(self, timer: Timer, now_ms: int) -> bool:
        return is_due(self.deadlines, timer, now_ms)
