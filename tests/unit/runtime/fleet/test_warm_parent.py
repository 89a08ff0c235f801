"""A process that is asked to leave while it is being forked, and what it says of its turns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from unit.config.test_load import MINIMAL

from headgate.runtime.fleet import warm_parent
from headgate.runtime.fleet.warm_parent import TurnReport

ASKED_AT_ONCE = """
import os, signal, time
from headgate.runtime.fleet import warm_parent

fork = os.fork

def fork_and_be_asked():
    pid = fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGTERM)  # by a worker that wants it no longer
    return pid

os.fork = fork_and_be_asked
warm_parent._WARM = ()
warm_parent.serve_fork_requests(lambda file, report: time.sleep(3), lambda file, request: None)
"""


def test_a_request_to_leave_that_comes_before_the_first_line_is_not_lost() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ASKED_AT_ONCE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(json.dumps({"start": "trips.toml", "sink": "trips"}).encode() + b"\n")
        parent.stdin.flush()
        told = (json.loads(line) for line in parent.stdout)
        ended = next(each for each in told if "ended" in each)
        parent.stdin.close()
    assert os.WIFSIGNALED(ended["status"])
    assert os.WTERMSIG(ended["status"]) == signal.SIGTERM


NO_TASK_LEFT = """
import os, signal, sys
from headgate.runtime.fleet import warm_parent

fork, fails = os.fork, [True, True, False]

def fork_unless_full():
    if fails.pop(0):
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()

os.fork = fork_unless_full
warm_parent._WARM = ()
warm_parent.serve_fork_requests(lambda file, report: None, lambda file, request: None)
print("blocked", [*signal.pthread_sigmask(signal.SIG_BLOCK, ())], file=sys.stderr)
"""


def test_a_fork_that_fails_is_told_and_ends_nobody() -> None:
    asked: list[dict[str, str]] = [
        {"start": "trips.toml", "sink": "trips"},
        {"ask": "pause", "file": "trips.toml", "sink": "trips"},
        {"start": "rides.toml", "sink": "rides"},
    ]
    ran = subprocess.run(
        [sys.executable, "-c", NO_TASK_LEFT],
        input="".join(f"{json.dumps(each)}\n" for each in asked),
        capture_output=True,
        text=True,
        check=True,
    )
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    unstarted = [each for each in told if "unstarted" in each]
    assert [(each["unstarted"], each["sink"]) for each in unstarted] == [
        ("", "trips"),
        ("pause", "trips"),
    ]
    assert "Resource temporarily unavailable" in unstarted[0]["text"]
    assert [each["sink"] for each in told if "started" in each] == ["rides"]
    assert ran.stderr.endswith("blocked []\n")


class Hours:
    """A clock that goes on by hand."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


def test_a_turn_is_told_when_there_is_something_new_or_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm_parent, "time", hours := Hours())
    lines, events = os.pipe()
    report = TurnReport(events, Path("trips.toml"), "trips")
    for second in range(25):
        report.on_turn("takes part" if second < 12 else "coordinates")
        report.on_turn("takes part")  # within the same second nothing is told twice
        hours.now_s += 1.0
    os.close(events)
    with os.fdopen(lines) as pipe:
        told = [json.loads(line)["doing"] for line in pipe]
    assert told == [*2 * ["takes part"], *2 * ["coordinates"]]


def test_a_turn_that_found_no_room_in_the_pipe_is_told_a_second_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm_parent, "time", hours := Hours())
    answers = [False, True, True]
    monkeypatch.setattr(warm_parent, "try_write_event_line", lambda *_: answers.pop(0))
    report = TurnReport(-1, Path("trips.toml"), "trips")
    for _ in range(5):
        report.on_turn("takes part")
        hours.now_s += 1.0
    assert answers == [True]


GROWN_BY_A_START = """
import gc, importlib, os, sys
from pathlib import Path
from headgate.config.load import load
from headgate.kafka.clients import new_admin
from headgate.runtime.catalogs import open_catalog
from headgate.runtime.fleet import warm_parent
from headgate.runtime.fleet.linux_process_calls import private_bytes

def grown():
    gc.collect()
    gc.freeze()
    if os.fork() == 0:
        before = private_bytes(os.getpid())
        open_catalog(load(Path(sys.argv[1]))).close()
        client = new_admin({"bootstrap.servers": "127.0.0.1:1", "log_level": "0"})
        print(private_bytes(os.getpid()) - before, flush=True)
        os._exit(0)
    os.wait()

for module in warm_parent._WARM:
    importlib.import_module(module)
grown()
held = os.listdir("/proc/self/fd"), os.listdir("/proc/self/task")
warm_parent._warm_up_shared_libraries()
assert held == (os.listdir("/proc/self/fd"), os.listdir("/proc/self/task"))
grown()
"""


@pytest.mark.wide
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux")
def test_what_a_start_leaves_in_memory_is_shared(tmp_path: Path) -> None:
    """Seen: 25 MiB that each sink had for itself, and 12."""
    sink = tmp_path / "trips.toml"
    sink.write_text(
        MINIMAL.replace('"trips"', '"other"')
        + f'[catalog.properties]\ntype = "sql"\nuri = "sqlite:///{tmp_path}/catalog.db"\n'
    )
    command = [sys.executable, "-c", GROWN_BY_A_START, sink]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    before, after = map(int, ran.stdout.split())
    assert 0 < after < 2 / 3 * before
