"""Puts a face together: for one participant, or for any number of sinks that run elsewhere."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.redacted_log import redacted_logger, redacting
from headgate.operations.face.routes import Face
from headgate.operations.face.served import ServedSink, gauges
from headgate.operations.face.server import serving
from headgate.sink.settings import SinkSettings
from headgate.sink.telemetry.measuring import opened_meters
from headgate.sink.telemetry.meters import SinkMeters
from headgate.sink.telemetry.open_telemetry import CONTENT_TYPE, OpenTelemetry

_log = redacted_logger("headgate.http")

DEFAULT = "127.0.0.1:8080"


def serve(sinks: Sequence[SinkSettings], listen: str, stop: threading.Event | None = None) -> None:
    """Serve these sinks until ``stop``, SIGINT or SIGTERM. Raises ``ConfigurationError``."""
    stop = stop or threading.Event()
    first = sinks[0]
    names = [settings.name for settings in sinks]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"two sinks are called {twice[0]}", "serve them on two ports")
    for settings in sinks[1:]:
        if replace(settings.http, listen="") != replace(first.http, listen=""):
            raise ConfigurationError(
                f"[http] of sink {settings.name} is not that of sink {first.name}",
                "give all sinks of one server the same tokens and certificate, or a server each",
            )
    served: dict[str, ServedSink] = {settings.name: ServedSink(settings) for settings in sinks}
    telemetry = OpenTelemetry(first.telemetry)
    telemetry.show(lambda: gauges(served.values()))
    face = Face(served, first.http, metrics=lambda: (telemetry.text(), CONTENT_TYPE))
    try:
        with (
            _redacting_all(sinks),
            serving(listen or first.http.listen or DEFAULT, first.http, face) as url,
        ):
            _log.info("serves %s at %s", ", ".join(names), url)
            for number in (signal.SIGINT, signal.SIGTERM):
                if threading.current_thread() is threading.main_thread():
                    signal.signal(number, lambda *_: stop.set())
            stop.wait()
    finally:
        telemetry.close()


@contextmanager
def _redacting_all(sinks: Sequence[SinkSettings]) -> Iterator[None]:
    if not sinks:
        yield
        return
    with redacting(sinks[0].redaction), _redacting_all(sinks[1:]):
        yield


@contextmanager
def faced(settings: SinkSettings) -> Iterator[SinkMeters | None]:
    """The meters of a participant with a server of its own, where its sink file asks for one."""
    if not settings.http.listen:
        yield None
        return
    with opened_meters(settings) as (telemetry, meters):
        face = Face(
            {settings.name: ServedSink(settings)},
            settings.http,
            metrics=lambda: (telemetry.text(), CONTENT_TYPE),
            not_live=meters.not_live,
            not_ready=meters.not_ready,
        )
        with serving(settings.http.listen, settings.http, face) as url:
            _log.info("sink %s: serves its state at %s", settings.name, url)
            yield meters
