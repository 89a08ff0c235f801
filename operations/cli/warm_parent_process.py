"""Runs the process from which a worker forks its sinks; ``headgate worker`` starts it."""

from __future__ import annotations

import sys
from pathlib import Path

from headgate.config.load import load
from headgate.control_protocol.errors import HeadgateError
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.operations.cli.run import run
from headgate.operations.control.pause import pause_sink, resume_sink
from headgate.operations.control.stop import start_sink
from headgate.runtime.fleet.sink_life import Request
from headgate.runtime.fleet.warm_parent import TurnReport, serve_fork_requests

_log = redacted_logger("headgate.worker")


def main() -> None:
    """Serve until the worker is gone."""
    verbose = "--verbose" in sys.argv[1:]

    serve_fork_requests(
        lambda file, report: run_sink(file, report, verbose=verbose), send_request_to_sink
    )


def run_sink(file: Path, report: TurnReport, *, verbose: bool = False) -> None:
    """Run the sink of a file until SIGTERM. Raises what ends it, without the sink's secrets."""
    settings = load(file)
    try:
        run(settings, verbose=verbose, sink_file=file, report=report)
    except HeadgateError as error:
        raise settings.redaction.redact_in_place(error) from None
    except Exception as error:  # noqa: BLE001 - told to the worker, without secrets
        _log.exception("sink %s: ended by a bug in headgate", settings.name)
        text = settings.redact(f"{type(error).__name__}: {error}")
        raise HeadgateError(text, "report it") from None


def send_request_to_sink(file: Path, request: str) -> None:
    """Make a request to the sink of a file, as the command of its name does. Raises as that."""
    settings = load(file)
    try:
        match Request(request):
            case Request.PAUSE:
                pause_sink(settings)
            case Request.RESUME:
                resume_sink(settings)
            case Request.START:
                start_sink(settings)
    except HeadgateError as error:
        raise settings.redaction.redact_in_place(error) from None


if __name__ == "__main__":
    main()
