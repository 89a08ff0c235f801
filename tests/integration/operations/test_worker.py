"""Real sinks under a worker, on a real broker, beside poison."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from integration.conftest import Deploy
from support.worker_process import WorkerProcess

pytestmark = pytest.mark.integration


@pytest.mark.wide
def test_a_sink_beside_poison_commits_is_killed_comes_again_and_leaves_in_order(
    deploy: Deploy, tmp_path: Path
) -> None:
    sink = deploy()
    folder = tmp_path / "sinks"
    folder.mkdir()
    shutil.copy(sink.sink_file, folder / "real.toml")
    for poison in ("segv", "busy", "leaves", "memory"):
        (folder / f"{poison}.toml").write_text(f'name = "{poison}"\n')
    with WorkerProcess(folder) as worker:
        first = worker.wait_for(real="running")["real"]["pid"]
        sink.produce(500)
        sink.wait_until_lag_zero()
        worker.wait_until(
            lambda told: all(told[name].get("tries", 0) for name in ("segv", "busy", "memory"))
        )
        assert worker.read_states()["real"]["pid"] == first, "no neighbour ended it"

        os.kill(first, signal.SIGKILL)
        sink.produce(500)
        sink.wait_until_lag_zero()
        assert worker.wait_for(real="running")["real"]["pid"] != first

        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(60) == 0
    sink.judge()
