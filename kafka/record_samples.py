"""Reads a few of a topic's newest records, for people who look before they decide."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import confluent_kafka as kafka
from confluent_kafka import Message

from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    MissingRights,
    Unreachable,
)
from headgate.kafka.clients import new_consumer
from headgate.kafka.cluster_queries import ANSWER_S_MAX, with_log_silenced
from headgate.kafka.error_codes import NO_RIGHTS, NO_TOPIC

GROUP = "headgate-sample"
"""A consumer must name a group; this one is neither joined nor committed to."""

SILENCE_S_MAX = 10.0
_PARTITION_EOF = kafka.KafkaError._PARTITION_EOF  # noqa: SLF001 - librdkafka's public name for it


KeyAndValue = tuple[bytes | None, bytes | None]


HeadersByName = Mapping[str, bytes | None]
Reading = Callable[[KeyAndValue, HeadersByName], KeyAndValue]
"""Returns a record's key and value as formats read them."""


def _keep_as_is(record: KeyAndValue, _: HeadersByName) -> KeyAndValue:
    return record


def read_newest_records(
    kafka_config: Mapping[str, str],
    topic: str,
    records_max: int,
    convert: Reading = _keep_as_is,
) -> list[KeyAndValue]:
    """Return up to ``records_max`` keys and values, equally many from each partition's end.

    Raises ``ConfigurationError`` if there is no such topic, ``MissingRights`` if it may not be
    read, and ``Unreachable`` if the brokers do not answer, or not within ten seconds.
    """
    try:
        consumer = new_consumer(
            {
                **with_log_silenced(kafka_config),
                "group.id": GROUP,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            }
        )
    except (kafka.KafkaException, ValueError) as error:
        raise ConfigurationError(
            f"Kafka's client does not accept its settings: {error}", "correct --kafka"
        ) from error
    try:
        return [
            convert((message.key(), message.value()), dict(message.headers() or ()))
            for message in _read_newest_messages(consumer, topic, records_max)
        ]
    except kafka.KafkaException as error:
        raise _reading_error(topic, error.args[0]) from error
    finally:
        consumer.close()


def _reading_error(topic: str, cause: kafka.KafkaError) -> HeadgateError:
    code, told = cause.code(), f"topic {topic} cannot be read: {cause.str()}"
    if code in NO_RIGHTS:
        refused = kafka.KafkaError.GROUP_AUTHORIZATION_FAILED
        what = f"describe group {GROUP}" if code == refused else "describe and read it"
        return MissingRights(told, f"allow the principal to {what}")
    if code in NO_TOPIC or code == kafka.KafkaError.TOPIC_EXCEPTION:
        return ConfigurationError(told, "correct its name")
    return Unreachable(told)


def _read_newest_messages(consumer: kafka.Consumer, topic: str, records_max: int) -> list[Message]:
    described = consumer.list_topics(topic, timeout=ANSWER_S_MAX).topics[topic]
    if described.error is not None:
        raise kafka.KafkaException(described.error)
    each = max(1, records_max // len(described.partitions))
    begins = []
    for number in described.partitions:
        at = kafka.TopicPartition(topic, number)
        low, high = consumer.get_watermark_offsets(at, timeout=ANSWER_S_MAX)
        begins.append(kafka.TopicPartition(topic, number, max(low, high - each)))
    consumer.assign(begins)
    found: list[Message] = []
    ended: set[int | None] = set()
    patience = time.monotonic() + SILENCE_S_MAX
    while len(ended) < len(begins) and len(found) < records_max:
        for message in consumer.consume(1_000, timeout=0.5):
            patience = time.monotonic() + SILENCE_S_MAX
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == _PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise kafka.KafkaException(error)
        if time.monotonic() > patience:
            raise Unreachable(f"the brokers sent nothing of {topic} for {SILENCE_S_MAX:.0f} s")
    return found[:records_max]
