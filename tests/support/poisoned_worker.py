"""A worker some of whose sinks are poison, by the first word of the file's name; others are real.

``python poisoned_worker.py FOLDER`` is the worker, with short limits; with ``--parent`` it is the
warm parent that the worker starts.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from headgate.control_protocol.errors import StopSink
from headgate.runtime.fleet import sink_life, worker
from headgate.runtime.fleet.folder import Folder
from headgate.runtime.fleet.warm_parent import TurnReport, serve_fork_requests

MEMORY_MIB = 400
OPENING_MS_MAX = 3_000


def run_sink(file: Path, report: TurnReport) -> None:
    match file.stem.split("-")[0]:
        case "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "memory":
            _eat(report)
        case "busy":
            while True:  # holds Python's lock as long as it may
                sum(range(1_000_000))
        case "leaves":
            return
        case "stops":
            raise StopSink("a person is needed " + 10_000 * "\N{SNOWMAN}")
        case "threads":
            tasks = Path(f"/proc/{os.getppid()}/task").iterdir()
            raise StopSink(" ".join((task / "comm").read_text().strip() for task in tasks))
        case "stays" | "turns" as word:
            stop = threading.Event()
            handler = signal.SIG_IGN if word == "stays" else lambda *_: stop.set()
            signal.signal(signal.SIGTERM, handler)
            while not stop.wait(0.1):
                report.on_turn(word)
        case _:
            from headgate.operations.cli.warm_parent_process import run_sink as run_real_sink

            run_real_sink(file, report)


def ask_sink(file: Path, request: str) -> None:
    """Hear nothing: a folder makes no requests."""


def _eat(report: TurnReport) -> None:
    taken = []
    while True:
        taken.append(b"x" * (50 << 20))
        report.on_turn("eats")
        time.sleep(0.2)


def main() -> None:
    if sys.argv[1] == "--parent":
        serve_fork_requests(run_sink, ask_sink)
        return
    sink_life.OPENING_MS_MAX = OPENING_MS_MAX
    sink_life.LEAVING_MS_MAX = 2_000
    limits = worker.Limits(memory_mib=MEMORY_MIB)
    folder = Path(sys.argv[1])
    command = [sys.executable, __file__, "--parent"]
    worker.Worker(lambda: Folder(folder), command, limits).run()


if __name__ == "__main__":
    main()
