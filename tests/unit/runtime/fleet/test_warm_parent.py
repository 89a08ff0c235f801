"""A process that is asked to leave while it is being forked, and what it says of its turns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
warm_parent.serve_forks(lambda file, report: time.sleep(3), lambda file, request: None)
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
    told = []
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
    monkeypatch.setattr(warm_parent, "write_line", lambda *_: answers.pop(0))
    report = TurnReport(-1, Path("trips.toml"), "trips")
    for _ in range(5):
        report.on_turn("takes part")
        hours.now_s += 1.0
    assert answers == [True]
