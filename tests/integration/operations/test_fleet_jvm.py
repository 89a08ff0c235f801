"""Two sinks with a JVM each on a worker that has memory for one: the other waits, and says why."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from integration.conftest import Deploy
from support.fleet_scene import Fleet

from headgate.runtime.fleet.fleet_view import FleetView
from headgate.runtime.fleet.sink_life import LifeState

pytestmark = [pytest.mark.integration, pytest.mark.spark]
JVM_BYTES = 150 << 20
"""More than a sink's process takes by itself."""


class SmallFleet(Fleet):
    """Its workers have room for one JVM."""

    def _worker_file(self, worker: str) -> Path:
        path = super()._worker_file(worker)
        text = path.read_text().replace("[worker]", "[worker]\njvms_memory_mib = 3900")
        path.write_text(text)
        return path


def one_runs_and_one_waits(view: FleetView) -> bool:
    states = sorted(sink.state for sink in view.sinks.values())
    return states == [LifeState.IDLE, LifeState.RUNNING]


@pytest.mark.wide
def test_fleet_13_a_jvm_for_which_there_is_no_memory_waits(
    deploy: Deploy, tmp_path: Path, bootstrap: str, unique_name: str
) -> None:
    sinks = {
        name: deploy(
            {"name": name, "table": {"identifier": f"db.{name}"}, "spark": {"writer": "spark"}}
        )
        for name in ("a", "b")
    }
    with SmallFleet(tmp_path, bootstrap, f"{unique_name}-fleet") as fleet:
        for name, sink in sinks.items():
            shutil.copy(sink.sink_file, fleet.folder / f"{name}.toml")
        assert "are not enough for a, b" in fleet.command(
            "apply", fleet.folder, "--memory-mib", "1024", code=2
        )
        fleet.command("apply", fleet.folder, "--memory-mib", "2000")
        fleet.start("w0")
        seen = fleet.wait_until(one_runs_and_one_waits, "one of two at work").sinks
        works = next(key for key, sink in seen.items() if sink.state is LifeState.RUNNING)
        (waits,) = seen.keys() - {works}
        said = fleet.command("list")
        assert "waits for memory: with its JVM it may take 2,000 MiB" in said
        sinks[works].produce(200)
        sinks[works].wait_until_lag_zero()

        def counts_jvm(view: FleetView) -> bool:
            told = view.sinks[works].observed
            return told is not None and (told.memory_bytes or 0) > JVM_BYTES

        fleet.wait_until(counts_jvm, "counted with its JVM")
        fleet.command("stop", works)
        fleet.wait_for(LifeState.RUNNING, waits)
        sinks[waits].produce(200)
        sinks[waits].wait_until_lag_zero()
