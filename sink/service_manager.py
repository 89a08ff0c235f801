"""Tells systemd, where it started this process, that it is ready, alive or ending (sd_notify)."""

from __future__ import annotations

import os
import socket
import time

_EVERY_S_MAX = 10.0


class ServiceManager:
    """Says nothing where ``NOTIFY_SOCKET`` names nobody, and never raises."""

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        watchdog = os.environ.get("WATCHDOG_USEC", "")
        self._every_s = (
            min(_EVERY_S_MAX, int(watchdog) / 3_000_000) if watchdog.isdecimal() else 0.0
        )
        self._said_s = 0.0
        self._ready = False

    def turned(self, status: str) -> None:
        """The loop has come round: ready at the first time, and alive as often as is asked for."""
        if not self._address:
            return
        now_s = time.monotonic()
        if not self._ready:
            self._ready = True
            self._say(f"READY=1\nSTATUS={status}")
        elif self._every_s and now_s - self._said_s >= self._every_s:
            self._say(f"WATCHDOG=1\nSTATUS={status}")
        else:
            return
        self._said_s = now_s

    def stopping(self) -> None:
        """This process was asked to end."""
        self._say("STOPPING=1\nSTATUS=leaving: announces what is written")

    def _say(self, text: str) -> None:
        if not self._address:
            return
        where = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as told:
                told.connect(where)
                told.send(text.encode())
        except OSError:
            return
