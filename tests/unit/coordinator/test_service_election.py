"""Leadership and what hangs on it is rule ELECTION-1; here only what the configuration may look
like."""

from __future__ import annotations

from headgate.control_protocol.identifiers import TopicPartition
from headgate.coordinator.service import election_partition, is_leader


def test_one_topic_is_enough() -> None:
    assert election_partition(["only"]) == TopicPartition("only", 0)


def test_other_topics_with_a_partition_0_elect_nobody() -> None:
    assert not is_leader([TopicPartition("b", 0), TopicPartition("c", 0)], ["a", "b", "c"])
