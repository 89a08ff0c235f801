"""What workers told of lags is read from a real state topic, whatever slot it stands under."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fleet_scene import Fleet

from headgate.control_protocol.errors import Unreachable
from headgate.kafka.compacted_topics import CompactedProducer, KeyedValue
from headgate.runtime.fleet.fleet_records import ObservedSink, encode_observed, state_topic_key_of
from headgate.runtime.fleet.fleet_topics import ensure_fleet_topics, read_reported_lags
from headgate.runtime.fleet.sink_life import LifeState

pytestmark = pytest.mark.integration


def test_the_newest_word_on_a_sinks_lag_counts(
    tmp_path: Path, bootstrap: str, unique_name: str
) -> None:
    with Fleet(tmp_path, bootstrap, f"{unique_name}-fleet") as fleet:
        with pytest.raises(Unreachable):
            read_reported_lags(fleet.settings, 0.5)
        ensure_fleet_topics(fleet.settings)
        assert read_reported_lags(fleet.settings, 30) == {}
        producer = CompactedProducer(fleet.settings.kafka)
        said = (("a", 1, 9), ("a", 2, 5), ("b", 1, 7), ("a#2", 3, 1), ("c", 4, None))
        for key, slot, lag in said:
            told = ObservedSink(
                key=key,
                slot=slot,
                worker="w0",
                incarnation="1",
                state=LifeState.RUNNING,
                lag_records=lag,
            )
            topic = fleet.settings.fleet.state_topic
            producer.try_enqueue(
                KeyedValue(topic, 0, state_topic_key_of(told), encode_observed(told))
            )
        producer.flush(30)
        assert read_reported_lags(fleet.settings, 30) == {"a": 5, "b": 7, "a#2": 1}
