"""A sink with a key: forged and repeated events move nothing, and its own operator is heard."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from integration.conftest import Deploy

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol import message_encoding
from headgate.control_protocol.events import (
    Envelope,
    Pause,
    Presence,
    PresenceKind,
)
from headgate.control_protocol.identifiers import Epoch, Sender, TransactionNumber
from headgate.control_protocol.signatures import split_signed_message
from headgate.operations.control.pause import pause_sink, resume_sink

pytestmark = pytest.mark.integration


def forged(settings: SinkSettings) -> list[bytes]:
    """Unsigned words that would move a sink without a key: a pause, and a huge epoch."""
    events = (Pause(), Presence(PresenceKind.ALIVE, frozenset(), {}))
    return [
        message_encoding.encode_envelope(
            Envelope(
                sink=settings.name,
                epoch=Epoch(1_000_000),
                transaction=TransactionNumber(1),
                sender=Sender("mallory", "m1"),
                sequence=1,
                time_ms=0,
                event=event,
            )
        )
        for event in events
    ]


def everything_said(settings: SinkSettings) -> list[bytes]:
    """All messages of the control topic, as they are."""
    consumer = Consumer({**settings.kafka, "group.id": "judge", "enable.auto.commit": False})
    at = TopicPartition(settings.control.topic, 0, 0)
    try:
        _, end = consumer.get_watermark_offsets(at, timeout=10)
        consumer.assign([at])
        found: list[bytes] = []
        while len(found) < end:
            found += [m.value() or b"" for m in consumer.consume(1_000, 1.0) if not m.error()]
        return found
    finally:
        consumer.close()


def test_forged_and_repeated_events_move_nothing(
    deploy: Deploy, tmp_path: Path, bootstrap: str
) -> None:
    key = tmp_path / "control.key"
    key.write_text("0123456789abcdef" * 4)
    sink = deploy({"control": {"key": f"${{file:{key}}}"}})
    sink.start(2)
    sink.produce(500)
    sink.wait_until_lag_zero()
    pause_sink(sink.settings)
    resume_sink(sink.settings)
    genuine = everything_said(sink.settings)
    assert all(split_signed_message(message) for message in genuine)
    before = sink.record()

    producer = Producer({"bootstrap.servers": bootstrap})
    for message in (*forged(sink.settings), *genuine):
        producer.produce(sink.settings.control.topic, message, partition=0)
    assert producer.flush(10) == 0
    sink.produce(500)
    sink.wait_until_lag_zero()
    after = sink.record()
    assert before is not None
    assert after is not None
    assert (after.transaction.epoch, after.paused) == (before.transaction.epoch, False)
    sink.stop()
    sink.judge()
