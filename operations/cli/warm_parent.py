"""The process from which a worker forks its sinks; ``headgate worker`` starts it."""

from __future__ import annotations

import sys
from pathlib import Path

from headgate.config.load import load
from headgate.operations.cli.run import run
from headgate.runtime.fleet.warm_parent import TurnReport, serve_forks


def main() -> None:
    """Serve until the worker is gone."""
    verbose = "--verbose" in sys.argv[1:]

    def run_sink(file: Path, report: TurnReport) -> None:
        run(load(file), verbose=verbose, sink_file=file, report=report)

    serve_forks(run_sink)


if __name__ == "__main__":
    main()
