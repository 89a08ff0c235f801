"""Lag in seconds is read from the log, and not interpolated."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from headgate.control_protocol.identifiers import TopicPartition
from headgate.kafka.first_record_timestamps import try_read_first_timestamps

pytestmark = pytest.mark.integration


def test_the_timestamp_of_the_first_record_behind_an_offset(
    bootstrap: str, topic_factory: Callable[[int], str], unique_name: str
) -> None:
    topic = topic_factory(3)
    # Without it, a request that is sent again, as to a leader that is new, comes behind later ones.
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(10):
        producer.produce(topic, b"x" * 200_000, partition=0, timestamp=1_700_000_000_000 + number)
    producer.produce(topic, b"late", partition=1, timestamp=1_600_000_000_000)
    assert producer.flush(30) == 0
    at = [TopicPartition(topic, number) for number in range(3)]
    group = f"{unique_name}-group"
    asked = {at[0]: 4, at[1]: 0, at[2]: 0}
    found = try_read_first_timestamps({"bootstrap.servers": bootstrap}, group, asked)
    assert found == {at[0]: 1_700_000_000_004, at[1]: 1_600_000_000_000}
    assert try_read_first_timestamps({"bootstrap.servers": bootstrap}, group, {at[0]: 10}) == {}


def test_brokers_that_are_away_cost_only_the_look(unique_name: str) -> None:
    kafka = {"bootstrap.servers": "127.0.0.1:1"}
    assert try_read_first_timestamps(kafka, unique_name, {TopicPartition("t", 0): 0}) == {}
