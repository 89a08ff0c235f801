"""Where a fleet's sinks run: the balancer, static members and several participants, on a broker."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from integration.conftest import Deploy
from integration.deployment import Deployment
from support.fleet_scene import (
    Fleet,
    process_ids,
    running,
    sinks_of_worker,
    worker_of,
)

from headgate.runtime.fleet.fleet_changes import FleetPlanner, Occasion, Plan
from headgate.runtime.fleet.fleet_records import SinkSpec
from headgate.runtime.fleet.fleet_topics import change_fleet, ensure_fleet_topics
from headgate.runtime.fleet.fleet_view import FleetRecords, FleetView
from headgate.runtime.fleet.placement import worker_loads

pytestmark = [pytest.mark.integration, pytest.mark.wide, pytest.mark.timeout(1_200)]

STATIC = "static_member = true\nsession_timeout_ms = 90_000"


def sinks_of(deploy: Deploy, *names: str) -> dict[str, Deployment]:
    slow = {"coordinator": {"commit_interval_ms": 5_000}}
    return {
        name: deploy({"name": name, "table": {"identifier": f"db.{name}"}} | slow) for name in names
    }


def commits_all(sinks: Mapping[str, Deployment], count: int = 200) -> None:
    for sink in sinks.values():
        sink.produce(count)
    for sink in sinks.values():
        sink.wait_until_lag_zero()


def place_all_in(slot: int, sinks: Mapping[str, Deployment]) -> FleetPlanner:
    """Plan that these sinks are in one slot, so that the group gives all of them to one worker."""

    def plan(records: FleetRecords, occasion: Occasion) -> Plan:
        files = {name: sink.sink_file.read_text() for name, sink in sinks.items()}
        return Plan(
            tuple(SinkSpec(key=k, slot=slot, number=1, file=file) for k, file in files.items())
        )

    return plan


@pytest.mark.soak
def test_fleet_8_a_worker_that_joined_gets_its_part_of_the_load(
    deploy: Deploy, tmp_path: Path, bootstrap: str, unique_name: str
) -> None:
    with Fleet(tmp_path, bootstrap, f"{unique_name}-fleet", slots=4) as fleet:
        sinks = sinks_of(deploy, *"abcdef")
        ensure_fleet_topics(fleet.settings)
        change_fleet(fleet.settings, place_all_in(0, sinks), "test")
        fleet.start("w0")
        fleet.wait_until(lambda view: running(view, [*sinks]), "running")
        fleet.start("w1")
        joined = fleet.wait_until(
            lambda view: (
                sorted(view.slot_owners) == [*range(4)]
                and {*view.slot_owners.values()} == {"w0", "w1"}
                and running(view, [*sinks])
                and {worker_of(sink) for sink in view.sinks.values()} == {view.slot_owners[0]}
                and not any(sink.elsewhere for sink in view.sinks.values())
            ),
            "joined",
        )
        (most,) = {worker_of(sink) for sink in joined.sinks.values()}
        (least,) = {"w0", "w1"} - {most}
        first = process_ids(joined)
        moves: dict[str, str] = {}
        came_ms = joined.workers["w1"].told_ms - joined.workers["w1"].observed.for_ms

        def is_even(view: FleetView) -> bool:
            for key, sink in view.sinks.items():
                if sink.spec and sink.spec.moved_ms:
                    moved = f"{sink.spec.moved_ms}"
                    assert moves.setdefault(key, moved) == moved, f"{key} moved twice"
                    assert sink.spec.moved_ms - came_ms > 60_000, "it rests for a minute"
            loads = worker_loads(view)
            even = sum(loads.values()) / len(loads)
            is_settled = running(view, [*sinks]) and not any(
                sink.elsewhere or not sink.worker for sink in view.sinks.values()
            )
            return is_settled and max(loads.values()) <= 1.25 * even

        seen = fleet.wait_until(is_even, "within a quarter of even")
        print({name: round(load, 1) for name, load in worker_loads(seen).items()}, moves)
        assert sinks_of_worker(seen, least) == moves.keys()
        stayed = {key: at for key, at in process_ids(seen).items() if key not in moves}
        assert stayed == {key: at for key, at in first.items() if key not in moves}
        commits_all(sinks)
        for sink in sinks.values():
            sink.judge()


@pytest.mark.parametrize("ends", [signal.SIGTERM, signal.SIGKILL], ids=lambda each: each.name)
def test_fleet_5_a_static_member_that_starts_again_in_time_moves_nothing(
    deploy: Deploy, tmp_path: Path, bootstrap: str, unique_name: str, ends: signal.Signals
) -> None:
    with Fleet(tmp_path, bootstrap, f"{unique_name}-fleet", slots=4, worker=STATIC) as fleet:
        sinks = sinks_of(deploy, *"abcd")
        for name, sink in sinks.items():
            shutil.copy(sink.sink_file, fleet.folder / f"{name}.toml")
        fleet.command("apply", fleet.folder)
        fleet.start("w0", "w1")
        before = fleet.wait_until(
            lambda view: (
                running(view, [*sinks])
                and {worker_of(sink) for sink in view.sinks.values()} == {"w0", "w1"}
                and not any(sink.elsewhere for sink in view.sinks.values())
            ),
            "shared",
        )
        had = sinks_of_worker(before, "w0")
        if ends is signal.SIGTERM:
            assert fleet.ask_to_end("w0") == 0
        else:
            fleet.kill("w0")
        fleet.start("w0")
        others = {key: at for key, at in process_ids(before).items() if key not in had}

        def is_back(view: FleetView) -> bool:
            now = process_ids(view)
            assert {key: now.get(key) for key in others} == others, "no sink of another was touched"
            assert not had & sinks_of_worker(view, "w1"), "its sinks have waited for it"
            anew = all(key in now and now[key] != process_ids(before)[key] for key in had)
            return anew and running(view, [*sinks])

        fleet.wait_until(is_back, "back")
        commits_all(sinks)
        for sink in sinks.values():
            sink.judge()


def test_fleet_8_a_sink_has_more_participants_and_one_again(
    deploy: Deploy, tmp_path: Path, bootstrap: str, unique_name: str
) -> None:
    with Fleet(tmp_path, bootstrap, f"{unique_name}-fleet", slots=6) as fleet:
        sink = deploy({"name": "a"}, partitions=6)
        shutil.copy(sink.sink_file, fleet.folder / "a.toml")
        fleet.start("w0", "w1", "w2")
        fleet.command("apply", fleet.folder)
        fleet.wait_until(
            lambda view: running(view, ["a"]) and len({*view.slot_owners.values()}) == 3, "running"
        )
        sink.produce(600)
        said = fleet.command("scale", "a", "3")
        assert "+ a#2" in said
        assert "+ a#3" in said
        keys = ["a", "a#2", "a#3"]

        def shares(view: FleetView) -> list[int]:
            told = [view.sinks[key].observed for key in keys if key in view.sinks]
            return [each.partitions or 0 for each in told if each]

        seen = fleet.wait_until(
            lambda view: running(view, keys) and shares(view) == [2, 2, 2], "shared by three"
        )
        assert {worker_of(seen.sinks[key]) for key in keys} == {"w0", "w1", "w2"}
        assert sum(bool(each.observed and each.observed.leads) for each in seen.sinks.values()) == 1
        first = process_ids(seen)["a"]
        commits_all({"a": sink}, 600)
        said = fleet.command("scale", "a", "1")
        assert "- a#2" in said
        assert "- a#3" in said
        sink.produce(600)
        seen = fleet.wait_until(
            lambda view: [*view.sinks] == ["a"] and shares(view) == [6], "alone again"
        )
        assert process_ids(seen)["a"] == first, "the first one worked on"
        sink.wait_until_lag_zero()
        sink.judge()
