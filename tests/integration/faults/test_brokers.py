"""The broker is restarted, and killed, under a whole sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from integration.deployment import Deployment

from headgate.operations.demo.producer import ensure_topic
from headgate.operations.local_kafka.broker import EmbeddedKafka

pytestmark = pytest.mark.integration


def test_f40_the_broker_is_killed_under_a_sink_and_comes_back(
    own_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    with sink_on(own_kafka, tmp_path) as sink:
        over(own_kafka, own_kafka.kill, sink)
        sink.stop()
        sink.judge()


@pytest.mark.soak
def test_f40_the_broker_is_restarted_and_killed_and_then_the_control_topic_goes(
    own_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """After restarts a new topic's leader epochs are lower than those that clients remember."""
    with sink_on(own_kafka, tmp_path) as sink:
        for outage in (own_kafka.stop, own_kafka.kill):
            over(own_kafka, outage, sink)
        admin = AdminClient({"bootstrap.servers": own_kafka.bootstrap})
        control = sink.settings.control.topic
        admin.delete_topics([control])[control].result()
        sink.produce()
        sink.wait_until_lag_zero()
        sink.stop()
        sink.judge()


@contextmanager
def sink_on(kafka: EmbeddedKafka, home: Path) -> Iterator[Deployment]:
    """Two participants of a sink on a broker of their own."""
    ensure_topic(kafka.bootstrap, "rows", partitions=2)
    with Deployment(home, kafka.bootstrap, ["rows"], group="rows") as sink:
        sink.start(2)
        yield sink


def over(kafka: EmbeddedKafka, outage: Callable[[], None], sink: Deployment) -> None:
    """Take the broker away while records wait, and bring it back."""
    sink.produce()
    sink.wait_for_commits()
    sink.produce()
    outage()
    kafka.start()
    sink.wait_until_lag_zero()
