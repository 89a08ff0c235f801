"""Being a participant until told to stop."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from pathlib import Path

from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.log_events import LogEvent, about
from headgate.control_protocol.redacted_log import redacted_logger
from headgate.operations.face.serve import faced
from headgate.sink.process import run as run_sink
from headgate.sink.settings import SinkSettings
from headgate.sink.telemetry.measuring import measured
from headgate.sink.telemetry.meters import SinkMeters
from headgate.sink.terminal import show_log

_log = redacted_logger("headgate.run")


def run(settings: SinkSettings, *, verbose: bool = False, sink_file: Path | None = None) -> None:
    """Block until SIGINT or SIGTERM. Raises ``HeadgateError`` when the sink stops by itself.

    A ``sink_file`` that changes is read again.
    """
    show_log(settings, verbose=verbose)
    _say(LogEvent.SINK_STARTED, f"sink {settings.name}: a participant starts")
    try:
        run_sink(settings, measuring=_measuring, sink_file=sink_file)
    except HeadgateError as error:
        _say(LogEvent.SINK_FAILED, f"sink {settings.name}: {error}", logging.ERROR)
        raise
    _say(LogEvent.SINK_STOPPED, f"sink {settings.name}: this participant has left in order")


def _measuring(settings: SinkSettings) -> AbstractContextManager[SinkMeters | None]:
    return faced(settings) if settings.http.listen else measured(settings)


def _say(event: LogEvent, text: str, level: int = logging.INFO) -> None:
    _log.log(level, "%s", text, extra=about(event))
