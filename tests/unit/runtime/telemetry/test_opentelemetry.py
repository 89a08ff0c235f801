"""The table of metrics, out as Prometheus text and as OTLP."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from prometheus_client.parser import text_string_to_metric_families
from repository.tree import ROOT

from headgate.config.setting_types import Properties
from headgate.config.telemetry_and_http_settings import TelemetrySettings
from headgate.control_protocol.errors import ConfigurationError
from headgate.runtime.telemetry import metric_catalog as names
from headgate.runtime.telemetry.meters import Gauge
from headgate.runtime.telemetry.metric_catalog import INSTRUMENTS, Kind
from headgate.runtime.telemetry.opentelemetry import OpenTelemetry


@pytest.fixture
def telemetry() -> Iterator[OpenTelemetry]:
    made = OpenTelemetry(TelemetrySettings())
    yield made
    made.close()


def samples(telemetry: OpenTelemetry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(telemetry.prometheus_text().decode())
        for sample in family.samples
    }


def test_every_instrument_leaves_under_its_own_name(telemetry: OpenTelemetry) -> None:
    asked = [name for name, of in INSTRUMENTS.items() if of.is_observable]
    telemetry.register_gauges(lambda: [Gauge(name, 7, {"sink": "trips"}) for name in asked])
    for name, of in INSTRUMENTS.items():
        labels = {"sink": "trips", **dict.fromkeys(of.labels, "x")}
        if of.kind is Kind.COUNTER and not of.sampled:
            telemetry.count(name, 3, labels)
        if of.kind is Kind.HISTOGRAM:
            telemetry.observe(name, 0.5, labels)
    told = {name for name, _ in samples(telemetry)}
    expected = {
        f"{name}_count" if of.kind is Kind.HISTOGRAM else name for name, of in INSTRUMENTS.items()
    }
    assert expected <= told
    assert "process_cpu_seconds_total" in told
    foreign = {name for name in told if not name.startswith(("headgate_", "process_"))}
    assert foreign == set()


def test_hostile_label_values_stay_values(telemetry: OpenTelemetry) -> None:
    topic = 'a"} 1\nheadgate_epoch{sink="other"} 9 \\'
    telemetry.count(names.READ_RECORDS, 2, {"sink": "trips", "topic": topic})
    told = samples(telemetry)
    assert told[names.READ_RECORDS, (("sink", "trips"), ("topic", topic))] == 2
    assert not any(name == names.EPOCH for name, _ in told)


def test_a_series_that_nobody_shows_any_more_is_gone(telemetry: OpenTelemetry) -> None:
    hide = telemetry.register_gauges(lambda: [Gauge(names.EPOCH, 4, {"sink": "trips"})])
    assert samples(telemetry)[names.EPOCH, (("sink", "trips"),)] == 4
    hide()
    assert not any(name == names.EPOCH for name, _ in samples(telemetry))


def test_it_leaves_as_otlp_with_its_headers() -> None:
    heard: list[tuple[str, str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.append((self.path, self.headers["x-tenant"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        made = OpenTelemetry(
            TelemetrySettings(
                otlp_endpoint=f"http://127.0.0.1:{server.server_port}/v1/metrics",
                otlp_headers=Properties({"x-tenant": "lake"}),
            )
        )
        made.count(names.COMMITTED_ROWS, 5, {"sink": "trips", "table": "db.trips"})
        made.close()
    finally:
        server.shutdown()
        server.server_close()
    path, tenant, body = heard[0]
    assert (path, tenant) == ("/v1/metrics", "lake")
    assert names.COMMITTED_ROWS.encode() in body


def test_without_the_library_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
    with pytest.raises(ConfigurationError, match=r"headgate\[metrics\]"):
        OpenTelemetry(TelemetrySettings())


def test_the_page_lists_every_metric_as_it_is() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    rows = re.findall(r"^\| `(headgate_\w+)` \| (\w+) \| ([^|]*) \| (.*) \|$", page, re.MULTILINE)
    listed = {name: (kind, labels, about) for name, kind, labels, about in rows}
    expected = {
        name: (of.kind.value, ", ".join(of.labels) or "-", of.about)
        for name, of in INSTRUMENTS.items()
    }
    assert listed == expected
