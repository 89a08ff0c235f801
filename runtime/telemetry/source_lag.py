"""Watches the sources beside a coordinator: their logs, and the age of the first unstored record.

It has a thread and clients of its own: it blocks nobody, and nobody blocks it. It reads a record
once: while the partition does not move, its timestamp is known.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.current_sink import bound_to_current_sink
from headgate.control_protocol.identifiers import TopicPartition
from headgate.control_protocol.offsets import OffsetRange
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.kafka.first_record_timestamps import try_read_first_timestamps
from headgate.kafka.source_topics import KafkaSourceTopics
from headgate.runtime.telemetry.sink_metrics import CoordinatorMeters

_log = redacted_logger("headgate.telemetry")

_JOIN_S = 1.0
"""Kept short: whoever gives up leadership must not wait for a look."""


class LagLookout:
    """Runs from its creation until ``close``."""

    def __init__(self, settings: SinkSettings, meters: CoordinatorMeters) -> None:
        self._settings = settings
        self._meters = meters
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=bound_to_current_sink(self._run), name="headgate-lag", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        topics: KafkaSourceTopics | None = None
        with ExitStack() as opening:
            while not self._ended.wait(self._settings.telemetry.interval_ms / 1000):
                try:
                    topics = topics or opening.enter_context(closing(self._open_topics()))
                    measure_lag_once(
                        self._meters,
                        partial(read_source_offset_ranges, topics),
                        self._read_first_timestamps,
                    )
                except Exception as error:  # noqa: BLE001 - lag would stand still in the metrics
                    _log.debug("lag could not be measured: %s", error)

    def _open_topics(self) -> KafkaSourceTopics:
        source = self._settings.source
        return KafkaSourceTopics(self._settings.kafka, source.topics, source.group_id)

    def _read_first_timestamps(
        self, next_offsets: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        return try_read_first_timestamps(
            self._settings.kafka, self._settings.source.group_id, next_offsets
        )


def measure_lag_once(
    meters: CoordinatorMeters,
    read_offset_ranges: Callable[[], Mapping[TopicPartition, OffsetRange]],
    try_read_first_timestamps: Callable[
        [Mapping[TopicPartition, int]], Mapping[TopicPartition, int]
    ],
) -> None:
    """Look once. Answers for a partition that moved meanwhile do not count."""
    meters.on_source_logs(read_offset_ranges(), {})
    before = meters.progress
    places = {
        at: offset
        for at, lag in sorted(before.lags.items(), key=lambda found: -found[1])
        if lag
        and at not in before.first_unstored_ms
        and (offset := before.next_offset_of(at)) is not None
    }
    found = try_read_first_timestamps(places) if places else {}
    now = meters.progress
    meters.on_source_logs(
        {}, {at: ms for at, ms in found.items() if now.next_offset_of(at) == places[at]}
    )


def read_source_offset_ranges(topics: KafkaSourceTopics) -> Mapping[TopicPartition, OffsetRange]:
    """Return what is readable of each log. Raises ``Unreachable``, ``ConfigurationError``."""
    return {
        TopicPartition(name, number): log
        for name, topic in topics.describe().items()
        for number, log in topic.partitions.items()
    }
