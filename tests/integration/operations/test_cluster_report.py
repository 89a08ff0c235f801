"""``headgate check --kafka`` on clusters that differ: what was tried, what follows."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from integration.deployment import Deployment
from integration.operations.test_rights import CLUSTER, NOBODY, GuardedKafka, Rules
from support.lesser_kafka import (
    ADD_PARTITIONS,
    DESCRIBE_CONFIGS,
    END_TRANSACTION,
    METADATA,
    LesserKafka,
)
from support.token_kit import SECRET, KafkaWithTokens, TokenServer
from unit.operations.filled_table import sink_file_text

from headgate.kafka.cluster_queries import Cluster
from headgate.operations.cli.main import main
from headgate.operations.demo.producer import ensure_topic, produce
from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars

pytestmark = pytest.mark.integration


def report(folder: Path, bootstrap: str, more: str = "") -> dict[str, tuple[str, str]]:
    file = folder / "sink.toml"
    text = sink_file_text(folder, "trips", bootstrap)
    servers = f'"bootstrap.servers" = "{bootstrap}"\n'
    assert servers in text
    file.write_text(text.replace(servers, servers + more, 1))
    result = CliRunner().invoke(main, ["check", str(file), "--kafka", "--json"])
    return {each["what"]: (each["state"], each["detail"]) for each in json.loads(result.output)}


def topics(bootstrap: str) -> list[str]:
    return sorted(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics)


def test_a_cluster_that_can_all_is_said_to_be_one(tmp_path: Path, bootstrap: str) -> None:
    before = topics(bootstrap)
    if "trips" not in before:
        ensure_topic(bootstrap, "trips", partitions=1)
        produce(bootstrap, "trips", [b"{}"], partitions=1)
    found = report(tmp_path, bootstrap)
    asked = (
        *("topic ids", "topic settings", "control events", "batch consumer", "transactions"),
        "rebalance: classic",
    )
    assert {found[what][0] for what in asked} == {"ok"}, found
    assert "with the brokers' time" in found["control events"][1]
    assert "only the first is read" in found["transactions"][1]
    assert found["rebalance: consumer"][0] == "ok"
    state, detail = found["verdict"]
    assert state == "ok"
    assert "may run here" in detail
    assert 'may be "classic" or "consumer"' in detail
    # Others create topics on this broker meanwhile, and such ones, too, for a while.
    of_checks = re.compile(r"-check-[0-9a-f]{8}$")
    left = {name for name in set(topics(bootstrap)) - {*before} if of_checks.search(name)}
    until_s = time.monotonic() + 60
    while left & set(topics(bootstrap)):
        assert time.monotonic() < until_s, left
        time.sleep(0.5)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    with GuardedKafka(tmp_path / "kafka", ensure_broker_jars()) as kafka:
        yield kafka.bootstrap


@pytest.mark.wide
def test_without_the_right_to_create_topics_what_could_not_be_tried_is_said(
    tmp_path: Path, guarded: str
) -> None:
    ensure_topic(guarded, "trips", partitions=1)
    # What the brokers themselves need; whatever is not named here nobody may do.
    needed = (AclOperation.CLUSTER_ACTION, AclOperation.DESCRIBE, AclOperation.IDEMPOTENT_WRITE)
    rules = Rules(guarded)
    denied = AclBinding(
        *(ResourceType.TOPIC, "control-check", ResourcePatternType.PREFIXED, NOBODY, "*"),
        *(AclOperation.CREATE, AclPermissionType.DENY),
    )
    (made,) = rules.admin.create_acls([denied]).values()
    made.result()
    rules.allow_only(ResourceType.BROKER, CLUSTER, *needed)
    cluster = Cluster({"bootstrap.servers": guarded})
    while cluster.may_create_control_topic(
        "control-check-x"
    ):  # until the broker knows its new rules
        pass
    found = report(tmp_path, guarded)
    assert found["trial topic"][0] == "unchecked"
    assert "refused" in found["trial topic"][1]
    assert found["verdict"][0] == "unchecked"
    assert "not known: batch consumer, control events, rebalance: classic" in found["verdict"][1]
    assert "create the control topic by hand" in found["verdict"][1]


class KafkaWithoutMuch(EmbeddedKafka):
    """Offers one protocol, and its own time on no record."""

    def _write_configuration(self, log_dir: Path) -> Path:
        config = super()._write_configuration(log_dir)
        with config.open("a") as file:
            file.write("group.coordinator.rebalance.protocols=classic\n")
        return config


@pytest.mark.wide
def test_a_cluster_that_can_less_is_said_to_need_settings(tmp_path: Path) -> None:
    with KafkaWithoutMuch(tmp_path / "kafka", ensure_broker_jars()) as kafka:
        ensure_topic(kafka.bootstrap, "trips", partitions=1)
        found = report(tmp_path, kafka.bootstrap)
    assert found["rebalance: classic"][0] == "ok"
    assert found["rebalance: consumer"][0] == "unchecked"
    assert found["verdict"][0] == "ok"
    assert 'leave source.group_protocol at "classic"' in found["verdict"][1]


def test_a_cluster_that_is_not_there_is_said_not_to_be(tmp_path: Path) -> None:
    found = report(tmp_path, "127.0.0.1:9")
    assert found["broker"][0] == "wrong"
    assert found["verdict"][0] == "wrong"
    assert "cannot run here: broker" in found["verdict"][1]


@pytest.mark.wide
def test_behind_tokens_every_kind_of_client_is_tried(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    with TokenServer() as server, KafkaWithTokens(tmp_path / "kafka", server) as kafka:
        ensure_topic(kafka.bootstrap, "trips", partitions=1)
        auth = (
            f'"security.protocol" = "SASL_PLAINTEXT"\n[kafka.auth]\ntype = "oidc"\n'
            f'token_url = "{server.url}"\nclient_id = "me"\n'
            f'client_secret = "${{file:{tmp_path / "secret"}}}"\n'
        )
        found = report(tmp_path, kafka.guarded, auth)
    assert found["token"][0] == "ok"
    assert "with a token of its own" in found["batch consumer"][1]
    assert found["verdict"][0] == "ok", found


@pytest.mark.wide
def test_a_cluster_that_tells_neither_settings_nor_ids_and_has_no_transactions(
    tmp_path: Path,
) -> None:
    """As Event Hubs may; a real broker, of which clients are told a part."""
    newest = {METADATA: 9, DESCRIBE_CONFIGS: None, ADD_PARTITIONS: None, END_TRANSACTION: None}
    with LesserKafka(tmp_path / "kafka", newest) as kafka:
        ensure_topic(kafka.bootstrap, "trips", partitions=1)
        found = report(tmp_path, kafka.lesser)
        with Deployment(tmp_path, kafka.lesser, ["trips"], group="trips", partitions=1) as sink:
            sink.start(2)
            sink.produce(500)
            sink.wait_until_lag_zero()
            sink.stop()
            sink.judge()
    assert {
        what: found[what][0]
        for what in ("topic ids", "topic settings", "transactions", "control events")
    } == {
        "topic ids": "unchecked",
        "topic settings": "unchecked",
        "transactions": "unchecked",
        "control events": "ok",
    }, found
    assert "id none, cleanup.policy not told" in found["source trips"][1]
    assert found["batch consumer"][0] == "ok"
    state, verdict = found["verdict"]
    assert state == "ok", found
    assert "az eventhubs" in verdict
    assert "never delete a topic and create it again" in verdict
    assert "no producer of the source topics can use transactions" in verdict
