"""Defines the commit record: a sink's whole state, carried by the snapshot under its tag (rule
TABLE-2).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from headgate.control_protocol.errors import GroupTaken, RollbackUnfinished
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets

# Which partitions of a topic are younger than others, so that a key's records have an order
# (KEY-8).
#
# Kafka numbers partitions without gaps and never takes one away: of each topic to which some were
# added, the first one of each younger cohort says it all.


PartitionCohorts = Mapping[str, tuple[int, ...]]
"""Per topic the first partition of each younger cohort, ascending; none: all are as old."""

NUMBER_MAX = 2**31 - 1


def cohort_of_partition(cohorts: PartitionCohorts, topic: str, partition: int) -> int:
    """Return the number of the partition's cohort, of which a higher one is younger.

    ``""`` stands for the only topic of a table that does not say which topic a row came from. Where
    several have cohorts nobody knows which is meant: then none is younger.
    """
    if not topic and len(cohorts) == 1:
        (topic,) = cohorts
    return sum(first <= partition for first in cohorts.get(topic, ()))


def cohorts_without_recreated_topics(
    cohorts: PartitionCohorts, before: Mapping[str, TopicId], now: Mapping[str, TopicId]
) -> PartitionCohorts:
    """Return those of topics that were not re-created meanwhile."""
    return {
        topic: firsts
        for topic, firsts in cohorts.items()
        if now.get(topic, before.get(topic)) == before.get(topic)
    }


def cohorts_to_text(cohorts: PartitionCohorts) -> str:
    return json.dumps(dict(cohorts), separators=(",", ":"), sort_keys=True)


def parse_cohorts(text: str) -> PartitionCohorts:
    """Raises ``ValueError`` for what ``cohorts_to_text`` does not write."""
    topics = json.loads(text)
    if not isinstance(topics, dict):
        raise ValueError("no topics")  # noqa: TRY004 - one answer to everything malformed
    for topic, firsts in topics.items():
        if not isinstance(firsts, list) or not all(type(first) is int for first in firsts):
            raise ValueError(f"topic {topic!r} has no list of partitions")
        rising = [0, *firsts]
        if not firsts or any(b <= a for a, b in zip(rising, firsts, strict=False)):
            raise ValueError(f"topic {topic!r} has partitions out of order")
        if firsts[-1] > NUMBER_MAX:
            raise ValueError(f"topic {topic!r} has what is no partition")
    return {topic: tuple(firsts) for topic, firsts in topics.items()}


FORMAT_VERSION = 2
GOING_BACK_VERSION = 3
"""The version of records with ``going_back``: an older release refuses to read them."""
COHORTS_VERSION = 4
"""The version of records with ``cohorts``: so it does these, for it would forget them."""
OPERATOR = "operator"
"""The member that stands for a person who set offsets by hand; no process has this name."""
REPLAY = "tables resume --replay"
"""The command that returns to a table what the quarantine took in for it (rule SUSPEND-6)."""
REREAD = "tables resume --reread"
"""The command that returns to a table what had expired of it (rule SUSPEND-6)."""
TAKEOVER = "takeover"
"""The command that goes on where another system stopped; its claim may add files of that one."""
UNNAMED = ""
"""The name of the one secondary table, the quarantine, in records of version 1."""


@dataclass(frozen=True, slots=True)
class PendingCommit:
    """Names rows that the primary table has decided, and a secondary table has yet to receive (rule
    PENDING-3).

    ``secondary`` is the table's UUID, ``manifest`` the path of a manifest without a snapshot id,
    which holds ``rows`` rows; without one the secondary table's tag is moved and nothing is added.
    Where ``deletes`` is set the manifest lists no rows, but the key files of so many records that
    delete (rule KEY-2), for no snapshot to refer to. ``since_ms`` (epoch milliseconds): its files
    are not older than that (rule PENDING-8).
    """

    transaction: TransactionId
    coordinator: Sender
    secondary: str
    table: str
    manifest: str = ""
    size_bytes: int = 0
    rows: int = 0
    since_ms: int = 0
    deletes: int = 0

    @property
    def record_count(self) -> int:
        """Return how many source records it stands for."""
        return self.rows + self.deletes

    @property
    def description(self) -> str:
        """Describe in words what is pending."""
        deletes = [f"{self.deletes} deletes"] if self.deletes else []
        rows = [f"{self.rows} rows"] if self.rows or not deletes else []
        return " and ".join((*rows, *deletes))

    @property
    def is_claim(self) -> bool:
        """Return whether it claims the secondary table of a primary table that went back: START
        waits (PENDING-9)."""
        return self.transaction.number == 0


@dataclass(frozen=True, slots=True)
class Suspended:
    """Names a secondary table that takes no rows for now: its records go to the quarantine (rule
    SUSPEND-1).

    ``why`` begins with the code of what is wrong with it, found at ``since_ms`` (epoch
    milliseconds). ``resuming``: a person asked for its rows again; it is open once it has
    received them (SUSPEND-5).
    """

    table: str
    why: str
    since_ms: int = 0
    resuming: bool = False


@dataclass(frozen=True, slots=True)
class Replayed:
    """Says how far a table has been given back what it missed (rule SUSPEND-6).

    For the quarantine's records that is up to ``offsets``, in the topics of these ``topic_ids``: a
    re-created topic has others. For its expired pending commits it is up to the transaction
    ``expired``.
    """

    offsets: Offsets = field(default_factory=Offsets)
    topic_ids: Mapping[str, TopicId] = field(default_factory=dict)
    expired: TransactionId | None = None

    def next_offset_of(self, at: TopicPartition, topic_id: TopicId) -> int:
        """Return the partition's first offset that is not given back yet."""
        same = self.topic_ids.get(at.topic) == topic_id
        return self.offsets.get(at, 0) if same else 0


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """Counts what a commit did to a keyed table (rule KEY-10): each of its records counts once.

    The last record of a key ``inserted`` its row, ``updated`` or ``deleted`` the one that was
    there, or deleted what was ``absent``; those before it in the same commit are ``superseded``.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    absent: int = 0
    superseded: int = 0

    @property
    def record_count(self) -> int:
        """Return rows and deletes together."""
        return self.inserted + self.updated + self.deleted + self.absent + self.superseded


KEY_COUNTS = tuple(each.name for each in fields(KeyCounts))


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """Holds the content of one table commit of one sink.

    The table keeps it flat, as summary properties, and most who take one compare whole commits: so
    it is flat here, in groups. Who changes one calls a ``with_x``, which keeps what is promised
    below (tests/support/commit_records.py).
    """

    # Which commit it is: a coordinator that does not know whether its call landed finds these two
    # under the tag, or does not (OUTCOME-2).

    sink: SinkName
    group_id: str
    transaction: TransactionId
    """That of a claim has the number 0 (EPOCH-1)."""
    coordinator: Sender

    # How far the table is.

    offsets: Offsets
    """The next ones to read; of topics in ``topic_ids`` only."""
    topic_ids: Mapping[str, TopicId] = field(default_factory=dict)

    # What this commit brought; a claim brings nothing.

    records: int = 0
    """Rows that it added."""
    quarantined: int = 0
    skipped: int = 0
    """With ``quarantined``: the other records of its ranges."""
    valid_through_ms: int | None = None
    """Up to which time the table is complete, in epoch milliseconds."""

    # The sink, as who committed last knew it.

    paused: bool = False
    control_topic: str | None = None
    """The coordinator's."""
    control_topic_id: TopicId | None = None
    """``None`` in older records."""
    command: str | None = None
    """By which a person made the commit: a claim, or one that gives rows back."""
    actor: str | None = None
    """That person; never without ``command``."""
    stopped: bool = False
    """Nobody may work until a person claims otherwise; said by a person's claim only."""

    # In a secondary table's record.

    primary: str | None = None
    """The UUID of the table that decided; ``None`` in the primary table's record, and in all of
    version 1."""

    # In the primary table's record.

    secondaries: Mapping[str, str] = field(default_factory=dict)
    """The UUIDs of its secondary tables, by name."""
    pending_commits: tuple[PendingCommit, ...] = ()
    """What secondary tables are to receive, oldest first; of no later transaction than this."""
    expired: tuple[PendingCommit, ...] = ()
    """What they will never receive (PENDING-8); nothing of it is pending."""
    routing: str | None = None
    """The fingerprint of what decides where a row goes, and what it is."""
    suspended: tuple[Suspended, ...] = ()
    """Tables that take nothing now (SUSPEND-1), each once."""

    # What was added to the format later.

    keys: KeyCounts | None = None
    """What the records did to a keyed table (``None``: it has no key, or the commit brought
    nothing). The audit adds them up (KEY-10): who follows a commit does not repeat them."""
    going_back: str | None = None
    """Where a person is taking all tables back to, which is not done yet (ROLLBACK-1)."""
    replayed: Replayed | None = None
    """In a secondary table's record: what it was given back of what it had missed (SUSPEND-6)."""
    cohorts: PartitionCohorts = field(default_factory=dict)
    """Which partitions were added to topics of keyed tables, and are younger (KEY-8)."""
    recreated_topics: str | None = None
    """Topics, by comma, of which the table may hold rows of another topic of that name (EPOCH-1).
    Snapshots expire, so each record carries it on. ``None``: no record said so from the first
    claim on, or an older release has not carried it on."""

    def accumulated_recreated_topics(self, topic_ids: Mapping[str, TopicId]) -> str | None:
        """Return ``recreated_topics`` of the claim that goes on with topics of these ids."""
        if self.recreated_topics is None:
            return None
        anew = (name for name, id_ in topic_ids.items() if self.topic_ids.get(name, id_) != id_)
        return ",".join(sorted({*self.recreated_topics.split(","), *anew} - {""}))

    def with_pending(
        self, pending: tuple[PendingCommit, ...], expired: tuple[PendingCommit, ...] | None = None
    ) -> CommitRecord:
        """Name what is to be delivered; and, where given, what never will be (PENDING-3,
        PENDING-8)."""
        kept = self.expired if expired is None else expired
        return replace(self, pending_commits=pending, expired=kept)

    def with_offsets(self, offsets: Offsets, topic_ids: Mapping[str, TopicId]) -> CommitRecord:
        """Return the record as a commit up to these offsets has it."""
        return replace(self, offsets=offsets, topic_ids=topic_ids)

    def with_key_counts(self, counts: KeyCounts) -> CommitRecord:
        """Count what the commit did to a keyed table: known once its call is prepared (KEY-10)."""
        return replace(self, keys=counts)

    def with_operator_command(self, command: str, actor: str | None) -> CommitRecord:
        """Say that a person made this claim, and how."""
        return replace(self, command=command, actor=actor)

    def as_commit_after(self, earlier: CommitRecord) -> CommitRecord:
        """Return this as the commit after ``earlier``, by the same coordinator."""
        epoch, number = earlier.transaction.epoch, earlier.transaction.number
        following = TransactionId(epoch, TransactionNumber(number + 1))
        return replace(self, transaction=following, coordinator=earlier.coordinator)

    def next_adding_no_rows(self, transaction: TransactionId, coordinator: Sender) -> CommitRecord:
        """Return the record of a commit that follows this and adds no rows; quarantined, skipped
        and key counts stay."""
        return replace(self, transaction=transaction, coordinator=coordinator, records=0)

    def with_missed_rows_replayed(
        self, records: int, replayed: Replayed, *, command: str, actor: str | None
    ) -> CommitRecord:
        """Return the commit by which a person gives a secondary table back what it had missed
        (SUSPEND-6): on top of its last delivery, whose counts are not this commit's."""
        said = replace(self, records=records, replayed=replayed, keys=None)
        return said.with_operator_command(command, actor)

    def with_position_of(self, earlier: CommitRecord) -> CommitRecord:
        """Say where the sink is if its table goes back to an earlier commit (ROLLBACK-1)."""
        return replace(
            self,
            transaction=earlier.transaction,
            offsets=earlier.offsets,
            topic_ids=earlier.topic_ids,
            recreated_topics=earlier.recreated_topics,
            valid_through_ms=earlier.valid_through_ms,
            cohorts=earlier.cohorts,
        )

    def next_with_query_batch(
        self,
        *,
        transaction: TransactionId,
        coordinator: Sender,
        offsets: Offsets,
        topic_ids: Mapping[str, TopicId],
        records: int,
        skipped: int,
    ) -> CommitRecord:
        """Return the record of a query's commit on top of this one, which says nothing of what this
        one brought, nor who made it (QUERY-2); what is pending stays so."""
        return replace(
            self,
            transaction=transaction,
            coordinator=coordinator,
            offsets=offsets,
            topic_ids=topic_ids,
            records=records,
            quarantined=0,
            skipped=skipped,
            keys=None,
            control_topic=None,
            control_topic_id=None,
            command=None,
            actor=None,
        )

    def with_replaced_topics(
        self, begin_offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, TopicId]
    ) -> CommitRecord:
        """Return it with other topics of these names, read from these offsets on (TAKEOVER-12)."""
        topics = {at.topic for at in begin_offsets}
        kept = {at: offset for at, offset in self.offsets.items() if at.topic not in topics}
        return replace(
            self,
            offsets=Offsets({**kept, **begin_offsets}),
            topic_ids={**self.topic_ids, **topic_ids},
            cohorts=cohorts_without_recreated_topics(self.cohorts, self.topic_ids, topic_ids),
            recreated_topics=self.accumulated_recreated_topics(topic_ids),
            valid_through_ms=None,
        )

    def next_operator_claim(
        self, coordinator: Sender, command: str, actor: str | None, **changes: Any
    ) -> CommitRecord:
        """Return the claim that a person makes on top of this commit, an epoch above it (EPOCH-1).

        It brings nothing, so it counts nothing. ``changes``: what the person wants otherwise.
        """
        transaction = TransactionId(Epoch(self.transaction.epoch + 1), TransactionNumber(0))
        claim = replace(
            self,
            transaction=transaction,
            coordinator=coordinator,
            records=0,
            quarantined=0,
            skipped=0,
            keys=None,
            **changes,
        )
        return claim.with_operator_command(command, actor)

    @property
    def source_record_count(self) -> int:
        """Return how many source records the commit stands for."""
        changed = self.keys.record_count if self.keys else self.records
        return changed + self.quarantined + self.skipped

    @property
    def is_claim(self) -> bool:
        return self.transaction.number == 0

    @property
    def is_operator_claim(self) -> bool:
        """Return whether a person made the claim, and no coordinator."""
        return self.is_claim and self.coordinator.member == OPERATOR

    @property
    def gives_back_missed_rows(self) -> bool:
        """Return whether the commit gave back what was missed (SUSPEND-6); it delivers nothing
        pending."""
        return self.command in (REPLAY, REREAD)

    def secondary_uuid(self, table: str) -> str | None:
        """Return the UUID that the secondary table of this name had; version 1 has no names."""
        return self.secondaries.get(table, self.secondaries.get(UNNAMED))

    def has_received(self, pending_commit: PendingCommit, primary_uuid: str) -> bool:
        """Return whether a secondary table with this record has received the pending commit of this
        primary table (rule PENDING-6)."""
        return self.primary == primary_uuid and self.transaction >= pending_commit.transaction

    def offsets_ahead_of(self, offsets: Offsets, topic_ids: Mapping[str, TopicId]) -> Offsets:
        """Return where this record is further than the offsets, on the same topics."""
        return Offsets(
            (at, offset)
            for at, offset in self.offsets.items()
            if self.topic_ids.get(at.topic) == topic_ids.get(at.topic)
            and offset > offsets.get(at, offset)
        )

    def is_same_commit(self, other: CommitRecord | None) -> bool:
        """Return whether both records are of one commit, whichever of its attempts landed."""
        return (
            other is not None
            and self.transaction == other.transaction
            and self.coordinator == other.coordinator
        )


_NOTE = "headgate table="
_SINK = " sink="


def offset_metadata_of_table(uuid: str, sink: SinkName) -> str:
    """Return the metadata string beside the group's offsets: their sink and their table.

    It distinguishes a re-created table from a new one, and another sink in the same group.
    """
    return f"{_NOTE}{uuid}{_SINK}{sink}"


def table_uuid_in_offset_metadata(note: str | None) -> str | None:
    """Return the table UUID in such a note, ``None`` when the note is not ours."""
    if not note or not note.startswith(_NOTE):
        return None
    return note.removeprefix(_NOTE).partition(_SINK)[0]


def sink_in_offset_metadata(note: str | None) -> str | None:
    """Return the sink in such a note; ``None`` if it names none, as in older releases."""
    return (note or "").partition(_SINK)[2] or None if table_uuid_in_offset_metadata(note) else None


def group_taken_error(group_id: str, other: str, sink: SinkName) -> GroupTaken:
    """Build the error for a group whose offsets another sink has stored."""
    return GroupTaken(
        f"consumer group {group_id!r} is that of sink {other!r}, but this file names sink {sink!r}"
        ": Kafka would share the partitions out among both",
        "is this a participant of the other sink? then give it that name; else give this sink a "
        "group of its own (source.group_id); if the other sink is gone for good, delete the group",
    )


def require_rollback_finished(record: CommitRecord | None, sink: SinkName) -> None:
    """Raise ``RollbackUnfinished`` where a person's claim says that the tables are going back."""
    if record and record.going_back is not None:
        raise RollbackUnfinished(
            f"sink {sink}: a rollback to {record.going_back} by {record.actor or 'a person'} has "
            "begun and did not end: some tables may have gone back, and others not",
            f"finish it with the same command, headgate rollback SINK {record.going_back}; the way "
            "back is open after that",
        )
