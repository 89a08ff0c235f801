"""Reads and writes a consumer group's stored offsets without joining it.

It uses a consumer. librdkafka's admin request for the same crashes the whole process if a broker is
still loading the group, as after its start: a segmentation fault in every second try with
confluent-kafka 2.15.1, 2.16.0 and 2.16.1 (confluent-kafka-python issue 1982).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import confluent_kafka as kafka

from headgate.control_protocol.errors import HeadgateError, Unreachable
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.kafka.client_settings import settings_error, with_quiet_log, without_consumer_settings
from headgate.kafka.clients import new_consumer

_log = redacted_logger(__name__)


def read_offsets_with_metadata(
    kafka_config: Mapping[str, Any],
    group_id: str,
    partitions: Iterable[tuple[str, int]],
    timeout_s: float,
) -> Sequence[kafka.TopicPartition]:
    """Return one entry per partition, with its offset (negative: none is stored) and metadata.

    Raises ``kafka.KafkaException`` if the cluster refuses or does not answer in time.
    """
    asked = [kafka.TopicPartition(topic, number) for topic, number in partitions]
    if not asked:
        return []
    with _open_consumer(kafka_config, group_id) as consumer:
        found: Sequence[kafka.TopicPartition] = consumer.committed(asked, timeout=timeout_s)
    _raise_first_error([place for place in found if place.error])
    return found


def read_group_offsets(
    kafka_config: Mapping[str, Any],
    group_id: str,
    partitions: Iterable[TopicPartition],
    timeout_s: float,
) -> dict[TopicPartition, int]:
    """Return where the group is, in the partitions where it has an offset.

    Raises ``Unreachable``.
    """
    asked = [(at.topic, at.partition) for at in partitions]
    try:
        found = read_offsets_with_metadata(kafka_config, group_id, asked, timeout_s)
    except kafka.KafkaException as error:
        raise Unreachable(f"the offsets of group {group_id} cannot be read: {error}") from error
    return {TopicPartition(p.topic, p.partition): p.offset for p in found if p.offset >= 0}


def commit_offset_with_metadata(
    kafka_config: Mapping[str, Any], group_id: str, offset_with_metadata: kafka.TopicPartition
) -> None:
    """Store one offset with its metadata; raises ``kafka.KafkaException`` if that failed."""
    with _open_consumer(kafka_config, group_id) as consumer:
        stored = consumer.commit(offsets=[offset_with_metadata], asynchronous=False)
    _raise_first_error([answer for answer in stored or () if answer.error])


def _raise_first_error(failed: Sequence[kafka.TopicPartition]) -> None:
    for place in failed:
        raise kafka.KafkaException(place.error)


@contextmanager
def _open_consumer(kafka_config: Mapping[str, Any], group_id: str) -> Iterator[kafka.Consumer]:
    own = {"group.id": group_id, "enable.auto.commit": False}
    try:
        consumer = new_consumer({**without_consumer_settings(with_quiet_log(kafka_config)), **own})
    except (kafka.KafkaException, ValueError, TypeError) as error:
        raise settings_error(error, kafka_config) from error
    try:
        yield consumer
    finally:
        consumer.close()


class OffsetCopies:
    """Copies offsets to a group that nobody has joined, for lag tools; best effort."""

    def __init__(self, kafka_config: Mapping[str, Any], group_id: str) -> None:
        self._config = kafka_config
        self._group_id = group_id
        self._consumer: kafka.Consumer | None = None

    def copy_offsets_to_group(self, offsets: Offsets, metadata: str) -> None:
        """Commit in the background; a refusal changes nothing, since the table holds the truth."""
        copies = [
            kafka.TopicPartition(at.topic, at.partition, offset, metadata)
            for at, offset in offsets.items()
        ]
        if not copies:
            return
        try:
            if self._consumer is None:
                own = {"group.id": self._group_id, "enable.auto.commit": False}
                config = {**without_consumer_settings(with_quiet_log(self._config)), **own}
                self._consumer = new_consumer(config)
            self._consumer.commit(offsets=copies, asynchronous=True)
        except (kafka.KafkaException, RuntimeError, HeadgateError) as error:
            _log.warning("the group's offsets (for lag tools only) were not copied: %s", error)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
