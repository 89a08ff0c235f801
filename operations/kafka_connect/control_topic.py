"""Reads a connector's control topic and group at rest, and sets the offsets of its group."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import confluent_kafka as kafka

from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import ConnectorAwake, Unreachable
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.kafka.client_settings import without_consumer_settings
from headgate.kafka.clients import new_consumer
from headgate.kafka.cluster_queries import ANSWER_S_MAX, Cluster, with_log_silenced
from headgate.kafka.group_offsets import commit_offset_with_metadata
from headgate.operations.kafka_connect.transaction_events import ControlRecord

TRANSACTION_S_MAX = 60.0
"""How long a worker's transaction may stay open: Kafka's default, and the connector's."""

_AGAIN_S = 0.5
_BATCH = 1_000
_SILENCE_S_MAX = 30.0


@dataclass(frozen=True, slots=True)
class ControlTopic:
    """A control topic, whole; ``ends`` are where it ended when it was read."""

    records: tuple[ControlRecord, ...]
    begins: Mapping[int, int]
    ends: Mapping[int, int]

    @property
    def oldest_ms_by_partition(self) -> dict[int, int]:
        return {record.partition: record.time_ms for record in reversed(self.records)}


def require_empty_group(settings: Mapping[str, str], group: str) -> None:
    """Raise ``ConnectorAwake`` while a task of the connector is in its group (TAKEOVER-2)."""
    if members := Cluster(settings).describe_group(group).members:
        raise ConnectorAwake(
            f"group {group} has {count_of(len(members), 'member')}: {', '.join(members)}",
            "stop the connector (PUT /connectors/NAME/stop), and wait until its tasks are gone; a "
            "killed one is a member until its session ends",
        )


def write_group_offsets(
    settings: Mapping[str, str], group: str, offsets: Mapping[TopicPartition, int]
) -> None:
    """Set where a group without members is. Raises ``Unreachable``."""
    try:
        for at, offset in sorted(offsets.items()):
            place = kafka.TopicPartition(at.topic, at.partition, offset)
            commit_offset_with_metadata(with_log_silenced(settings), group, place)
    except kafka.KafkaException as error:
        raise Unreachable(f"the offsets of group {group} cannot be set: {error}") from error


def read_last_stable_offsets(settings: Mapping[str, str], topic: str, group: str) -> dict[int, int]:
    """Return where the control topic ends for whoever reads only what is committed.

    Raises ``Unreachable``.
    """
    consumer = _new_consumer(settings, group, "read_committed")
    try:
        return {p: log.end for p, log in _read_watermarks(consumer, topic).items()}
    except kafka.KafkaException as error:
        raise Unreachable(
            f"control topic {topic} cannot be read: {error}",
            "run the same command again: it finds out what landed",
        ) from error
    finally:
        consumer.close()


def read_control_topic(
    settings: Mapping[str, str], topic: str, group: str, wait_s: float = TRANSACTION_S_MAX
) -> ControlTopic:
    """Read the topic from its beginning to its end.

    Raises ``ConnectorAwake`` if a transaction is still open after ``wait_s``: it may announce files
    (TAKEOVER-2).
    """
    stable = _new_consumer(settings, group, "read_committed")
    dirty = _new_consumer(settings, group, "read_uncommitted")
    try:
        logs = _wait_until_no_open_transaction(stable, dirty, topic, wait_s)
        begins = {p: log.begin for p, log in logs.items()}
        ends = {p: log.end for p, log in logs.items()}
        return ControlTopic(_read_range(stable, topic, begins, ends), begins, ends)
    except kafka.KafkaException as error:
        raise Unreachable(f"control topic {topic} cannot be read: {error}") from error
    finally:
        stable.close()
        dirty.close()


def _new_consumer(settings: Mapping[str, str], group: str, isolation: str) -> kafka.Consumer:
    """Return a client; it must name a group, which is neither joined nor committed to."""
    return new_consumer(
        {
            **without_consumer_settings(with_log_silenced(settings)),
            "group.id": f"{group}-headgate-takeover",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )


def _read_watermarks(consumer: kafka.Consumer, topic: str) -> dict[int, OffsetRange]:
    """Return each partition's log, as far as the consumer's isolation sees it."""
    described = consumer.list_topics(topic, ANSWER_S_MAX).topics[topic]
    if described.error:
        raise Unreachable(
            f"control topic {topic} is not there: {described.error.str()}",
            "iceberg.control.topic in the connector's file names it, else it is control-iceberg",
        )
    places = [kafka.TopicPartition(topic, number) for number in sorted(described.partitions)]
    logs = {}
    for place in places:
        begin, end = consumer.get_watermark_offsets(place, timeout=ANSWER_S_MAX)
        logs[place.partition] = OffsetRange(begin, max(begin, end))  # two questions to the broker
    return logs


def _wait_until_no_open_transaction(
    stable: kafka.Consumer, dirty: kafka.Consumer, topic: str, wait_s: float
) -> dict[int, OffsetRange]:
    """Wait until no transaction is open, and return each partition's log."""
    until = time.monotonic() + wait_s
    while True:
        known = _read_watermarks(stable, topic)
        written = _read_watermarks(dirty, topic)
        hung = [p for p, log in known.items() if log.end < written[p].end]
        if not hung:
            return known
        if time.monotonic() > until:
            raise ConnectorAwake(
                f"a transaction is open on partitions {hung} of {topic}: a worker may still "
                "announce files",
                "stop the connector, and wait until its transactions end (a minute by default)",
            )
        time.sleep(_AGAIN_S)


def _read_range(
    consumer: kafka.Consumer, topic: str, begins: Mapping[int, int], ends: Mapping[int, int]
) -> tuple[ControlRecord, ...]:
    places = [kafka.TopicPartition(topic, p, begins[p]) for p in ends if begins[p] < ends[p]]
    consumer.assign(places)
    left, found = {place.partition for place in places}, list[ControlRecord]()
    patience = time.monotonic() + _SILENCE_S_MAX
    while left:
        messages = consumer.consume(_BATCH, 1.0)
        # Others may go on writing to partitions that are read to their ends.
        if any(message.partition() in left for message in messages):
            patience = time.monotonic() + _SILENCE_S_MAX
        elif time.monotonic() > patience:
            raise Unreachable(f"control topic {topic} gives no more records", "try again")
        for message in messages:
            if error := message.error():
                if error.code() != kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001 - its own way
                    raise kafka.KafkaException(error)
                left.discard(message.partition())
            elif (message.offset() or 0) < ends[message.partition() or 0]:
                found.append(_to_control_record(message))
            else:
                left.discard(message.partition())
    return tuple(sorted(found, key=lambda each: (each.partition, each.offset)))


def _to_control_record(message: kafka.Message) -> ControlRecord:
    _, time_ms = message.timestamp()
    key = message.key()
    value = message.value()
    return ControlRecord(
        message.partition() or 0,
        message.offset() or 0,
        int(time_ms),
        key.encode() if isinstance(key, str) else key,
        value.encode() if isinstance(value, str) else value,
    )
