"""FLEET-8: where sinks go, which ones move, and what becomes of a thousand of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from support.fleet_records import FILE as FILE_WITH_JVM
from support.fleet_records import fleet_of

from headgate.control_protocol.identifiers import SinkName
from headgate.runtime.fleet.fleet_changes import (
    Occasion,
    Plan,
    Wanting,
    plan_apply,
    plan_balancer_moves,
)
from headgate.runtime.fleet.fleet_records import ObservedSink, SinkSpec
from headgate.runtime.fleet.fleet_view import (
    CommandRecord,
    FleetRecords,
    FleetView,
    build_fleet_view,
)
from headgate.runtime.fleet.placement import (
    EXCESS,
    PART,
    STAYS_MS,
    Placing,
    find_moves,
    load_of,
)
from headgate.runtime.fleet.sink_life import DesiredState, LifeState

FILE = f'{FILE_WITH_JVM}[spark]\nwriter = "in-process"\n'
SLOTS = 64
NOW_MS = 1_000 + STAYS_MS


def dealt(workers: int, slots: int = SLOTS) -> dict[str, tuple[int, ...]]:
    """Slots as a group deals them out: neighbours to one worker."""
    share = [
        range(slots)[n * slots // workers : (n + 1) * slots // workers] for n in range(workers)
    ]
    return {f"w{n}": tuple(some) for n, some in enumerate(share)}


def dealt_in_turn(workers: int, slots: int = SLOTS) -> dict[str, tuple[int, ...]]:
    """Slots as a group deals them out whose members come together: every third one to each."""
    return {f"w{n}": tuple(range(n, slots, workers)) for n in range(workers)}


def seen(spec: SinkSpec, permille: int = 0, state: LifeState = LifeState.RUNNING) -> ObservedSink:
    return ObservedSink(
        key=spec.key,
        slot=spec.slot,
        worker="w",
        incarnation="i",
        state=state,
        cpu_permille=permille,
    )


def apply(records: FleetRecords, names: Sequence[str]) -> None:
    wanted = {SinkName(name): Wanting(FILE) for name in names}
    write(records, plan_apply(wanted, prune=False)(records, Occasion("a", 1_000, SLOTS)))


def write(records: FleetRecords, plan: Plan) -> None:
    for each in plan.changes:
        records.take_record(CommandRecord(each.key, each.slot, 0, 1_000, each))


def loads(fleet: FleetView) -> Mapping[str, float]:
    found = dict.fromkeys(fleet.slot_owners.values(), 0.0)
    for sink in fleet.sinks.values():
        found[sink.worker] += load_of(sink)
    return found


def test_fleet_8_a_thousand_sinks_are_placed_evenly() -> None:
    records = fleet_of([], dealt(5))
    apply(records, [f"s{n}" for n in range(1_000)])
    spread = loads(build_fleet_view(records, 1_000)).values()
    assert (min(spread), max(spread)) == (200, 200)


@pytest.mark.parametrize("workers", [2, 3, 5, 10])
def test_fleet_8_what_comes_before_any_worker_is_spread_over_slots(workers: int) -> None:
    records = fleet_of([])
    apply(records, [f"s{n}" for n in range(1_000)])
    fleet = build_fleet_view(
        fleet_of([r.value for r in records.specs.values()], dealt(workers)), 1_000
    )  # type: ignore[misc]
    spread = loads(fleet).values()
    assert max(spread) <= EXCESS * min(spread)


def test_fleet_8_a_few_sinks_before_any_worker_do_not_all_fall_to_one() -> None:
    records = fleet_of([])
    apply(records, [f"s{n}" for n in range(6)])
    specs = [r.value for r in records.specs.values() if isinstance(r.value, SinkSpec)]
    spread = loads(build_fleet_view(fleet_of(specs, dealt(3)), 1_000))
    assert sorted(spread.values()) == [1, 2, 3]


@pytest.mark.parametrize("deal", [dealt, dealt_in_turn])
@pytest.mark.parametrize("workers", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("slots", [24, 64])
def test_fleet_8_no_worker_is_left_out_whatever_way_slots_are_dealt(
    deal: Callable[[int, int], Mapping[str, Sequence[int]]], workers: int, slots: int
) -> None:
    """Three sinks for each worker come before any worker does."""
    records = fleet_of([])
    wanted = {SinkName(f"s{n}"): Wanting(FILE) for n in range(3 * workers)}
    write(records, plan_apply(wanted, prune=False)(records, Occasion("a", 1_000, slots)))
    specs = [r.value for r in records.specs.values() if isinstance(r.value, SinkSpec)]
    spread = loads(build_fleet_view(fleet_of(specs, deal(workers, slots)), 1_000)).values()
    assert min(spread) >= 1
    assert max(spread) <= 6


def test_fleet_8_participants_of_one_sink_go_to_different_workers() -> None:
    records = fleet_of([], dealt(3))
    placing = Placing.from_fleet(build_fleet_view(records, 1_000), SLOTS)
    slots = [placing.assign_slot(key) for key in ("a", "a#2", "a#3")]
    assert {placing.owners[slot] for slot in slots} == {"w0", "w1", "w2"}


def test_fleet_8_a_balanced_fleet_is_left_alone_and_so_is_one_with_a_single_worker() -> None:
    specs = [SinkSpec(key=f"s{n}", slot=n, number=1, file=FILE) for n in range(SLOTS)]
    observed = [seen(spec) for spec in specs]
    for workers in (1, 2, 4):
        assert (
            find_moves(build_fleet_view(fleet_of(specs, dealt(workers), observed), 1_000), NOW_MS)
            == []
        )


def test_fleet_8_what_must_stay_stays() -> None:
    def moves(change: SinkSpec, state: LifeState = LifeState.RUNNING) -> int:
        others = [SinkSpec(key=f"s{n}", slot=0, number=1, file=FILE, pinned=True) for n in range(8)]
        observed = [seen(change, state=state), *map(seen, others)]
        fleet = build_fleet_view(
            fleet_of([change, *others], {"w0": (0,), "w1": (1,)}, observed), 1_000
        )
        return len(find_moves(fleet, NOW_MS))

    spec = SinkSpec(key="a", slot=0, number=1, file=FILE)
    assert moves(spec) == 1
    assert moves(replace(spec, pinned=True)) == 0
    assert moves(replace(spec, moved_ms=NOW_MS - STAYS_MS + 1)) == 0
    assert moves(replace(spec, moved_ms=NOW_MS - STAYS_MS)) == 1
    assert moves(spec, LifeState.ERROR) == 0
    assert moves(spec, LifeState.STARTING) == 0
    assert moves(spec, LifeState.IDLE) == 0, "it may wait for memory (FLEET-13)"
    assert moves(replace(spec, state=DesiredState.STOPPED), LifeState.STOPPED) == 0
    assert moves(replace(spec, file=FILE_WITH_JVM)) == 0, "it might wait for memory there"


@pytest.mark.parametrize("seed", range(5))
def test_fleet_8_a_thousand_sinks_of_any_load_come_within_a_quarter_of_even(seed: int) -> None:
    """Three workers with all sinks, then five; loads from idle to half a core. Counted: rounds."""
    draw = random.Random(seed)
    specs = [
        SinkSpec(key=f"s{n}", slot=draw.randrange(SLOTS * 3 // 5), number=1, file=FILE)
        for n in range(1_000)
    ]
    permille = {
        w.key: draw.choice([0, 0, 0, 2, 5, 20, 500 if draw.random() < 0.02 else 10]) for w in specs
    }
    records = fleet_of(specs, dealt(5), [seen(w, permille[w.key]) for w in specs])
    moved: Counter[str] = Counter()
    rounds = 0
    while True:
        fleet = build_fleet_view(records, 1_000)
        now_ms = NOW_MS + rounds * STAYS_MS  # nothing but the load keeps a sink where it is
        found = find_moves(fleet, now_ms)
        assert len(found) <= PART * len(specs)
        if not found:
            break
        rounds += 1
        moved.update(move.key for move in found)
        plan = plan_balancer_moves(found)(records, Occasion("balancer", now_ms, SLOTS))
        write(records, plan)
        placed = [r.value for r in records.specs.values() if isinstance(r.value, SinkSpec)]
        records = fleet_of(placed, dealt(5), [seen(w, permille[w.key]) for w in placed])
    spread = loads(build_fleet_view(records, 1_000)).values()
    even = sum(spread) / len(spread)
    assert 0 < rounds <= 3
    assert max(moved.values(), default=0) <= 1, "never back and forth"
    assert max(spread) <= 1.25 * even
    assert min(spread) >= 0.75 * even
