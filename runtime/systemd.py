"""Reports ready, alive or ending to systemd, if systemd started this process (sd_notify)."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Collection
from typing import Protocol

_EVERY_S_MAX = 10.0


class Manager(Protocol):
    """Receives the state of a sink's loop."""

    def on_turn(self, status: str) -> None:
        """Report that the loop has made a turn."""

    def on_stopping(self) -> None:
        """Report that the process was asked to end."""


class ServiceManager:
    """Does nothing unless ``NOTIFY_SOCKET`` is set, and never raises."""

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        watchdog = os.environ.get("WATCHDOG_USEC", "")
        self._every_s = (
            min(_EVERY_S_MAX, int(watchdog) / 3_000_000) if watchdog.isdecimal() else 0.0
        )
        self._said_s = 0.0
        self._ready = False

    def on_turn(self, status: str) -> None:
        """Report a turn: ready the first time, then alive as often as the manager asks."""
        if not self._address:
            return
        now_s = time.monotonic()
        if not self._ready:
            self._ready = True
            self._send_to_manager(f"READY=1\nSTATUS={status}")
        elif self._every_s and now_s - self._said_s >= self._every_s:
            self._send_to_manager(f"WATCHDOG=1\nSTATUS={status}")
        else:
            return
        self._said_s = now_s

    def on_stopping(self) -> None:
        """Report that this process was asked to end."""
        self._send_to_manager("STOPPING=1\nSTATUS=leaving: announces what is written")

    def _send_to_manager(self, text: str) -> None:
        if not self._address:
            return
        where = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
                manager.connect(where)
                manager.send(text.encode())
        except OSError:
            return


class SharedManager:
    """Reports to one manager for several sinks, each in a thread: a turn counts once all made one.

    A hung sink is thus not hidden by the others. A sink that has ended is not waited for until its
    next turn.
    """

    def __init__(self, manager: Manager, sinks: Collection[str]) -> None:
        self._manager = manager
        self._lock = threading.Lock()
        self._at_work = set(sinks)
        self._turned: set[str] = set()

    def manager_of(self, sink: str) -> Manager:
        """Return the manager that this sink's loop reports to."""
        return _ManagerOfSink(self, sink)

    def on_sink_turn(self, sink: str) -> None:
        with self._lock:
            self._at_work.add(sink)
            self._turned.add(sink)
            self._report_turn_if_all_sinks_turned()

    def on_sink_end(self, sink: str) -> None:
        """Stop waiting for a sink that ended by itself."""
        with self._lock:
            self._at_work.discard(sink)
            self._turned.discard(sink)
            self._report_turn_if_all_sinks_turned()

    def _report_turn_if_all_sinks_turned(self) -> None:
        if self._at_work <= self._turned:
            self._turned.clear()
            self._manager.on_turn(f"{len(self._at_work)} sinks at work")


class _ManagerOfSink:
    """Implements ``Manager`` for one of several sinks."""

    def __init__(self, shared: SharedManager, sink: str) -> None:
        self._shared = shared
        self._sink = sink

    def on_turn(self, status: str) -> None:  # noqa: ARG002 - each has one of its own
        self._shared.on_sink_turn(self._sink)

    def on_stopping(self) -> None:
        """Report nothing: whoever asked the process to end has reported it."""
