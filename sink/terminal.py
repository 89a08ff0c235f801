"""What a process that runs one sink shows of its log, without the sink's secrets.

Lines for people on a terminal, one JSON object per line anywhere else; ``HEADGATE_LOG`` (``text``
or ``json``) decides otherwise. The standard library's logging does it: what structlog
would add, bound values, every line has from its caller already (docs/events.md).
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any

from headgate.control_protocol.errors import CODE, ConfigurationError
from headgate.control_protocol.log_events import LogEvent
from headgate.sink.settings import SinkSettings

_FORMS = ("text", "json")


class Redacting(logging.Formatter):
    """Foreign libraries put into their messages what they were configured with."""

    def __init__(self, settings: SinkSettings) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._settings = settings

    def format(self, record: logging.LogRecord) -> str:
        return self._settings.redacted(super().format(record))


class JsonLines(logging.Formatter):
    """One object per line: ``time``, ``level``, ``event``, ``sink``, ``logger``, ``message``.

    ``code`` where the message names an error's, ``trace`` where there is one, and what belongs to
    the event (docs/events.md).
    """

    def __init__(self, settings: SinkSettings) -> None:
        super().__init__()
        self._settings = settings

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        code = CODE.search(message)
        line: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": getattr(record, "headgate_event", LogEvent.NOTE.value),
            "sink": self._settings.name,
            "logger": record.name,
            "message": self._settings.redacted(message),
            **({"code": code[0]} if code else {}),
            **getattr(record, "headgate_fields", {}),
        }
        if record.exc_info:
            line["trace"] = self._settings.redacted(self.formatException(record.exc_info))
        return json.dumps(line, default=str)


def show_log(settings: SinkSettings, *, verbose: bool = False) -> None:
    """Send everybody's log to standard error, redacted. Raises ``ConfigurationError``."""
    form = os.environ.get("HEADGATE_LOG") or ("text" if sys.stderr.isatty() else "json")
    if form not in _FORMS:
        raise ConfigurationError(f"HEADGATE_LOG cannot be {form!r}", f"use {' or '.join(_FORMS)}")
    terminal = logging.StreamHandler()
    terminal.setFormatter(JsonLines(settings) if form == "json" else Redacting(settings))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[terminal])
