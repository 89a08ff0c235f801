"""Keeps a sink's commits of one table and its maintenance out of each other's way.

A courtesy within one process: safety rests on requirements (T3, T6, T8).
"""

from __future__ import annotations

import threading


class Gate:
    """``calling`` is held during each catalog call of this process that changes the table."""

    def __init__(self) -> None:
        self.calling = threading.Lock()
        self._landings = 0
        self._landed = threading.Condition()

    def landed(self) -> None:
        """Note that a commit of the sink has landed: the next one is an interval away."""
        with self._landed:
            self._landings += 1
            self._landed.notify_all()

    def wait_for_a_commit(self, patience_s: float) -> None:
        """Return right after the next commit; without one, when the time is over."""
        with self._landed:
            before = self._landings
            self._landed.wait_for(lambda: self._landings != before, patience_s)


class Gates:
    """One gate per table of a sink, by the table's name."""

    def __init__(self) -> None:
        self._gates: dict[str, Gate] = {}
        self._lock = threading.Lock()

    def of(self, table: str) -> Gate:
        with self._lock:
            return self._gates.setdefault(table, Gate())

    def known(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._gates)
