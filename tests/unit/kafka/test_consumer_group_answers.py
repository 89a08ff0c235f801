"""A Kafka client's successful but empty answer must go no further."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import (
    KafkaError,
    KafkaException,
    Node,
    TopicCollection,
    TopicPartition,
    TopicPartitionInfo,
    Uuid,
)
from confluent_kafka.admin import (
    ClusterMetadata,
    ListOffsetsResultInfo,
    PartitionMetadata,
    TopicDescription,
    TopicMetadata,
)

from headgate.control_protocol import identifiers
from headgate.control_protocol.errors import ConfigurationError, Unreachable
from headgate.control_protocol.testing import FakeClock
from headgate.kafka.consumer_group import KafkaGroupMember
from headgate.kafka.source_topics import KafkaSourceTopics

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}
OFFSET_INVALID = -1001
"""Seen in the place of an offset, without an error, while a broker came up again."""


class Admin:
    """A cluster with the topic ``t`` of one partition, whose offsets are all ``offset``."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def describe_topics(self, topics: TopicCollection, **_: Any) -> dict[str, Future[Any]]:
        del topics
        partition = TopicPartitionInfo(0, Node(1, "localhost", 9092), [], [])
        return {"t": _done(TopicDescription("t", Uuid(1, 2), False, [partition]))}

    def list_topics(self, **_: Any) -> ClusterMetadata:
        """As the client knows them: partition 0 of ``t`` has a leader."""
        metadata = ClusterMetadata()
        metadata.topics = {"t": (topic := TopicMetadata())}
        topic.partitions = {0: (partition := PartitionMetadata())}
        partition.leader = 1
        return metadata

    def list_offsets(self, asked: Iterable[TopicPartition], **_: Any) -> dict[Any, Future[Any]]:
        return {at: _done(ListOffsetsResultInfo(self._offset, -1, -1)) for at in asked}


def _done(result: object) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


def test_an_end_that_is_no_offset_is_no_answer_to_a_participant() -> None:
    """Said in a PRESENCE it would make all that follow unreadable: nobody would ever hear it."""
    at = identifiers.TopicPartition("t", 0)
    member = KafkaGroupMember(NOBODY, ["t"], "g", on_revoke=lambda _: None)
    try:
        member._admin = Admin(7)
        assert member.end_offsets([at]) == {at: 7}
        member._admin = Admin(OFFSET_INVALID)
        with pytest.raises(Unreachable, match="t/0"):
            member.end_offsets([at])
    finally:
        member.close()


def test_a_log_that_is_no_range_is_no_answer_to_the_coordinator() -> None:
    topics = KafkaSourceTopics(NOBODY, ["t"], "g")
    topics._admin = Admin(7)
    (log,) = topics.describe()["t"].partitions.values()
    assert (log.begin, log.end) == (7, 7)
    topics._admin = Admin(OFFSET_INVALID)
    with pytest.raises(Unreachable, match="t/0"):
        topics.describe()


class Headless(Admin):
    """Has a second partition whose broker is away; who asks for its offsets waits in vain."""

    def describe_topics(self, topics: TopicCollection, **_: Any) -> dict[str, Future[Any]]:
        del topics
        led = TopicPartitionInfo(0, Node(1, "localhost", 9092), [], [])
        away = TopicPartitionInfo(1, None, [], [])
        return {"t": _done(TopicDescription("t", Uuid(1, 2), False, [led, away]))}

    def list_offsets(self, asked: Iterable[TopicPartition], **_: Any) -> dict[Any, Future[Any]]:
        refused = KafkaError.LEADER_NOT_AVAILABLE
        known = super().list_offsets(asked)
        return {at: _refused(refused) if at.partition else found for at, found in known.items()}


def test_both_roles_go_on_with_the_partitions_that_have_a_leader() -> None:
    """With real brokers: integration/source/test_partition_without_leader."""
    topics = KafkaSourceTopics(NOBODY, ["t"], "g")
    topics._admin = Headless(7)
    (state,) = topics.describe().values()
    assert (set(state.partitions), state.silent) == ({0}, {1})
    here, away = (identifiers.TopicPartition("t", number) for number in range(2))
    member = KafkaGroupMember(NOBODY, ["t"], "g", on_revoke=lambda _: None)
    try:
        member._admin = Headless(7)
        assert member.end_offsets([here, away]) == {here: 7}
    finally:
        member.close()


class Forgetful(Admin):
    """A broker whose metadata do not have the topic ``t``, though it lists it."""

    def describe_topics(self, topics: TopicCollection, **_: Any) -> dict[str, Future[Any]]:
        del topics
        return {"t": _refused(KafkaError.UNKNOWN_TOPIC_OR_PART)}


class Lagging(Admin):
    """Describes the topic, but the partition's leader does not know it yet, or any more."""

    def list_offsets(self, asked: Iterable[TopicPartition], **_: Any) -> dict[Any, Future[Any]]:
        return {partition: _refused(KafkaError.UNKNOWN_TOPIC_OR_PART) for partition in asked}


def _refused(code: int) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(code)))
    return future


def test_metadata_that_lag_behind_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    module = "headgate.kafka.source_topics.time"
    monkeypatch.setattr(f"{module}.monotonic", lambda: clock.now_ms / 1000)
    topics = KafkaSourceTopics(NOBODY, ["t"], "g", missing_max_s=60)
    topics._admin = Forgetful(7)
    not_yet = pytest.raises(Unreachable, match="topic t does not exist")
    with not_yet:
        topics.describe()
    clock.advance(59_000)
    with not_yet:
        topics.describe()
    topics._admin = Admin(7)
    assert topics.describe()
    topics._admin = Forgetful(7)
    clock.advance(59_000)
    with not_yet:
        topics.describe()
    clock.advance(61_000)
    with pytest.raises(ConfigurationError, match="topic t does not exist"):
        topics.describe()


def test_who_asks_once_is_told_at_once() -> None:
    topics = KafkaSourceTopics(NOBODY, ["t"], "g")
    topics._admin = Forgetful(7)
    with pytest.raises(ConfigurationError, match="topic t does not exist"):
        topics.describe()


def test_a_leader_that_does_not_know_the_partition_is_asked_again() -> None:
    topics = KafkaSourceTopics(NOBODY, ["t"], "g")
    topics._admin = Lagging(7)
    with pytest.raises(Unreachable, match="t/0"):
        topics.describe()


def test_a_deleted_topic_of_a_pattern_is_left_out() -> None:
    topics = KafkaSourceTopics(NOBODY, ["^t$"], "g")
    topics._admin = Forgetful(7)
    assert topics.describe() == {}
