"""Which partitions of a topic are younger than others, so that a key's records have an order (U8).

Kafka numbers partitions without gaps and never takes one away: of each topic to which some were
added, the first one of each younger generation says it all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from headgate.control_protocol.identifiers import TopicId

Generations = Mapping[str, tuple[int, ...]]
"""Per topic the first partition of each younger generation, ascending; none: all are as old."""

NUMBER_MAX = 2**31 - 1


def generation(generations: Generations, topic: str, partition: int) -> int:
    """Return the partition's generation, of which a higher one is younger.

    ``""`` stands for the only topic of a table that does not say which topic a row came from. Where
    several have generations nobody knows which is meant: then none is younger.
    """
    if not topic and len(generations) == 1:
        (topic,) = generations
    return sum(first <= partition for first in generations.get(topic, ()))


def kept(
    generations: Generations, before: Mapping[str, TopicId], now: Mapping[str, TopicId]
) -> Generations:
    """Return those of topics that were not created anew meanwhile."""
    return {
        topic: firsts
        for topic, firsts in generations.items()
        if now.get(topic, before.get(topic)) == before.get(topic)
    }


def generations_text(generations: Generations) -> str:
    return json.dumps(dict(generations), separators=(",", ":"), sort_keys=True)


def generations_of(text: str) -> Generations:
    """Raises ``ValueError`` for what ``generations_text`` does not write."""
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
