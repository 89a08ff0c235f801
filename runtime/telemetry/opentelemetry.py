"""Counts with OpenTelemetry, which exports the same instruments as Prometheus text and as OTLP.

This is the adapter for OpenTelemetry. A collection asks every gauge once; a counter costs one call
per batch or transaction, never one per record.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

from headgate.config.telemetry_and_http_settings import TelemetrySettings
from headgate.control_protocol.errors import ConfigurationError
from headgate.runtime.telemetry.meters import Gauge, Gauges, Labels, Unregister
from headgate.runtime.telemetry.metric_catalog import INSTRUMENTS, Kind

_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
_SHUTDOWN_MS = 5_000
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def require_telemetry_libraries(settings: TelemetrySettings) -> None:
    """Raise ``ConfigurationError`` if what measures or sends is not installed."""
    wanted = ["opentelemetry.exporter.prometheus", "opentelemetry.sdk.metrics", "prometheus_client"]
    if settings.otlp_endpoint:
        wanted.append("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    try:
        for name in wanted:
            import_module(name)
    except ImportError as error:
        raise ConfigurationError(
            f"telemetry needs a library that is not installed: {error.name}",
            'pip install "headgate[metrics]"',
        ) from error


class OpenTelemetry:
    """Implements ``Telemetry``. Several sinks of a process may share one."""

    def __init__(self, settings: TelemetrySettings) -> None:
        require_telemetry_libraries(settings)
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.resources import Resource
        from prometheus_client import CollectorRegistry, ProcessCollector

        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        readers: list[Any] = [
            PrometheusMetricReader(
                disable_target_info=True, scope_info_enabled=False, registry=self._registry
            )
        ]
        if settings.otlp_endpoint:
            readers.append(_otlp_reader(settings))
        self._provider = MeterProvider(
            readers,
            resource=Resource.create({"service.name": "headgate"}),
            shutdown_on_exit=False,
        )
        self._shown: list[Gauges] = []
        self._lock = threading.Lock()
        self._collecting = threading.Lock()
        self._found = threading.local()  # each reader collects in its own thread
        self._instruments = self._create_instruments()

    def count(self, name: str, amount: float, labels: Labels) -> None:
        self._instruments[name].add(amount, labels)

    def observe(self, name: str, value: float, labels: Labels) -> None:
        self._instruments[name].record(value, labels)

    def register_gauges(self, gauges: Gauges) -> Unregister:
        with self._lock:
            self._shown.append(gauges)

        def unregister() -> None:
            with self._lock:
                if gauges in self._shown:
                    self._shown.remove(gauges)

        return unregister

    def prometheus_text(self) -> bytes:
        """Return everything in Prometheus's format (``CONTENT_TYPE``)."""
        from prometheus_client import generate_latest

        with self._collecting:
            return bytes(generate_latest(self._registry))

    def close(self) -> None:
        """Send what is left, in bounded time."""
        self._provider.shutdown(timeout_millis=_SHUTDOWN_MS)

    def _create_instruments(self) -> dict[str, Any]:
        meter = self._provider.get_meter("headgate")
        made: dict[str, Any] = {}
        for name, instrument in INSTRUMENTS.items():
            match instrument.kind:
                case Kind.COUNTER if instrument.sampled:
                    made[name] = meter.create_observable_counter(
                        name, [self._observation_callback(name)], description=instrument.about
                    )
                case Kind.COUNTER:
                    made[name] = meter.create_counter(name, description=instrument.about)
                case Kind.HISTOGRAM:
                    made[name] = meter.create_histogram(
                        name,
                        description=instrument.about,
                        explicit_bucket_boundaries_advisory=_BUCKETS_S,
                    )
                case Kind.GAUGE:
                    made[name] = meter.create_observable_gauge(
                        name, [self._observation_callback(name)], description=instrument.about
                    )
        return made

    def _observation_callback(self, name: str) -> Callable[[Any], Iterable[Any]]:
        from opentelemetry.metrics import Observation

        def observations(_: Any) -> Sequence[Any]:
            return [
                Observation(g.value, dict(g.labels)) for g in self._gauges_of_this_collection(name)
            ]

        return observations

    def _gauges_of_this_collection(self, name: str) -> list[Gauge]:
        """Return the gauges of one name.

        A collection's first name asks; the others use its result.
        """
        if name == _FIRST_GAUGE:
            with self._lock:
                shown = tuple(self._shown)
            found: dict[str, list[Gauge]] = defaultdict(list)
            for gauges in shown:
                for gauge in gauges():
                    found[gauge.name].append(gauge)
            self._found.gauges = found
        kept: dict[str, list[Gauge]] = getattr(self._found, "gauges", {})
        return kept.get(name, [])


_FIRST_GAUGE = next(name for name, of in INSTRUMENTS.items() if of.is_observable)


def _otlp_reader(settings: TelemetrySettings) -> Any:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    exporter = OTLPMetricExporter(
        endpoint=settings.otlp_endpoint, headers=dict(settings.otlp_headers), timeout=10
    )
    return PeriodicExportingMetricReader(exporter, export_interval_millis=settings.interval_ms)
