"""Reads a sink file again: when it changed, or when SIGHUP asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from headgate.control_protocol.errors import ConfigurationError, HeadgateError
from headgate.control_protocol.log_events import LogEvent, about
from headgate.control_protocol.redacted_log import redacted_logger
from headgate.sink.load import load
from headgate.sink.settings import SinkSettings

_log = redacted_logger("headgate.sink")

LOOKED_AT_S = 1.0
_NUMBERED = ("coordinator", "participant")
"""Sections whose numbers are intervals, sizes and limits."""


def applies_live(before: SinkSettings, now: SinkSettings) -> bool:
    """Return whether only intervals and limits differ, which nobody has to agree on."""
    for section in fields(SinkSettings):
        was, will = getattr(before, section.name), getattr(now, section.name)
        if was == will:
            continue
        if section.name not in _NUMBERED or not _numbers_only(was, will):
            return False
    return True


def _numbers_only(was: object, will: object) -> bool:
    assert type(was) is type(will)
    pairs = [
        (getattr(was, f.name), getattr(will, f.name))
        for f in fields(was)  # type: ignore[arg-type]
    ]
    return all(type(a) is type(b) is int for a, b in pairs if a != b)


@dataclass(frozen=True, slots=True)
class Refused:
    """A file that changes nothing, and why."""

    error: HeadgateError


def when_it_holds(before: SinkSettings, now: SinkSettings) -> str:
    """Return when a participant goes by the other settings, for people."""
    return "at the next START" if applies_live(before, now) else "after leaving in order"


class Reload:
    """One sink file, and what it was when it was read last. ``ask`` may be called by a signal.

    ``holds`` says when other settings hold, and raises a ``HeadgateError`` for those that cannot.
    """

    def __init__(
        self, path: Path, holds: Callable[[SinkSettings, SinkSettings], str] = when_it_holds
    ) -> None:
        self._path = path
        self._holds = holds
        self._seen = self._stamp()
        self._due_s = time.monotonic() + LOOKED_AT_S
        self._asked = threading.Event()

    def ask(self) -> None:
        """Read it again, changed or not: a secret that it refers to may be another one."""
        self._asked.set()

    def look(self, settings: SinkSettings) -> SinkSettings | Refused | None:
        """Return other settings than these, or why there are none; ``None``: nothing is new."""
        if not self.touched():
            return None
        try:
            read = self.read(settings)
            if read == settings:
                return None
            how = self._holds(settings, read)
        except HeadgateError as error:
            text = f"{self._path.name} changes nothing: {error}"
            _log.error("sink %s: %s", settings.name, text, extra=about(LogEvent.SINK_NOT_RELOADED))
            return Refused(error)
        text = f"{self._path.name} is another one now: it holds {how}"
        _log.info("sink %s: %s", settings.name, text, extra=about(LogEvent.SINK_RELOADED))
        return read

    def read(self, settings: SinkSettings) -> SinkSettings:
        """Return what the file says now. Raises ``HeadgateError``, as for another sink's file."""
        read = load(self._path)
        if read.name != settings.name:
            raise ConfigurationError(
                f"it names sink {read.name}, and this process runs sink {settings.name}",
                "start another process for another sink",
            )
        return read

    def touched(self) -> bool:
        """Return whether the file was written, or somebody asks for it, since the last look."""
        if self._asked.is_set():
            self._asked.clear()
            self._seen = self._stamp()
            return True
        if time.monotonic() < self._due_s:
            return False
        self._due_s = time.monotonic() + LOOKED_AT_S
        before, self._seen = self._seen, self._stamp()
        return self._seen not in (before, None)

    def _stamp(self) -> tuple[int, int, int] | None:
        """What changes with the file, a link to another one included; ``None``: it is not there."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
