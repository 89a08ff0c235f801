"""Reads timestamps of single records, to tell the age of the first one not yet in the table.

This is the adapter for Kafka. It reads one record per partition, from a limited number of
partitions per look, in limited time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing

import confluent_kafka as kafka

from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.identifiers import TopicPartition
from headgate.kafka.clients import new_consumer

PARTITIONS_MAX = 64
LOOK_S_MAX = 3.0
_BYTES_MAX = 64 * 1024
"""For a partition's answer; a broker sends the first batch of records whole all the same."""


def try_read_first_timestamps(
    kafka_config: Mapping[str, str], group_id: str, begin_offsets: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, int]:
    """Return timestamps (epoch ms) of the first readable records at or after these offsets.

    Leaves out partitions that did not answer in time or hold no record there, and those beyond
    ``PARTITIONS_MAX``. Joins no group, commits nothing. Raises ``Unreachable``.
    """
    asked = dict(list(begin_offsets.items())[:PARTITIONS_MAX])
    if not asked:
        return {}
    try:
        with closing(new_consumer(_consumer_config(kafka_config, group_id))) as consumer:
            consumer.assign(
                [kafka.TopicPartition(at.topic, at.partition, asked[at]) for at in asked]
            )
            return _read_timestamps(consumer, asked)
    except kafka.KafkaException as error:
        raise Unreachable(f"the source gave no record: {error.args[0].str()}") from error


def _read_timestamps(
    consumer: kafka.Consumer, asked: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    answered: set[TopicPartition] = set()
    until_s = time.monotonic() + LOOK_S_MAX
    while len(answered) < len(asked) and time.monotonic() < until_s:
        message = consumer.poll(0.1)
        if message is None:
            continue
        at = TopicPartition(message.topic() or "", message.partition() or 0)
        if message.error() is None and at not in answered:
            kind, timestamp_ms = message.timestamp()
            if kind != kafka.TIMESTAMP_NOT_AVAILABLE:
                found[at] = timestamp_ms
        elif message.error() is not None and not at.topic:
            continue  # about the connection, not about a partition
        if at not in answered:
            answered.add(at)
            consumer.pause([kafka.TopicPartition(at.topic, at.partition)])
    return found


def _consumer_config(kafka_config: Mapping[str, str], group_id: str) -> dict[str, str | bool | int]:
    return {
        **kafka_config,
        "log_level": 2,
        "group.id": group_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 50,
        "max.partition.fetch.bytes": _BYTES_MAX,
        "fetch.max.bytes": max(_BYTES_MAX, int(kafka_config.get("message.max.bytes", 1_000_000))),
        "queued.min.messages": 1,
        "queued.max.messages.kbytes": 1_024,
    }
