"""Runs a participant as a Spark driver: ``spark-submit runtime/spark_submit.py --config FILE``.

Arguments and a call, nothing else: a composition root like the command line.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable

from headgate.runtime import early_signals
from headgate.runtime.systemd import ServiceManager


def main() -> int:
    """Run the sink; exit codes as of the command line: 0 well, 1 wrong, 2 usage, 3 unreachable."""
    early_signals.catch_signals()  # before the imports, which take a second or two
    from headgate.config.load import load
    from headgate.control_protocol.errors import HeadgateError

    parser = argparse.ArgumentParser(description="Run one headgate participant as a Spark driver.")
    parser.add_argument("--config", required=True, metavar="SINK.toml", help="the sink's file")
    options = parser.parse_args()
    stop = threading.Event()
    manager = _EndingWithParent(os.getppid(), stop)
    redacted: Callable[[str], str] = str
    try:
        settings = load(options.config)
        redacted = settings.redact
        from headgate.runtime.console_log import send_redacted_logs_to_stderr
        from headgate.runtime.process import run

        send_redacted_logs_to_stderr([settings])
        run(settings, stop=stop, manager=manager)
    except HeadgateError as error:
        print(redacted(str(error)), file=sys.stderr)  # noqa: T201 - this is a command
        return error.exit_code
    return 0


class _EndingWithParent(ServiceManager):
    """Stops when the parent process ends: a signal to ``spark-submit`` reaches only its JVM.

    Unlike progress, turns are also told of a sink that a person stopped.
    """

    def __init__(self, parent_pid: int, stop: threading.Event) -> None:
        super().__init__()
        self._parent_pid = parent_pid
        self._stop = stop

    def on_turn(self, status: str) -> None:
        super().on_turn(status)
        if os.getppid() != self._parent_pid:
            self._stop.set()


if __name__ == "__main__":
    sys.exit(main())
