"""What a cluster's refusals mean to the commands that ask it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import confluent_kafka as kafka
import pytest

from headgate.control_protocol.errors import ControlTopicUnfit, MissingRights, Unreachable
from headgate.kafka import cluster_queries
from headgate.kafka.cluster_queries import (
    Cluster,
    read_newest_append_time,
    read_newest_control_values,
)
from headgate.kafka.control_topic import CONTROL_SETTINGS

CODES = kafka.KafkaError
SETTINGS = {"bootstrap.servers": "127.0.0.1:1"}


class Refusing:
    """An admin client that gets one answer to everything."""

    def __init__(self, code: int) -> None:
        self.answer = kafka.KafkaException(kafka.KafkaError(code, "so said the broker"))
        self.created: list[Any] = []

    def describe_configs(self, asked: list[Any], **_: object) -> dict[Any, Future[Any]]:
        return dict.fromkeys(asked, self._failed())

    def create_topics(self, asked: list[Any], **_: object) -> dict[str, Future[Any]]:
        self.created += asked
        return {new.topic: self._failed() for new in asked}

    def _failed(self) -> Future[Any]:
        failed = Future[Any]()
        failed.set_exception(self.answer)
        return failed


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Refusing:
    admin = Refusing(request.param)
    monkeypatch.setattr(cluster_queries, "new_admin", lambda _: admin)
    return admin


@pytest.mark.parametrize(
    "refusing",
    [CODES.UNSUPPORTED_VERSION, CODES.INVALID_REQUEST, CODES._UNSUPPORTED_FEATURE],
    indirect=True,
)
@pytest.mark.usefixtures("refusing")
def test_a_cluster_that_tells_no_settings_does_not_say_whether_a_topic_is_compacted() -> None:
    assert Cluster(SETTINGS).is_compacted("orders") is None


@pytest.mark.parametrize("refusing", [CODES.REQUEST_TIMED_OUT], indirect=True)
@pytest.mark.usefixtures("refusing")
def test_a_cluster_that_is_silent_about_settings_is_asked_again() -> None:
    with pytest.raises(Unreachable):
        Cluster(SETTINGS).is_compacted("orders")


@pytest.mark.parametrize("refusing", [CODES.INVALID_CONFIG, CODES.POLICY_VIOLATION], indirect=True)
def test_a_control_topic_that_the_cluster_refuses_so_cannot_be_created(refusing: Refusing) -> None:
    with pytest.raises(ControlTopicUnfit, match="cannot be created: so said the broker"):
        Cluster(SETTINGS).may_create_control_topic("trips-control")
    assert [new.config for new in refusing.created] == [CONTROL_SETTINGS], "as a start asks for it"


@pytest.mark.parametrize("refusing", [CODES.REQUEST_TIMED_OUT, CODES._TIMED_OUT], indirect=True)
@pytest.mark.usefixtures("refusing")
def test_brokers_without_an_answer_do_not_refuse_the_control_topic() -> None:
    with pytest.raises(Unreachable):
        Cluster(SETTINGS).may_create_control_topic("trips-control")


@pytest.mark.parametrize("refusing", [CODES.TOPIC_AUTHORIZATION_FAILED], indirect=True)
@pytest.mark.usefixtures("refusing")
def test_who_lacks_the_right_may_not_create_the_control_topic() -> None:
    assert not Cluster(SETTINGS).may_create_control_topic("trips-control")


class Message:
    """What a consumer delivers: an error, or a value."""

    def __init__(self, offset: int, code: int | None = None) -> None:
        self._offset, self._code = offset, code

    def error(self) -> kafka.KafkaError | None:
        return None if self._code is None else kafka.KafkaError(self._code, "so said the broker")

    def value(self) -> bytes:
        return b"%d" % self._offset

    def offset(self) -> int:
        return self._offset


class Reader:
    """A consumer whose log has two messages, and which delivers what it was given."""

    def __init__(self, *messages: Message) -> None:
        self._messages = list(messages)

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        return 0, 2

    def assign(self, _: object) -> None: ...

    def consume(self, *_: object) -> list[Message]:
        return self._messages

    def poll(self, _: float) -> Message:
        return self._messages[0]

    def close(self) -> None: ...


@pytest.mark.parametrize(
    "code", [CODES.TOPIC_AUTHORIZATION_FAILED, CODES.GROUP_AUTHORIZATION_FAILED]
)
def test_a_control_topic_that_may_not_be_read_is_not_taken_for_an_empty_one(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_queries, "new_consumer", lambda _: Reader(Message(0, code)))
    with pytest.raises(MissingRights, match="so said the broker"):
        read_newest_control_values(SETTINGS, "trips-control", "trips", 10)
    with pytest.raises(MissingRights, match="so said the broker"):
        read_newest_append_time(SETTINGS, "trips-control", "trips")


def test_the_end_of_the_log_ends_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Message(1, CODES._PARTITION_EOF)
    monkeypatch.setattr(cluster_queries, "new_consumer", lambda _: Reader(Message(0), end))
    assert read_newest_control_values(SETTINGS, "trips-control", "trips", 10) == [b"0"]
