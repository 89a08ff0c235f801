"""What is said of the control topic's settings, and what a provider leaves out."""

from __future__ import annotations

import pytest

from headgate.kafka.control_topic import faults_of_control_topic

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
