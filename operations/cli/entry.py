"""Starts ``headgate``: signals first, then the imports, which take a second or two."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from headgate.runtime import early_signals

LONG_RUNNING = frozenset({"demo", "kafka", "run", "serve", "worker"})
"""Commands that end in order when they are asked to."""


def main(arguments: Sequence[str] | None = None) -> Any:
    """Run the command line."""
    given = sys.argv[1:] if arguments is None else arguments
    if next((word for word in given if not word.startswith("-")), "") in LONG_RUNNING:
        early_signals.catch_signals()
    from headgate.operations.cli.main import main as command

    return command(list(given), prog_name="headgate")
