"""A worker with real processes: what becomes of poison, of its neighbours, and of its own end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from support.worker_process import WorkerProcess

from headgate.control_protocol.errors import SinksClash
from headgate.runtime.fleet.worker import error_code_and_text_of_wait_status

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "sinks"
    made.mkdir()
    return made


def add(folder: Path, *names: str) -> None:
    for name in names:
        (folder / f"{name}.toml").write_text(f'name = "{name}"\n')


def test_poison_is_told_by_its_code_and_a_neighbour_never_restarts(folder: Path) -> None:
    add(folder, "turns", "segv", "leaves", "stops", "threads", "memory", "busy", "nonsense")
    with WorkerProcess(folder) as worker:
        codes = {"segv": "HG-108", "leaves": "HG-111", "stops": "HG-200", "nonsense": "HG-100"}
        codes |= {"memory": "HG-109", "busy": "HG-110"}
        first = worker.wait_for(turns="running")["turns"]["pid"]
        seen: dict[str, str] = {}
        told = worker.wait_until(
            lambda told: (
                seen.update({name: sink["code"] for name, sink in told.items() if sink.get("code")})
                or codes.items() <= seen.items()
            )
        )
        assert told["turns"]["pid"] == first
        assert told["stops"]["text"].startswith("a person is needed")
        waits_s = (told["stops"]["next_try_ms"] - told["stops"]["since_ms"]) / 1_000
        assert 45 < waits_s < 75
        # Arrow's allocator has a thread that survives a fork by itself; nothing else runs there.
        others = set(told["threads"]["text"].split()) - {"jemalloc_bg_thd"}
        assert len(others) == 1


def test_files_that_come_change_and_go_are_followed(folder: Path) -> None:
    add(folder, "turns-a", "stops")
    with WorkerProcess(folder) as worker:
        told = worker.wait_for(**{"turns-a": "running", "stops": "error"})
        since_ms = told["stops"]["since_ms"]
        (folder / "stops.toml").write_text("# changed\n")
        add(folder, "turns-b")
        (folder / "turns-a.toml").unlink()
        worker.wait_until(
            lambda told: (
                "turns-a" not in told
                and told.get("turns-b", {}).get("state") == "running"
                and told["stops"]["state"] == "error"
                and told["stops"]["since_ms"] > since_ms
            )
        )


@pytest.mark.wide
def test_two_files_of_one_sink_are_told_and_the_first_one_works(folder: Path) -> None:
    add(folder, "turns-a")
    (folder / "turns-b.toml").write_text('name = "turns-a"\n')
    with WorkerProcess(folder) as worker:
        told = worker.wait_for(**{"turns-a": "running", "turns-b": "error"})
        assert told["turns-b"]["code"] == SinksClash.code
        assert len(worker.descendants()) == 2, "the warm parent and one sink"


def test_it_ends_in_order_when_asked_and_kills_who_stays(folder: Path) -> None:
    add(folder, "turns", "stays")
    with WorkerProcess(folder) as worker:
        worker.wait_for(turns="running", stays="running")
        processes = worker.descendants()
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(60) == 0
        assert not psutil.wait_procs(processes, timeout=20)[1]
        assert worker.read_states() == {}


@pytest.mark.parametrize("whose", [pytest.param("worker", marks=pytest.mark.wide), "warm parent"])
def test_kill_9_leaves_no_process_behind(folder: Path, whose: str) -> None:
    add(folder, "turns", "stays", "busy")
    with WorkerProcess(folder) as worker:
        worker.wait_for(turns="running", stays="running")
        processes = worker.descendants()
        (parent,) = psutil.Process(worker.process.pid).children()
        os.kill(worker.process.pid if whose == "worker" else parent.pid, signal.SIGKILL)
        assert worker.process.wait(60) != 0
        _, alive = psutil.wait_procs(processes, timeout=20)
        assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (signal.SIGSEGV, "HG-108", "its process was killed by SIGSEGV"),
        (0, "HG-111", "its process ended in order without being asked to"),
        (70 << 8, "HG-000", "its process ended with exit code 70"),
    ],
)
def test_an_end_without_last_words_is_told_by_the_status(status: int, code: str, text: str) -> None:
    assert error_code_and_text_of_wait_status(status) == (code, text)
