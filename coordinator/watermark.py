"""Valid-through: no record with an older timestamp is still to come, as far as known (C10)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headgate.control_protocol.events import Claim
from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.record import CommitRecord
from headgate.coordinator.state import Activity


def observed(
    activity: Mapping[TopicPartition, Activity],
    claims: Iterable[tuple[TopicPartition, Claim]],
    now_ms: int,
) -> Mapping[TopicPartition, Activity]:
    """Remember, per partition, the largest timestamp seen and when its offsets last moved.

    A partition that is named for the first time counts as active without any timestamp: a new
    coordinator has not seen it idle for long enough.
    """
    seen = dict(activity)
    for partition, claim in claims:
        before = seen.get(partition)
        if before is not None and claim.range.empty:
            continue
        largest = _latest(claim.max_timestamp_ms, before.timestamp_ms if before else None)
        seen[partition] = Activity(now_ms, largest)
    return seen


def _latest(*times_ms: int | None) -> int | None:
    return max((time_ms for time_ms in times_ms if time_ms is not None), default=None)


def valid_through(
    previous: int | None,
    activity: Mapping[TopicPartition, Activity],
    idle_before_ms: int,
) -> int | None:
    """Return the smallest of the partitions' largest timestamps; idle ones do not hold it back."""
    active = [seen.timestamp_ms for seen in activity.values() if seen.at_ms > idle_before_ms]
    known = [time_ms for time_ms in active if time_ms is not None]
    if not known or len(known) < len(active):
        return previous
    return max(min(known), previous or 0)


def carried_on(
    record: CommitRecord, offsets: Offsets, topic_ids: Mapping[str, TopicId]
) -> int | None:
    """Return what a claim on these offsets knows: nothing if records come again, or are others."""
    back = any(offsets.get(at, offset) < offset for at, offset in record.offsets.items())
    other = any(topic_ids.get(topic, known) != known for topic, known in record.topic_ids.items())
    return None if back or other else record.valid_through_ms
