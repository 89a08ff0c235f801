"""A fleet's records for tests: one example of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.runtime.fleet.fleet_records import (
    Drain,
    ObservedSink,
    ObservedWorker,
    Removal,
    SinkSpec,
    state_topic_key_of,
)
from headgate.runtime.fleet.fleet_view import CommandRecord, FleetRecords, ObservedRecord
from headgate.runtime.fleet.sink_life import DesiredState, LifeState

FILE = 'name = "trips"\n[source]\ntopics = ["trips"]\n'

EXAMPLES = {
    "wish": SinkSpec(
        key="trips#2",
        slot=63,
        number=2**40,
        state=DesiredState.PAUSED,
        file=FILE,
        memory_mib=1_500,
        restarts=3,
        pinned=True,
        moved_ms=1_700_000_000_000,
        actor="alice",
        time_ms=1_700_000_000_001,
    ),
    "removal": Removal(key="trips", slot=0, number=7, actor="bob", time_ms=1_700_000_000_002),
    "drain": Drain(
        worker="worker-0",
        incarnation="4f1d",
        slot=63,
        number=8,
        actor="carol",
        time_ms=1_700_000_000_003,
    ),
    "sink": ObservedSink(
        key="trips",
        slot=5,
        worker="worker-0",
        incarnation="4f1d",
        state=LifeState.ERROR,
        for_ms=12_345,
        number=7,
        revision="0123456789ab",
        pid=4_711,
        doing="coordinates",
        code="HG-207",
        text="the table has another column",
        tries=4,
        next_try_in_ms=8_000,
        restarts=9,
        memory_bytes=41_000_000,
        cpu_ms=98_765,
        cpu_permille=1_500,
        leads=True,
        partitions=12,
        lag_records=0,
    ),
    "worker": ObservedWorker(
        worker="worker-0",
        incarnation="4f1d",
        release="0.1.0",
        slots=(0, 5, 63),
        for_ms=86_400_000,
        leaving=True,
        processes=17,
        cores=4,
        memory_bytes=None,
        refused=1,
    ),
}


def fleet_of(
    specs: Sequence[SinkSpec],
    workers: Mapping[str, Sequence[int]] | None = None,
    observed: Sequence[ObservedSink] = (),
) -> FleetRecords:
    """Records of these specs and workers, whose first start is ``NAME-1``, told at 1,000 ms."""
    records = FleetRecords()
    for offset, spec in enumerate(specs):
        records.take_record(CommandRecord(spec.key, spec.slot, offset, 1_000, spec))
    values: list[ObservedSink | ObservedWorker] = [*observed]
    for name, slots in (workers or {}).items():
        values.append(ObservedWorker(worker=name, incarnation=f"{name}-1", slots=tuple(slots)))
    for offset, value in enumerate(values):
        records.take_record(ObservedRecord(state_topic_key_of(value), offset, 1_000, value))
    return records
