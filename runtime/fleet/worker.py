"""Runs a process for each sink that is wanted on this worker, and watches them.

It runs no sink itself, so no sink can end it. It holds nothing that a restart would miss: what is
wanted stands in a folder or on a fleet's topic, what was done in the tables.
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headgate.control_protocol.errors import (
    HeadgateError,
    SinkLeftUnasked,
    SinkProcessKilled,
    SinkProcessUnstarted,
    SinkTakesTooMuchMemory,
    WorkerEnded,
)
from headgate.control_protocol.log_event_names import LogEvent, event_extra
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.runtime import early_signals
from headgate.runtime.fleet.linux_process_calls import (
    ProcessWatch,
    die_with_parent,
    kill_group,
    kill_process_and_group,
    send_term_signal,
)
from headgate.runtime.fleet.sink_life import (
    Ask,
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
    Unstarted,
    Unwanted,
    step,
)
from headgate.runtime.fleet.spec_source import (
    DesiredSink,
    Report,
    SpecSource,
    ToldSink,
    Usage,
)
from headgate.runtime.systemd import ServiceManager

_log = redacted_logger("headgate.worker")

STARTS_PER_CORE = 2
"""FLEET-12: so many processes start at a time."""
TURN_S = 0.5
GATHER_S = 0.05
"""Lines of a hundred sinks come a hundred times a second: they are taken some at a time."""
TELL_S = 0.5
LOOK_S = 1.0
WATCH_S = 2.0
AWAY_MS = 10_000
"""A worker that makes no turn for longer was itself stopped, and its sinks were not."""
LEAVE_S = 10.0
"""So long may it take to leave a fleet's group before sinks are asked to leave all the same."""
MIB = 1024 * 1024
MEMORY_MIB = 1_024

_PIDS = ("started", "asks", "turned", "failed", "ended")


@dataclass(frozen=True, slots=True)
class Limits:
    """Says what a sink's process may take: private memory, 0 for any; and starts at a time.

    ``jvms_mib``: what all processes that have a JVM may be promised together (FLEET-13).
    """

    memory_mib: int = MEMORY_MIB
    jvms_mib: int = 0
    starts: int = STARTS_PER_CORE * (os.cpu_count() or 1)


class _Nothing:
    """Wants nothing: until the source is opened."""

    def read_desired_sinks(self) -> Mapping[str, DesiredSink]:
        return {}

    def report_sinks(self, told: Sequence[ToldSink], now_ms: int) -> None:
        """Tell nobody."""

    def begin_leaving_and_has_left(self) -> bool:
        return True

    def close(self) -> None:
        """There is nothing to close."""


_NOTHING = _Nothing()


class Worker:
    """Runs the sinks that ``open_source`` says until SIGTERM. ``command`` starts its warm parent.

    The source is opened once the warm parent has been started: it may have threads.
    """

    def __init__(
        self,
        open_source: Callable[[], SpecSource],
        command: Sequence[str],
        limits: Limits,
        *,
        draw: Callable[[], float] = lambda: random.uniform(-1, 1),
    ) -> None:
        self._open_source = open_source
        self._command = command
        self._limits = limits
        self._draw = draw
        self._specs: Mapping[str, DesiredSink] = {}
        self._lives: dict[str, Life] = {}
        self._names: dict[int, str] = {}
        self._watches: dict[str, ProcessWatch] = {}
        self._reports: dict[str, Report] = {}
        self._may_mib: dict[str, int] = {}
        """What each life may take by its last spec: also while it leaves, without one or for
        another."""
        self._asking: dict[int, str] = {}
        """Processes that make a request to a sink's table, by the sink's name."""
        self._looked_s = self._watched_s = self._told_s = 0.0
        self._leave_by_s: float | None = None
        self._source: SpecSource = _NOTHING
        self._lines = b""
        self._turned_ms = _monotonic_ms()
        self._ends = False
        self._manager = ServiceManager()

    def run(self) -> None:
        """Run until SIGINT or SIGTERM, then let all leave in order. Raises ``WorkerEnded``."""
        before = {
            number: early_signals.handler_before_catch(number)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        early_signals.take_over_signals(self._on_signal)
        self._parent = self._start_warm_parent()
        try:
            self._source = self._open_source()
            with selectors.DefaultSelector() as events:
                events.register(self._output, selectors.EVENT_READ)
                while not self._ends or self._lives:
                    self._reconcile()
                    if events.select(TURN_S):
                        time.sleep(GATHER_S)
                        self._handle_warm_parent_events()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._end_warm_parent()
            self._source.close()

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

    def _handle_warm_parent_events(self) -> None:
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
        if "unstarted" in said:
            self._note_process_unstarted(said["sink"], said["unstarted"], said["text"])
            return
        pid = next((said[key] for key in _PIDS if key in said), 0)
        if self._handle_if_request_event(pid, said):
            return
        if pid not in self._names and "sink" in said:
            # Its own first words may come before those of the parent that forked it.
            self._names[pid] = said["sink"]
            self._reports.pop(said["sink"], None)
            self._feed_life(said["sink"], Started(pid))
        if (name := self._names.get(pid, "")) not in self._lives or "started" in said:
            return
        if "turned" in said:
            self._reports[name] = Report(**said["report"])
            self._feed_life(name, Turned(pid, LifeState(said["state"]), said["doing"]))
        elif "failed" in said:
            self._feed_life(name, Failed(pid, said["code"], said["text"], said["needs_person"]))
        elif "ended" in said:
            del self._names[pid]
            kill_group(pid)  # what the process has left behind, such as its JVM
            self._feed_life(
                name, Ended(pid, *error_code_and_text_of_wait_status(said["status"]), self._draw())
            )

    def _note_process_unstarted(self, name: str, act: str, why: str) -> None:
        text = f"its process cannot be started: {why}"
        if act:  # a request to its table, a start may be one: it is asked again while it disagrees
            _log.warning("sink %s: %s: %s", name, act, text, extra=event_extra(LogEvent.SINK_STATE))
            return
        self._feed_life(name, Unstarted(SinkProcessUnstarted.code, text, self._draw()))

    def _handle_if_request_event(self, pid: int, said: Mapping[str, Any]) -> bool:
        """Take what is said of a process that makes a request; return whether it is."""
        if "asks" in said or said.get("of_request"):  # its last words may come before the parent's
            self._asking[pid] = said["sink"]
        if pid not in self._asking:
            return False
        if "failed" in said:
            text = f"sink {self._asking[pid]}: {said['code']} {said['text']}; asked again"
            _log.warning("%s", text, extra=event_extra(LogEvent.SINK_STATE))
        if "ended" in said:
            del self._asking[pid]
            kill_group(pid)
        return True

    # -------------------------------------------------------------------------------- turns

    def _reconcile(self) -> None:
        """Compare what is wanted with what is here: a level, whatever was seen or missed."""
        now_s = time.monotonic()
        if self._ends:
            # Others begin at once: for a moment a sink is in two places, which is harmless.
            self._leave_by_s = self._leave_by_s or now_s + LEAVE_S
            if self._source.begin_leaving_and_has_left() or now_s >= self._leave_by_s:
                self._specs = {}
        elif now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._specs = self._source.read_desired_sinks()
        for name, spec in self._specs.items():
            if spec.refused:
                continue
            if name not in self._lives:
                self._lives[name] = Life(spec.wanted, _monotonic_ms())
            self._feed_life(name, spec.wanted)
            if self._lives[name].state is not LifeState.STOPPING:
                may_mib = spec.memory_mib
                self._may_mib[name] = self._limits.memory_mib if may_mib is None else may_mib
        for name in [*self._lives]:
            found = self._specs.get(name)
            if found is None or found.refused:
                self._feed_life(name, Unwanted())
        if now_s - self._watched_s >= WATCH_S:
            self._measure_and_kill_oversized_sinks(now_s)
            self._watched_s = now_s
        away_ms, self._turned_ms = _monotonic_ms() - self._turned_ms, _monotonic_ms()
        away_ms = away_ms if away_ms > AWAY_MS else 0
        for name in sorted(self._lives, key=self._start_rank):
            # Only who waits asks: each answer looks at all of them.
            waits = self._lives[name].state in (LifeState.IDLE, LifeState.ERROR)
            self._feed_life(name, Passed(waits and self._may_start(name), away_ms))
        self._report_state()
        self._manager.on_turn(f"{sum(life.has_process for life in self._lives.values())} sinks")

    def _start_rank(self, name: str) -> tuple[int, int]:
        """Sort by who has most to read, then by who waits longest for a try (FLEET-12)."""
        told, spec = self._reports.get(name, Report()).lag_records, self._specs.get(name)
        lag = told if told is not None else spec.lag_records if spec else 0
        return -lag, self._lives[name].due_ms

    def _may_start(self, name: str) -> bool:
        now_ms = _monotonic_ms()
        starting = sum(life.counts_as_starting(now_ms) for life in self._lives.values())
        may_any = not self._ends and starting < self._limits.starts
        return may_any and not self._why_no_room_for_jvm(name)

    def _why_no_room_for_jvm(self, name: str) -> str:
        """Return why its JVM has no room now (FLEET-13); empty: it has, or there is none."""
        life, spec = self._lives.get(name), self._specs.get(name)
        needed = spec.wanted.jvm_mib if spec else 0
        if not needed or (life and life.promised_jvm_mib):
            return ""
        promised = sum(each.promised_jvm_mib for each in self._lives.values())
        most = self._limits.jvms_mib
        if promised + needed <= most:
            return ""
        return (
            f"waits for memory: with its JVM it may take {needed:,} MiB, and of {most:,} MiB for "
            f"such sinks {promised:,} are promised"
        )

    def _measure_and_kill_oversized_sinks(self, now_s: float) -> None:
        """Look what each process takes, and kill who takes too much memory."""
        for name, life in [*self._lives.items()]:
            if not life.has_process:
                self._watches.pop(name, None)
                continue
            may_mib = self._may_mib[name]
            watch = self._watches.get(name)
            if watch is None or watch.pid != life.pid:
                watch = self._watches[name] = ProcessWatch(life.pid)
            watch.update_usage(
                now_s,
                may_mib * MIB,
                has_started=life.state is not LifeState.STARTING,
                has_children=bool(life.jvm_mib),
            )
            taken = watch.usage.memory_bytes
            if taken is not None and may_mib and taken > may_mib * MIB:
                text = (
                    f"its process took {taken // MIB} MiB of memory, more than the "
                    f"{may_mib} MiB that it may; it was killed"
                )
                self._feed_life(name, TakesTooMuch(life.pid, SinkTakesTooMuchMemory.code, text))

    def _feed_life(self, name: str, given: Given) -> None:
        if (before := self._lives.get(name)) is None:
            return
        after, actions = step(before, given, _monotonic_ms())
        if isinstance(given, Ended) and before.state is LifeState.STOPPING and before.code:
            # Nothing is tried again, so no later state tells it.
            text = f"sink {name}: while it left: {before.code} {before.text}"
            _log.warning("%s", text, extra=event_extra(LogEvent.SINK_STATE))
        if after is None:
            del self._lives[name], self._may_mib[name]
            self._watches.pop(name, None)
            self._reports.pop(name, None)
            _log.info(
                "sink %s: is no longer wanted here", name, extra=event_extra(LogEvent.SINK_STATE)
            )
        else:
            self._lives[name] = after
            self._log_change(name, before, after)
        for action in actions:
            self._execute_action(name, action)

    def _execute_action(self, name: str, action: LifeAction) -> None:
        match action:
            case Start():
                self._request_process({"start": str(self._specs[name].file), "sink": name})
            case Ask(request) if name not in self._asking.values():
                text = f"sink {name}: its table is asked to {request}, as its spec says"
                _log.info("%s", text, extra=event_extra(LogEvent.SINK_STATE))
                file = str(self._specs[name].file)
                self._request_process({"ask": request.value, "file": file, "sink": name})
            case AskToLeave(pid):
                send_term_signal(pid)
            case Kill(pid):
                kill_process_and_group(pid)

    def _request_process(self, asked: Mapping[str, str]) -> None:
        assert self._parent.stdin is not None
        with suppress(BrokenPipeError):  # its end is read from the other pipe
            self._parent.stdin.write(json.dumps(asked).encode() + b"\n")
            self._parent.stdin.flush()

    # ------------------------------------------------------------------------- what is told

    def _log_change(self, name: str, before: Life, after: Life) -> None:
        if after.state is before.state and after.tries <= before.tries:
            return
        if after.state is LifeState.ERROR:
            in_s = max(0, after.due_ms - _monotonic_ms()) / 1_000
            text = f"sink {name}: {after.code} {after.text}; next try in {in_s:.0f} s"
            _log.error("%s", text, extra=event_extra(LogEvent.SINK_STATE))
        else:
            _log.info(
                "sink %s: %s", name, after.state.value, extra=event_extra(LogEvent.SINK_STATE)
            )

    def _report_state(self) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s < TELL_S:
            return
        self._told_s = now_s
        names = sorted(self._lives.keys() | self._specs.keys())
        told = [
            ToldSink(
                name,
                self._specs.get(name),
                self._lives.get(name),
                self._watches[name].usage if name in self._watches else Usage(),
                self._reports.get(name, Report()),
                self._why_no_room_for_jvm(name),
            )
            for name in names
        ]
        self._source.report_sinks(told, _monotonic_ms())


def error_code_and_text_of_wait_status(status: int) -> tuple[str, str]:
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


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
