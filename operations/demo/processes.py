"""Runs a participant as a process of its own: started, watched, killed, never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from headgate.control_protocol.errors import HeadgateError
from headgate.operations.child_process import (
    kill_child_group_and_wait,
    start_child_killed_with_parent,
)

STOP_SECONDS_MAX = 90
TAIL_LINES = 15

HEADGATE = (sys.executable, "-c", "from headgate.operations.cli.main import main; main()")


class ParticipantProcess:
    """Runs ``headgate run`` with its output in a file. It never outlives this process."""

    def __init__(self, sink_file: Path, log: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = start_child_killed_with_parent(
                (*HEADGATE, "run", sink_file),
                output,
                sink_file.parent,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it and everything that it started, such as its Spark."""
        kill_child_group_and_wait(self._process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill_and_find_end_signal(self) -> signal.Signals | None:
        """Send ``kill -9``; return the signal that ended it, or None if it ended by itself."""
        self._process.kill()
        code = self._process.wait()
        return signal.Signals(-code) if code < 0 else None

    def stop(self) -> None:
        """Ask for an orderly end and wait for it.

        Raises ``HeadgateError`` if the end was not orderly.
        """
        self._process.terminate()
        try:
            code = self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise self._exit_error("did not end when asked to") from None
        if code:
            raise self._exit_error(f"ended with {code} when asked to stop")

    def require_running(self) -> None:
        """Raises ``HeadgateError`` with the end of its log if it ended by itself."""
        code = self._process.poll()
        if code is not None:
            raise self._exit_error(f"ended by itself with {code}")

    def _exit_error(self, how: str) -> HeadgateError:
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return HeadgateError(f"participant {self.pid} {how}; {self.log} ends:\n" + "\n".join(lines))
