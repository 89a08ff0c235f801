"""What assembling a sink refuses before it reaches anything."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from unit.config.test_load import MINIMAL

from headgate.config.load import parse
from headgate.config.sink_sections import TransformSettings
from headgate.control_protocol.errors import ConfigurationError
from headgate.runtime.assembly import SystemClock, open_task


def test_a_task_in_somebodys_loop_takes_no_transform() -> None:
    settings = replace(parse(MINIMAL), transform=TransformSettings(sql="SELECT id FROM records"))
    opening = open_task(settings, steering=object())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="the transform needs Spark"), opening:
        pass


def test_files_grow_old_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """TOKEN-1 counts by a clock that goes on, so that a sink which wakes up knows how old they
    are."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        pytest.skip("this system has no clock that goes on while it sleeps")
    asleep_ns = 7 * 24 * 3_600 * 10**9
    awake = {time.CLOCK_MONOTONIC: 5 * 10**9, time.CLOCK_BOOTTIME: 5 * 10**9 + asleep_ns}
    monkeypatch.setattr("headgate.runtime.assembly.time.clock_gettime_ns", awake.__getitem__)
    assert SystemClock().monotonic_ms() == 5_000 + asleep_ns // 10**6
