"""Tells the time of day, which only informs: spans are measured by a monotonic clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def wall_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def format_utc(epoch_ms: int, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """Return a time as ``strftime`` writes it, and as a number where no calendar has it.

    Any producer chooses the times of its records: microseconds there are a year beyond 9999.
    """
    try:
        return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime(form)
    except (OSError, OverflowError, ValueError):
        return f"{epoch_ms} ms after 1970"
