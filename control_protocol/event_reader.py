"""Reads one sink's events from the control log: whole events, in order, from a known place.

Both drivers listen through it. A speaker must hear everything after its own words, so a listener
seeks the log's end before its owner says anything, and again after the log broke off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headgate.control_protocol.errors import LogDiscontinuity
from headgate.control_protocol.events import LogRecord
from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.multipart_status import Assembler
from headgate.control_protocol.ports import ControlLog


class Listener:
    """Keeps one reader's place in the log. Not thread-safe."""

    def __init__(self, log: ControlLog, sink: SinkName) -> None:
        self._log = log
        self._sink = sink
        self._assembler = Assembler()
        self._broken: str | None = None
        self.behind = True
        """Whether the place in the log from which everything is heard is lost."""

    def seek_end_and_pop_discontinuity(self) -> str | None:
        """Seek the log's end. Return why it had broken off, if it had. Raises ``RetryLater``."""
        self._log.seek(self._log.end_offset())
        self.behind = False
        reason, self._broken = self._broken, None
        return reason

    def read_events(self, timeout_ms: int) -> Iterator[LogRecord]:
        """Yield whole events to this sink, after at most ``timeout_ms`` of waiting.

        Parts of an event are put together. Where the log broke off, none come: it is ``behind``
        then. Raises ``RetryLater``.
        """
        try:
            records = self._log.read(timeout_ms)
        except LogDiscontinuity as error:
            self._assembler = Assembler()
            self.behind, self._broken = True, error.message
            return
        for record in records:
            if record.envelope.sink == self._sink:
                whole = self._assembler.add_and_pop_if_whole(record.envelope)
                if whole is not None:
                    yield replace(record, envelope=whole)
