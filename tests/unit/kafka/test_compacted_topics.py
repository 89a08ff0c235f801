"""Clients of compacted topics: one that was refused begins anew, one that stays asks rarely."""

from __future__ import annotations

from typing import Any

import confluent_kafka as kafka
import pytest

from headgate.control_protocol.errors import FleetTopicUnfit, TokenAway
from headgate.kafka import compacted_topics
from headgate.kafka.compacted_topics import (
    WAIT_MS,
    CompactedProducer,
    CompactedReader,
    KeyedValue,
    TransactionalWriter,
)


class Refused:
    """A client after a fatal error: whatever it is asked raises."""

    def produce(self, *_: object, **__: object) -> None:
        fatal = kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED
        raise kafka.KafkaException(kafka.KafkaError(fatal, "refused", fatal=True))


def test_a_new_producer_that_cannot_be_had_is_told_and_ends_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker tells of its sinks with it: without a token they go on (FLEET-9)."""
    clients: list[object] = [Refused()]

    def new_producer(_: object) -> object:
        if not clients:
            raise TokenAway("the token server is away", "it is asked again")
        return clients.pop()

    monkeypatch.setattr(compacted_topics, "new_producer", new_producer)
    monkeypatch.setattr(Refused, "poll", lambda *_: None, raising=False)
    producer = CompactedProducer({"bootstrap.servers": "127.0.0.1:1"})
    for _ in range(2):
        assert not producer.try_enqueue(KeyedValue("states", 0, "sink/0/trips", b"x"))
        assert any("the token server is away" in each for each in producer.take_failures())


class Assigned:
    """A consumer that keeps its settings."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def assign(self, _: object) -> None:
        """Read nothing."""


def test_who_stays_asks_brokers_as_rarely_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Assigned] = []

    def new_consumer(config: dict[str, Any]) -> Assigned:
        made.append(Assigned(config))
        return made[-1]

    monkeypatch.setattr(compacted_topics, "new_consumer", new_consumer)
    settings = {"bootstrap.servers": "127.0.0.1:1", "client.rack": "a"}
    CompactedReader(settings, "fleet", {"fleet": 1})
    CompactedReader(settings, "fleet", {"fleet": 1}, wait_ms=1_000)
    assert [each.config["fetch.wait.max.ms"] for each in made] == [WAIT_MS, 1_000]
    # Followers tell an end that is not the newest one (FLEET-5).
    assert {each.config["client.rack"] for each in made} == {""}


class TooShort:
    """A producer of a topic that takes short records only."""

    aborted = 0

    def begin_transaction(self) -> None:
        """Begin nothing."""

    def produce(self, *_: object, **__: object) -> None:
        too_long = kafka.KafkaError(kafka.KafkaError.MSG_SIZE_TOO_LARGE, "too large")
        raise kafka.KafkaException(too_long)

    def abort_transaction(self, _: float) -> None:
        self.aborted += 1


def test_a_record_that_is_refused_leaves_no_transaction_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = TooShort()
    monkeypatch.setattr(compacted_topics, "new_producer", lambda _: client)
    writer = TransactionalWriter({"bootstrap.servers": "127.0.0.1:1"}, "city")
    with pytest.raises(FleetTopicUnfit, match="nothing was changed: too large"):
        writer.write([KeyedValue("city", 0, "trips", b"x")])
    assert client.aborted == 1
