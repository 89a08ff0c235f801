"""Shows a process's log without the secrets of its sinks.

On a terminal it writes lines for people, anywhere else one JSON object per line; ``HEADGATE_LOG``
(``text`` or ``json``) overrides that. The standard library's logging suffices: the bound values
that structlog would add are already in every line from its caller (docs/reference/log-events.md).
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.current_sink import current_sink
from headgate.control_protocol.errors import CODE, ConfigurationError
from headgate.control_protocol.log_event_names import LogEvent
from headgate.control_protocol.redacting_loggers import redact_for_running_sinks

_FORMS = ("text", "json")


class Redacting(logging.Formatter):
    """Redacts messages, since foreign libraries put their configuration into them."""

    def __init__(self, sinks: Sequence[SinkSettings]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._sinks = sinks

    def format(self, record: logging.LogRecord) -> str:
        whose = current_sink() if len(self._sinks) > 1 else None
        line = redact_for_sinks(self._sinks, super().format(record))
        return f"[{whose}] {line}" if whose else line


class JsonLines(logging.Formatter):
    """Writes one object per line:

    ``time``, ``level``, ``event``, ``sink``, ``logger``, ``message``.

    ``code`` is added if the message names an error code, ``trace`` if there is one, and the event's
    own fields (docs/reference/log-events.md). ``sink`` is null if a process has several and the
    line concerns none.
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
            "sink": current_sink() or self._only,
            "logger": record.name,
            "message": redact_for_sinks(self._sinks, message),
            **({"code": code[0]} if code else {}),
            **{
                name: redact_for_sinks(self._sinks, value) if isinstance(value, str) else value
                for name, value in getattr(record, "headgate_fields", {}).items()
            },
        }
        if record.exc_info:
            line["trace"] = redact_for_sinks(self._sinks, self.formatException(record.exc_info))
        return json.dumps(line, default=str)


def redact_for_sinks(sinks: Iterable[SinkSettings], text: str) -> str:
    """Return the text without the secrets of any of these sinks, or of what runs now.

    These are the files of the start: each may have been read again, and a fleet's page has none.
    """
    for settings in sinks:
        text = settings.redact(text)
    return redact_for_running_sinks(text)


def send_redacted_logs_to_stderr(sinks: Sequence[SinkSettings], *, verbose: bool = False) -> None:
    """Send all logs to standard error, redacted. Raises ``ConfigurationError``."""
    form = os.environ.get("HEADGATE_LOG") or ("text" if sys.stderr.isatty() else "json")
    if form not in _FORMS:
        raise ConfigurationError(f"HEADGATE_LOG cannot be {form!r}", f"use {' or '.join(_FORMS)}")
    terminal = logging.StreamHandler()
    terminal.setFormatter(JsonLines(sinks) if form == "json" else Redacting(sinks))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[terminal])
    if not verbose:  # it says for every file of a path without a scheme which reader it takes
        logging.getLogger("pyiceberg.io").setLevel(logging.WARNING)
