"""A Kafka client may answer well, and still say nothing: such an answer must go no further."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import Node, TopicCollection, TopicPartition, TopicPartitionInfo, Uuid
from confluent_kafka.admin import (
    ClusterMetadata,
    ListOffsetsResultInfo,
    PartitionMetadata,
    TopicDescription,
    TopicMetadata,
)

from headgate.control_protocol import identifiers
from headgate.control_protocol.errors import Unreachable
from headgate.coordinator.source_topics import KafkaSourceTopics
from headgate.participant.source import KafkaGroupMember

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
