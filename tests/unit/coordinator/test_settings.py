"""What the coordinator's settings mean together."""

from __future__ import annotations

from headgate.coordinator.settings import CoordinatorSettings


def test_records_are_overdue_after_three_intervals_and_time_outs() -> None:
    settings = CoordinatorSettings(commit_interval_ms=1_000, commit_timeout_ms=500)
    assert settings.records_overdue_after_ms == 4_500
