"""Keeps source topics in memory: which offsets hold a record, and when it was written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headgate.control_protocol.errors import ConfigurationError, Unreachable
from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.offsets import OffsetRange, Offsets
from headgate.control_protocol.ports import TopicState


class SourceRecord(NamedTuple):
    """Identifies a record: what a test oracle counts in source and table."""

    topic_id: TopicId
    topic: str
    partition: int
    offset: int


@dataclass(slots=True)
class FakePartition:
    """Holds offsets ``[begin, end)``; ``timestamps_ms`` only of those that hold a record."""

    begin: int = 0
    end: int = 0
    timestamps_ms: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class FakeSource:
    """Stands for a source cluster. ``committed`` is what the consumer group stored: offset and
    note.
    """

    partitions: dict[TopicPartition, FakePartition] = field(default_factory=dict)
    topic_ids: dict[str, TopicId] = field(default_factory=dict)
    committed: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    reachable: bool = True
    _topics_created: int = 0

    def create_or_replace(self, topic: str, partitions: int) -> None:
        """Create the topic; an existing one is replaced, under a new id."""
        for at in [at for at in self.partitions if at.topic == topic]:
            del self.partitions[at]
        self._topics_created += 1
        self.topic_ids[topic] = TopicId(f"id-{self._topics_created}")
        self.add_partitions(topic, partitions)

    def add_partitions(self, topic: str, count: int) -> None:
        first = sum(at.topic == topic for at in self.partitions)
        for number in range(first, first + count):
            self.partitions[TopicPartition(topic, number)] = FakePartition()

    def produce(self, at: TopicPartition, record_count: int = 1, timestamp_ms: int = 0) -> None:
        log = self.partitions[at]
        log.timestamps_ms |= dict.fromkeys(range(log.end, log.end + record_count), timestamp_ms)
        log.end += record_count

    def add_offset_gap(self, at: TopicPartition, offsets: int = 1) -> None:
        """Add offsets without a record: aborted or compacted away, or transaction markers."""
        self.partitions[at].end += offsets

    def expire(self, at: TopicPartition, before: int) -> None:
        """Let retention take every record below the offset."""
        log = self.partitions[at]
        log.begin, log.end = before, max(log.end, before)
        log.timestamps_ms = {o: t for o, t in log.timestamps_ms.items() if o >= before}

    def truncate(self, at: TopicPartition, to: int) -> None:
        """Lose the offsets from ``to`` on, as in an unclean election."""
        log = self.partitions[at]
        log.begin, log.end = min(log.begin, to), to
        log.timestamps_ms = {o: t for o, t in log.timestamps_ms.items() if o < to}

    def records(self, at: TopicPartition, within: OffsetRange) -> list[SourceRecord]:
        """Return the records that a reader of the range finds."""
        topic_id = self.topic_ids[at.topic]
        return [
            SourceRecord(topic_id, at.topic, at.partition, offset)
            for offset in self.partitions[at].timestamps_ms
            if within.begin <= offset < within.end
        ]

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self.require_reachable()
        return {at: self.partitions[at].end for at in partitions if at in self.partitions}

    def require_reachable(self) -> None:
        if not self.reachable:
            raise Unreachable("the fake source cluster is not reachable")


class FakeTopics:
    """Implements ``SourceTopics`` over a fake source."""

    def __init__(self, source: FakeSource, topics: Sequence[str]) -> None:
        self._source = source
        self._topics = tuple(topics)

    def describe(self) -> Mapping[str, TopicState]:
        partitions = self._partitions()
        return {
            topic: TopicState(
                self._source.topic_ids[topic],
                {
                    at.partition: OffsetRange(log.begin, log.end)
                    for at, log in partitions.items()
                    if at.topic == topic
                },
            )
            for topic in self._topics
        }

    def offsets_at(self, timestamp_ms: int) -> Offsets:
        return Offsets(
            {
                at: min(
                    (o for o, t in log.timestamps_ms.items() if t >= timestamp_ms), default=log.end
                )
                for at, log in self._partitions().items()
            }
        )

    def committed_offset_metadata(self) -> str | None:
        self._source.require_reachable()
        return next((note for _, (_, note) in sorted(self._source.committed.items())), None)

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def _partitions(self) -> dict[TopicPartition, FakePartition]:
        self._source.require_reachable()
        for topic in self._topics:
            if topic not in self._source.topic_ids:
                raise ConfigurationError(f"the fake source has no topic {topic}")
        return {at: log for at, log in self._source.partitions.items() if at.topic in self._topics}
