"""Shows what a fleet's two topics say together: wanted beside observed, drift, next tries. Pure.

``FleetRecords`` holds the newest record of each key; ``build_fleet_view`` folds them. A reader that
stays keeps one, and takes records as they come; a command reads both topics to their ends first.
Whoever folds the same records has the same view, in whatever order the partitions came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headgate.control_protocol.message_encoding import Skipped, SkipReason
from headgate.runtime.fleet.fleet_records import (
    UNSIGNED_TOMBSTONE,
    Drain,
    FleetCommand,
    ObservedSink,
    ObservedWorker,
    Removal,
    SinkSpec,
)
from headgate.runtime.fleet.sink_life import LOST_AFTER_MS, DesiredState, LifeState, state_or_lost

# --------------------------------------------------------------------------------------- records


@dataclass(frozen=True, slots=True)
class CommandRecord:
    """Holds a record of the fleet's topic. ``time_ms`` is the broker's.

    ``value``: what it says, or why that is not believed here.
    """

    key: str
    slot: int
    offset: int
    time_ms: int
    value: FleetCommand | Skipped


@dataclass(frozen=True, slots=True)
class ObservedRecord:
    """Holds a record of the state topic; ``None``: a worker has taken back what it said."""

    key: str
    offset: int
    time_ms: int
    value: ObservedSink | ObservedWorker | Skipped | None


_INCARNATIONS_KEPT = 8
"""So many workers of one name are noticed; each restart of a single one adds another."""

Place = tuple[int, str]
"""A slot and a key: where a spec stands."""


@dataclass(slots=True)
class FleetRecords:
    """Keeps each key's newest record of both topics; takes those of a partition in order."""

    specs: dict[Place, CommandRecord] = field(default_factory=dict)
    """Those that are believed; a removal takes a spec away."""
    refused: dict[Place, CommandRecord] = field(default_factory=dict)
    """Those behind the last one that is believed, which are not: a person should hear of them."""
    drains: dict[Place, Drain] = field(default_factory=dict)
    observed: dict[str, ObservedRecord] = field(default_factory=dict)
    incarnations: dict[str, list[str]] = field(default_factory=dict)
    """Some starts of each worker, the one that told last at the end."""
    back_ms: dict[str, int] = field(default_factory=dict)
    """When an earlier start of a worker told after a later one: two have its name."""
    highest_number: int = 0
    """Of all specs and removals: the next change counts on from it."""

    def take_record(self, record: CommandRecord | ObservedRecord) -> None:
        """Take the next record of its partition: the later offset counts, no clock (FLEET-2)."""
        if isinstance(record, ObservedRecord):
            self._take_observed(record)
            return
        place = (record.slot, record.key)
        match record.value:
            case Skipped() as skipped:
                takes_nothing = skipped == UNSIGNED_TOMBSTONE or (
                    skipped.reason is SkipReason.NOT_OURS
                )
                if place in self.specs or not takes_nothing:
                    self.refused[place] = record
            case Removal(number=number):
                self.highest_number = max(self.highest_number, number)
                self.specs.pop(place, None)
                self.drains.pop(place, None)
                self.refused.pop(place, None)
            case Drain(number=number) as drain:
                self.highest_number = max(self.highest_number, number)
                self.drains[place] = drain
                self.refused.pop(place, None)
            case SinkSpec(number=number):
                self.highest_number = max(self.highest_number, number)
                self.specs[place] = record
                self.refused.pop(place, None)

    def has_taken(self, change: FleetCommand) -> bool:
        """Return whether a change was read. A removal that nobody can sign comes without number."""
        place = (change.slot, change.key)
        is_gone = place not in self.specs and place not in self.drains
        return self.highest_number >= change.number or (isinstance(change, Removal) and is_gone)

    def _take_observed(self, record: ObservedRecord) -> None:
        if record.value is None:
            self.observed.pop(record.key, None)
        elif not isinstance(record.value, Skipped):
            self.observed[record.key] = record
            if isinstance(record.value, ObservedWorker):
                self._note_incarnation(record.value, record.time_ms)

    def _note_incarnation(self, told: ObservedWorker, time_ms: int) -> None:
        known = self.incarnations.setdefault(told.worker, [])
        if told.incarnation in known[:-1]:
            self.back_ms[told.worker] = time_ms
            known.remove(told.incarnation)
        if told.incarnation not in known:
            known.append(told.incarnation)
            del known[:-_INCARNATIONS_KEPT]


# ------------------------------------------------------------------------------------------ view


class Drift(StrEnum):
    """Says how what a worker sees differs from what is wanted."""

    NONE = ""
    FILE = "file"
    """Its process works with another file than the wanted one."""
    STATE = "state"
    """It runs where it should be paused or stopped, or the other way round."""
    UNWANTED = "unwanted"
    """A worker has it, and nobody wants it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkView:
    """Shows a key of the fleet: what is wanted of it beside what is seen. Times are the broker's.

    ``worker``: who owns its slot now; empty: nobody. ``next_try_ms`` is a time: once it has passed,
    say "now". ``elsewhere``: what workers tell of it in slots where it is not placed (any longer).
    """

    key: str
    slot: int
    state: LifeState
    spec: SinkSpec | None = None
    observed: ObservedSink | None = None
    worker: str = ""
    drift: Drift = Drift.NONE
    applied_ms: int = 0
    told_ms: int = 0
    since_ms: int = 0
    next_try_ms: int | None = None
    refused: str = ""
    elsewhere: tuple[ObservedSink, ...] = ()

    @property
    def error_code(self) -> str:
        return self.observed.code if self.observed else ""

    @property
    def error_text(self) -> str:
        return self.observed.text if self.observed else ""

    @property
    def needs_attention(self) -> bool:
        """Return whether a list of the fleet should end with exit code 1 for it."""
        return self.state in (LifeState.ERROR, LifeState.LOST) or bool(self.refused)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """Shows a worker as it told last. ``lost``: it has told nothing for 30 s, and did not leave."""

    observed: ObservedWorker
    told_ms: int
    lost: bool

    @property
    def takes_sinks(self) -> bool:
        return not self.lost and not self.observed.leaving

    @property
    def started_ms(self) -> int:
        """Return when it began, as brokers' clocks have it."""
        return self.told_ms - self.observed.for_ms


@dataclass(frozen=True, slots=True)
class FleetView:
    """Shows all sinks by key, and all workers by name, each in the order of their names."""

    sinks: Mapping[str, SinkView]
    workers: Mapping[str, WorkerView]

    @property
    def slot_owners(self) -> Mapping[int, str]:
        """Return the worker of each slot that has one."""
        return {
            slot: name
            for name, worker in self.workers.items()
            if not worker.lost
            for slot in worker.observed.slots
        }


@dataclass(frozen=True, slots=True)
class _Told:
    value: ObservedSink
    record: ObservedRecord
    told_ms: int


def build_fleet_view(records: FleetRecords, now_ms: int) -> FleetView:
    """Fold both topics (FLEET-4). ``now_ms`` is compared with the brokers' times."""
    workers = _build_worker_views(records.observed.values(), now_ms)
    told: dict[str, list[_Told]] = {}
    for record in records.observed.values():
        if isinstance(record.value, ObservedSink):
            heard_ms = _last_told_ms(record, record.value, workers)
            told.setdefault(record.value.key, []).append(_Told(record.value, record, heard_ms))
    placed = effective_specs(records.specs.values())
    refused = {
        each.key: each
        for each in records.refused.values()
        if each.key not in placed or placed[each.key].slot == each.slot
    }
    owners = FleetView({}, workers).slot_owners
    sinks = {
        key: _build_sink_view(
            placed.get(key) or refused.get(key),
            refused.get(key),
            told.get(key, []),
            owners,
            now_ms=now_ms,
        )
        for key in sorted(placed.keys() | told.keys() | refused.keys())
    }
    return FleetView(sinks, workers)


def _build_worker_views(
    observed: Iterable[ObservedRecord], now_ms: int
) -> Mapping[str, WorkerView]:
    found = {
        record.value.worker: WorkerView(
            observed=record.value,
            told_ms=record.time_ms,
            lost=now_ms - record.time_ms >= LOST_AFTER_MS,
        )
        for record in observed
        if isinstance(record.value, ObservedWorker)
    }
    return dict(sorted(found.items()))


def _last_told_ms(
    record: ObservedRecord, value: ObservedSink, workers: Mapping[str, WorkerView]
) -> int:
    """Return when somebody last told of the sink: its worker's sign of life tells of all it has."""
    worker = workers.get(value.worker)
    if worker is None or worker.observed.incarnation != value.incarnation:
        return record.time_ms
    return max(record.time_ms, worker.told_ms)


def effective_specs(specs: Iterable[CommandRecord]) -> Mapping[str, CommandRecord]:
    """Return the spec of each key that counts: in two slots, the higher number, else lower slot."""
    found: dict[str, CommandRecord] = {}
    for record in specs:
        other = found.get(record.key)
        if other is None or _spec_precedence(record) > _spec_precedence(other):
            found[record.key] = record
    return found


def _spec_precedence(record: CommandRecord) -> tuple[int, int]:
    assert isinstance(record.value, SinkSpec)
    return record.value.number, -record.slot


def outdated_specs(records: FleetRecords) -> Mapping[Place, SinkSpec]:
    """Return specs that do not count, for their key has a newer one in another slot (FLEET-2)."""
    placed = effective_specs(records.specs.values())
    return {
        place: record.value
        for place, record in records.specs.items()
        if isinstance(record.value, SinkSpec) and placed[record.key] is not record
    }


def _build_sink_view(
    spec_record: CommandRecord | None,
    refused_record: CommandRecord | None,
    told: list[_Told],
    owners: Mapping[int, str],
    *,
    now_ms: int,
) -> SinkView:
    """Put together what is known of one key.

    ``spec_record``: its spec, else the newest one that is not believed, ``refused_record``.
    """
    told = sorted(told, key=lambda each: each.record.offset)
    if spec_record is None:
        here = told[-1] if told else None
    else:
        here = next((each for each in told if each.value.slot == spec_record.slot), None)
    spec = spec_record.value if spec_record and isinstance(spec_record.value, SinkSpec) else None
    slot = spec_record.slot if spec_record else told[-1].value.slot
    key = spec_record.key if spec_record else told[-1].value.key
    spec_ms = spec_record.time_ms if spec_record else 0
    since_ms = here.record.time_ms - here.value.for_ms if here else spec_ms
    return SinkView(
        key=key,
        slot=slot,
        state=_shown_state(spec, spec_record, here, now_ms),
        spec=spec,
        observed=here.value if here else None,
        worker=owners.get(slot, ""),
        drift=_find_drift(spec, here.value if here else None),
        applied_ms=spec_ms if spec else 0,
        told_ms=here.told_ms if here else 0,
        since_ms=since_ms,
        next_try_ms=_next_try_ms(here),
        refused=describe_refusal(refused_record),
        elsewhere=tuple(each.value for each in told if each is not here),
    )


def _shown_state(
    spec: SinkSpec | None, placed: CommandRecord | None, here: _Told | None, now_ms: int
) -> LifeState:
    """Return the state that a reader shows: ``LOST`` where nobody tells (any longer)."""
    if here is not None:
        return state_or_lost(here.value.state, here.told_ms, now_ms)
    if spec is not None and spec.state is DesiredState.STOPPED:
        return LifeState.STOPPED
    waited_ms = now_ms - placed.time_ms if placed else 0
    return LifeState.LOST if waited_ms >= LOST_AFTER_MS else LifeState.IDLE


_AT_WORK = (LifeState.RUNNING, LifeState.PAUSED, LifeState.STOPPED)
_SHOULD_BE = {
    DesiredState.RUNNING: (LifeState.RUNNING,),
    DesiredState.PAUSED: (LifeState.PAUSED,),
    DesiredState.STOPPED: (LifeState.STOPPED,),
}


def _find_drift(spec: SinkSpec | None, observed: ObservedSink | None) -> Drift:
    """Return how they differ; what starts, leaves or is in error is on its way, and no drift."""
    if observed is None:
        return Drift.NONE
    if spec is None:
        return Drift.UNWANTED
    if observed.revision and observed.revision != spec.revision:
        return Drift.FILE
    if observed.state in _AT_WORK and observed.state not in _SHOULD_BE[spec.state]:
        return Drift.STATE
    return Drift.NONE


def _next_try_ms(here: _Told | None) -> int | None:
    if here is None or here.value.next_try_in_ms is None:
        return None
    return here.record.time_ms + here.value.next_try_in_ms


_REFUSALS = {
    SkipReason.UNSIGNED: "it is not signed",
    SkipReason.WRONGLY_SIGNED: "it is signed with another key",
    SkipReason.SIGNED: "it is signed, and fleet.key is not set here",
    SkipReason.OTHER_SINK: "it belongs elsewhere",
    SkipReason.UNKNOWN_SCHEMA: "another version of headgate wrote it: it needs a newer worker",
    SkipReason.OTHER_VERSION: "another version of headgate wrote it: it needs a newer worker",
}


def describe_refusal(record: CommandRecord | None) -> str:
    """Return why the newest record of a key is not followed; empty: it is."""
    if record is None or not isinstance(record.value, Skipped):
        return ""
    why = _REFUSALS.get(record.value.reason, "it cannot be read")
    detail = f" ({record.value.detail})" if record.value.detail else ""
    return f"the spec at {record.slot}@{record.offset} is not followed: {why}{detail}"


STALE_MS = 60_000
"""After so long nobody waits any longer for what was told of a sink where it is not placed."""
WORKER_GONE_MS = 3_600_000
"""A worker that is lost is shown for so long."""


def is_worker_drained(records: FleetRecords, fleet: FleetView, name: str) -> bool:
    """Return whether a worker runs nothing, and others have what it was asked to give away.

    The slots of a static member have nobody for the session's time-out, also if it leaves in order.
    """
    worker = fleet.workers.get(name)
    if worker is None:
        return True
    told = worker.observed
    given = {
        drain.slot
        for drain in records.drains.values()
        if (drain.worker, drain.incarnation) == (name, told.incarnation)
    }
    return told.leaving and not told.processes and given <= fleet.slot_owners.keys()


def find_shared_worker_names(records: FleetRecords, now_ms: int) -> list[str]:
    """Return names that several workers have lately told by, in turn."""
    return sorted(name for name, ms in records.back_ms.items() if now_ms - ms < STALE_MS)


def find_stale_state_keys(records: FleetRecords, fleet: FleetView, now_ms: int) -> list[str]:
    """Return keys of the state topic that nobody will ever take back: of workers that are gone, or
    that have given the slot away."""
    stale = []
    for key, record in records.observed.items():
        value = record.value
        if isinstance(value, ObservedWorker) and now_ms - record.time_ms >= WORKER_GONE_MS:
            stale.append(key)
        if isinstance(value, ObservedSink):
            sink = fleet.sinks[value.key]
            misplaced = sink.spec is None or sink.slot != value.slot
            told_ms, worker = record.time_ms, fleet.workers.get(value.worker)
            # Who gave the slot away may not take it back, however long it lives.
            if worker is not None and value.slot in worker.observed.slots:
                told_ms = _last_told_ms(record, value, fleet.workers)
            if misplaced and now_ms - told_ms >= STALE_MS:
                stale.append(key)
    return stale
