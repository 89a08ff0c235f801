"""The fixtures that other tests stand on: a broker is found without being named."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from support import spark_classes
from support.docker_broker import docker_broker

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


def test_sessions_share_an_archive_of_classes_once_there_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive = tmp_path / "classes.jsa"
    monkeypatch.setattr(spark_classes, "archive", lambda: archive)
    monkeypatch.setenv(spark_classes.SUBMITTED, "")
    monkeypatch.delenv(spark_classes.SUBMITTED)
    spark_classes.share()
    assert spark_classes.SUBMITTED not in os.environ, "a JVM would do without any archive at all"
    archive.touch()
    spark_classes.share()
    assert os.environ[spark_classes.SUBMITTED].endswith(str(archive))
