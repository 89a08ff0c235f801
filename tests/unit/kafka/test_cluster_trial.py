"""What is said of the trial's topic when the cluster does not answer."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import confluent_kafka as kafka
import pytest

from headgate.control_protocol.errors import MissingRights, Unreachable
from headgate.kafka import cluster_trial
from headgate.kafka.cluster_trial import ClusterTrial

CODES = kafka.KafkaError


class Admin:
    """Answers each request to create a topic with the next of these codes."""

    def __init__(self, *codes: int) -> None:
        self._codes = list(codes)

    def create_topics(self, asked: list[Any], **_: object) -> dict[str, Future[Any]]:
        answer = Future[Any]()
        error = kafka.KafkaError(self._codes.pop(0), "so said the broker")
        answer.set_exception(kafka.KafkaException(error))
        return {new.topic: answer for new in asked}


def trial(monkeypatch: pytest.MonkeyPatch, *codes: int) -> ClusterTrial:
    monkeypatch.setattr(cluster_trial, "new_admin", lambda _: Admin(*codes))
    return ClusterTrial({"bootstrap.servers": "127.0.0.1:1"}, "control-check-1")


@pytest.mark.parametrize("code", [CODES._TIMED_OUT, CODES.REQUEST_TIMED_OUT])
def test_a_topic_that_may_have_been_made_is_named(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    said = "creating topic control-check-1, which may have been made all the same"
    with pytest.raises(Unreachable, match=said):
        trial(monkeypatch, code).create_topic_and_list_refused_settings()


def test_a_topic_that_was_refused_was_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingRights, match="creating topic control-check-1: refused"):
        trial(
            monkeypatch, CODES.TOPIC_AUTHORIZATION_FAILED
        ).create_topic_and_list_refused_settings()


def test_a_setting_is_not_called_refused_for_want_of_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(Unreachable, match="_TIMED_OUT"):
        trial(
            monkeypatch, CODES.INVALID_CONFIG, CODES._TIMED_OUT
        ).create_topic_and_list_refused_settings()
