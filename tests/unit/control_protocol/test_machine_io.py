"""Deadlines of a machine: what is due, and how long nothing is."""

from __future__ import annotations

from enum import Enum

import pytest

from headgate.control_protocol.machine_io import ms_until_due


class Timer(Enum):
    ONE = "one"
    OTHER = "other"


@pytest.mark.parametrize(
    ("due", "waits_ms"),
    [
        ({}, 500),
        ({Timer.ONE: 10_400}, 400),
        ({Timer.ONE: 10_400, Timer.OTHER: 10_100}, 100),
        ({Timer.ONE: 99_000}, 500),
        # It was over when the machine was told the time: it only holds something back.
        ({Timer.ONE: 9_990}, 500),
        # It is over since: nobody has told the machine.
        ({Timer.ONE: 9_995}, 0),
    ],
)
def test_a_turn_waits_until_the_next_deadline_is_over(due: dict[Timer, int], waits_ms: int) -> None:
    assert ms_until_due(due, 9_990, 10_000, 500) == waits_ms
