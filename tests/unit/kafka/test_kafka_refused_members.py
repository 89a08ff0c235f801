"""A member of a group whose client the cluster has refused for good says so."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError

from headgate.control_protocol.errors import MemberRefused
from headgate.kafka.consumer_group import KafkaGroupMember
from headgate.kafka.fleet_group_member import SlotMember

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}
FENCED = KafkaError(KafkaError._FATAL, "Static consumer fenced by other consumer")


class FatalMessage:
    """What ``poll`` returns once: its error has the code, and not the flag, as a real one."""

    def error(self) -> KafkaError:
        assert not FENCED.fatal()
        return FENCED


class FencedConsumer:
    """A client after a fatal error; it says so once."""

    def __init__(self) -> None:
        self._messages = [FatalMessage()]

    def subscribe(self, *_: object, **__: object) -> None:
        """Join no group."""

    def poll(self, _: float) -> FatalMessage | None:
        return self._messages.pop() if self._messages else None

    def consume(self, *_: object, **__: object) -> list[FatalMessage]:
        return []

    def assignment(self) -> list[Any]:
        return []


@pytest.fixture(autouse=True)
def fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("fleet_group_member", "consumer_group"):
        monkeypatch.setattr(f"headgate.kafka.{module}.new_consumer", lambda _: FencedConsumer())


def test_a_fleets_member_is_refused_by_name() -> None:
    member = SlotMember(NOBODY, "fleet", "fleet", session_timeout_ms=6_000)
    with pytest.raises(MemberRefused, match="fenced"):
        member.poll(0)


def test_a_sinks_member_is_refused_by_name() -> None:
    member = KafkaGroupMember(NOBODY, ["trips"], "trips", on_revoke=lambda _: None)
    with pytest.raises(MemberRefused, match="fenced"):
        member.poll(0)
