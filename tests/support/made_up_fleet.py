"""A fleet for tests of what shows it: records of any number of sinks, without a broker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headgate.operations.http.fleet_knowledge import Known
from headgate.runtime.fleet.fleet_records import (
    ObservedSink,
    ObservedWorker,
    SinkSpec,
    state_topic_key_of,
)
from headgate.runtime.fleet.fleet_view import (
    CommandRecord,
    FleetRecords,
    ObservedRecord,
    build_fleet_view,
)
from headgate.runtime.fleet.sink_life import DesiredState, LifeState

NOW = 1_790_000_000_000
SLOTS = 8


class MadeUpFleet:
    """Takes records as a reader does, in the order in which they are said."""

    def __init__(self) -> None:
        self.records = FleetRecords()
        self._offset = 0

    def spec(self, key: str, slot: int = 0, ago_ms: int = 60_000, **other: Any) -> SinkSpec:
        values: dict[str, Any] = {
            "key": key,
            "slot": slot,
            "number": self._next(),
            "file": f'name = "{key}"\n',
            "state": DesiredState.RUNNING,
            "actor": "alice",
        }
        spec = SinkSpec(**{**values, **other})
        self.records.take_record(CommandRecord(key, slot, self._offset, NOW - ago_ms, spec))
        return spec

    def tell(self, key: str, slot: int = 0, ago_ms: int = 1_000, **other: Any) -> None:
        values: dict[str, Any] = {
            "key": key,
            "slot": slot,
            "worker": "worker-0",
            "incarnation": "a",
            "state": LifeState.RUNNING,
            "for_ms": 5_000,
        }
        self.add_record(ObservedSink(**{**values, **other}), ago_ms)

    def worker(self, name: str, slots: tuple[int, ...], ago_ms: int = 1_000, **other: Any) -> None:
        values: dict[str, Any] = {"incarnation": "a", "release": "0.1.0", "processes": 3}
        self.add_record(ObservedWorker(worker=name, slots=slots, **{**values, **other}), ago_ms)

    def add_record(self, value: ObservedSink | ObservedWorker, ago_ms: int) -> None:
        self._next()
        self.records.take_record(
            ObservedRecord(state_topic_key_of(value), self._offset, NOW - ago_ms, value)
        )

    def runs(self, key: str, slot: int = 0, **other: Any) -> None:
        """Say that a sink is wanted, and does what is wanted."""
        spec = self.spec(key, slot)
        self.tell(key, slot, **{"revision": spec.revision, **other})

    def latest(self, **other: Any) -> Known:
        known = Known("city", build_fleet_view(self.records, NOW), SLOTS, NOW)
        return replace(known, **other)

    def _next(self) -> int:
        self._offset += 1
        return self._offset


def made_up_fleet() -> MadeUpFleet:
    """Two workers, and a sink in each state that a page has to show."""
    fleet = MadeUpFleet()
    fleet.worker("worker-0", (0, 1, 2), memory_bytes=18 << 20)
    fleet.worker("worker-1", (3, 4, 5), release="0.2.0")
    fleet.worker("worker-9", (), ago_ms=90_000)
    fleet.runs("busy", 1, lag_records=1_234_567, memory_bytes=45 << 20, cpu_permille=40, leads=True)
    fleet.runs("quiet", 1, lag_records=0, memory_bytes=44 << 20, cpu_ms=98_765, partitions=4)
    fleet.runs("quiet#2", 3, worker="worker-1")
    fleet.spec("poison", 2)
    fleet.tell(
        "poison",
        2,
        state=LifeState.ERROR,
        code="HG-108",
        text="its process was killed by SIGSEGV",
        tries=5,
        restarts=5,
        next_try_in_ms=17_000,
    )
    fleet.spec("held", 2, state=DesiredState.PAUSED)
    fleet.tell("held", 2, state=LifeState.RUNNING)
    fleet.spec("off", 2, state=DesiredState.STOPPED)
    fleet.spec("nobody", 7, ago_ms=300_000)
    fleet.spec("new", 4, ago_ms=2_000)
    return fleet
