"""Measures background maintenance: what its rounds did, and when the last good one was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headgate.sink.telemetry import instruments as names
from headgate.sink.telemetry.metered import Count
from headgate.sink.telemetry.port import Gauge

if TYPE_CHECKING:  # loads nothing for a sink without maintenance
    from headgate.sink.maintenance.rounds import Done


class MaintenanceMeters:
    """Sums up the rounds of one coordinator's life. Thread-safe."""

    def __init__(self, count: Count, wall_ms: Callable[[], int]) -> None:
        self._count = count
        self._wall_ms = wall_ms
        self._lock = threading.Lock()
        self._gauges: dict[tuple[str, str], float] = {}

    def ended(self, done: Done, failed: bool) -> None:  # noqa: FBT001 - a callback
        """Take the round of one table. ``failed``: a part of it raised."""
        table = {"table": done.table}
        outcome = "failed" if failed else "done"
        self._count(names.MAINTENANCE_ROUNDS, 1, {**table, "outcome": outcome})
        for name, number in (
            (names.MAINTENANCE_REWRITTEN, done.compacted_files),
            (names.MAINTENANCE_ORPHANS, done.orphans),
        ):
            if number:
                self._count(name, number, table)
        with self._lock:
            if not failed:
                self._gauges[names.MAINTENANCE_LAST, done.table] = self._wall_ms() / 1000
            if done.live_files:
                self._gauges[names.LIVE_FILES, done.table] = done.live_files

    def gauges(self) -> Iterable[Gauge]:
        with self._lock:
            found = dict(self._gauges)
        return [Gauge(name, value, {"table": table}) for (name, table), value in found.items()]
