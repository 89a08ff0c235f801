"""Checks what the sequence of commit records alone proves: epochs, order, offsets, counts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.table_history import History, SinkCommit
from headgate.operations.audit.report import Finding


def examine_chain(
    history: History, *, follows: bool = False, ledger: bool = False
) -> list[Finding]:
    """Return every finding, in the order of the branch.

    ``follows``: the table is delivered to by another one (rule D5). ``ledger``: the table decides
    for others, and has no rows itself.
    """
    findings = [Finding("record-unreadable", text) for text in history.unreadable]
    findings += _examine_tag(history)
    for commit in history.commits:
        held = 0 if ledger else commit.record.records
        findings += _examine_counts(commit, held, follows=follows)
    for before, after in pairwise(history.commits):
        if before.record.primary == after.record.primary:
            findings += _examine_order(before, after, follows=follows)
        findings += _examine_offsets(before, after)
    return findings


def _examine_tag(history: History) -> Iterator[Finding]:
    newest = history.commits[-1] if history.commits else None
    if history.tag is None:
        if history.claimed or newest:
            yield Finding("tag-missing", f"{history.table}: the sink's tag was deleted")
        return
    if history.tag_on_branch is False:
        reason = "was rolled back to before it" if history.complete else "does not hold it any more"
        yield Finding(
            "rolled-back",
            f"the sink's tag is on snapshot {history.tag}, but {history.branch} {reason}",
        )
    elif newest and history.tag != newest.snapshot_id:
        yield Finding(
            "tag-behind",
            f"the sink's tag is on snapshot {history.tag}, but its newest commit on "
            f"{history.branch} is {newest.where}",
        )


def _examine_counts(commit: SinkCommit, held: int, *, follows: bool) -> Iterator[Finding]:
    if held != commit.added_records:
        yield Finding(
            "record-count",
            f"{commit.where}: its record claims {held} rows, its snapshot's "
            f"summary says {commit.added_records}",
        )
    if commit.record.claim and commit.record.records and not follows:
        yield Finding("claim-with-rows", f"{commit.where}: a claim of an epoch added rows")


def _examine_order(before: SinkCommit, after: SinkCommit, *, follows: bool) -> Iterator[Finding]:
    one, two = before.record, after.record
    if two.transaction.epoch < one.transaction.epoch:
        yield Finding("epoch-fell", f"{after.where} comes after {before.where}")
    elif two.replays and two.transaction == one.transaction:
        pass  # I6: giving rows back is not a transaction of its own
    elif two.same_commit(one):
        yield Finding("commit-twice", f"{after.where} repeats {before.where}")
    elif two.transaction <= one.transaction:
        yield Finding("transaction-order", f"{after.where} comes after {before.where}")
    elif two.transaction.epoch == one.transaction.epoch and two.coordinator != one.coordinator:
        yield Finding(
            "two-coordinators",
            f"epoch {one.transaction.epoch} was used by {one.coordinator} and by {two.coordinator}",
        )
    if two.transaction.epoch > one.transaction.epoch and not two.claim and not follows:
        yield Finding("epoch-unclaimed", f"{after.where} opens its epoch without a claim")
    if two.group_id != one.group_id:
        yield Finding(
            "group-changed",
            f"{after.where}: written under group {two.group_id!r}, before under {one.group_id!r}",
        )


def _examine_offsets(before: SinkCommit, after: SinkCommit) -> Iterator[Finding]:
    one, two = before.record, after.record
    for partition, begin in sorted(one.offsets.items()):
        end = two.offsets.get(partition)
        if _other_topic(one, two, partition.topic) or end == begin:
            continue
        if end is None:
            yield Finding("offsets-lost", f"{after.where}: {partition} has no offset any more")
        elif end < begin and not two.claim:
            yield Finding(
                "offsets-went-back", f"{after.where}: {partition} went back from {begin} to {end}"
            )


@dataclass(frozen=True, slots=True)
class Move:
    """A claim that started a partition at ``end`` though the epoch before had reached ``begin``."""

    where: str
    partition: TopicPartition
    begin: int
    end: int
    by_operator: bool = False
    command: str | None = None

    def __str__(self) -> str:
        by_hand = f"headgate {self.command or 'offsets set or resume --accept'}"
        who = by_hand if self.by_operator else "a claim"
        return f"{self.where}: {who} moved {self.partition} from {self.begin} to {self.end}"


def moved_by_claims(history: History) -> Iterator[Move]:
    """Yield where an epoch started elsewhere than the last one ended, by policy or by a person."""
    for before, after in pairwise(history.commits):
        one, two = before.record, after.record
        for partition, begin in sorted(one.offsets.items()):
            end = two.offsets.get(partition, begin)
            if two.claim and end != begin and not _other_topic(one, two, partition.topic):
                yield Move(after.where, partition, begin, end, two.by_operator, two.command)


def renewed_topics(history: History) -> frozenset[str]:
    """Return topics that were re-created in between: the same offsets stand for other records."""
    return frozenset(
        topic
        for before, after in pairwise(history.commits)
        for topic in before.record.topic_ids.keys() & after.record.topic_ids.keys()
        if _other_topic(before.record, after.record, topic)
    )


def _other_topic(one: CommitRecord, two: CommitRecord, topic: str) -> bool:
    """Return whether the topic was re-created between the commits, so that its offsets restart."""
    return one.topic_ids.get(topic) != two.topic_ids.get(topic)


def ranges_of(before: CommitRecord, after: CommitRecord) -> Mapping[TopicPartition, OffsetRange]:
    """Return the range that a commit says it added, per partition."""
    ranges = {}
    for partition, end in after.offsets.items():
        begin = (
            0 if _other_topic(before, after, partition.topic) else before.offsets.get(partition, 0)
        )
        if begin < end:
            ranges[partition] = OffsetRange(begin, end)
    return ranges
