"""Provides a clock that moves only when a test moves it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class FakeClock:
    """Moves only when asked to: every fake that would wait moves it on by the wait instead.

    ``wall_ahead_ms`` is what the wall clock shows beyond the monotonic one; change it to let the
    wall clock jump.
    """

    now_ms: int = 0
    wall_ahead_ms: int = 1_700_000_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms + self.wall_ahead_ms

    def advance(self, ms: int) -> None:
        if ms < 0:
            raise ValueError(f"a monotonic clock cannot go back {-ms} ms")
        self.now_ms += ms
