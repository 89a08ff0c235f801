"""The contract of ``SourceTopics``: what the coordinator learns of the source cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewPartitions, OffsetSpec

from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.ports import SourceTopics
from headgate.control_protocol.testing import FakeSource, FakeTopics
from headgate.kafka.source_topics import KafkaSourceTopics

LONG_AGO_MS = 1_700_000_000_000


class World(Protocol):
    """One topic of two partitions."""

    topic: str

    def topics(self, *names: str) -> SourceTopics: ...
    def produce(self, partition: int, timestamp_ms: int) -> None: ...
    def expire(self, partition: int, before: int) -> None: ...
    def add_partition(self) -> None: ...
    def store(self, partition: int, offset: int, note: str) -> None: ...


class FakeWorld:
    topic = "topic"

    def __init__(self) -> None:
        self.source = FakeSource()
        self.source.create_or_replace(self.topic, 2)

    def topics(self, *names: str) -> SourceTopics:
        return FakeTopics(self.source, names)

    def produce(self, partition: int, timestamp_ms: int) -> None:
        self.source.produce(TopicPartition(self.topic, partition), 1, timestamp_ms)

    def expire(self, partition: int, before: int) -> None:
        self.source.expire(TopicPartition(self.topic, partition), before)

    def add_partition(self) -> None:
        self.source.add_partitions(self.topic, 1)

    def store(self, partition: int, offset: int, note: str) -> None:
        self.source.committed[TopicPartition(self.topic, partition)] = (offset, note)


class KafkaWorld:
    def __init__(self, admin: AdminClient, topic: str, bootstrap: str) -> None:
        self.admin = admin
        self.topic = topic
        self.config = {"bootstrap.servers": bootstrap}
        self._wait_until_led(0, 1)

    def topics(self, *names: str) -> SourceTopics:
        return KafkaSourceTopics(self.config, names, self.topic)

    def produce(self, partition: int, timestamp_ms: int) -> None:
        producer = Producer(self.config)
        producer.produce(self.topic, b"x", partition=partition, timestamp=timestamp_ms)
        assert producer.flush(30) == 0

    def expire(self, partition: int, before: int) -> None:
        at = KafkaPartition(self.topic, partition, before)
        self.admin.delete_records([at])[at].result()

    def add_partition(self) -> None:
        self.admin.create_partitions([NewPartitions(self.topic, 3)])[self.topic].result()
        self._wait_until_led(2)

    def _wait_until_led(self, *partitions: int) -> None:
        asked = {KafkaPartition(self.topic, each): OffsetSpec.latest() for each in partitions}
        deadline = time.monotonic() + 60
        while any(found.exception(30) for found in self.admin.list_offsets(asked).values()):
            assert time.monotonic() < deadline, "a new partition has no leader"
            time.sleep(0.2)
            self.admin.list_topics(self.topic, timeout=30)  # or the client remembers that of before

    def store(self, partition: int, offset: int, note: str) -> None:
        consumer = Consumer({**self.config, "group.id": self.topic})
        stored = KafkaPartition(self.topic, partition, offset, note)
        consumer.commit(offsets=[stored], asynchronous=False)
        consumer.close()


@pytest.fixture(params=["fake", pytest.param("kafka", marks=pytest.mark.integration)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "fake":
        yield FakeWorld()
        return
    # As long as a broker's retention check may take, its records must not be old enough to go.
    topic = request.getfixturevalue("topic_factory")(2, {"retention.ms": "-1"})
    admin, bootstrap = map(request.getfixturevalue, ("admin", "bootstrap"))
    yield KafkaWorld(admin, topic, bootstrap)


def test_every_partition_has_the_range_that_can_be_read(world: World) -> None:
    for _ in range(3):
        world.produce(0, LONG_AGO_MS)
    world.expire(0, 2)
    state = world.topics(world.topic).describe()[world.topic]
    assert state.partitions == {0: OffsetRange(2, 3), 1: OffsetRange(0, 0)}


def test_added_partitions_appear_and_the_topic_stays_the_same(world: World) -> None:
    topics = world.topics(world.topic)
    before = topics.describe()[world.topic]
    world.add_partition()
    after = topics.describe()[world.topic]
    assert after.topic_id == before.topic_id
    assert set(after.partitions) == {0, 1, 2}


def test_a_missing_topic_is_named(world: World) -> None:
    topics = world.topics(world.topic, "no-such-topic")
    with pytest.raises(ConfigurationError, match="no-such-topic"):
        topics.describe()


def test_a_time_finds_the_first_record_at_or_after_it_else_the_end(world: World) -> None:
    for age in (30, 20, 10):
        world.produce(0, LONG_AGO_MS - age)
    topics = world.topics(world.topic)
    first, second = TopicPartition(world.topic, 0), TopicPartition(world.topic, 1)
    found = [topics.offsets_at(LONG_AGO_MS - age) for age in (40, 20, 19, 0)]
    assert [(at[first], at[second]) for at in found] == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_the_group_s_note_is_found(world: World) -> None:
    topics = world.topics(world.topic)
    assert topics.committed_offset_metadata() is None
    world.store(1, 0, "the note")
    assert topics.committed_offset_metadata() == "the note"
