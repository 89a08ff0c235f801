"""Two static members of one name on a real broker: the one that is fenced says so."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from headgate.control_protocol.errors import MemberRefused
from headgate.kafka.compacted_topics import TopicAdmin
from headgate.kafka.fleet_group_member import SlotMember, SlotsGained

pytestmark = pytest.mark.integration


def polled_until_gained(member: SlotMember) -> None:
    until_s = time.monotonic() + 60
    while not any(isinstance(each, SlotsGained) and each.slots for each in member.poll(0.2)):
        assert time.monotonic() < until_s


def test_a_member_whose_seat_another_has_taken_ends_by_name(
    bootstrap: str, unique_name: str
) -> None:
    """The client says it once, without its flag of a fatal error, and never that slots are lost."""
    kafka = {"bootstrap.servers": bootstrap}
    TopicAdmin(kafka).ensure_topic(unique_name, 4)

    def member() -> SlotMember:
        return SlotMember(
            kafka, unique_name, unique_name, session_timeout_ms=6_000, instance_id="worker-0"
        )

    with closing(member()) as first:
        polled_until_gained(first)
        with closing(member()) as second, pytest.raises(MemberRefused, match="fenced"):
            until_s = time.monotonic() + 60
            while time.monotonic() < until_s:
                first.poll(0.2)
                second.poll(0.2)
