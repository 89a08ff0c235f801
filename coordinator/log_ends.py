"""Where the sources' logs end, as far as a judgement has to know (C7).

They are described before each END. Participants read on until they answer, so that an honest claim
may end behind that: the sources are asked once more, and only then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.ports import TopicState
from headgate.coordinator.moves import term_of
from headgate.coordinator.state import State


def ends_of(
    topics: Mapping[str, TopicState], topic_ids: Mapping[str, TopicId]
) -> Mapping[TopicPartition, int]:
    """The logs' ends; none of a topic that was created anew."""
    return {
        TopicPartition(topic, number): log.end
        for topic, now in topics.items()
        if topic_ids.get(topic) == now.topic_id
        for number, log in now.partitions.items()
    }


def claimed_beyond(state: State) -> bool:
    """Whether any status that waits for its judgement claims more than the ends that are known."""
    term = term_of(state)
    return any(
        claim.range.end > term.ends.get(partition, 0)
        for heard in term.statuses
        for partition, claim in heard.status.claims.items()
        if not claim.range.empty
    )


def asking(state: State) -> State:
    """The judgement waits for the answer."""
    return replace(state, term=replace(term_of(state), asks_ends=True))


def told(state: State, topics: Mapping[str, TopicState]) -> State:
    """The answer. Of a partition that nobody could be asked for, what was known stands."""
    term = term_of(state)
    ends = {**term.ends, **ends_of(topics, term.topic_ids)}
    return replace(state, failures=0, term=replace(term, ends=ends, asks_ends=False))
