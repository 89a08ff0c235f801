"""Assembles the HTTP interface of one participant, or of sinks that run elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from headgate.config.reload import LOOKED_AT_S, Reload
from headgate.config.sink_settings import SinkSettings
from headgate.config.telemetry_and_http_settings import HttpSettings, TelemetrySettings
from headgate.config.worker_settings import WorkerSettings
from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.redacting_loggers import redacted_logger, redacting
from headgate.operations.http.fleet_knowledge import FollowedFleet, following_fleet
from headgate.operations.http.fleet_metrics import fleet_gauges, gauge_of_reading_begun
from headgate.operations.http.fleet_routes import ServedFleet
from headgate.operations.http.routes import Site
from headgate.operations.http.sink_status_cache import ServedSink, gauges_of_sinks, watching_sink
from headgate.runtime.early_signals import stop_set_by_signals
from headgate.runtime.telemetry import metric_catalog as names
from headgate.runtime.telemetry.instrumentation import open_meters
from headgate.runtime.telemetry.meters import Gauge
from headgate.runtime.telemetry.opentelemetry import CONTENT_TYPE, OpenTelemetry
from headgate.runtime.telemetry.sink_metrics import SinkMeters

_log = redacted_logger("headgate.http")

DEFAULT = "127.0.0.1:8080"


def serve_sinks(
    files: Mapping[Path, SinkSettings], listen: str, stop: threading.Event | None = None
) -> None:
    """Serve the sinks of these files until ``stop``, SIGINT or SIGTERM.

    A file that changes is read again. Raises ``ConfigurationError``.
    """
    stop = stop or threading.Event()
    sinks = tuple(files.values())
    first = sinks[0]
    names = [settings.name for settings in sinks]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"two sinks are called {twice[0]}", "serve them on two ports")
    for settings in sinks[1:]:
        if not _has_same_http_except_listen(settings, first):
            raise ConfigurationError(
                f"[http] of sink {settings.name} is not that of sink {first.name}",
                "give all sinks of one server the same tokens and certificate, or a server each",
            )
    followed = [
        (ServedSink(each), Reload(path, require_reloadable_http)) for path, each in files.items()
    ]
    served = {str(sink.settings.name): sink for sink, _ in followed}
    telemetry = OpenTelemetry(first.telemetry)
    telemetry.register_gauges(lambda: gauges_of_sinks(served.values()))
    site = Site(served, first.http, metrics=lambda: (telemetry.prometheus_text(), CONTENT_TYPE))
    try:
        with (
            _redacting_secrets_of_all(sinks),
            _serving_http(listen or first.http.listen or DEFAULT, first.http, site) as url,
            stop_set_by_signals(stop),
        ):
            _log.info("serves %s at %s", ", ".join(names), url)
            reload_sink_files_until_stop(followed, stop)
    finally:
        telemetry.close()


def serve_fleet(settings: WorkerSettings, listen: str, stop: threading.Event | None = None) -> None:
    """Serve a fleet until ``stop``, SIGINT or SIGTERM. Raises ``ConfigurationError``."""
    stop = stop or threading.Event()
    telemetry = OpenTelemetry(TelemetrySettings())

    def count_restarts(sink: str, code: str, amount: int) -> None:
        labels = {"fleet": settings.fleet.name, "sink": sink, "code": code}
        telemetry.count(names.FLEET_RESTARTS, amount, labels)

    followed = FollowedFleet(settings, count_restarts)

    def gauges_of_fleet() -> list[Gauge]:
        known = followed.latest()
        if known is None:
            return [gauge_of_reading_begun(settings.fleet.name, followed.begun_ms)]
        return fleet_gauges(known)

    telemetry.register_gauges(gauges_of_fleet)
    served = ServedFleet(followed)
    site = Site(
        {},
        settings.http,
        served,
        metrics=lambda: (telemetry.prometheus_text(), CONTENT_TYPE),
        not_live=followed.why_reader_hangs,
        not_ready=followed.why_not_current,
    )
    try:
        with (
            redacting(served.redact),
            following_fleet(followed),
            _serving_http(listen or settings.http.listen or DEFAULT, settings.http, site) as url,
            stop_set_by_signals(stop),
        ):
            _log.info("serves fleet %s at %s", settings.fleet.name, url)
            stop.wait()
    finally:
        telemetry.close()


def _has_same_http_except_listen(one: SinkSettings, other: SinkSettings) -> bool:
    return replace(one.http, listen="") == replace(other.http, listen="")


def reload_sink_files_until_stop(
    followed: Sequence[tuple[ServedSink, Reload]], stop: threading.Event
) -> None:
    """Show each sink by its current file, until ``stop``; secrets stay out of the log."""
    with ExitStack() as redactions:
        while not stop.wait(LOOKED_AT_S):
            for sink, reload in followed:
                reloaded = reload.poll(sink.settings)
                if isinstance(reloaded, SinkSettings):
                    redactions.enter_context(redacting(reloaded.redaction))
                    sink.adopt_settings(reloaded)


def require_reloadable_http(before: SinkSettings, now: SinkSettings) -> str:
    """Say when the settings apply.

    Raises ``ConfigurationError`` for what a server cannot change.
    """
    if not _has_same_http_except_listen(before, now):
        raise ConfigurationError(
            "[http] has changed, and the server reads it only when it starts",
            "restart headgate serve",
        )
    return "from now on"


def require_server_library() -> None:
    """Raise ``ConfigurationError`` if what serves HTTP is not installed."""
    try:
        import_module("headgate.operations.http.server")
    except ImportError as error:
        raise ConfigurationError(
            f"serving HTTP needs a library that is not installed: {error.name}",
            'pip install "headgate[http]"',
        ) from error


@contextmanager
def _serving_http(listen: str, http: HttpSettings, site: Site) -> Iterator[str]:
    """Serve until the end of the body; only who serves needs the library. Yield the URL."""
    require_server_library()
    from headgate.operations.http.server import serving_http

    with serving_http(listen, http, site) as url:
        yield url


@contextmanager
def _redacting_secrets_of_all(sinks: Sequence[SinkSettings]) -> Iterator[None]:
    with ExitStack() as redactions:
        for settings in sinks:
            redactions.enter_context(redacting(settings.redaction))
        yield


@contextmanager
def serving_with_meters_if_configured(settings: SinkSettings) -> Iterator[SinkMeters | None]:
    """Yield the meters of a participant with its own server, if its sink file asks for one."""
    if not settings.http.listen:
        yield None
        return
    with open_meters(settings) as (telemetry, meters):
        sink = ServedSink(settings)
        meters.follow_adopted_settings(sink.adopt_settings)
        site = Site(
            {settings.name: sink},
            settings.http,
            metrics=lambda: (telemetry.prometheus_text(), CONTENT_TYPE),
            not_live=meters.why_not_live,
            not_ready=meters.why_not_ready,
        )
        with (
            watching_sink(sink, settings.telemetry.interval_ms / 1000) as watch,
            _serving_http(settings.http.listen, settings.http, site) as url,
        ):
            meters.set_problem_source(watch.newest_problem)
            _log.info("sink %s: serves its state at %s", settings.name, url)
            yield meters
