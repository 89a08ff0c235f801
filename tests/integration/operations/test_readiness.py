"""A participant's probe and ``headgate status`` say the same of a sink that cannot work."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from integration.conftest import Deploy
from integration.deployment import Deployment
from integration.operations.test_served_sinks import asked, series
from integration.operations.test_status import asked as status
from support.topics import delete_topics

from headgate.operations.demo.producer import ensure_topic
from headgate.operations.local_kafka.broker import EmbeddedKafka
from headgate.runtime.health import Condition
from headgate.runtime.telemetry import metric_catalog as names

pytestmark = pytest.mark.integration

FACE: dict[str, Any] = {"http": {"listen": "127.0.0.1:0"}, "telemetry": {"interval_ms": 1_000}}


def said_by_all(sink: Deployment, condition: Condition) -> bool:
    """Whether every participant is unready for this reason, says so in its metrics, and is live."""
    return all(
        asked(each, "/readyz")[0] == 503
        and asked(each, "/readyz")[1].startswith(condition.value)
        and series(each).get((names.STATE, condition.value)) == 1
        and asked(each, "/livez")[0] == 200
        for each in sink.participants
    )


def all_ready(sink: Deployment) -> bool:
    return all(asked(each, "/readyz") == (200, "ok\n") for each in sink.participants)


@pytest.mark.wide
def test_a_broker_that_is_silent_makes_every_participant_unready(
    own_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    ensure_topic(own_kafka.bootstrap, "rows", partitions=2)
    with Deployment(tmp_path, own_kafka.bootstrap, ["rows"], group="rows", change=FACE) as sink:
        sink.start(2)
        sink.produce()
        sink.wait_until_lag_zero()
        sink.wait_until(lambda: all_ready(sink), "all are ready")
        assert own_kafka.pid
        os.kill(own_kafka.pid, signal.SIGSTOP)
        try:
            sink.wait_until(lambda: said_by_all(sink, Condition.UNKNOWN), "nobody knows")
            assert status(sink.sink_file)[:2] == (Condition.UNKNOWN.value, 3)
        finally:
            os.kill(own_kafka.pid, signal.SIGCONT)
        sink.wait_until(lambda: all_ready(sink), "all are ready again")
        assert status(sink.sink_file)[1] == 0
        sink.judge()


def test_a_source_topic_that_is_deleted_makes_a_participant_unready(
    deploy: Deploy, admin: AdminClient
) -> None:
    sink = deploy(change=FACE)
    sink.start()
    sink.produce()
    sink.wait_until_lag_zero()
    sink.wait_until(lambda: all_ready(sink), "all are ready")
    (topic,) = sink.topics
    delete_topics(admin, topic)
    sink.wait_until(lambda: said_by_all(sink, Condition.FAILING), "all say that it is gone")
    (participant,) = sink.participants

    def both_say_the_same() -> bool:
        condition, exit_code, error = status(sink.sink_file)
        assert (condition, exit_code) == (Condition.FAILING.value, 1)
        assert error is not None
        return asked(participant, "/readyz")[1] == f"failing: {error['code']} {error['text']}\n"

    sink.wait_until(both_say_the_same, "probe and command say the same")
    sink.kill(participant)
    ensure_topic(sink.bootstrap, topic, partitions=2)  # its maker deletes it
