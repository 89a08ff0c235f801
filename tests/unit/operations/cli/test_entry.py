"""A long-running command that is asked to end before it has imported what it runs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from repository.tree import ROOT
from unit.config.test_load import MINIMAL

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc")

HEADGATE = str(Path(sys.executable).with_name("headgate"))
COMMANDS = {
    "run": [HEADGATE, "run"],
    "verbose": [HEADGATE, "--verbose", "run"],
    "several": [HEADGATE, "run", "OTHER"],
    "serve": [HEADGATE, "serve", "--listen", "127.0.0.1:0"],
    "job": [sys.executable, str(ROOT / "runtime/spark_submit.py"), "--config"],
}
HEAVY = ("pyarrow", "pyiceberg", "librdkafka")


@contextmanager
def started(command: list[str], folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The command, whose sink file cannot be read to its end before somebody writes it."""
    sink, other = folder / "sink.toml", folder / "other.toml"
    os.mkfifo(sink)
    text = MINIMAL.replace('name = "trips"', 'name = "other"')
    other.write_text(text + '[spark]\nwriter = "in-process"\n')
    words = [str(other) if word == "OTHER" else word for word in command]
    process = subprocess.Popen([*words, str(sink)], stderr=subprocess.PIPE)
    try:
        yield process, sink
    finally:
        process.kill()
        process.communicate()


def caught(process: subprocess.Popen[bytes], number: int) -> bool:
    """Whether the process has a handler for the signal."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def wait_for_handler(process: subprocess.Popen[bytes]) -> None:
    while not caught(process, signal.SIGTERM):
        assert process.poll() is None
        time.sleep(0.001)


def feed(sink: Path) -> None:
    with sink.open("w") as pipe:
        pipe.write(MINIMAL + '[spark]\nwriter = "in-process"\n')


@pytest.mark.parametrize("name", COMMANDS)
def test_it_handles_signals_before_it_imports_anything_heavy(tmp_path: Path, name: str) -> None:
    with started(COMMANDS[name], tmp_path) as (process, _):
        wait_for_handler(process)
        process.send_signal(signal.SIGSTOP)
        loaded = Path(f"/proc/{process.pid}/maps").read_text()
        assert [library for library in HEAVY if library in loaded] == []


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("run", 0),
        *(
            pytest.param(name, seed, marks=pytest.mark.wide)
            for name in COMMANDS
            for seed in (0, 1)
            if (name, seed) != ("run", 0)
        ),
    ],
)
def test_asked_at_any_early_moment_it_ends_in_order(tmp_path: Path, name: str, seed: int) -> None:
    with started(COMMANDS[name], tmp_path) as (process, sink):
        wait_for_handler(process)
        time.sleep(random.Random(f"{name}{seed}").uniform(0, 1.5))
        process.send_signal(signal.SIGTERM)
        feed(sink)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said.decode()


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(tmp_path: Path, first: signal.Signals) -> None:
    with started(COMMANDS["run"], tmp_path) as (process, _):
        wait_for_handler(process)
        process.send_signal(first)
        while process.poll() is None:  # of two that come before Python looks, it sees one
            process.send_signal(signal.SIGTERM)
            time.sleep(0.01)
        assert process.returncode == -signal.SIGTERM


def test_a_rehearsal_ends_by_the_signal_as_short_commands_do(tmp_path: Path) -> None:
    with started([HEADGATE, "run", "--dry-run=1"], tmp_path) as (process, _):
        wait_for_handler(process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGTERM
