"""What every system is told to do, and how it is started: first ready, then off."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from comparison.target import Target
from comparison.workloads import Workload

READY_SECONDS_MAX = 180.0


@dataclass(frozen=True, slots=True)
class Job:
    """Read the topic into the target's table; commit every ``interval_ms``.

    ``run`` is a name that no other run has: for groups and topics. ``cores``: how many tasks to
    work with.
    """

    run: str
    bootstrap: str
    topic: str
    workload: Workload
    target: Target
    interval_ms: int
    cores: int


class Running(Protocol):
    """A started process, which reads nothing yet."""

    pid: int

    def go(self) -> None:
        """Begin to read."""

    def check(self) -> None:
        """Raises ``SystemExit`` with the end of the log when it does not run any more."""

    def stop(self) -> None: ...


class System(Protocol):
    """One way to bring a topic into a table."""

    name: str

    def start(self, job: Job) -> Running:
        """Returns when it is ready: what comes before is start-up."""


class PipedProcess:
    """A process that says READY on its output, and begins when it is given a line."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(environment),
                cwd=log.parent,
            )
        self.pid = self._process.pid
        self._ready = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self._ready.wait(0.1):
            self.check()
            if time.monotonic() > deadline:
                self.stop()
                raise SystemExit(f"{self.log} did not get ready:\n{self._tail()}")

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.strip() == b"READY":
                self._ready.set()

    def go(self) -> None:
        assert self._process.stdin
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def check(self) -> None:
        if self._process.poll() is not None:
            raise SystemExit(f"{self.log}: ended by itself:\n{self._tail()}")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
