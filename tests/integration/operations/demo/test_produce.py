"""Producing the demo's stream: every record is confirmed and lies where it was said to lie."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice

import pytest
from confluent_kafka.admin import AdminClient
from integration.oracle import read_source
from support.topics import delete_topics

from headgate.control_protocol.errors import ConfigurationError, Unreachable
from headgate.operations.demo import producer as producing
from headgate.operations.demo.producer import ensure_topic, produce
from headgate.operations.demo.trips import generate_trips

pytestmark = pytest.mark.integration


def test_what_is_confirmed_is_there(bootstrap: str, topic_factory: Callable[..., str]) -> None:
    topic = topic_factory(4)
    seen: list[int] = []
    confirmed = produce(bootstrap, topic, islice(generate_trips(), 10_001), on_progress=seen.append)
    assert confirmed == {0: 2_501, 1: 2_500, 2: 2_500, 3: 2_500}
    assert seen == sorted(seen)
    assert seen[-1] == 10_001
    found = read_source(bootstrap, topic)
    assert {number: len(offsets) for (_, number), offsets in found.items()} == confirmed


def test_a_full_queue_waits(
    bootstrap: str, topic_factory: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(producing.PRODUCER_SETTINGS, "queue.buffering.max.messages", 100)
    topic = topic_factory(1)
    assert produce(bootstrap, topic, islice(generate_trips(), 1_000), partitions=1) == {0: 1_000}


def test_a_record_that_is_refused_is_an_error(
    bootstrap: str, topic_factory: Callable[..., str]
) -> None:
    topic = topic_factory(1, {"max.message.bytes": "1000"})
    with pytest.raises(Unreachable, match=f"{topic}: a record was not taken: .*too large"):
        produce(bootstrap, topic, [random.Random(1).randbytes(10_000)], partitions=1)


def test_a_topic_is_made_once_and_must_fit(
    bootstrap: str, unique_name: str, admin: AdminClient
) -> None:
    try:
        ensure_topic(bootstrap, unique_name, partitions=2)
        ensure_topic(bootstrap, unique_name, partitions=2)
        with pytest.raises(ConfigurationError, match="has 2 partitions, not 4"):
            ensure_topic(bootstrap, unique_name)
    finally:
        delete_topics(admin, unique_name)


def test_no_broker_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producing, "REQUEST_SECONDS_MAX", 0.5)
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1: topic 'trips' was not created"):
        ensure_topic("127.0.0.1:1", "trips")
