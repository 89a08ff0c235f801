"""Who leads: the owner of partition 0 of the first configured topic (PROTOCOL.md, rule E1)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headgate.control_protocol.identifiers import TopicPartition


def election_partition(topics: Sequence[str]) -> TopicPartition:
    """Return the partition whose owner coordinates."""
    return TopicPartition(topics[0], 0)


def leads(assignment: Collection[TopicPartition], topics: Sequence[str]) -> bool:
    """Return whether this member leads: a level, read after every poll, never an edge."""
    return election_partition(topics) in assignment
