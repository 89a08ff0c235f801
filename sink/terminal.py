"""What a process shows of its log, without the secrets of its sinks.

Lines for people on a terminal, one JSON object per line anywhere else; ``HEADGATE_LOG`` (``text``
or ``json``) decides otherwise. The standard library's logging does it: what structlog
would add, bound values, every line has from its caller already (docs/events.md).
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from headgate.control_protocol.errors import CODE, ConfigurationError
from headgate.control_protocol.log_events import LogEvent
from headgate.control_protocol.whose_thread import sink_of_thread
from headgate.sink.settings import SinkSettings

_FORMS = ("text", "json")


class Redacting(logging.Formatter):
    """Foreign libraries put into their messages what they were configured with."""

    def __init__(self, sinks: Sequence[SinkSettings]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._sinks = sinks

    def format(self, record: logging.LogRecord) -> str:
        whose = sink_of_thread() if len(self._sinks) > 1 else None
        line = redacted(self._sinks, super().format(record))
        return f"[{whose}] {line}" if whose else line


class JsonLines(logging.Formatter):
    """One object per line: ``time``, ``level``, ``event``, ``sink``, ``logger``, ``message``.

    ``code`` where the message names an error's, ``trace`` where there is one, and what belongs to
    the event (docs/events.md). ``sink`` is null where a process has several, and none is concerned.
    """

    def __init__(self, sinks: Sequence[SinkSettings]) -> None:
        super().__init__()
        self._sinks = sinks
        self._only = sinks[0].name if len(sinks) == 1 else None

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        code = CODE.search(message)
        line: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": getattr(record, "headgate_event", LogEvent.NOTE.value),
            "sink": sink_of_thread() or self._only,
            "logger": record.name,
            "message": redacted(self._sinks, message),
            **({"code": code[0]} if code else {}),
            **getattr(record, "headgate_fields", {}),
        }
        if record.exc_info:
            line["trace"] = redacted(self._sinks, self.formatException(record.exc_info))
        return json.dumps(line, default=str)


def redacted(sinks: Iterable[SinkSettings], text: str) -> str:
    """Return the text without the secrets of any of these."""
    for settings in sinks:
        text = settings.redacted(text)
    return text


def show_log(sinks: Sequence[SinkSettings], *, verbose: bool = False) -> None:
    """Send everybody's log to standard error, redacted. Raises ``ConfigurationError``."""
    form = os.environ.get("HEADGATE_LOG") or ("text" if sys.stderr.isatty() else "json")
    if form not in _FORMS:
        raise ConfigurationError(f"HEADGATE_LOG cannot be {form!r}", f"use {' or '.join(_FORMS)}")
    terminal = logging.StreamHandler()
    terminal.setFormatter(JsonLines(sinks) if form == "json" else Redacting(sinks))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[terminal])
