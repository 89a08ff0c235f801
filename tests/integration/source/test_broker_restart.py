"""A restarted broker has a higher leader epoch, which an offset request must learn."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.identifiers import TopicPartition
from headgate.kafka.consumer_group import KafkaGroupMember
from headgate.kafka.source_topics import KafkaSourceTopics
from headgate.operations.demo.producer import ensure_topic
from headgate.operations.local_kafka.broker import EmbeddedKafka

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0
"""Far below the quarter of an hour for which a client believes what it knew."""

_Answer = TypeVar("_Answer")


def answered(question: Callable[[], _Answer]) -> _Answer:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return question()
        except Unreachable:
            assert time.monotonic() < deadline, "the broker is back, and still refuses"
            time.sleep(0.1)


@pytest.mark.wide
def test_both_roles_know_the_sources_ends_soon_after_a_restart(own_kafka: EmbeddedKafka) -> None:
    ensure_topic(own_kafka.bootstrap, "rows", partitions=2)
    kafka = {"bootstrap.servers": own_kafka.bootstrap}
    partitions = [TopicPartition("rows", number) for number in range(2)]
    topics = KafkaSourceTopics(kafka, ["rows"], "group")
    member = KafkaGroupMember(kafka, ["rows"], "group", on_revoke=lambda _: None)
    try:
        expected = dict.fromkeys(partitions, 0)
        assert answered(lambda: member.end_offsets(partitions)) == expected
        before = answered(topics.describe)
        own_kafka.kill()
        own_kafka.restart()
        assert answered(lambda: member.end_offsets(partitions)) == expected
        assert answered(topics.describe) == before
    finally:
        member.close()
        topics.close()
