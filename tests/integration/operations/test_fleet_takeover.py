"""How long a dead worker's sinks wait for others: one after the other is killed, and replaced.

``pytest -m soak -s tests/integration/operations/test_fleet_takeover.py`` prints the seconds from
each kill until every sink of the fleet runs again, with its partitions, and until it has committed
what was there at the kill. ``-k fifty`` is the fleet of the aims: fifty sinks, twenty kills.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from pathlib import Path

import pytest
from integration.conftest import Deploy
from support.fleet_scene import Fleet, running, sinks_of_worker

from headgate.runtime.fleet.fleet_view import FleetView

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(3_600)]

WORKERS = 3
THE_FLEETS = {"session.timeout.ms": None, "heartbeat.interval.ms": None}
"""Sinks have the session of the workers, 6 s here, as those have whose files say nothing."""


@pytest.mark.parametrize(
    ("count", "interval_ms", "rounds"),
    [pytest.param(12, 2_000, 6, id="twelve"), pytest.param(50, 5_000, 20, id="fifty")],
)
def test_fleet_9_each_worker_in_turn_is_killed(
    deploy: Deploy,
    tmp_path: Path,
    bootstrap: str,
    unique_name: str,
    count: int,
    interval_ms: int,
    rounds: int,
) -> None:
    with Fleet(tmp_path, bootstrap, f"{unique_name}-fleet", slots=24) as fleet:
        sinks = {}
        for number in range(count):
            name = f"s{number}"
            change = {"name": name, "table": {"identifier": f"db.{name}"}}
            uri = f"sqlite:///{tmp_path}/catalog-{name}.sqlite"
            change |= {"coordinator": {"commit_interval_ms": interval_ms}}
            change |= {"kafka": THE_FLEETS}
            change |= {"catalog.properties": {"uri": uri}}
            sinks[name] = deploy(change)
            shutil.copy(sinks[name].sink_file, fleet.folder / f"{name}.toml")
        fleet.command("apply", fleet.folder)
        workers = [f"w{number}" for number in range(WORKERS)]
        fleet.start(*workers)
        fleet.wait_until(lambda view: running(view, [*sinks]), "running")
        again_s, took_s = [], []
        for turn in range(rounds):
            victim = workers[turn % WORKERS]
            had = sinks_of_worker(fleet.view(), victim)

            def work_elsewhere(view: FleetView, had: set[str] = had, victim: str = victim) -> bool:
                of_victim = [view.sinks[key].observed for key in had]
                return running(view, [*sinks]) and all(
                    told and told.worker != victim and told.partitions for told in of_victim
                )

            for sink in sinks.values():
                sink.produce(100)
            fleet.kill(victim)
            killed_s = time.monotonic()
            fleet.wait_until(work_elsewhere, "taken over")
            again_s.append(time.monotonic() - killed_s)
            for sink in sinks.values():
                sink.wait_until_lag_zero()
            took_s.append(time.monotonic() - killed_s)
            load = f"a load of {os.getloadavg()[0]:.0f}"
            print(f"{victim}, {len(had)} sinks: {again_s[-1]:.1f}, {took_s[-1]:.1f} s at {load}")
            fleet.start(victim)
            fleet.wait_until(
                lambda view: (
                    running(view, [*sinks]) and sum(not w.lost for w in view.workers.values()) == 3
                ),
                "whole again",
            )
        for what, some in (("run again", again_s), ("have committed", took_s)):
            median = statistics.median(some)
            print(f"all {what} after {min(some):.1f} to {max(some):.1f} s, median {median:.1f} s")
        for sink in sinks.values():
            sink.judge()
