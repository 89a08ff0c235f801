"""The broker is restarted, and killed, under a whole sink."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from integration.deployment import Deployment

from headgate.operations.demo.producer import create_topic
from headgate.operations.local_kafka.broker import EmbeddedKafka

pytestmark = pytest.mark.integration


@pytest.mark.wide
def test_f40_the_broker_is_restarted_and_killed_and_then_the_control_topic_goes(
    own_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """After restarts a new topic's leader epochs are lower than those that clients remember."""
    create_topic(own_kafka.bootstrap, "rows", partitions=2)
    with Deployment(tmp_path, own_kafka.bootstrap, ["rows"], group="rows") as sink:
        sink.start(2)
        for outage in (own_kafka.stop, own_kafka.kill):
            sink.produce()
            sink.wait_for_commits()
            sink.produce()
            outage()
            own_kafka.start()
            sink.wait_until_lag_zero()
        admin = AdminClient({"bootstrap.servers": own_kafka.bootstrap})
        control = sink.settings.control.topic
        admin.delete_topics([control])[control].result()
        sink.produce()
        sink.wait_until_lag_zero()
        sink.stop()
        sink.judge()
