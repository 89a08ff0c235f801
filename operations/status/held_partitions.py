"""Tells which partitions wait to be read because they were added to a topic of a keyed table
(KEY-8).

Their records are in no table, and are not lost. No table stores since when they have been held.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from headgate.config.cdc_settings import ChangesSettings
from headgate.config.keyed_table_checks import find_added_keyed_partitions
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import TopicState
from headgate.control_protocol.table_history import SinkCommit
from headgate.runtime.wall_clock import format_utc


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """A partition that was added. ``records``: at most, because offsets are counted."""

    topic: str
    partition: int
    log_begin: int
    log_end: int
    records: int

    @property
    def at(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


def find_held_partitions(
    settings: SinkSettings,
    stored_partitions: Collection[TopicPartition],
    logs: Mapping[TopicPartition, OffsetRange],
) -> tuple[HeldPartition, ...]:
    """Return those of ``logs`` that are not read yet.

    ``stored_partitions``: those that the table has offsets of.
    """
    return tuple(
        HeldPartition(at.topic, at.partition, logs[at].begin, logs[at].end, len(logs[at]))
        for at in sorted(find_added_keyed_partitions(settings, stored_partitions, logs))
    )


def find_held_partitions_of_unchanged_topics(
    settings: SinkSettings, record: CommitRecord, topics: Mapping[str, TopicState]
) -> tuple[HeldPartition, ...]:
    """Return them, of those ``topics`` that the stored offsets belong to."""
    logs = {
        TopicPartition(name, number): log
        for name, topic in topics.items()
        if record.topic_ids.get(name, topic.topic_id) == topic.topic_id
        for number, log in topic.partitions.items()
    }
    return find_held_partitions(settings, record.offsets, logs)


def describe_held_partitions(
    changes: ChangesSettings, held: Collection[HeldPartition], commits: Iterable[SinkCommit]
) -> list[str]:
    """Say what waits there and for what, as far as the table's ``commits`` show it."""
    if not held:
        return []
    names = ", ".join(f"{each.at} ({count_of(each.records, 'record')})" for each in held)
    text = (
        f"{names}: added to a topic of a keyed table, and not read yet: their records are in no "
        "table, and are not lost"
    )
    held_ms = changes.added_partitions_hold_ms
    if held_ms is None:
        return [f"{text}. The sink stops when there are records in them (HG-242)"]
    if changes.refuses_uneven_partition_growth and (
        unordered := _describe_growth_to_no_multiple(held)
    ):
        return [f"{text}. {unordered}: they are never read, and the sink stops (HG-222)"]
    why = (
        f"held for {held_ms / 1000:g} s since the coordinator first saw them, and until what the "
        "older ones held then is in the table. The table does not say since when"
        f"{_describe_earliest_hold_begin(commits)}; the coordinator's log does (partitions.held)"
    )
    return [f"{text}. They are {why}"]


def _describe_growth_to_no_multiple(held: Collection[HeldPartition]) -> str:
    """Say which topics were not multiplied; empty if all were."""
    counts: dict[str, tuple[int, int]] = {}
    for each in held:
        before, after = counts.get(each.topic, (each.partition, 0))
        counts[each.topic] = min(before, each.partition), max(after, each.partition + 1)
    return "; ".join(
        f"{topic} has grown from {before} to {after} partitions, which is no multiple"
        for topic, (before, after) in sorted(counts.items())
        if before and after % before
    )


def _describe_earliest_hold_begin(commits: Iterable[SinkCommit]) -> str:
    """Name the newest claim: each coordinator begins to count again."""
    claims = [
        each for each in commits if each.record.is_claim and not each.record.is_operator_claim
    ]
    if not claims:
        return ""
    epoch, claimed_ms = claims[-1].record.transaction.epoch, claims[-1].committed_ms
    return f" (not before {format_utc(claimed_ms)}, when the coordinator of epoch {epoch} claimed)"
