"""Lets an embedded task steer, and be fed by, a confluent-kafka consumer."""

from __future__ import annotations

from collections.abc import Iterable

import confluent_kafka as kafka

from headgate.control_protocol.identifiers import TopicPartition
from headgate.kafka.push_source import Record


class ConsumerSteering:
    """Implements ``Steering`` for a ``confluent_kafka.Consumer``, which its owner closes."""

    def __init__(self, consumer: kafka.Consumer) -> None:
        self._consumer = consumer

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._consumer.seek(kafka.TopicPartition(partition.topic, partition.partition, offset))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._consumer.pause(_as_kafka_partitions(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._consumer.resume(_as_kafka_partitions(partitions))


def records_of(messages: Iterable[kafka.Message]) -> list[Record]:
    """Convert messages to records for ``put``; raises ``KafkaException`` for an error in one."""
    records = []
    for message in messages:
        if message.error():
            raise kafka.KafkaException(message.error())
        kind, stamp_ms = message.timestamp()
        known = kind != kafka.TIMESTAMP_NOT_AVAILABLE
        records.append(
            Record(
                topic=message.topic() or "",
                partition=message.partition() or 0,
                offset=message.offset() or 0,
                timestamp_ms=stamp_ms if known else -1,
                value=message.value(),
                key=message.key(),
                headers=message.headers(),
            )
        )
    return records


def partitions_of(assigned: Iterable[kafka.TopicPartition]) -> list[TopicPartition]:
    """Convert what a rebalance callback names to what ``open`` and ``close`` take."""
    return [TopicPartition(p.topic, p.partition) for p in assigned]


def _as_kafka_partitions(partitions: Iterable[TopicPartition]) -> list[kafka.TopicPartition]:
    return [kafka.TopicPartition(p.topic, p.partition) for p in partitions]
