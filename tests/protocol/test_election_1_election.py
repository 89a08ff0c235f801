"""ELECTION-1: whoever owns partition 0 of the first topic coordinates: a level, read after every
poll."""

from __future__ import annotations

from headgate.control_protocol.identifiers import TopicPartition
from headgate.coordinator.service import election_partition, is_leader

TOPICS = ("rides", "drivers")


def test_the_election_partition_is_partition_0_of_the_first_topic() -> None:
    assert election_partition(TOPICS) == TopicPartition("rides", 0)


def test_l1_its_owner_leads() -> None:
    assert is_leader({TopicPartition("rides", 0), TopicPartition("drivers", 4)}, TOPICS)


def test_nobody_else_does() -> None:
    others = {TopicPartition("rides", 1), TopicPartition("drivers", 0)}
    assert not is_leader(others, TOPICS)
    assert not is_leader((), TOPICS)


def test_f03_the_order_of_configured_topics_decides_and_not_the_alphabet() -> None:
    assert not is_leader({TopicPartition("drivers", 0)}, TOPICS)


def test_l2_losing_another_partition_changes_nothing() -> None:
    """F02: the level is read anew each time; no revocation callback closes the coordinator."""
    both = frozenset({TopicPartition("rides", 0), TopicPartition("rides", 3)})
    assert is_leader(both, TOPICS)
    assert is_leader(both - {TopicPartition("rides", 3)}, TOPICS)
