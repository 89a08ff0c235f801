"""Defines what every system is told to do, and how it is started: ready first, then go."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from comparison.target import Target
from comparison.workloads import Workload

READY_SECONDS_MAX = 180.0


@dataclass(frozen=True, slots=True)
class Job:
    """Read the topic into the target's table; commit every ``interval_ms``.

    ``run``: a name that no other run has, for groups and topics. ``cores``: how many tasks to work
    with. ``begin``: how many records of each partition the table has already.
    """

    run: str
    bootstrap: str
    topic: str
    workload: Workload
    target: Target
    interval_ms: int
    cores: int
    begin: tuple[int, ...] = ()


class Running(Protocol):
    """A started process, which reads nothing yet."""

    pid: int

    def go(self) -> None:
        """Begin to read."""

    def check(self) -> None:
        """Raises ``SystemExit`` with the end of the log if it is not running any more."""

    def stop(self) -> None: ...


class System(Protocol):
    """One way to bring a topic into a table."""

    name: str

    def start(self, job: Job) -> Running:
        """Return when it is ready: what comes before is start-up."""


class LoggedProcess:
    """A process whose end is reported with the last lines of its log."""

    def __init__(self, command: Sequence[str], log: Path, **popen: Any) -> None:
        self.log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(command, stderr=errors, cwd=log.parent, **popen)
        self.pid = self.process.pid

    def await_ready(self, ready: Callable[[], bool]) -> None:
        """End the process and the benchmark if it is not ready in time."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not ready():
            self.require_alive()
            if time.monotonic() > deadline:
                self.stop()
                raise SystemExit(f"{self.log}: did not get ready:\n{self._tail()}")
            time.sleep(0.1)

    def require_alive(self) -> None:
        if self.process.poll() is not None:
            raise SystemExit(f"{self.log}: ended by itself:\n{self._tail()}")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


class PipedProcess(LoggedProcess):
    """A process that prints READY, and starts when it is given a line."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        super().__init__(command, log, env=dict(environment), **pipes)
        self._ready = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.await_ready(self._ready.is_set)

    def _listen(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.strip() == b"READY":
                self._ready.set()

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def check(self) -> None:
        self.require_alive()

    def stop(self) -> None:
        super().stop()
        self._listener.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()
