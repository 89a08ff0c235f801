"""Runs a participant of one sink, or of several, until told to stop."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from threading import Event

from headgate.config.sink_settings import SinkSettings
from headgate.control_protocol.errors import HeadgateError
from headgate.native.malloc_settings import keep_freed_memory
from headgate.operations.http.app import serving_with_meters_if_configured
from headgate.operations.wait import UntilLatest
from headgate.runtime.console_log import send_redacted_logs_to_stderr
from headgate.runtime.fleet.warm_parent import TurnReport
from headgate.runtime.multi_sink_process import run_side_by_side
from headgate.runtime.process import logging_start_and_end
from headgate.runtime.process import run as run_sink
from headgate.runtime.telemetry.instrumentation import open_otlp_meters
from headgate.runtime.telemetry.sink_metrics import SinkMeters

_SOON_MS = 10_000


def run(
    settings: SinkSettings,
    *,
    verbose: bool = False,
    sink_file: Path | None = None,
    stop: Event | None = None,
    report: TurnReport | None = None,
) -> None:
    """Block until ``stop``, SIGINT or SIGTERM. Raises the ``HeadgateError`` that ends the sink.

    A ``sink_file`` that changes is read again. ``report`` tells a worker of its turns.
    """
    keep_freed_memory()
    send_redacted_logs_to_stderr([settings], verbose=verbose)
    with logging_start_and_end(settings.name):
        run_sink(
            settings,
            report.on_progress if report else None,
            stop,
            measuring=_open_meters_serving_if_configured,
            sink_file=sink_file,
            manager=report,
        )


def run_until_latest(settings: SinkSettings, *, verbose: bool = False) -> UntilLatest:
    """Block until ``UntilLatest`` ends the run, or a signal does. Raises as ``run``.

    While this participant leads, it commits at least every ten seconds, so that the end comes soon.
    """
    interval_ms = min(settings.coordinator.commit_interval_ms, _SOON_MS)
    soon = replace(settings.coordinator, commit_interval_ms=interval_ms)
    hurried = replace(settings, coordinator=soon)
    with UntilLatest(hurried) as latest:
        run(hurried, verbose=verbose, stop=latest.stop)
    return latest


def run_several(
    files: Mapping[Path, SinkSettings], *, verbose: bool = False
) -> Mapping[str, HeadgateError]:
    """Block until SIGINT or SIGTERM, or until no sink is left; return the errors, by sink."""
    keep_freed_memory()
    send_redacted_logs_to_stderr(list(files.values()), verbose=verbose)
    return run_side_by_side(files, measuring=_open_meters_serving_if_configured)


def _open_meters_serving_if_configured(
    settings: SinkSettings,
) -> AbstractContextManager[SinkMeters | None]:
    return (
        serving_with_meters_if_configured(settings)
        if settings.http.listen
        else open_otlp_meters(settings)
    )
