"""One local Spark Connect server at a time on this machine: its port is fixed."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = Path(tempfile.gettempdir()) / "headgate-tests-spark-connect.lock"


@contextmanager
def connect_port() -> Iterator[None]:
    """Wait until no other worker runs a server of ``remote = "local[...]"``."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
