"""Being a participant until told to stop."""

from __future__ import annotations

from headgate.sink.assembly import run as run_sink
from headgate.sink.settings import SinkSettings
from headgate.sink.terminal import show_log


def run(settings: SinkSettings, *, verbose: bool = False) -> None:
    """Block until SIGINT or SIGTERM. Raises ``HeadgateError`` when the sink stops by itself."""
    show_log(settings, verbose=verbose)
    run_sink(settings)
