"""A producer of a fleet's states that the cluster has refused for good begins anew."""

from __future__ import annotations

import confluent_kafka as kafka
import pytest

from headgate.control_protocol.errors import TokenAway
from headgate.kafka import compacted_topics
from headgate.kafka.compacted_topics import CompactedProducer, KeyedValue


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
        assert not producer.write(KeyedValue("states", 0, "sink/0/trips", b"x"))
        assert any("the token server is away" in each for each in producer.failures())
