"""Being a participant until told to stop."""

from __future__ import annotations

import logging

from headgate.sink.assembly import run as run_sink
from headgate.sink.settings import SinkSettings


class Redacting(logging.Formatter):
    """Foreign libraries put into their messages what they were configured with."""

    def __init__(self, settings: SinkSettings) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._settings = settings

    def format(self, record: logging.LogRecord) -> str:
        return self._settings.redacted(super().format(record))


def run(settings: SinkSettings, *, verbose: bool = False) -> None:
    """Block until SIGINT or SIGTERM. Raises ``HeadgateError`` when the sink stops by itself."""
    terminal = logging.StreamHandler()
    terminal.setFormatter(Redacting(settings))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[terminal])
    run_sink(settings)
