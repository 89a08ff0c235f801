"""``headgate check`` where the cluster allows some things and forbids others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from unit.operations.filled_table import sink_file_text

from headgate.config.load import parse
from headgate.kafka.control_topic import ensure_control_topic
from headgate.operations.check.check import Check, check
from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars
from headgate.operations.status.status import read_status

pytestmark = pytest.mark.integration

CLUSTER = "kafka-cluster"  # a BROKER resource to the client, and the only one
NOBODY = "User:ANONYMOUS"
LITERAL = ResourcePatternType.LITERAL


class GuardedKafka(EmbeddedKafka):
    """Who is not known is nobody, and may do what no rule is about."""

    def _write_configuration(self, log_dir: Path) -> Path:
        config = super()._write_configuration(log_dir)
        with config.open("a") as file:
            file.write(
                "authorizer.class.name="
                "org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
                "allow.everyone.if.no.acl.found=true\n"
            )
        return config


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with GuardedKafka(tmp_path_factory.mktemp("guarded"), ensure_broker_jars()) as kafka:
        yield kafka.bootstrap


class Rules:
    """What nobody may do from now on; all else stays allowed."""

    def __init__(self, bootstrap: str) -> None:
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def allow_only(self, kind: ResourceType, name: str, *operations: AclOperation) -> None:
        rules = [
            AclBinding(kind, name, LITERAL, NOBODY, "*", operation, AclPermissionType.ALLOW)
            for operation in operations
        ]
        for future in self.admin.create_acls(rules).values():
            future.result()

    def forget(self, kind: ResourceType, name: str) -> None:
        anything = AclBindingFilter(
            kind, name, LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        for future in self.admin.delete_acls([anything]).values():
            future.result()

    def make(self, topic: str) -> None:
        self.admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()


@pytest.fixture
def rules(guarded: str) -> Rules:
    return Rules(guarded)


Ask = Callable[[str, str, str], Check]


@pytest.fixture
def ask(guarded: str, tmp_path: Path) -> Ask:
    """What ``check`` says about a topic's sink once the cluster has come to know its new rules."""

    def asked(topic: str, what: str, code: str) -> Check:
        text = sink_file_text(tmp_path, topic, guarded, control=f"{topic}-control")
        settings = parse(text.replace("headgate-trips", f"{topic}-group"))
        deadline = time.monotonic() + 20
        while True:
            answer = {answer.what: answer for answer in check(settings)}[what]
            if answer.code == code or time.monotonic() > deadline:
                assert answer.code == code, answer
                return answer

    return asked


def test_a_source_that_may_only_be_described(rules: Rules, ask: Ask) -> None:
    rules.make("seen")
    rules.allow_only(ResourceType.TOPIC, "seen", AclOperation.DESCRIBE)
    answer = ask("seen", "source topics", "HG-103")
    assert (answer.detail, answer.exit_code) == ("topic seen: not allowed to read", 2)


def test_a_group_that_may_not_be_joined(rules: Rules, ask: Ask) -> None:
    rules.make("grouped")
    rules.allow_only(ResourceType.GROUP, "grouped-group", AclOperation.DESCRIBE)
    ask("grouped", "source topics", "")
    ask("grouped", "consumer group", "HG-103")


def test_a_group_that_may_not_even_be_seen(rules: Rules, ask: Ask) -> None:
    rules.make("hidden")
    rules.allow_only(ResourceType.GROUP, "hidden-group", AclOperation.DELETE)
    ask("hidden", "consumer group", "HG-103")


def test_a_silent_sink_whose_group_may_not_be_seen_is_not_known(
    rules: Rules, guarded: str, tmp_path: Path
) -> None:
    """Its participants may be there, unable to speak and not ready: that is no exit with 0."""
    rules.make("silent")
    ensure_control_topic({"bootstrap.servers": guarded}, "silent-control")
    text = sink_file_text(tmp_path, "silent", guarded, control="silent-control")
    settings = parse(text.replace("headgate-trips", "silent-group"))
    settings = replace(settings, table=replace(settings.table, create=True, identifier="db.new"))
    look = read_status(settings)
    assert (look.condition, look.exit_code) == ("never started", 0), look.notes
    rules.allow_only(ResourceType.GROUP, "silent-group", AclOperation.DESCRIBE_CONFIGS)
    deadline = time.monotonic() + 20
    while (look := read_status(settings)).exit_code == 0 and time.monotonic() < deadline:
        pass
    assert (look.condition, look.exit_code) == ("not known", 2), look.notes
    assert any("members of group silent-group are not known" in note for note in look.notes)


def test_a_control_topic_that_may_not_be_written(rules: Rules, ask: Ask, guarded: str) -> None:
    rules.make("heard")
    ensure_control_topic({"bootstrap.servers": guarded}, "heard-control")
    allowed = (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.READ)
    rules.allow_only(ResourceType.TOPIC, "heard-control", *allowed)
    answer = ask("heard", "control topic", "HG-103")
    assert "not allowed to write" in answer.detail


@pytest.mark.wide
def test_a_control_topic_that_may_not_be_created(rules: Rules, ask: Ask) -> None:
    rules.make("alone")
    ask("alone", "control topic", "")
    # The broker itself is nobody too: it must go on, and the rule be taken back by somebody.
    keep = (AclOperation.DESCRIBE, AclOperation.ALTER, AclOperation.CLUSTER_ACTION)
    rules.allow_only(ResourceType.BROKER, CLUSTER, *keep)
    try:
        rules.allow_only(ResourceType.TOPIC, "alone-control", AclOperation.DESCRIBE)
        answer = ask("alone", "control topic", "HG-104")
        assert "may not be created" in answer.detail
        rules.allow_only(ResourceType.TOPIC, "alone-control", AclOperation.CREATE)
        ask("alone", "control topic", "")
    finally:
        rules.forget(ResourceType.BROKER, CLUSTER)
