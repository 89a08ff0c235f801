"""Puts what is known of a fleet into gauges. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from headgate.operations.http.fleet_knowledge import Known
from headgate.runtime.fleet.fleet_view import FleetView, SinkView
from headgate.runtime.fleet.placement import worker_loads
from headgate.runtime.fleet.sink_life import DesiredState, LifeState
from headgate.runtime.telemetry import metric_catalog as names
from headgate.runtime.telemetry.meters import Gauge


def gauge_of_reading_begun(name: str, begun_ms: int) -> Gauge:
    """Return what an alert goes by before anything is known: since when it is tried to read."""
    return Gauge(names.FLEET_READ, begun_ms / 1_000, {"fleet": name})


def fleet_gauges(known: Known) -> list[Gauge]:
    """Return all series of a fleet; each has the label ``fleet``."""
    series = [*_fleet_wide_gauges(known)]
    for sink in known.fleet.sinks.values():
        series += _gauges_of_sink(sink)
    return [Gauge(g.name, g.value, {"fleet": known.name, **g.labels}) for g in series]


def _fleet_wide_gauges(known: Known) -> Iterable[Gauge]:
    fleet = known.fleet
    yield Gauge(names.FLEET_READ, known.now_ms / 1_000)
    states = Counter(sink.state for sink in fleet.sinks.values())
    wanted = Counter(sink.spec.state for sink in fleet.sinks.values() if sink.spec)
    for state in LifeState:
        yield Gauge(names.FLEET_SINKS, states[state], {"state": state.value})
    for spec in DesiredState:
        yield Gauge(names.FLEET_WANTED, wanted[spec], {"state": spec.value})
    yield Gauge(names.FLEET_UNOWNED_SLOTS, len(known.unowned_slots))
    yield Gauge(names.FLEET_REFUSED, sum(bool(sink.refused) for sink in fleet.sinks.values()))
    yield from _gauges_of_workers(fleet)


def _gauges_of_workers(fleet: FleetView) -> Iterable[Gauge]:
    kinds = Counter(
        ("lost" if w.lost else "leaves" if w.observed.leaving else "works", w.observed.release)
        for w in fleet.workers.values()
    )
    for (state, release), count in sorted(kinds.items()):
        yield Gauge(names.FLEET_WORKERS, count, {"state": state, "release": release})
    for name, worker in fleet.workers.items():
        if not worker.lost:
            yield Gauge(names.FLEET_SLOTS, len(worker.observed.slots), {"worker": name})
    for name, load in worker_loads(fleet).items():
        yield Gauge(names.FLEET_LOAD, load, {"worker": name})


def _gauges_of_sink(sink: SinkView) -> Iterable[Gauge]:
    of_sink = {"sink": sink.key}
    yield Gauge(names.FLEET_STATE, 1, {**of_sink, "state": sink.state.value})
    if sink.drift:
        yield Gauge(names.FLEET_DRIFT, 1, {**of_sink, "kind": sink.drift.value})
    if sink.next_try_ms is not None:
        yield Gauge(names.FLEET_NEXT_TRY, sink.next_try_ms / 1_000, of_sink)
    told = sink.observed
    if told is None:
        return
    if told.lag_records is not None:
        yield Gauge(names.FLEET_LAG, told.lag_records, of_sink)
    at = {**of_sink, "worker": told.worker}
    if told.memory_bytes is not None:
        yield Gauge(names.FLEET_MEMORY, told.memory_bytes, at)
    if told.cpu_ms is not None:
        yield Gauge(names.FLEET_CPU, told.cpu_ms / 1_000, at)
