"""What a process that runs one sink shows on its terminal, without the sink's secrets."""

from __future__ import annotations

import logging

from headgate.sink.settings import SinkSettings


class Redacting(logging.Formatter):
    """Foreign libraries put into their messages what they were configured with."""

    def __init__(self, settings: SinkSettings) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._settings = settings

    def format(self, record: logging.LogRecord) -> str:
        return self._settings.redacted(super().format(record))


def show_log(settings: SinkSettings, *, verbose: bool = False) -> None:
    """Send everybody's log to the terminal, redacted."""
    terminal = logging.StreamHandler()
    terminal.setFormatter(Redacting(settings))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[terminal])
