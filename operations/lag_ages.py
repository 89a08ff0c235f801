"""Measures the age of the records that the table still lacks."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.control_protocol.errors import RetryLater
from headgate.control_protocol.identifiers import TopicPartition
from headgate.kafka.first_records import first_timestamps
from headgate.sink.settings import SinkSettings
from headgate.sink.telemetry.instruments import LAG_SECONDS
from headgate.sink.telemetry.progress import lag_gauges


def lag_ages(
    settings: SinkSettings,
    lags: Mapping[TopicPartition, int],
    stored: Mapping[TopicPartition, int],
    now_ms: int,
) -> Mapping[str, float]:
    """Return the age of the oldest unstored record by topic, in seconds; without one, 0.

    Empty if the brokers do not answer.
    """
    behind = sorted((at for at, lag in lags.items() if lag), key=lambda at: -lags[at])
    try:
        group_id = settings.source.group_id
        first = first_timestamps(settings.kafka, group_id, {at: stored[at] for at in behind})
    except RetryLater:
        return {}
    gauges = lag_gauges(lags, first, now_ms)
    return {g.labels["topic"]: g.value for g in gauges if g.name == LAG_SECONDS}
