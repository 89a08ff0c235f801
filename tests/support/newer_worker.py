"""A worker of another release: ``python newer_worker.py WORKER.toml``. Its version text differs."""

from __future__ import annotations

import sys

from headgate.operations.cli import worker
from headgate.operations.cli.main import main

RELEASE = "99.0.0"

if __name__ == "__main__":
    worker.version = lambda _: RELEASE  # type: ignore[attr-defined]
    sys.argv.insert(1, "worker")
    main()
