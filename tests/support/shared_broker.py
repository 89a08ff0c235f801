"""One broker for all workers of a run, which the process that deals the tests out starts.

Each of a worker's own would cost a JVM's start, and the time until it is fast. Tests have topics
and groups with names of their own, as on a cluster of somebody else's (HEADGATE_TEST_BOOTSTRAP).
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.docker_broker import docker_broker
from support.kafka_classes import shared_kafka

OWN = "HEADGATE_TEST_BOOTSTRAP"
"""Names a cluster that is there already."""
FOLDER = "HEADGATE_TEST_SHARED_BROKER"
"""Where workers find the address of the one that they share."""
STARTS, ADDRESS = "starts", "address"
PATIENCE_S = 120.0


class SharedBroker:
    """Starts beside the first tests, and ends after the last."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._thread: threading.Thread | None = None
        os.environ[FOLDER] = str(self._folder)

    def start(self) -> None:
        """Begin to start it, unless that was begun; no worker has run a test yet."""
        if self._thread is None and OWN not in os.environ:
            (self._folder / STARTS).touch()
            self._thread = threading.Thread(target=self._run, name="shared broker")
            self._thread.start()

    def _run(self) -> None:
        address = ""
        try:
            address = self._stack.enter_context(broker(self._folder / "kafka"))
        finally:  # without one, each worker says why
            draft = self._folder / "draft"
            draft.write_text(address)
            draft.rename(self._folder / ADDRESS)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join()
        os.environ.pop(FOLDER, None)
        self._stack.close()


@contextmanager
def broker(home: Path) -> Iterator[str]:
    """One in Docker, else the embedded one."""
    with ExitStack() as stack:
        yield docker_broker(stack) or stack.enter_context(shared_kafka(home)).bootstrap


def address() -> str | None:
    """That of the broker which the workers share, once it is there; ``None`` if there is none."""
    folder = Path(os.environ.get(FOLDER, os.devnull))
    if not (folder / STARTS).exists():
        return None
    deadline = time.monotonic() + PATIENCE_S
    while not (folder / ADDRESS).exists():
        assert time.monotonic() < deadline, "the broker that all workers share does not start"
        time.sleep(0.1)
    return (folder / ADDRESS).read_text() or None
