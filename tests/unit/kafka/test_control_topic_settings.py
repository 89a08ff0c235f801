"""What is said of the control topic's settings, and what a provider leaves out."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import confluent_kafka as kafka
import pytest

from headgate.control_protocol.errors import MissingRights
from headgate.kafka import control_topic
from headgate.kafka.control_topic import faults_of_control_topic, read_topic_settings

GOOD = {"cleanup.policy": "delete", "max.message.bytes": "1048576"}


@pytest.mark.parametrize("left_out", [(), ("cleanup.policy",), ("max.message.bytes",), tuple(GOOD)])
def test_what_a_provider_does_not_tell_is_no_fault(left_out: tuple[str, ...]) -> None:
    assert faults_of_control_topic(1, {k: v for k, v in GOOD.items() if k not in left_out}) == []


def test_what_it_tells_is_judged() -> None:
    told = {"cleanup.policy": "compact", "max.message.bytes": "1000"}
    assert faults_of_control_topic(2, told) == [
        "2 partitions",
        "cleanup.policy=compact",
        "max.message.bytes=1000",
    ]
    assert faults_of_control_topic(1, {"max.message.bytes": "as the account allows"}) == []


class Guarded:
    """An admin client that may not see settings."""

    def describe_configs(self, asked: list[Any], **_: object) -> dict[Any, Future[Any]]:
        refused = Future[Any]()
        code = kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
        refused.set_exception(kafka.KafkaException(kafka.KafkaError(code, "not for you")))
        return dict.fromkeys(asked, refused)


def test_whoever_may_not_see_the_settings_of_any_topic_is_told_the_one_right_that_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_topic, "new_admin", lambda _: Guarded())
    with pytest.raises(MissingRights) as found:
        read_topic_settings({"bootstrap.servers": "127.0.0.1:1"}, "orders")
    told = "topic orders: the cluster refuses to tell its settings: not for you"
    assert found.value.message == told
    assert found.value.hint == "allow the principal DescribeConfigs on it"
