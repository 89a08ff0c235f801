"""Runs a participant's process: its turns, its signals, and its wait while it is stopped."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from headgate.config.configuration_fingerprint import configuration_digest
from headgate.config.reload import RefusedFile, Reload, can_apply_live
from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.current_sink import working_for_sink
from headgate.control_protocol.errors import (
    HeadgateError,
    LeadershipReleased,
    RetryLater,
    SinkStopped,
    TableMissing,
)
from headgate.control_protocol.events import Notice, NoticeKind
from headgate.control_protocol.identifiers import Sender, SinkName
from headgate.control_protocol.log_event_names import LogEvent, event_extra
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.participant.state import State
from headgate.runtime import early_signals
from headgate.runtime.assembly import new_sender
from headgate.runtime.configuration_comparison import (
    find_operator_started_with_other_file,
    find_participants_with_other_file,
    try_read_recent_envelopes,
)
from headgate.runtime.process_notices import try_append_notice
from headgate.runtime.sink import IDLE_MS, Sink
from headgate.runtime.sink_tables import open_tables_creating_nothing
from headgate.runtime.startup_progress_log import FirstCommitLog
from headgate.runtime.systemd import Manager, ServiceManager
from headgate.runtime.telemetry.instrumentation import open_otlp_meters
from headgate.runtime.telemetry.sink_metrics import SinkMeters
from headgate.runtime.wall_clock import wall_ms

# Waits outside of the group, and looks at the table now and then.
#
# While an operator keeps the sink stopped, or after this process has left the lead to others
# (ELECTION-2).


LOOKED_AT_S = 3.0
STOPPED_BY_PERSON = "stopped by a person"
_TURN_S = 0.25


def is_stopped_by_operator(settings: SinkSettings) -> bool:
    """Return whether the table says that an operator stopped the sink.

    Raises what opening the table raises; a catalog that does not exist yet stops nobody.
    """
    with open_tables_creating_nothing(settings) as tables:
        try:
            tables.format_of(tables.name)
        except TableMissing:
            return False
        with closing(tables.open_primary()) as table:
            record = table.read().record
    return record is not None and record.stopped


def may_take_part(settings: SinkSettings) -> bool:
    """Return whether to take part; what cannot be read now will fail when the sink opens."""
    try:
        return not is_stopped_by_operator(settings)
    except HeadgateError:
        return True


def wait_until_started(
    settings: SinkSettings, stop: threading.Event, on_turn: Callable[[], None]
) -> None:
    """Return once an operator has started the sink, or ``stop`` is set.

    While the table is unreachable, the sink stays stopped.
    """
    _wait_until_over_or_error(
        lambda: not is_stopped_by_operator(settings), stop, on_turn, LOOKED_AT_S
    )


def wait_until_table_readable(
    settings: SinkSettings, stop: threading.Event, on_turn: Callable[[], None], at_least_s: float
) -> None:
    """Return after this time, once the table can be read from here, or ``stop`` is set."""

    def is_table_readable() -> bool:
        is_stopped_by_operator(settings)
        return True

    _wait_until_over_or_error(is_table_readable, stop, on_turn, at_least_s)


def _wait_until_over_or_error(
    is_over: Callable[[], bool],
    stop: threading.Event,
    on_turn: Callable[[], None],
    first_look_after_s: float,
) -> None:
    """Return once it is over, ``stop`` is set, or an error says that trying on is of no use."""
    due_s = time.monotonic() + first_look_after_s
    while not stop.wait(_TURN_S):
        on_turn()
        if time.monotonic() < due_s:
            continue
        try:
            if is_over():
                return
        except RetryLater:
            pass
        except HeadgateError:
            return  # the table is gone or refused: opening the sink reports it
        due_s = time.monotonic() + LOOKED_AT_S


_log = redacted_logger("headgate.runtime")

_LOOKED_AT_S = 1.0
"""How often somebody with a new sink file looks whether the others have left."""
_OTHERS_START_S = 60.0
"""How long those with the sink file of a person's start go first; they need some seconds."""

Measuring = Callable[[SinkSettings], AbstractContextManager[SinkMeters | None]]


@dataclass(frozen=True, slots=True)
class Progress:
    """What a run reports to its observer: the participant's state, whether it leads, and how often
    its file was read anew."""

    participant: State
    leads: bool
    readings: int


def run(
    settings: SinkSettings,
    on_progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
    *,
    measuring: Measuring = open_otlp_meters,
    sink_file: Path | None = None,
    manager: Manager | None = None,
) -> None:
    """Run one participant, with the coordinator inside, until ``stop`` or SIGINT or SIGTERM.

    ``measuring`` decides what measures it, and ``manager`` hears of its turns, systemd unless
    given. While an operator keeps the sink stopped, it has left
    the group and waits, as it does when its coordinator's calls are not answered while others could
    lead (ELECTION-2). A ``sink_file`` that changes is read again: intervals and limits apply from
    the next START; for any other change it leaves in order and reopens.

    Raises the ``HeadgateError`` that ends the sink. When leaving, it finishes and announces what is
    written, gives up its partitions, and joins every thread.
    """
    stop = stop or threading.Event()
    manager = manager or ServiceManager()
    reload = Reload(sink_file) if sink_file else None
    with handle_signals(stop, [reload] if reload else []):
        run_participant_in_this_thread(
            Process(stop, manager, measuring, reload, on_progress), settings
        )
        manager.on_stopping()


@dataclass(frozen=True, slots=True)
class Process:
    """What a sink gets from its process: what ends it, who observes its turns, and its file."""

    stop: threading.Event
    manager: Manager
    measuring: Measuring = open_otlp_meters
    reload: Reload | None = None
    on_progress: Callable[[Progress], None] | None = None


def run_participant_in_this_thread(process: Process, settings: SinkSettings) -> None:
    """Run one sink's participant in this thread until ``process.stop``. Raises as ``run``."""
    with working_for_sink(settings.name):
        goes_on: SinkSettings | None = settings
        while goes_on and not process.stop.is_set():
            with process.measuring(goes_on) as measures:
                turn = _Turn(process, measures, goes_on)
                if goes_on is not settings and (newer := _wait_while_others_have_other_file(turn)):
                    goes_on = newer
                    continue
                goes_on = _take_part_or_wait_for_start(turn)


@dataclass(slots=True)
class _Turn:
    """Who learns that a sink's loop has made a turn, what ends it, and the settings in force."""

    process: Process
    measures: SinkMeters | None
    settings: SinkSettings

    @property
    def stop(self) -> threading.Event:
        return self.process.stop

    def report_heartbeat(self, status: str) -> None:
        if self.measures:
            self.measures.on_turn()
        self.process.manager.on_turn(status)

    def adopt_settings(self, settings: SinkSettings) -> None:
        """Keep what was adopted live: a file that has not changed since is not read again."""
        self.settings = settings
        if self.measures:
            self.measures.adopt_settings(settings)

    def reload_settings_if_changed(self, sender: Sender) -> SinkSettings | None:
        """Return the new settings if the sink file has some, and log that."""
        reload, settings = self.process.reload, self.settings
        found = reload.poll(settings) if reload else None
        if isinstance(found, RefusedFile):
            text = f"the changed sink file was not adopted: {found.error.message}"
            try_append_notice(settings, sender, Notice(NoticeKind.RELOADED, found.error.code, text))
            return None
        if found:
            digest = configuration_digest(found)
            try_append_notice(settings, sender, Notice(NoticeKind.RELOADED, configuration=digest))
        return found


def _wait_while_others_have_other_file(turn: _Turn) -> SinkSettings | None:
    """CONFIG-1: with another file than before, wait for those at work to leave, or to get it as
    well.

    Return the settings to go on with if the file changes meanwhile.
    """
    settings, reported = turn.settings, ""
    while not turn.stop.is_set():
        now_ms = wall_ms()
        error = find_participants_with_other_file(
            settings, try_read_recent_envelopes(settings), now_ms
        ).error
        if error is None:
            return None
        if error.message != reported:
            extra = event_extra(LogEvent.SINK_WAITS)
            _log.warning("sink %s: waits: %s", settings.name, error, extra=extra)
        reported = error.message
        turn.report_heartbeat("waits for participants with another sink file")
        if newer := turn.reload_settings_if_changed(new_sender()):
            return newer
        turn.stop.wait(_LOOKED_AT_S)
    return None


def _take_part_or_wait_for_start(turn: _Turn) -> SinkSettings | None:
    """Take part, or wait for a start. Return the settings to start over with, if it should."""
    while not turn.stop.is_set():
        if may_take_part(turn.settings):
            try:
                return _take_part_until_new_settings(turn)
            except LeadershipReleased as released:
                _stay_away_until_table_readable(turn, released)
                continue
            except SinkStopped:
                pass
        if turn.stop.is_set():
            break
        message = f"sink {turn.settings.name}: stopped by a person; waiting for headgate start"
        _log.info("%s", message, extra=event_extra(LogEvent.SINK_WAITS))
        if turn.measures:
            turn.measures.note_left_group_to_wait()
        wait_until_started(
            turn.settings, turn.stop, lambda: turn.report_heartbeat(STOPPED_BY_PERSON)
        )
        if anew := turn.reload_settings_if_changed(new_sender()):
            return anew
        _wait_for_starters_file_or_raise(turn)
    return None


def _wait_for_starters_file_or_raise(turn: _Turn) -> None:
    """CONFIG-1: let those go first that have the sink file with which a person started the sink.

    Raises ``OtherConfiguration`` once they work. If nobody has that file, this one will do.
    """
    turn.stop.wait(_LOOKED_AT_S)  # the start stands in the table just before it is announced
    settings, until_s, reported = turn.settings, time.monotonic() + _OTHERS_START_S, False
    while not turn.stop.is_set() and time.monotonic() < until_s:
        envelopes = try_read_recent_envelopes(settings)
        error = find_participants_with_other_file(settings, envelopes, wall_ms()).error
        if error:
            raise error
        if not (actor := find_operator_started_with_other_file(settings, envelopes)):
            return
        if not reported:
            text = f"sink {settings.name}: waits: {actor} started it with another sink file"
            _log.warning("%s", text, extra=event_extra(LogEvent.SINK_WAITS))
        reported = True
        turn.report_heartbeat("waits for participants with another sink file")
        turn.stop.wait(_LOOKED_AT_S)


def _stay_away_until_table_readable(turn: _Turn, released: LeadershipReleased) -> None:
    """ELECTION-2: let others lead, for as long as this process had no answers, and until it has."""
    settings, reported = turn.settings, f"{released.code} {released.message}"
    _log_event(LogEvent.LEADERSHIP_RELEASED, f"sink {settings.name}: {reported}", logging.WARNING)
    if turn.measures:
        turn.measures.note_left_group_to_wait(reported)
    away_s = released.away_ms / 1000
    wait_until_table_readable(
        settings, turn.stop, lambda: turn.report_heartbeat("has left the lead to others"), away_s
    )


def _take_part_until_new_settings(turn: _Turn) -> SinkSettings | None:
    """Take part until asked to end, or until the sink file changes.

    Raises ``SinkStopped`` and ``LeadershipReleased`` after leaving in order.
    """
    name = turn.settings.name
    with Sink(turn.settings, turn.measures) as sink:
        leaving: SinkStopped | LeadershipReleased | None = None
        anew: SinkSettings | None = None
        try:
            anew = _run_turns_until_new_settings(sink, turn)
        except (SinkStopped, LeadershipReleased) as asked:
            leaving = asked
        _log.info("sink %s: leaves", name, extra=event_extra(LogEvent.SINK_DRAINING))
        if turn.stop.is_set():
            turn.process.manager.on_stopping()
        if turn.measures:
            turn.measures.note_draining()
        sink.leave()
        if leaving is not None:
            raise leaving
        return anew


def _run_turns_until_new_settings(sink: Sink, turn: _Turn) -> SinkSettings | None:
    """Make turns until asked to stop; return new settings that cannot be applied live."""
    first = FirstCommitLog(turn.settings)
    while not turn.stop.is_set():
        sink.turn(idle_ms=IDLE_MS)
        first.log_progress_if_new(sink.state)
        turn.report_heartbeat("coordinates" if sink.leads else "takes part")
        if turn.process.on_progress:
            readings = turn.process.reload.readings if turn.process.reload else 0
            turn.process.on_progress(Progress(sink.state, sink.leads, readings))
        read = turn.reload_settings_if_changed(sink.state.sender)
        if read and not can_apply_live(turn.settings, read):
            return read
        if read:
            sink.adopt_settings(read)
            turn.adopt_settings(read)
    return None


@contextmanager
def logging_start_and_end(sink: SinkName) -> Iterator[None]:
    """Log that a participant starts, and how it ends."""
    _log_event(LogEvent.SINK_STARTED, f"sink {sink}: participant starting")
    try:
        yield
    except HeadgateError as error:
        _log_event(LogEvent.SINK_FAILED, f"sink {sink}: {error}", logging.ERROR)
        raise
    _log_event(LogEvent.SINK_STOPPED, f"sink {sink}: participant left in order")


def _log_event(event: LogEvent, text: str, level: int = logging.INFO) -> None:
    _log.log(level, "%s", text, extra=event_extra(event))


@contextmanager
def handle_signals(stop: threading.Event, reloads: Sequence[Reload]) -> Iterator[None]:
    """Handle signals: SIGINT and SIGTERM ask for an orderly end; a second one has its usual effect.

    SIGHUP rereads the sink files, if there are any, unless it is ignored (`nohup`). Only the main
    thread may handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def request_reloads(*_: object) -> None:
        for reload in reloads:
            reload.request_reload()

    before = signal.getsignal(signal.SIGHUP)
    with early_signals.stop_set_by_signals(stop):
        # A child inherits that a signal is ignored, not that it is handled: where `nohup` says that
        # hangups are not for this process, a handler would let them end the JVM beside it.
        if reloads and before is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, request_reloads)
        try:
            yield
        finally:
            signal.signal(signal.SIGHUP, before)
