"""How long a dead worker's sinks wait for others: one after the other is killed, and replaced.

``pytest -m soak -s tests/integration/operations/test_fleet_takeover.py`` prints the seconds from
each kill until every sink of the fleet has committed what was there at the kill.
"""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path

import pytest
from integration.conftest import Deploy
from support.fleet_scene import Fleet, running, worker_of

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(3_600)]

SINKS, WORKERS, ROUNDS = 12, 3, 6


def test_fleet_9_each_worker_in_turn_is_killed(
    deploy: Deploy, tmp_path: Path, bootstrap: str, unique_name: str
) -> None:
    with Fleet(tmp_path, bootstrap, f"{unique_name}-fleet", slots=24) as fleet:
        sinks = {}
        for number in range(SINKS):
            name = f"s{number}"
            change = {"name": name, "table": {"identifier": f"db.{name}"}}
            uri = f"sqlite:///{tmp_path}/catalog-{name}.sqlite"
            change |= {"coordinator": {"commit_interval_ms": 2_000}}
            change |= {"catalog.properties": {"uri": uri}}
            sinks[name] = deploy(change)
            shutil.copy(sinks[name].sink_file, fleet.folder / f"{name}.toml")
        fleet.command("apply", fleet.folder)
        workers = [f"w{number}" for number in range(WORKERS)]
        fleet.start(*workers)
        fleet.wait_until(lambda view: running(view, [*sinks]), "running")
        took_s = []
        for turn in range(ROUNDS):
            victim = workers[turn % WORKERS]
            had = [k for k, sink in fleet.view().sinks.items() if worker_of(sink) == victim]
            for sink in sinks.values():
                sink.produce(100)
            fleet.kill(victim)
            killed_s = time.monotonic()
            for sink in sinks.values():
                sink.wait_until_lag_zero()
            took_s.append(time.monotonic() - killed_s)
            print(f"{victim} with {len(had)} sinks: {took_s[-1]:.1f} s")
            fleet.start(victim)
            fleet.wait_until(
                lambda view: (
                    running(view, [*sinks]) and sum(not w.lost for w in view.workers.values()) == 3
                ),
                "whole again",
            )
        print(f"{min(took_s):.1f} to {max(took_s):.1f} s, median {statistics.median(took_s):.1f} s")
        for sink in sinks.values():
            sink.judge()
