"""Where the sources' logs end, as far as a judgement needs it (C7).

They are described before each END. Participants read on until they answer, so an honest claim may
end behind that; only then are the sources asked once more.
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
    """Return the logs' ends; none for a topic that was created again."""
    return {
        TopicPartition(topic, number): log.end
        for topic, now in topics.items()
        if topic_ids.get(topic) == now.topic_id
        for number, log in now.partitions.items()
    }


def claimed_beyond(state: State) -> bool:
    """Return whether a status that waits for its judgement claims more than the known ends."""
    term = term_of(state)
    return any(
        claim.range.end > term.ends.get(partition, 0)
        for heard in term.statuses
        for partition, claim in heard.status.claims.items()
        if not claim.range.empty
    )


def asking(state: State) -> State:
    """Let the judgement wait for the sources' answer."""
    return replace(state, term=replace(term_of(state), asks_ends=True))


def told(state: State, topics: Mapping[str, TopicState]) -> State:
    """Take in the answer. For a partition that could not be asked, the known end stays."""
    term = term_of(state)
    ends = {**term.ends, **ends_of(topics, term.topic_ids)}
    return replace(state, failures=0, term=replace(term, ends=ends, asks_ends=False))
