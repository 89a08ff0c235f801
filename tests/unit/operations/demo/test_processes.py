"""A participant's process: what ended it is told, and nothing of it stays behind."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from headgate.control_protocol.errors import HeadgateError
from headgate.operations.demo import processes
from headgate.operations.demo.processes import ParticipantProcess

WAITS = ("/bin/sh", "-c", "sleep 600 & echo $!; wait", "sh")


def alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)  # nobody may reap an orphan in a box
    except psutil.NoSuchProcess:
        return False


def test_one_that_ends_by_itself_shows_the_end_of_its_log(tmp_path: Path) -> None:
    with ParticipantProcess(tmp_path / "absent.toml", tmp_path / "p.log") as participant:
        participant._process.wait()
        with pytest.raises(HeadgateError, match=r"(?s)ended by itself with 2; .*absent\.toml"):
            participant.require_running()
        assert not participant.is_running


def test_a_killed_one_tells_the_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "HEADGATE", WAITS)
    with ParticipantProcess(tmp_path / "sink.toml", tmp_path / "p.log") as participant:
        participant.require_running()
        assert participant.kill_and_find_end_signal() == signal.SIGKILL


def test_what_it_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "HEADGATE", WAITS)
    with ParticipantProcess(tmp_path / "sink.toml", tmp_path / "p.log") as participant:
        log = tmp_path / "p.log"
        while not log.read_text():
            time.sleep(0.01)
        started = psutil.Process(participant.pid).children(recursive=True)
    assert int(log.read_text()) in [process.pid for process in started]
    deadline = time.monotonic() + 60
    while any(alive(process) for process in started):
        assert time.monotonic() < deadline, started
        time.sleep(0.01)


def test_one_that_does_not_end_in_good_order_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "HEADGATE", WAITS)
    participant = ParticipantProcess(tmp_path / "sink.toml", tmp_path / "p.log")
    with participant, pytest.raises(HeadgateError, match="ended with -15 when asked to stop"):
        participant.stop()
