"""Plans what a command changes of a fleet: from records to specs, and to lines that show it. Pure.

Each plan is written at once, or not at all (FLEET-5); a dry run shows it and writes nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from headgate.control_protocol.counted_nouns import count_of
from headgate.control_protocol.errors import ConfigurationError
from headgate.control_protocol.identifiers import SinkName
from headgate.runtime.fleet.fleet_records import (
    Drain,
    FleetCommand,
    Removal,
    SinkSpec,
    key_of_participant,
    sink_of_key,
)
from headgate.runtime.fleet.fleet_view import (
    FleetRecords,
    FleetView,
    WorkerView,
    build_fleet_view,
    outdated_specs,
)
from headgate.runtime.fleet.placement import Move, Placing, load_of
from headgate.runtime.fleet.sink_life import DesiredState


class SinkUnknown(ConfigurationError):
    """Says that the fleet has no sink of a name that a change names."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Says what is to be written, and how it differs from what is there, for people."""

    changes: tuple[FleetCommand, ...] = ()
    lines: tuple[str, ...] = ()


def file_texts_of_changed_sinks(plan: Plan) -> Mapping[SinkName, str]:
    """Return the file of each sink that a plan changes."""
    specs = [each for each in plan.changes if isinstance(each, SinkSpec)]
    return {sink_of_key(spec.key): spec.file for spec in specs}


@dataclass(frozen=True, slots=True)
class Occasion:
    """Says who changes a fleet of so many slots, and when, by the wall clock."""

    actor: str
    now_ms: int
    slots: int


FleetPlanner = Callable[[FleetRecords, Occasion], Plan]


@dataclass(frozen=True, slots=True)
class Wanting:
    """Says what ``apply`` wants of a sink: its file, and the memory that it may take, 0 for the
    worker's own limit.
    """

    file: str
    memory_mib: int = 0


def plan_apply(wanted: Mapping[SinkName, Wanting], *, prune: bool) -> FleetPlanner:
    """Plan that the fleet follows these files, by their sinks' names.

    A sink that is there keeps its slot and its state. With ``prune`` others are removed.
    """

    def plan(records: FleetRecords, occasion: Occasion) -> Plan:
        making = _Making(records, occasion)
        for key, spec in making.specs.items():
            want = wanted.get(sink_of_key(key))
            if want is not None and (spec.file, spec.memory_mib) != (want.file, want.memory_mib):
                changed = replace(spec, file=want.file, memory_mib=want.memory_mib)
                making.add_change(changed, f"~ {key}", *_diff_specs(spec, changed))
            elif want is None and prune:
                making.remove_spec(spec)
        there = {sink_of_key(key) for key in making.specs}
        for name, want in sorted(wanted.items()):
            if name not in there:
                making.add_and_place_spec(
                    SinkSpec(
                        key=name,
                        slot=0,
                        number=0,
                        file=want.file,
                        memory_mib=want.memory_mib,
                    )
                )
        return making.plan()

    return plan


def plan_desired_state(keys: Sequence[str], state: DesiredState) -> FleetPlanner:
    """Plan that these sinks run, are paused, or are stopped."""

    def plan(records: FleetRecords, occasion: Occasion) -> Plan:
        making = _Making(records, occasion)
        for spec in making.require_specs(keys):
            if spec.state is not state:
                text = f"~ {spec.key}: {spec.state.value} becomes {state.value}"
                making.add_change(replace(spec, state=state), text)
        return making.plan()

    return plan


def plan_restart(keys: Sequence[str]) -> FleetPlanner:
    """Plan that these sinks leave in order, and come again."""

    def plan(records: FleetRecords, occasion: Occasion) -> Plan:
        making = _Making(records, occasion)
        for spec in making.require_specs(keys):
            again = replace(spec, restarts=spec.restarts + 1)
            making.add_change(again, f"~ {spec.key}: starts anew")
        return making.plan()

    return plan


def plan_remove(keys: Sequence[str]) -> FleetPlanner:
    """Plan that nobody wants these sinks any longer; tables, groups and topics stay."""

    def plan(records: FleetRecords, occasion: Occasion) -> Plan:
        making = _Making(records, occasion)
        for spec in making.require_specs(keys):
            making.remove_spec(spec)
        return making.plan()

    return plan


def plan_scale(sink: str, participants: int) -> FleetPlanner:
    """Plan that so many processes share a sink's partitions, on different workers if there are.

    ``sink``: its name, or the key of any of its participants.
    """

    def plan(records: FleetRecords, occasion: Occasion) -> Plan:
        making = _Making(records, occasion)
        name = sink_of_key(next(making.require_specs([sink])).key)
        first, *others = sorted(making.require_specs([name]), key=lambda spec: spec.key)
        keys = [key_of_participant(name, number) for number in range(1, participants + 1)]
        for spec in (first, *others):
            if spec.key not in keys:
                making.remove_spec(spec)
        for key in keys:
            if key not in making.specs:
                making.add_and_place_spec(
                    replace(first, key=key, pinned=False, moved_ms=0, restarts=0)
                )
        return making.plan()

    return plan


def plan_pinned_move(keys: Sequence[str], worker: str) -> FleetPlanner:
    """Plan that these sinks go to a worker, and that the balancer leaves them there."""

    def plan(records: FleetRecords, occasion: Occasion) -> Plan:
        making = _Making(records, occasion)
        moving = [*making.require_specs(keys)]
        making.require_worker(worker)
        if worker not in making.placing.owners.values():
            raise ConfigurationError(
                f"worker {worker} takes no sinks: it has no slot, or it leaves",
                "headgate fleet list --workers shows who has slots",
            )
        for spec in moving:
            if making.fleet.sinks[spec.key].worker != worker:
                load = load_of(making.fleet.sinks[spec.key])
                slot = making.placing.assign_slot(spec.key, load, worker)
                making.move_spec(replace(spec, pinned=True), slot)
            elif not spec.pinned:
                making.add_change(replace(spec, pinned=True), f"~ {spec.key}: stays on {worker}")
        return making.plan()

    return plan


def plan_balancer_moves(moves: Iterable[Move]) -> FleetPlanner:
    """Plan the moves of the balancer, as far as these sinks are still there.

    One that a person has moved since the balancer looked stays (FLEET-8).
    """

    def plan(records: FleetRecords, occasion: Occasion) -> Plan:
        making = _Making(records, occasion)
        for move in moves:
            spec = making.specs.get(move.key)
            if spec and not spec.pinned and spec.slot != move.slot:
                making.move_spec(spec, move.slot)
        return making.plan(tidies_if_unchanged=True)

    return plan


def plan_drain(worker: str) -> FleetPlanner:
    """Plan that a worker gives its slots to the others, until it starts again."""

    def plan(records: FleetRecords, occasion: Occasion) -> Plan:
        making = _Making(records, occasion)
        observed = making.require_worker(worker).observed
        others = set(making.fleet.slot_owners.values()) - {worker}
        if not others:
            raise ConfigurationError(
                f"worker {worker} is the only one: nobody would take its sinks",
                "start another one first; or stop its sinks",
            )
        for slot in observed.slots:
            drain = Drain(worker=worker, incarnation=observed.incarnation, slot=slot, number=0)
            making.add_change(drain)
        moving = [sink.key for sink in making.fleet.sinks.values() if sink.worker == worker]
        making.add_lines(
            f"~ worker {worker}: gives {count_of(len(observed.slots), 'slot')} to others"
        )
        making.add_lines(*(f"~ {key}: leaves {worker}" for key in moving))
        return making.plan()

    return plan


class _Making:
    """Makes a plan. Each change gets the number behind the fleet's highest (FLEET-2)."""

    def __init__(self, records: FleetRecords, occasion: Occasion) -> None:
        self._occasion = occasion
        self._number = records.highest_number + 1
        self._changes: list[FleetCommand] = []
        self._lines: list[str] = []
        self.fleet: FleetView = build_fleet_view(records, occasion.now_ms)
        self.specs = {key: s.spec for key, s in self.fleet.sinks.items() if s.spec is not None}
        self.placing = Placing.from_fleet(self.fleet, occasion.slots)
        self._tidy = [*_removals_of_outdated_records(records, self.fleet)]

    def require_specs(self, keys: Sequence[str]) -> Iterator[SinkSpec]:
        """Yield the specs that are named: a sink's name names all of its participants."""
        for name in keys:
            found = [w for key, w in self.specs.items() if name in (key, sink_of_key(key))]
            if not found:
                close = difflib.get_close_matches(name, self.specs, n=1)
                raise SinkUnknown(
                    f"the fleet has no sink {name}",
                    f"did you mean {close[0]}?" if close else "headgate fleet list shows them",
                )
            yield from found

    def require_worker(self, name: str) -> WorkerView:
        found = self.fleet.workers.get(name)
        if found is None or found.lost:
            alive = [each for each, worker in self.fleet.workers.items() if not worker.lost]
            raise ConfigurationError(
                f"the fleet has no worker {name} now", f"there are: {', '.join(alive) or 'none'}"
            )
        return found

    def add_and_place_spec(self, spec: SinkSpec) -> None:
        placed = replace(spec, slot=self.placing.assign_slot(spec.key))
        worker = self.placing.owners.get(placed.slot, "")
        self.add_change(placed, f"+ {spec.key}{f' on {worker}' if worker else ''}")

    def remove_spec(self, spec: SinkSpec) -> None:
        self.add_change(Removal(key=spec.key, slot=spec.slot, number=0), f"- {spec.key}")

    def move_spec(self, spec: SinkSpec, slot: int) -> None:
        before, after = (self.fleet.slot_owners.get(each, "nobody") for each in (spec.slot, slot))
        self.add_change(Removal(key=spec.key, slot=spec.slot, number=0))
        moved = replace(spec, slot=slot, moved_ms=self._occasion.now_ms)
        self.add_change(moved, f"~ {spec.key}: {before} to {after}")

    def add_change(self, value: FleetCommand, *lines: str) -> None:
        occasion = self._occasion
        said = {"number": self._number, "actor": occasion.actor, "time_ms": occasion.now_ms}
        self._changes.append(replace(value, **said))  # type: ignore[arg-type]
        self.add_lines(*lines)

    def add_lines(self, *lines: str) -> None:
        self._lines += lines

    def plan(self, *, tidies_if_unchanged: bool = False) -> Plan:
        """Return the plan; what nobody needs any more goes with whatever else is written."""
        if self._changes or tidies_if_unchanged:
            changed = {(each.slot, each.key) for each in self._changes}
            for each in self._tidy:
                if (each.slot, each.key) not in changed:
                    self.add_change(each)
        return Plan(tuple(self._changes), tuple(self._lines))


def _removals_of_outdated_records(records: FleetRecords, fleet: FleetView) -> Iterator[Removal]:
    """Yield the removal of specs that do not count, and of drains of workers' earlier starts."""
    for slot, key in outdated_specs(records):
        yield Removal(key=key, slot=slot, number=0)
    for drain in records.drains.values():
        worker = fleet.workers.get(drain.worker)
        if worker is None or worker.observed.incarnation != drain.incarnation:
            yield Removal(key=drain.key, slot=drain.slot, number=0)


def _diff_specs(before: SinkSpec, after: SinkSpec) -> Iterator[str]:
    """Yield how two specs differ, as ``diff -u`` shows files. Secrets are references (FLEET-6)."""
    if before.memory_mib != after.memory_mib:
        yield f"  memory_mib: {before.memory_mib} becomes {after.memory_mib}"
    lines = difflib.unified_diff(
        before.file.splitlines(), after.file.splitlines(), lineterm="", n=1
    )
    yield from (f"  {line}" for line in lines if not line.startswith(("---", "+++")))
