"""Which topics a member shares in, where the sink file names a pattern."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from headgate.kafka.consumer_group import KafkaGroupMember, _TopicsToSubscribe
from headgate.kafka.source_topics import named_and_matching_topics

POLLS_S = 60.0


class Brokers:
    """librdkafka's own, in this process: what is sent to a topic creates it."""

    def __init__(self) -> None:
        self._producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
        found = self._producer.list_topics(timeout=POLLS_S).brokers.values()
        self.servers = ",".join(f"{each.host}:{each.port}" for each in found)

    def create(self, *topics: str) -> None:
        for topic in topics:
            self._producer.produce(topic, b"x")
        assert self._producer.flush(POLLS_S) == 0


@pytest.fixture
def member(brokers: Brokers) -> Iterator[KafkaGroupMember]:
    brokers.create("trips", "trips-1", "trips-d")
    config = {
        "bootstrap.servers": brokers.servers,
        "topic.metadata.refresh.interval.ms": "100",
        "log_level": "0",
    }
    topics = ["trips", r"^(?:trips-\d+)\Z"]
    member = KafkaGroupMember(config, topics, "group", on_revoke=lambda _: None)
    yield member
    member.close()


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def topics_shared_in(member: KafkaGroupMember, wanted: set[str]) -> set[str]:
    """Poll until these are among them."""
    until_s = time.monotonic() + POLLS_S
    while time.monotonic() < until_s:
        member.poll(50)
        found = {at.topic for at in member.assignment()}
        if found >= wanted:
            break
    return found


def test_a_pattern_means_the_topics_that_the_coordinator_takes_it_for(
    member: KafkaGroupMember, brokers: Brokers
) -> None:
    r"""To librdkafka ``\d`` is the letter d, and ``(?:`` and ``\Z`` are nothing."""
    assert topics_shared_in(member, {"trips", "trips-1"}) == {"trips", "trips-1"}
    brokers.create("trips-2", "trips-x")
    assert topics_shared_in(member, {"trips-2"}) == {"trips", "trips-1", "trips-2"}


def test_topics_of_kafka_s_own_are_no_source_whatever_matches() -> None:
    there = ["__consumer_offsets", "__transaction_state", "trips"]
    assert named_and_matching_topics(["a", "^.*"], lambda: there) == ["a", "trips"]


def test_without_an_answer_those_that_have_names_are_taken_and_the_others_soon() -> None:
    answers: list[list[str] | Exception] = [
        KafkaException(KafkaError(KafkaError._TIMED_OUT)),
        ["a1", "b"],
        KafkaException(KafkaError(KafkaError._TIMED_OUT)),
    ]

    def list_names() -> list[str]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    topics = _TopicsToSubscribe(["b", "^a"], list_names, 1)
    assert topics.find_topics_at_start() == ["b"]
    until_s = time.monotonic() + POLLS_S
    while (found := topics.poll_changed()) is None and time.monotonic() < until_s:
        pass
    assert found == ["b", "a1"]
    while answers and time.monotonic() < until_s:
        assert topics.poll_changed() is None
