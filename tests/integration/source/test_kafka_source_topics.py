"""The coordinator's questions on a real broker, where the fake cannot follow."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from support.topics import delete_topics

from headgate.control_protocol.errors import ConfigurationError, Unreachable
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.kafka.source_topics import KafkaSourceTopics

pytestmark = pytest.mark.integration


def test_ranges_end_at_the_last_stable_offset(topic: str, bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=1)
    producer.commit_transaction()
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=1)
    producer.flush()
    state = KafkaSourceTopics({"bootstrap.servers": bootstrap}, [topic], topic).describe()[topic]
    producer.abort_transaction()
    assert state.partitions == {
        0: OffsetRange(0, 0),
        1: OffsetRange(0, 2),
        2: OffsetRange(0, 0),
        3: OffsetRange(0, 0),
    }


def test_a_time_finds_the_first_record_at_or_after_it(topic: str, bootstrap: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    producer = Producer({"bootstrap.servers": bootstrap})
    for age_ms in (30_000, 20_000, 10_000):
        producer.produce(topic, b"x", partition=0, timestamp=now_ms - age_ms)
    producer.flush()
    topics = KafkaSourceTopics({"bootstrap.servers": bootstrap}, [topic], topic)
    first = TopicPartition(topic, 0)
    assert topics.offsets_at(now_ms - 20_000)[first] == 1
    assert topics.offsets_at(now_ms - 19_999)[first] == 2
    assert topics.offsets_at(now_ms)[first] == 3


def test_a_pattern_finds_its_topics(topic: str, bootstrap: str) -> None:
    config = {"bootstrap.servers": bootstrap}
    assert set(KafkaSourceTopics(config, [f"^{topic[:-1]}.$"], topic).describe()) == {topic}
    assert KafkaSourceTopics(config, [f"^{topic}-not"], topic).describe() == {}


def test_a_recreated_topic_has_another_id(
    topic: str, bootstrap: str, admin: AdminClient, create_topic: Callable[[str, int], None]
) -> None:
    topics = KafkaSourceTopics({"bootstrap.servers": bootstrap}, [topic], topic)
    before = topics.describe()[topic].topic_id
    assert topics.describe()[topic].topic_id == before
    delete_topics(admin, topic)
    with pytest.raises(ConfigurationError, match=topic):
        topics.describe()
    create_topic(topic, 1)
    assert topics.describe()[topic].topic_id != before


def test_a_cluster_that_does_not_answer_is_unreachable(nobody: dict[str, str]) -> None:
    topics = KafkaSourceTopics(nobody, ["t"], "g", request_timeout_s=0.5)
    for question in (
        topics.describe,
        topics.committed_offset_metadata,
        lambda: topics.offsets_at(0),
    ):
        with pytest.raises(Unreachable):
            question()
