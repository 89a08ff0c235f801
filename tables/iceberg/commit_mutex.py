"""Keeps a sink's commits of one table and its maintenance out of each other's way.

A courtesy within one process: safety rests on requirements (TABLE-3, RETENTION-1, COMPACTION-1).
"""

from __future__ import annotations

import threading
import time


class CommitLock:
    """``calling`` is held during each catalog call of this process that changes the table."""

    def __init__(self, since_s: float | None = None) -> None:
        """``since_s``: by the monotonic clock, since when no commit has landed."""
        self.calling = threading.Lock()
        self._landings = 0
        self._landed_s = time.monotonic() if since_s is None else since_s
        self._landed = threading.Condition()

    def note_landing(self) -> None:
        """Note that a commit of the sink has landed: the next one is an interval away."""
        with self._landed:
            self._landings += 1
            self._landed_s = time.monotonic()
            self._landed.notify_all()

    def wait_for_commit_unless_recent(
        self, idle_after_s: float, recent_within_s: float = 0.0
    ) -> None:
        """Wait for the next commit to land; return at once if the last one was recent.

        That is at most ``recent_within_s`` ago. A table without a commit for ``idle_after_s`` is
        not waited for: among hundreds most may be idle.
        """
        with self._landed:
            age_s = time.monotonic() - self._landed_s
            if self._landings and age_s <= recent_within_s:
                return
            before = self._landings
            left_s = max(0.0, idle_after_s - age_s)
            self._landed.wait_for(lambda: self._landings != before, left_s)


class CommitLocks:
    """One lock per table of a sink, by the table's name. No commit has landed since it was made."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()
        self._commit_locks: dict[str, CommitLock] = {}
        self._lock = threading.Lock()

    def find_or_add_lock(self, table: str) -> CommitLock:
        with self._lock:
            return self._commit_locks.setdefault(table, CommitLock(self._since_s))

    def table_names(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._commit_locks)
