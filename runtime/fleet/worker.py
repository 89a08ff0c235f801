"""A worker: runs a process for each sink of a folder, and watches them.

It runs no sink itself, so no sink can end it, and it has no client of any system. It holds nothing
that a restart would miss: what is wanted stands in the folder, what was done in the tables.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.control_protocol.errors import (
    HeadgateError,
    SinkLeftUnasked,
    SinkProcessKilled,
    SinksClash,
    SinkTakesTooMuchMemory,
    WorkerEnded,
)
from headgate.control_protocol.log_event_names import LogEvent, log_extra
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.runtime import early_signals
from headgate.runtime.fleet.folder import Folder, Wish
from headgate.runtime.fleet.processes import (
    ask_to_end,
    die_with_parent,
    kill_group,
    kill_process,
    private_bytes,
)
from headgate.runtime.fleet.sink_life import (
    AskToLeave,
    Ended,
    Failed,
    Given,
    Kill,
    Life,
    LifeAction,
    LifeState,
    Passed,
    Start,
    Started,
    TakesTooMuch,
    Turned,
    Unwanted,
    Wanted,
    step,
)
from headgate.runtime.systemd import ServiceManager

_log = redacted_logger("headgate.worker")

STARTS_PER_CORE = 2
TURN_S = 0.5
LOOK_S = 1.0
WATCH_S = 2.0
AWAY_MS = 10_000
"""A worker that makes no turn for longer was itself stopped, and its sinks were not."""
TELL_S = 5.0
"""How often the state file is written although nothing changed: its age shows that somebody is."""
MIB = 1024 * 1024
MEMORY_MIB = 1_024
STATE_FILE = ".headgate-worker.json"

_PIDS = ("started", "turned", "failed", "ended")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sink's process may take: private memory, 0 for any; and starts at a time."""

    memory_mib: int = MEMORY_MIB
    starts: int = STARTS_PER_CORE * (os.cpu_count() or 1)


class Worker:
    """Runs the sinks of a folder until ``stop``. ``command`` starts its warm parent."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        limits: Limits,
        state_file: Path | None = None,
        *,
        draw: Callable[[], float] = lambda: random.uniform(-1, 1),
    ) -> None:
        self._folder = Folder(folder)
        self._command = command
        self._limits = limits
        self._state_file = state_file or folder / STATE_FILE
        self._draw = draw
        self._wishes: Mapping[str, Wish] = {}
        self._lives: dict[str, Life] = {}
        self._names: dict[int, str] = {}
        self._told = ""
        self._told_s = self._looked_s = self._watched_s = 0.0
        self._lines = b""
        self._turned_ms = _now_ms()
        self._ends = False
        self._manager = ServiceManager()
        self._state_refused = False

    def run(self) -> None:
        """Run until SIGINT or SIGTERM, then let all leave in order. Raises ``WorkerEnded``."""
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        early_signals.take_over_signals(self._on_signal)
        self._parent = self._start_warm_parent()
        try:
            with selectors.DefaultSelector() as events:
                events.register(self._output, selectors.EVENT_READ)
                while not self._ends or self._lives:
                    self._turn()
                    if events.select(TURN_S):
                        self._read_events()
        finally:
            for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
                signal.signal(number, handler)
            self._end_warm_parent()
            with suppress(OSError):
                self._state_file.unlink(missing_ok=True)

    # ---------------------------------------------------------------------- the warm parent

    def _start_warm_parent(self) -> subprocess.Popen[bytes]:
        worker = os.getpid()
        parent = subprocess.Popen(  # noqa: S603 - this interpreter, with a module of ours
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A terminal's Ctrl-C is for the worker, which asks the others itself.
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(worker),  # noqa: PLW1509 - no thread runs here
        )
        assert parent.stdout is not None
        self._output = parent.stdout.fileno()
        os.set_blocking(self._output, False)
        return parent

    def _end_warm_parent(self) -> None:
        assert self._parent.stdin is not None
        with suppress(OSError):
            self._parent.stdin.close()
        try:
            self._parent.wait(5)
        except subprocess.TimeoutExpired:
            self._parent.kill()
            self._parent.wait()

    def _on_signal(self, number: int, _: object) -> None:
        """Ask for an orderly end; a second signal has its usual effect."""
        self._ends = True
        signal.signal(number, signal.SIG_DFL)

    def _read_events(self) -> None:
        while True:
            try:
                got = os.read(self._output, 1 << 16)
            except BlockingIOError:
                return
            if not got:
                raise WorkerEnded(
                    "the process that starts the sinks of this worker has ended, and they with it",
                    "start the worker again; the log above may say why",
                )
            *lines, self._lines = (self._lines + got).split(b"\n")
            for line in lines:
                self._on_event(json.loads(line))

    def _on_event(self, said: Mapping[str, Any]) -> None:
        pid = next((said[key] for key in _PIDS if key in said), 0)
        if pid not in self._names and "file" in said:
            # Its own first words may come before those of the parent that forked it.
            self._names[pid] = Path(said["file"]).stem
            self._feed(self._names[pid], Started(pid))
        if (name := self._names.get(pid, "")) not in self._lives or "started" in said:
            return
        if "turned" in said:
            self._feed(name, Turned(pid, LifeState(said["state"]), said["doing"]))
        elif "failed" in said:
            self._feed(name, Failed(pid, said["code"], said["text"], said["needs_person"]))
        elif "ended" in said:
            del self._names[pid]
            kill_group(pid)  # what the process has left behind, such as its JVM
            self._feed(name, Ended(pid, *cause_of(said["status"]), self._draw()))

    # -------------------------------------------------------------------------------- turns

    def _turn(self) -> None:
        """Compare what is wanted with what is here: a level, whatever was seen or missed."""
        now_s = time.monotonic()
        if self._ends:
            self._wishes = {}
        elif now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._wishes = self._folder.wishes()
        for name, wish in self._wishes.items():
            if wish.clashes_with:
                continue
            if name not in self._lives:
                self._lives[name] = Life(wish.revision, _now_ms())
            self._feed(name, Wanted(wish.revision))
        for name in [*self._lives]:
            found = self._wishes.get(name)
            if found is None or found.clashes_with:
                self._feed(name, Unwanted())
        if now_s - self._watched_s >= WATCH_S:
            self._watched_s = now_s
            self._watch_memory()
        away_ms, self._turned_ms = _now_ms() - self._turned_ms, _now_ms()
        away_ms = away_ms if away_ms > AWAY_MS else 0
        for name in sorted(self._lives, key=lambda name: self._lives[name].due_ms):
            self._feed(name, Passed(self._may_start(), away_ms))
        self._tell(now_s)
        self._manager.on_turn(f"{sum(life.has_process for life in self._lives.values())} sinks")

    def _may_start(self) -> bool:
        now_ms = _now_ms()
        starting = sum(life.holds_start(now_ms) for life in self._lives.values())
        return not self._ends and starting < self._limits.starts

    def _watch_memory(self) -> None:
        if not self._limits.memory_mib:
            return
        for name, life in [*self._lives.items()]:
            taken = private_bytes(life.pid) if life.has_process else None
            if taken is not None and taken > self._limits.memory_mib * MIB:
                text = (
                    f"its process took {taken // MIB} MiB of memory, more than the "
                    f"{self._limits.memory_mib} MiB that it may; it was killed"
                )
                self._feed(name, TakesTooMuch(life.pid, SinkTakesTooMuchMemory.code, text))

    def _feed(self, name: str, given: Given) -> None:
        if (before := self._lives.get(name)) is None:
            return
        after, actions = step(before, given, _now_ms())
        if after is None:
            del self._lives[name]
            _log.info(
                "sink %s: is no longer wanted here", name, extra=log_extra(LogEvent.SINK_STATE)
            )
        else:
            self._lives[name] = after
            self._log_change(name, before, after)
        for action in actions:
            self._execute(name, action)

    def _execute(self, name: str, action: LifeAction) -> None:
        match action:
            case Start():
                asked = json.dumps({"start": str(self._wishes[name].file)}).encode() + b"\n"
                assert self._parent.stdin is not None
                with suppress(BrokenPipeError):  # its end is read from the other pipe
                    self._parent.stdin.write(asked)
                    self._parent.stdin.flush()
            case AskToLeave(pid):
                ask_to_end(pid)
            case Kill(pid):
                kill_process(pid)

    # ------------------------------------------------------------------------- what is told

    def _log_change(self, name: str, before: Life, after: Life) -> None:
        if after.state is before.state:
            return
        if after.state is LifeState.ERROR:
            in_s = max(0, after.due_ms - _now_ms()) / 1_000
            text = f"sink {name}: {after.code} {after.text}; next try in {in_s:.0f} s"
            _log.error("%s", text, extra=log_extra(LogEvent.SINK_STATE))
        else:
            _log.info("sink %s: %s", name, after.state.value, extra=log_extra(LogEvent.SINK_STATE))

    def _tell(self, now_s: float) -> None:
        """Write the state file when something changed, and now and then: its age counts."""
        now_ms, wall_ms = _now_ms(), time.time_ns() // 1_000_000
        shown = [*self._shown(wall_ms - now_ms)]
        digest = json.dumps([{**one, "doing": ""} for one in shown])
        if digest == self._told and now_s - self._told_s < TELL_S:
            return
        self._told, self._told_s = digest, now_s
        told = {"time_ms": wall_ms, "pid": os.getpid(), "sinks": shown}
        try:
            draft = self._state_file.with_suffix(".new")
            draft.write_text(json.dumps(told))
            draft.replace(self._state_file)
        except OSError as error:
            if not self._state_refused:
                _log.warning("%s cannot be written: %s", self._state_file, error)
            self._state_refused = True

    def _shown(self, to_wall_ms: int) -> Iterable[Mapping[str, Any]]:
        names = self._lives.keys() | self._wishes.keys()
        for name in sorted(names):
            wish, life = self._wishes.get(name), self._lives.get(name)
            if life is not None:
                yield shown_life(name, life, to_wall_ms)
            elif wish is not None and wish.clashes_with:
                error = SinksClash(
                    f"{wish.file.name} and {wish.clashes_with.name} name the same sink",
                    "give each sink one file",
                )
                yield {
                    "sink": name,
                    "state": LifeState.ERROR.value,
                    "code": error.code,
                    "text": f"{error.message} ({error.hint})",
                }


def shown_life(name: str, life: Life, to_wall_ms: int) -> Mapping[str, Any]:
    """Return what is told of a sink. Times are of the wall clock."""
    shown: dict[str, Any] = {
        "sink": name,
        "state": life.state.value,
        "since_ms": life.since_ms + to_wall_ms,
        "pid": life.pid,
        "doing": life.doing,
    }
    if life.state is LifeState.ERROR:
        shown |= {"code": life.code, "text": life.text, "tries": life.tries}
        shown |= {"next_try_ms": (life.due_ms + to_wall_ms) // 1_000 * 1_000}
    return shown


def cause_of(status: int) -> tuple[str, str]:
    """Return code and text for a process that ended with this wait status, without last words."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with suppress(ValueError):
            return (
                SinkProcessKilled.code,
                f"its process was killed by {signal.Signals(number).name}",
            )
        return SinkProcessKilled.code, f"its process was killed by signal {number}"
    if (code := os.WEXITSTATUS(status)) == 0:
        return SinkLeftUnasked.code, "its process ended in order without being asked to"
    return HeadgateError.code, f"its process ended with exit code {code}"


def warm_parent_command(module: str, *arguments: str) -> Sequence[str]:
    """Return the command that runs this module as the warm parent."""
    return [sys.executable, "-m", module, *arguments]


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
