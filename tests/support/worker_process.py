"""A worker's process for tests: what it tells, waited for."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import psutil

from headgate.runtime.fleet.folder import STATE_FILE

_SCRIPT = Path(__file__).with_name("poisoned_worker.py")
PATIENCE_S = 120.0

Told = Mapping[str, Mapping[str, Any]]


class WorkerProcess:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder.with_suffix(".log")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, _SCRIPT, folder], stderr=log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def read_states(self) -> Told:
        """What the worker tells of each sink, by the name of its file."""
        try:
            told = json.loads((self._folder / STATE_FILE).read_text())
        except FileNotFoundError:
            return {}
        return {sink["sink"]: sink for sink in told["sinks"]}

    def wait_until(self, is_so: Callable[[Told], bool]) -> Told:
        """Return what it tells once that is so."""
        until_s = time.monotonic() + PATIENCE_S
        while not is_so(told := self.read_states()):
            assert self.process.poll() is None, self._log.read_text()[-4_000:]
            assert time.monotonic() < until_s, (told, self._log.read_text()[-4_000:])
            time.sleep(0.05)
        return told

    def wait_for(self, **states: str) -> Told:
        """Return what it tells once the sinks are in these states."""
        return self.wait_until(
            lambda told: all(
                told.get(name, {}).get("state") == state for name, state in states.items()
            )
        )

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)
