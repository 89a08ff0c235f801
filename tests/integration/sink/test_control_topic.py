"""The control topic holds no state: losing it repeats some reads, and loses no row."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient
from integration.conftest import Deploy
from integration.deployment import Deployment

pytestmark = pytest.mark.integration


def delete_control_topic(sink: Deployment, admin: AdminClient) -> None:
    topic = sink.settings.control.topic
    admin.delete_topics([topic])[topic].result()


@pytest.mark.wide
def test_f40_the_control_topic_is_deleted_between_two_runs(
    deploy: Deploy, admin: AdminClient
) -> None:
    sink = deploy()
    with sink.load():
        for _ in range(2):
            sink.start(2)
            sink.wait_for_commits(2)
            sink.stop()
            delete_control_topic(sink, admin)
    sink.start(2)
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()


def test_f40_the_control_topic_is_deleted_while_the_sink_runs(
    deploy: Deploy, admin: AdminClient
) -> None:
    sink = deploy()
    sink.start(2)
    with sink.load():
        sink.wait_for_commits(2)
        delete_control_topic(sink, admin)
        sink.wait_for_commits(3)
    sink.wait_until_lag_zero()
    sink.stop()
    sink.judge()
