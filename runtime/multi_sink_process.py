"""Runs several sinks in one process, each in a thread: a failing sink leaves the others alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from headgate.config.reload import Reload, describe_when_adopted
from headgate.config.sink_sections import WriterKind
from headgate.config.sink_settings import SinkSettings
from headgate.config.telemetry_and_http_settings import HttpSettings, parse_listen_address
from headgate.control_protocol.current_sink import working_for_sink
from headgate.control_protocol.errors import (
    ConfigurationError,
    HeadgateError,
    SinksClash,
    StopSink,
)
from headgate.control_protocol.redacting_loggers import redacted_logger
from headgate.runtime.assembly import second_spark_sink_error
from headgate.runtime.process import (
    Measuring,
    Process,
    handle_signals,
    logging_start_and_end,
    run_participant_in_this_thread,
)
from headgate.runtime.systemd import ServiceManager, SharedManager
from headgate.runtime.telemetry.instrumentation import open_otlp_meters

_log = redacted_logger("headgate.runtime")

AGAIN_S, AGAIN_S_MAX = 1.0, 60.0
"""First and longest pause before a sink that needs no person restarts; each pause doubles.

The first one applies again once the sink has worked for longer than the last pause.
"""
_TURN_S = 0.2
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - compared, not listened on


def run_side_by_side(
    files: Mapping[Path, SinkSettings],
    stop: threading.Event | None = None,
    *,
    measuring: Measuring = open_otlp_meters,
) -> Mapping[str, HeadgateError]:
    """Run the sinks of these files until ``stop``, SIGINT or SIGTERM, or until none is left.

    A sink that ends with an error does not end the others. If a person must decide (HG-1xx,
    HG-2xx), it restarts once its file is written, or on SIGHUP; otherwise by itself. Returns the
    errors of the sinks that were not working at the end. Raises ``SinksClash`` before any has
    started.
    """
    require_no_clashes(list(files.values()))
    stop = stop or threading.Event()
    manager = ServiceManager()
    turns = SharedManager(manager, [settings.name for settings in files.values()])
    beside = _Beside(stop, turns, measuring)
    for path, settings in files.items():
        beside.sinks.append(_OneSink(path, settings, beside))
    threads = [
        threading.Thread(
            target=sink.run_until_asked_to_end, name=f"headgate-{sink.name}", daemon=True
        )
        for sink in beside.sinks
    ]
    with handle_signals(stop, [sink.reload for sink in beside.sinks]):
        for thread in threads:
            thread.start()
        while not all(sink.ended for sink in beside.sinks) and not stop.wait(_TURN_S):
            pass
        stop.set()
        manager.on_stopping()
        for thread in threads:
            thread.join()
    return {sink.name: sink.error for sink in beside.sinks if sink.error}


class _Beside:
    """What the sinks of the process share."""

    def __init__(self, stop: threading.Event, turns: SharedManager, measuring: Measuring) -> None:
        self.stop = stop
        self.turns = turns
        self.measuring = measuring
        self.sinks: list[_OneSink] = []

    def require_no_clash(self, settings: SinkSettings) -> None:
        """Raise ``SinksClash`` if these settings conflict with the other sinks."""
        others = [sink.settings for sink in self.sinks if sink.name != settings.name]
        require_no_clashes([*others, settings])


class _OneSink:
    """One sink of the process.

    ``error``: why it is not working; ``ended``: until it is asked to.
    """

    def __init__(self, path: Path, settings: SinkSettings, beside: _Beside) -> None:
        self.name = str(settings.name)
        self.settings = settings
        self.error: HeadgateError | None = None
        self.ended = False
        self.reload = Reload(path, self._adopt_and_tell_when_effective)
        self._beside = beside

    def run_until_asked_to_end(self) -> None:
        """Take part again and again, until the process is asked to end."""
        with working_for_sink(self.name):
            pause_s = AGAIN_S
            while not self._beside.stop.is_set():
                begun_s = time.monotonic()
                self._run_and_note_error()
                if self.error is None:
                    return
                if time.monotonic() - begun_s > pause_s:
                    pause_s = AGAIN_S
                self._beside.turns.on_sink_end(self.name)
                self._wait_for_retry_or_changed_file(pause_s)
                pause_s = min(2 * pause_s, AGAIN_S_MAX)

    def _run_and_note_error(self) -> None:
        stop, turns = self._beside.stop, self._beside.turns
        process = Process(stop, turns.manager_of(self.name), self._beside.measuring, self.reload)
        try:
            if self.error:  # a restart takes what the file says now
                self.settings = self._read_settings()
            self.error, self.ended = None, False
            with logging_start_and_end(self.settings.name):
                run_participant_in_this_thread(process, self.settings)
        except HeadgateError as error:
            self._note_error(error)
        except Exception as error:  # noqa: BLE001 - it ends this sink, and no other
            _log.exception("sink %s: ended by a bug in headgate", self.name)
            self._note_error(HeadgateError(f"{type(error).__name__}: {error}", "report it"))

    def _note_error(self, error: HeadgateError) -> None:
        self.error = self.settings.redaction.redact_in_place(error)

    def _wait_for_retry_or_changed_file(self, pause_s: float) -> None:
        """Wait for a changed file or a stop; for no longer than this if the error may pass."""
        again = not isinstance(self.error, ConfigurationError | StopSink)  # those need a person
        due_s = time.monotonic() + pause_s
        self.ended = not again
        while not self._beside.stop.wait(_TURN_S):
            if self.reload.poll_change_or_request() or (again and time.monotonic() > due_s):
                return

    def _read_settings(self) -> SinkSettings:
        read = self.reload.read_settings(self.settings)
        self._beside.require_no_clash(read)
        return read

    def _adopt_and_tell_when_effective(self, before: SinkSettings, now: SinkSettings) -> str:
        self._beside.require_no_clash(now)
        self.settings = now
        return describe_when_adopted(before, now)


def require_no_clashes(sinks: Sequence[SinkSettings]) -> None:
    """Raise ``SinksClash`` for sinks that cannot share a process."""
    for place, settings in enumerate(sinks):
        for other in sinks[:place]:
            if settings.name == other.name:
                raise SinksClash(
                    f"two of the sink files name the sink {settings.name}",
                    "name each file once; to run more participants of a sink, start more processes",
                )
            if _have_clashing_addresses(settings.http, other.http):
                raise SinksClash(
                    f"sinks {other.name} and {settings.name} in one process both listen on "
                    f"{settings.http.listen}",
                    "give each an http.listen of its own, or only one of them",
                )
            if WriterKind.SPARK is settings.spark.writer is other.spark.writer:
                raise second_spark_sink_error(settings.name)


def _have_clashing_addresses(one: HttpSettings, other: HttpSettings) -> bool:
    if not one.listen or not other.listen:
        return False
    (host, port), (other_host, other_port) = (
        parse_listen_address(one.listen),
        parse_listen_address(other.listen),
    )
    hosts = {host, other_host}
    return 0 != port == other_port and (len(hosts) == 1 or bool(hosts & {*_EVERYWHERE}))
