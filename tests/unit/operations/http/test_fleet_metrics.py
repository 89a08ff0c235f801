"""What a fleet is measured by: the series of a made-up one, and of two thousand sinks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from support.made_up_fleet import NOW, MadeUpFleet, made_up_fleet

from headgate.config.load import load_worker_file
from headgate.config.telemetry_and_http_settings import TelemetrySettings
from headgate.operations.http.fleet_knowledge import FollowedFleet
from headgate.operations.http.fleet_metrics import fleet_gauges, gauge_of_reading_begun
from headgate.runtime.fleet.sink_life import LifeState
from headgate.runtime.telemetry import metric_catalog as names
from headgate.runtime.telemetry.meters import Gauge
from headgate.runtime.telemetry.metric_catalog import OF_FLEET
from headgate.runtime.telemetry.opentelemetry import OpenTelemetry
from headgate.runtime.wall_clock import wall_ms


def told() -> dict[tuple[str, ...], float]:
    return {
        (g.name, *(value for label, value in g.labels.items() if label != "fleet")): g.value
        for g in fleet_gauges(made_up_fleet().latest())
    }


def test_a_fleet_as_gauges() -> None:
    found = told()
    assert found[(names.FLEET_READ,)] == NOW / 1_000
    assert found[names.FLEET_SINKS, "lost"] == 1
    assert found[names.FLEET_SINKS, "starting"] == 0
    assert sum(v for k, v in found.items() if k[0] == names.FLEET_SINKS) == 8
    assert found[names.FLEET_WANTED, "paused"] == 1
    assert found[names.FLEET_WORKERS, "works", "0.2.0"] == 1
    assert found[names.FLEET_WORKERS, "lost", "0.1.0"] == 1
    assert found[names.FLEET_SLOTS, "worker-0"] == 3
    assert (names.FLEET_SLOTS, "worker-9") not in found
    assert found[(names.FLEET_UNOWNED_SLOTS,)] == 2
    assert found[names.FLEET_STATE, "poison", "error"] == 1
    assert found[names.FLEET_NEXT_TRY, "poison"] == NOW / 1_000 - 1 + 17
    assert found[names.FLEET_DRIFT, "held", "state"] == 1
    assert found[names.FLEET_LAG, "busy"] == 1_234_567
    assert found[names.FLEET_MEMORY, "busy", "worker-0"] == 45 << 20
    assert found[names.FLEET_CPU, "quiet", "worker-0"] == 98.765
    assert found[names.FLEET_LOAD, "worker-0"] > found[names.FLEET_LOAD, "worker-1"]


def test_a_fleet_that_was_never_read_is_as_old_as_its_reader(tmp_path: Path) -> None:
    """Otherwise an alert on its age could not fire before the first knowledge."""
    file = tmp_path / "worker.toml"
    file.write_text('[fleet]\nname = "city"\n[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n')
    began_ms = wall_ms()
    followed = FollowedFleet(load_worker_file(file))
    assert followed.latest() is None
    gauge = gauge_of_reading_begun("city", followed.begun_ms)
    assert (gauge.name, gauge.labels) == (names.FLEET_READ, {"fleet": "city"})
    assert began_ms <= gauge.value * 1_000 <= wall_ms()


def test_series_have_the_labels_that_the_catalog_names() -> None:
    for gauge in fleet_gauges(made_up_fleet().latest()):
        assert set(gauge.labels) == {"fleet", *OF_FLEET[gauge.name].labels}, gauge
    assert {g.name for g in fleet_gauges(made_up_fleet().latest())} == OF_FLEET.keys() - {
        names.FLEET_RESTARTS  # counted as records come
    }


def test_two_thousand_sinks_are_all_exported_and_counters_are_counters() -> None:
    fleet = MadeUpFleet()
    for number in range(2_000):
        fleet.runs(f"sink-{number:04}", lag_records=number, memory_bytes=1, cpu_ms=1_500)
    telemetry = OpenTelemetry(TelemetrySettings())
    telemetry.register_gauges(lambda: fleet_gauges(fleet.latest()))
    telemetry.count(names.FLEET_RESTARTS, 3, {"fleet": "city", "sink": "a", "code": "HG-108"})
    try:
        text = telemetry.prometheus_text().decode()
    finally:
        telemetry.close()
    series = Counter(line.partition("{")[0] for line in text.splitlines())
    for name in (names.FLEET_STATE, names.FLEET_LAG, names.FLEET_MEMORY, names.FLEET_CPU):
        assert series[name] == 2_000, name
    assert f"# TYPE {names.FLEET_CPU} counter" in text
    assert f'{names.FLEET_CPU}{{fleet="city",sink="sink-0007",worker="worker-0"}} 1.5' in text
    assert f'{names.FLEET_RESTARTS}{{code="HG-108",fleet="city",sink="a"}} 3.0' in text


def test_hostile_labels_stay_within_their_quotes() -> None:
    fleet = MadeUpFleet()
    name = 'a"} 1\nheadgate_fleet_sinks{state="error'
    fleet.spec(name)
    fleet.tell(name, state=LifeState.ERROR, code='x"\\\n', lag_records=3)
    telemetry = OpenTelemetry(TelemetrySettings())
    telemetry.register_gauges(lambda: fleet_gauges(fleet.latest()))
    try:
        lines = telemetry.prometheus_text().decode().splitlines()
    finally:
        telemetry.close()
    assert sum(line.startswith(names.FLEET_SINKS) for line in lines) == len(LifeState)
    assert sum(line.startswith(names.FLEET_LAG) for line in lines) == 1


def test_an_empty_fleet_has_no_series_of_sinks_and_workers() -> None:
    empty: list[Gauge] = fleet_gauges(MadeUpFleet().latest())
    assert {g.name for g in empty} == {
        names.FLEET_READ,
        names.FLEET_SINKS,
        names.FLEET_WANTED,
        names.FLEET_UNOWNED_SLOTS,
        names.FLEET_REFUSED,
    }
