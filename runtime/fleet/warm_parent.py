"""Runs the warm parent: a process that has imported everything, and forks one process per sink.

Imports are paid once, and their pages are shared. It has no thread, no client and no JVM, so that
forking is safe, and it runs nothing of a sink itself. One JSON line per request on its input
(``{"start": FILE, "sink": NAME}``, or ``{"ask": REQUEST, ...}`` for a process that makes a request
to the sink); one per event on its output: ``warm``, ``started``, ``asks``, ``unstarted``,
``ended``, and what its children write there themselves: ``turned`` and ``failed``. A line is below
PIPE_BUF, so that lines of several processes never mix.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from headgate.config.load import parse
from headgate.control_protocol.errors import ConfigurationError, HeadgateError, StopSink
from headgate.kafka.clients import new_admin
from headgate.runtime.catalogs import open_catalog
from headgate.runtime.fleet.fleet_records import revision_of
from headgate.runtime.fleet.linux_process_calls import die_with_parent, raise_own_oom_score
from headgate.runtime.fleet.sink_life import LifeState
from headgate.runtime.process import STOPPED_BY_PERSON, Progress

_TEXT_BYTES_MAX = 2_000
"""Longer texts are cut: lines of several writers stay whole below PIPE_BUF, 4,096 on Linux."""
_TURN_S = 1.0
_SAME_S = 10.0
"""How often a loop is said to turn of which there is nothing new to say."""
_LAST_WORDS_S = 2.0
_ENDS = (signal.SIGINT, signal.SIGTERM)
BUG_EXIT_CODE = 70

_WARM = (
    *("headgate.data_plane.formats.json.format", "headgate.data_plane.formats.avro.format"),
    "headgate.data_plane.formats.protobuf.format",
    *("headgate.data_plane.formats.registry.formats", "headgate.runtime.maintenance.scheduler"),
    *("headgate.tables.iceberg.rest_catalog", "pyiceberg.catalog.sql", "sqlalchemy"),
)
"""What sinks import only when they need it. A package that is not installed is left out."""
_EXAMPLE = """
name = "warm"
[source]
topics = ["warm"]
[kafka]
"bootstrap.servers" = "127.0.0.1:1"
[catalog.properties]
type = "sql"
uri = "sqlite:///{folder}/catalog.db"
warehouse = "file://{folder}"
[table]
identifier = "warm.warm"
"""

RunSink = Callable[[Path, "TurnReport"], None]
"""Runs the sink of a file until SIGTERM. Raises the ``HeadgateError`` that ends it."""
AskSink = Callable[[Path, str], None]
"""Makes a request to the sink of a file, such as ``pause``. Raises why that was not heard."""


class TurnReport:
    """Tells the worker that the sink's loop turns: implements ``Manager``, observes ``Progress``.

    A worker that does not read, as a stopped one, holds nothing up: a line that does not fit into
    the pipe is dropped.
    """

    def __init__(self, events: int, file: Path, name: str) -> None:
        self._events, self._file, self._name = events, file, name
        self._due_s = self._again_s = 0.0
        self._said: Mapping[str, Any] = {}
        self._progress: Progress | None = None
        self._readings: int | None = None
        self._revision = ""

    def on_progress(self, progress: Progress) -> None:
        """Keep how the sink is; the next turn reports it."""
        self._progress = progress
        if progress.readings != self._readings:
            # It has just been read. If it has changed again, the next reading will tell. Settings
            # alone do not: they are the same where a comment has changed.
            self._readings = progress.readings
            with suppress(OSError):
                self._revision = revision_of(self._file.read_bytes())

    def on_turn(self, status: str) -> None:
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + _TURN_S
        progress = self._progress
        paused = progress is not None and progress.participant.term.paused
        state = LifeState.PAUSED if paused else LifeState.RUNNING
        state = LifeState.STOPPED if status == STOPPED_BY_PERSON else state
        said = {
            "turned": os.getpid(),
            "sink": self._name,
            "state": state.value,
            "doing": status,
            "report": {"revision": self._revision, **_progress_fields(progress)},
        }
        if said == self._said and now_s < self._again_s:
            return  # a worker that many wake looks at all of its sinks each time
        if try_write_event_line(self._events, said):
            self._said, self._again_s = said, now_s + _SAME_S

    def on_stopping(self) -> None:
        """Report nothing: the worker knows."""


def _progress_fields(progress: Progress | None) -> Mapping[str, Any]:
    if progress is None:
        return {}
    positions, ends = progress.participant.work.positions, progress.participant.source.ends
    behind = [max(0, ends[at] - next_) for at, next_ in positions.items() if at in ends]
    return {
        "leads": progress.leads,
        "partitions": len(progress.participant.work.owned),
        "lag_records": sum(behind),
    }


def try_write_event_line(events_fd: int, event: Mapping[str, Any], patience_s: float = 0.0) -> bool:
    """Write an event whole; return whether there was room for it within this time."""
    line = json.dumps(event).encode() + b"\n"
    until_s = time.monotonic() + patience_s
    while True:
        try:
            os.write(events_fd, line)
        except BlockingIOError:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            select.select([], [events_fd], [], left_s)
        except BrokenPipeError:
            return False
        else:
            return True


def failure_event(error: BaseException, name: str, *, of_request: bool = False) -> dict[str, Any]:
    """Return what a process says of the error that ends it, short enough for a line."""
    if isinstance(error, HeadgateError):
        text = f"{error.message} ({error.hint})" if error.hint else error.message
        code = error.code
    else:
        text, code = f"{type(error).__name__}: {error}; report it", HeadgateError.code
    while len(json.dumps(text)) > _TEXT_BYTES_MAX:
        text = text[: len(text) * 3 // 4]
    person = isinstance(error, ConfigurationError | StopSink)
    said = {"failed": os.getpid(), "sink": name, "code": code, "text": text}
    return {**said, "needs_person": person, "of_request": of_request}


def serve_fork_requests(run_sink: RunSink, ask_sink: AskSink) -> None:
    """Fork a process per request on standard input, until that ends. Returns in no child."""
    # A service manager asks all processes of the unit to end: the sinks leave in order, and end
    # at once with this one. The end of its input ends it.
    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)
    events = os.dup(1)
    os.dup2(2, 1)  # whatever else prints goes to the log
    os.set_blocking(events, False)
    for module in _WARM:
        try:
            importlib.import_module(module)
        except ImportError:
            continue
    _warm_up_shared_libraries()
    gc.collect()
    gc.freeze()
    _WarmParent(events, run_sink, ask_sink).serve()


def _warm_up_shared_libraries() -> None:
    """Do once what each sink does at first: what that leaves in memory is shared, too.

    Checking the first file builds what checks them, opening a catalog what speaks to one, and the
    first client of Kafka a library of TLS. Neither a thread nor a client is left. What fails here,
    as where there is no room for files, or no SQLAlchemy, costs memory alone.
    """
    new_admin({"log_level": "0"})  # knows no broker, and ends here with its threads
    with suppress(HeadgateError, OSError), tempfile.TemporaryDirectory() as folder:
        open_catalog(parse(_EXAMPLE.format(folder=folder))).close()


class _WarmParent:
    def __init__(self, events: int, run_sink: RunSink, ask_sink: AskSink) -> None:
        self._events = events
        self._run_sink = run_sink
        self._ask_sink = ask_sink
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)

    def serve(self) -> None:
        """Serve until the worker closes the input. Its end is ours, and ours that of the sinks."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._queue_event_and_try_flush({"warm": os.getpid()})
        asked = b""
        while True:
            blocked = [self._events] if self._waiting else []
            readable, _, _ = select.select([0, self._woken], blocked, [], None)
            if self._woken in readable:
                os.read(self._woken, 4096)
            self._reap_children()
            self._try_flush_events()
            if 0 not in readable:
                continue
            if not (got := os.read(0, 65_536)):
                return
            *lines, asked = (asked + got).split(b"\n")
            for line in lines:
                self._fork_child(json.loads(line))

    def _queue_event_and_try_flush(self, said: Mapping[str, Any]) -> None:
        """An event of the parent is never dropped: it waits until the worker reads."""
        self._waiting.append(said)
        self._try_flush_events()

    def _try_flush_events(self) -> None:
        while self._waiting and try_write_event_line(self._events, self._waiting[0]):
            self._waiting.popleft()

    def _reap_children(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._queue_event_and_try_flush({"ended": pid, "status": status})

    def _fork_child(self, asked: Mapping[str, str]) -> None:
        parent, name, request = os.getpid(), asked["sink"], asked.get("ask", "")
        # The child ignores these, as this process does, until it has set them itself: a request to
        # leave that comes before would be lost, and the sink killed 30 s later. Blocked ones wait.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
        said: dict[str, Any] = {"sink": name}
        try:
            pid = os.fork()
        except OSError as error:  # raised, it would end this process, and all sinks with it
            pid = -1
            said |= {"unstarted": request, "text": str(error)}
        else:
            said["asks" if request else "started"] = pid
        if pid == 0:
            file = Path(asked["file" if request else "start"])
            report = TurnReport(self._events, file, name)
            act = partial(self._ask_sink, file, request) if request else None
            act = act or partial(self._run_sink, file, report)
            self._run_as_child(act, name, parent, of_request=bool(request))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
        self._queue_event_and_try_flush(said)

    def _run_as_child(
        self, act: Callable[[], None], name: str, parent: int, *, of_request: bool
    ) -> NoReturn:
        """Be the process of a sink, or of a request; nothing of the parent's loop goes on in it."""
        code = BUG_EXIT_CODE
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, *_ENDS):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
            os.setpgid(0, 0)
            die_with_parent(parent)
            raise_own_oom_score()
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            for fd in (nothing, self._woken, self._waker):
                os.close(fd)
            act()
            code = 0
        except BaseException as error:  # noqa: BLE001 - the last words of a process
            said = failure_event(error, name, of_request=of_request)
            try_write_event_line(self._events, said, _LAST_WORDS_S)
            if isinstance(error, HeadgateError):
                code = error.exit_code
            else:
                traceback.print_exc()
        finally:
            os._exit(code)
