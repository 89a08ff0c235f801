"""Runs a participant's process: its turns, its signals, its rest while a person wants none."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass

from headgate.control_protocol.errors import SinkStopped
from headgate.control_protocol.log_events import LogEvent, about
from headgate.control_protocol.redacted_log import redacted_logger
from headgate.participant.state import State
from headgate.sink.assembly import new_sender, opened
from headgate.sink.departure import departing
from headgate.sink.resting import may_work, rest
from headgate.sink.service_manager import ServiceManager
from headgate.sink.settings import SinkSettings
from headgate.sink.telemetry.measuring import measured
from headgate.sink.telemetry.meters import SinkMeters

_log = redacted_logger("headgate.sink")

TURN_MS = 50


@dataclass(frozen=True, slots=True)
class Progress:
    """What a run tells whoever watches it: the participant's state, and whether it leads."""

    participant: State
    leads: bool


def run(
    settings: SinkSettings,
    on_progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
    meters: SinkMeters | None = None,
) -> None:
    """Run one participant, with the coordinator inside, until ``stop`` or SIGINT or SIGTERM.

    ``meters`` measure it; without any, the sink file decides whether something does. While a person
    wants the sink stopped, it has left the group and waits.

    Raises the ``HeadgateError`` that ends the sink. Leaving, it finishes and announces what is
    written, gives its partitions up, and joins every thread.
    """
    stop = stop or threading.Event()
    manager = ServiceManager()
    measuring = nullcontext(meters) if meters else measured(settings)
    with _signals(stop), measuring as measures:
        turn = _Turn(stop, manager, measures, on_progress)
        while not stop.is_set():
            if may_work(settings):
                with suppress(SinkStopped):
                    _take_part(settings, turn)
            if not stop.is_set():
                told = f"sink {settings.name}: stopped by a person; waits for headgate start"
                _log.info("%s", told, extra=about(LogEvent.SINK_RESTS))
                if measures:
                    measures.rest()
                rest(settings, stop, lambda: turn.came_round("stopped by a person"))
        manager.stopping()


@dataclass(frozen=True, slots=True)
class _Turn:
    """Who is told that a process's loop has come round, and what ends it."""

    stop: threading.Event
    manager: ServiceManager
    measures: SinkMeters | None
    on_progress: Callable[[Progress], None] | None

    def came_round(self, status: str) -> None:
        if self.measures:
            self.measures.turned()
        self.manager.turned(status)


def _take_part(settings: SinkSettings, turn: _Turn) -> None:
    """Be a participant until asked to end. Raises ``SinkStopped`` after having left in order."""
    sender = new_sender()
    with departing(settings, sender), opened(settings, sender, turn.measures) as sink:
        wish: SinkStopped | None = None
        try:
            while not turn.stop.is_set():
                sink.run_once(TURN_MS)
                turn.came_round("coordinates" if sink.leads else "takes part")
                if turn.on_progress:
                    turn.on_progress(Progress(sink.state, sink.leads))
        except SinkStopped as stopped:
            wish = stopped
        _log.info("sink %s: leaves", settings.name, extra=about(LogEvent.SINK_DRAINING))
        if turn.stop.is_set():
            turn.manager.stopping()
        if turn.measures:
            turn.measures.drain()
        sink.close()
        if wish is not None:
            raise wish


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """SIGINT and SIGTERM ask for an orderly end, a second one means what it always does.

    Only the main thread may listen to them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, before[number])

    before = {int(s): signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
