"""Tells the time of day, which only informs: spans are measured by a monotonic clock."""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000
