"""Rereads a sink file when it changed, or on SIGHUP."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from headgate.config.load import load
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import ConfigurationError, HeadgateError
from headgate.control_protocol.log_event_names import LogEvent, event_extra
from headgate.control_protocol.redacting_loggers import redacted_logger

_log = redacted_logger("headgate.runtime")

LOOKED_AT_S = 1.0
_NUMBERED = ("coordinator", "participant")
"""Sections whose numbers are intervals, sizes and limits."""


def can_apply_live(before: SinkSettings, now: SinkSettings) -> bool:
    """Return whether only intervals and limits differ, which participants need not agree on."""
    for section in fields(SinkSettings):
        was, will = getattr(before, section.name), getattr(now, section.name)
        if was == will:
            continue
        if section.name not in _NUMBERED or not _differs_only_in_numbers(was, will):
            return False
    return True


def _differs_only_in_numbers(was: object, will: object) -> bool:
    assert type(was) is type(will)
    pairs = [
        (getattr(was, f.name), getattr(will, f.name))
        for f in fields(was)  # type: ignore[arg-type]
    ]
    return all(type(a) is type(b) is int for a, b in pairs if a != b)


@dataclass(frozen=True, slots=True)
class RefusedFile:
    """A file that was refused, and why; the settings stay."""

    error: HeadgateError


def describe_when_adopted(before: SinkSettings, now: SinkSettings) -> str:
    """Describe, for people, when a participant adopts the other settings."""
    return "at the next START" if can_apply_live(before, now) else "after leaving in order"


class Reload:
    """One sink file, and its content when it was last read.

    A signal handler may call ``request_reload``.
    ``describe`` says when new settings apply, and raises a ``HeadgateError`` for invalid ones.
    """

    def __init__(
        self,
        path: Path,
        describe: Callable[[SinkSettings, SinkSettings], str] = describe_when_adopted,
    ) -> None:
        self._path = path
        self._describe = describe
        self._last_state = self._file_state()
        self._due_s = time.monotonic() + LOOKED_AT_S
        self._requested = False
        self.readings = 0
        """How often the file was read and not refused, also where it said the same as before."""

    def request_reload(self) -> None:
        """Read it again even if it is unchanged: a secret that it refers to may have changed."""
        self._requested = True  # a signal's handler calls this: no lock, such as an event has

    def poll(self, current: SinkSettings) -> SinkSettings | RefusedFile | None:
        """Return new settings, or why they were refused; ``None`` if nothing changed."""
        if not self.poll_change_or_request():
            return None
        try:
            read = self.read_settings(current)
            how = self._describe(current, read) if read != current else ""
        except HeadgateError as error:
            text = f"{self._path.name} was not adopted: {error}"
            _log.error(
                "sink %s: %s", current.name, text, extra=event_extra(LogEvent.SINK_NOT_RELOADED)
            )
            return RefusedFile(error)
        self.readings += 1
        if not how:
            return None
        text = f"{self._path.name} has changed: it applies {how}"
        _log.info("sink %s: %s", current.name, text, extra=event_extra(LogEvent.SINK_RELOADED))
        return read

    def read_settings(self, current: SinkSettings) -> SinkSettings:
        """Return the file's settings now.

        Raises ``HeadgateError``, also if the file is another sink's.
        """
        read = load(self._path)
        if read.name != current.name:
            raise ConfigurationError(
                f"it names sink {read.name}, and this process runs sink {current.name}",
                "start a separate process for another sink",
            )
        return read

    def poll_change_or_request(self) -> bool:
        """Return whether the file changed or a reread was asked for since the last look.

        That counts as looked at.
        """
        if self._requested:
            self._requested = False
            self._last_state = self._file_state()
            return True
        if time.monotonic() < self._due_s:
            return False
        self._due_s = time.monotonic() + LOOKED_AT_S
        before, self._last_state = self._last_state, self._file_state()
        return self._last_state not in (before, None)

    def _file_state(self) -> tuple[int, int, int] | None:
        """Return what changes with the file, even if a link points elsewhere; ``None``: missing."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
