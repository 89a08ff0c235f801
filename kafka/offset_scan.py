"""Reads which offsets of the source hold records: the audit's other witness."""

from __future__ import annotations

import array
import time
from collections.abc import Callable, Mapping

import confluent_kafka as kafka
from pyroaring import BitMap64

from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.kafka.clients import new_consumer
from headgate.kafka.cluster_queries import with_log_silenced

BATCH_MESSAGES = 10_000
POLL_S = 0.5
SILENCE_S_MAX = 30.0

_PARTITION_EOF = kafka.KafkaError._PARTITION_EOF  # noqa: SLF001 - librdkafka's public name for it


def read_record_offsets(
    settings: Mapping[str, str],
    group_id: str,
    ranges: Mapping[TopicPartition, OffsetRange],
    on_progress: Callable[[int], None],
) -> Mapping[TopicPartition, BitMap64]:
    """Return, per partition, the offsets that hold a record for a ``read_committed`` reader.

    Joins no group and commits nothing. Raises ``Unreachable`` if the brokers fall silent.
    """
    found = {at: BitMap64() for at in ranges}
    wanted = {at: span for at, span in ranges.items() if not span.is_empty}
    if not wanted:
        return found
    consumer = new_consumer(_consumer_config(settings, group_id))
    try:
        consumer.assign(
            [
                kafka.TopicPartition(at.topic, at.partition, span.begin)
                for at, span in wanted.items()
            ]
        )
        _Scan(consumer, wanted, found).read_to_end(on_progress)
    finally:
        consumer.close()
    return found


def _consumer_config(settings: Mapping[str, str], group_id: str) -> dict[str, str | bool | int]:
    return {
        **with_log_silenced(settings),
        "group.id": group_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "fetch.queue.backoff.ms": 5,
        "queued.max.messages.kbytes": 16_384,
    }


class _Scan:
    """Reads every partition until its end is passed, or until its log reports its end."""

    def __init__(
        self,
        consumer: kafka.Consumer,
        wanted: Mapping[TopicPartition, OffsetRange],
        found: Mapping[TopicPartition, BitMap64],
    ) -> None:
        self._consumer = consumer
        self._open = {(at.topic, at.partition): span.end for at, span in wanted.items()}
        self._found = {(at.topic, at.partition): found[at] for at in wanted}
        self._records = 0

    def read_to_end(self, on_progress: Callable[[int], None]) -> None:
        silent_since = time.monotonic()
        while self._open:
            messages = self._consumer.consume(BATCH_MESSAGES, POLL_S)
            if messages:
                silent_since = time.monotonic()
                self._collect_offsets(messages)
                on_progress(self._records)
            elif time.monotonic() - silent_since > SILENCE_S_MAX:
                raise Unreachable(
                    f"the brokers sent nothing for {SILENCE_S_MAX:.0f} s while reading the source",
                    "try again, or audit with --no-source",
                )

    def _collect_offsets(self, messages: list[kafka.Message]) -> None:
        taken: dict[tuple[str, int], array.array[int]] = {}
        for message in messages:
            at = (message.topic() or "", message.partition() or 0)
            if message.error():
                self._on_event(at, message)
                continue
            offset = message.offset() or 0
            if at in self._open and offset < self._open[at]:
                taken.setdefault(at, array.array("Q")).append(offset)
            else:
                self._finish_partition(at)
        for at, offsets in taken.items():
            self._found[at].update(BitMap64(offsets))
            self._records += len(offsets)
            if offsets[-1] + 1 >= self._open.get(at, 0):
                self._finish_partition(at)

    def _on_event(self, at: tuple[str, int], message: kafka.Message) -> None:
        error = message.error()
        if error is not None and error.code() == _PARTITION_EOF:
            self._finish_partition(at)
        elif error is not None and not error.retriable():
            raise Unreachable(f"reading {at[0]}/{at[1]} failed: {error.str()}", "try again")

    def _finish_partition(self, at: tuple[str, int]) -> None:
        if self._open.pop(at, None) is not None:
            self._consumer.pause([kafka.TopicPartition(*at)])
