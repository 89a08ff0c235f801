"""A broker that stays away takes its partitions with it, and no others."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headgate.control_protocol.errors import Unreachable
from headgate.control_protocol.identifiers import TopicPartition
from headgate.kafka.consumer_group import KafkaGroupMember
from headgate.kafka.source_topics import KafkaSourceTopics
from headgate.operations.local_kafka import broker
from headgate.operations.local_kafka.broker import (
    EmbeddedKafka,
    ensure_broker_jars,
    node_properties,
)

pytestmark = [pytest.mark.integration, pytest.mark.wide]

PATIENCE_S = 60.0
HERE, AWAY = TopicPartition("rows", 0), TopicPartition("rows", 1)


class SecondNode(EmbeddedKafka):
    """A broker that joins the cluster whose node lives under ``first``."""

    def __init__(self, home: Path, first: Path) -> None:
        super().__init__(home, ensure_broker_jars())
        self._first = _properties(first / "server.properties")

    def _write_configuration(self, log_dir: Path) -> Path:
        properties = node_properties(self.bootstrap, controller_port=1) | {
            "process.roles": "broker",
            "node.id": 2,
            "controller.quorum.voters": self._first["controller.quorum.voters"],
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": log_dir,
        }
        config = self._home / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return config


def _properties(file: Path) -> dict[str, str]:
    lines = [line.partition("=") for line in file.read_text().splitlines() if line[:1] != "#"]
    return {key: value for key, _, value in lines}


def test_both_roles_go_on_with_the_partitions_that_have_a_leader(
    own_kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = _properties(tmp_path / "kafka" / "data" / "meta.properties")["cluster.id"]
    monkeypatch.setattr(broker, "_random_cluster_id", lambda: cluster)
    kafka = {"bootstrap.servers": own_kafka.bootstrap}
    topics = KafkaSourceTopics(kafka, ["rows"], "group")
    member = KafkaGroupMember(kafka, ["rows"], "group", on_revoke=lambda _: None)
    try:
        with SecondNode(tmp_path / "second", tmp_path / "kafka") as second:
            admin = AdminClient(kafka)
            (made,) = admin.create_topics(
                [NewTopic("rows", 2, replica_assignment=[[1], [2]])]
            ).values()
            made.result(30)
            _until(lambda: member.end_offsets([HERE, AWAY]) == {HERE: 0, AWAY: 0})
            _until(lambda: set(topics.describe()["rows"].partitions) == {0, 1})
            second.kill()
            _until(lambda: member.end_offsets([HERE, AWAY]) == {HERE: 0})
            _until(lambda: topics.describe()["rows"].silent == {1})
        assert set(topics.describe()["rows"].partitions) == {0}
    finally:
        member.close()
        topics.close()


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not _answered(done):
        assert time.monotonic() < deadline, "the cluster does not come to this"
        time.sleep(0.2)


def _answered(done: Callable[[], bool]) -> bool:
    try:
        return done()
    except Unreachable:
        return False
