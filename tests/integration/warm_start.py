"""Starts participants that have imported everything before they are needed.

``headgate run`` imports for about two seconds of a core, and tests start hundreds. A process that
has imported it all forks one participant after another; each is then what the command would be, in
a process of its own, to be killed and paused. The command itself is started by the tests of
``operations`` and by all that give another command.

Asked by a line on its input (the keys are ``arguments``, ``log`` and ``environment``), it answers
with the pid; a participant's exit code is put into ``log`` + ``.exit`` when it has ended.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

EVERYTHING = (
    *("headgate.operations.cli.main", "headgate.operations.cli.run", "headgate.config.load"),
    *("headgate.data_plane.formats.json.format", "headgate.data_plane.formats.avro.format"),
    *("headgate.data_plane.formats.protobuf.format", "headgate.data_plane.formats.csv_and_strings"),
    *("headgate.data_plane.formats.connect.format", "headgate.data_plane.formats.registry.formats"),
    *("headgate.runtime.maintenance.scheduler", "headgate.tables.iceberg.rest_catalog"),
    *("headgate.data_plane.spark.batch_writer", "headgate.data_plane.spark.session"),
    *("headgate.data_plane.spark.transform", "headgate.data_plane.transform.select_parser"),
    *("pyiceberg.catalog.sql", "sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql"),
    *("psycopg2", "pyspark.sql.functions"),
)
"""Whoever is asked imports much of it only when its sink needs it: SQLAlchemy for half a second."""


_ENDS = (signal.SIGINT, signal.SIGTERM)


class Forked:
    """One participant; the part of ``subprocess.Popen`` that tests use."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self._exit = exit_file(log)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and self._exit.exists():
            self.returncode = int(self._exit.read_text())
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; raises ``subprocess.TimeoutExpired``, as ``Popen`` does."""
        deadline = time.monotonic() + timeout if timeout is not None else None
        while (code := self.poll()) is None:
            if deadline is not None and timeout is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("headgate", timeout)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        """As ``Popen`` does, not to one that has ended: its pid may be another's by now."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def exit_file(log: Path) -> Path:
    return log.with_name(f"{log.name}.exit")


def start(arguments: Sequence[str | Path], log: Path) -> Forked:
    """``headgate`` with these arguments, as soon as a fork is made."""
    exit_file(log).unlink(missing_ok=True)
    starter = _starter()
    assert starter.stdin
    assert starter.stdout
    asked = {
        "arguments": [str(argument) for argument in arguments],
        "log": str(log.resolve()),
        "environment": dict(os.environ),
    }
    starter.stdin.write(json.dumps(asked) + "\n")
    starter.stdin.flush()
    answer = starter.stdout.readline()
    assert answer, f"the process that forks participants ended: {starter.poll()}"
    return Forked(int(answer), log)


@functools.cache
def _starter() -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__))]
    starter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(_end, starter)
    return starter


def _end(starter: subprocess.Popen[str]) -> None:
    starter.kill()
    starter.communicate()


# ------------------------------------------------------------------------- the process that forks


def main() -> None:
    """Fork and report in turn, in one thread: a fork takes no other thread along."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # as the command does at first
    _import_all()
    gc.collect()
    gc.freeze()  # no child walks through what was imported, nor copies its pages for that
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    logs: dict[int, Path] = {}
    while True:
        ready, _, _ = select.select([0, ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _report(logs)
        if 0 in ready:
            line = sys.stdin.buffer.raw.readline()  # type: ignore[attr-defined] # nothing waits in a buffer
            if not line:
                return
            asked = json.loads(line)
            log = Path(asked["log"])
            signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)  # until the child handles them
            child = os.fork()
            if not child:
                os.environ.clear()
                os.environ.update(asked["environment"])
                _look_for_packages()
                _become(asked["arguments"], log)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
            logs[child] = log
            print(child, flush=True)


def _import_all() -> None:
    for name in EVERYTHING:
        importlib.import_module(name)


def _look_for_packages() -> None:
    """Where the environment says that they are, as an interpreter does when it starts."""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in named if path and path not in sys.path]


def _become(arguments: Sequence[str], log: Path) -> NoReturn:
    """The command, with the log as its output."""
    from headgate.operations.cli.entry import main as headgate
    from headgate.runtime import early_signals

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    early_signals.catch_signals()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the descriptors are new
    code = 70
    try:
        headgate(list(arguments))
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:  # noqa: BLE001 - the interpreter of the command would print it, too
        import traceback

        traceback.print_exc()
        code = 1
    finally:
        _finish()
        os._exit(code)


def _finish() -> None:
    """What the interpreter does at its end: wait for threads, run what was registered, flush."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()


def _report(logs: dict[int, Path]) -> None:
    """Write down how those went that have ended; several may have by one signal."""
    while logs:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        log = logs.pop(child)
        draft = log.with_name(f"{log.name}.exit.draft")
        draft.write_text(str(os.waitstatus_to_exitcode(status)))
        draft.rename(exit_file(log))


if __name__ == "__main__":
    main()
