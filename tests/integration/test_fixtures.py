"""The fixtures that other tests stand on: a broker is found without being named."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from docker_broker import docker_broker

pytestmark = pytest.mark.integration


def test_topics_are_made_with_their_settings(
    admin: AdminClient, topic_factory: Callable[..., str]
) -> None:
    one, two = topic_factory(), topic_factory(3, {"cleanup.policy": "compact"})
    described = admin.list_topics(timeout=30).topics
    assert [len(described[name].partitions) for name in (one, two)] == [1, 3]
    resource = ConfigResource(ConfigResource.Type.TOPIC, two)
    settings = admin.describe_configs([resource])[resource].result()
    assert settings["cleanup.policy"].value == "compact"


def test_no_docker_engine_is_noticed_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with ExitStack() as stack:
        assert docker_broker(stack) is None
