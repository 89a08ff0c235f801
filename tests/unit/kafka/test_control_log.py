"""The clients of a control log while its topic is re-created."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.control_protocol.errors import TokenAway
from headgate.control_protocol.identifiers import ControlOffset
from headgate.kafka import control_log
from headgate.kafka.control_log import KafkaLog


class Admin:
    """Tells the topic's id."""

    topic_id = "first"

    def describe_topics(self, *_: object, **__: object) -> dict[str, Future[Any]]:
        answer = Future[Any]()
        answer.set_result(SimpleNamespace(topic_id=self.topic_id))
        return {"control": answer}


class Consumer:
    """Can be asked until it is closed."""

    closed = False

    def assign(self, _: object) -> None:
        self._require_open()

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        self._require_open()
        return 0, 7

    def close(self) -> None:
        self.closed = True

    def _require_open(self) -> None:
        if self.closed:
            raise RuntimeError("Consumer closed")


def test_a_log_whose_topic_is_recreated_stays_usable_while_no_token_is_to_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Consumer] = []
    away = False

    def new_consumer(_: object) -> Consumer:
        if away:
            raise TokenAway("the token server is away", "it is asked again")
        made.append(Consumer())
        return made[-1]

    monkeypatch.setattr(control_log, "new_consumer", new_consumer)
    admin: Any = Admin()
    clients: Any = SimpleNamespace(admin=admin)
    config = {"bootstrap.servers": "127.0.0.1:1", "group.id": "trips"}
    log = KafkaLog(config, "control", clients=clients)
    log.seek(ControlOffset(3))
    admin.topic_id, away = "second", True
    with pytest.raises(TokenAway):
        log.seek(ControlOffset(0))
    assert log.end_offset() == 7
    away = False
    log.seek(ControlOffset(0))
    assert [each.closed for each in made] == [True, False], "the former one reads nothing of it"
    assert log.topic_id() == "second"
