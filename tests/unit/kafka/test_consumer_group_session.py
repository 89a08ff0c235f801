"""How long a group waits for a member that has died."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.kafka import consumer_group
from headgate.kafka.consumer_group import GroupProtocol, require_accepted_group_settings

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}


class Asked:
    """Notes the settings that a client is made with."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}

    def __call__(self, settings: dict[str, Any]) -> Asked:
        self.settings = settings
        return self

    def close(self) -> None:
        """Close nothing."""


@pytest.mark.parametrize(
    ("settings", "protocol", "session_ms"),
    [
        ({}, "classic", 10_000),
        ({"session.timeout.ms": "30000"}, "classic", "30000"),
        ({"heartbeat.interval.ms": "12000"}, "classic", None),
        ({"max.poll.interval.ms": "9000"}, "classic", None),
        ({}, "consumer", None),
    ],
)
def test_a_dead_member_is_missed_after_ten_seconds_unless_the_file_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
    protocol: GroupProtocol,
    session_ms: object,
) -> None:
    """A client takes no session that is longer than its poll interval, nor one for KIP-848."""
    monkeypatch.setattr(consumer_group, "new_consumer", asked := Asked())
    require_accepted_group_settings({**NOBODY, **settings}, "trips", protocol)
    assert asked.settings.get("session.timeout.ms") == session_ms


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_client_itself_takes_these_settings(protocol: GroupProtocol) -> None:
    require_accepted_group_settings(NOBODY, "trips", protocol)
