"""What a worker asks the kernel of its sinks' processes, how often, and what it makes of that."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headgate.runtime.fleet import linux_process_calls
from headgate.runtime.fleet.linux_process_calls import (
    LATELY_S,
    MEASURE_S,
    ProcessWatch,
    machine_or_cgroup_memory_mib,
    private_bytes,
    process_tree,
    resident_bytes,
)

MIB = 1024 * 1024
EVERY_S = 2.0
EATS = "taken = b'x' * (80 << 20); print(flush=True); input()"
STARTS = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {EATS!r}])
"""
NAMED = """
with open("/proc/self/comm", "wb") as name:
    name.write("fourteen-lettré".encode())
print(flush=True); input()
"""


@dataclass
class Kernel:
    """What it says of a process, and how often it had to walk its pages."""

    cpu: int = 0
    private: int = 40 * MIB
    resident: int = 160 * MIB
    walks: list[float] = field(default_factory=list)
    now_s: float = 0.0

    def look(self, watch: ProcessWatch, *, works: bool = True, may: int = 1_024 * MIB) -> None:
        self.now_s += EVERY_S
        watch.update_usage(self.now_s, may, has_started=works)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    said = Kernel()

    def walk(_: int) -> int:
        said.walks.append(said.now_s)
        return said.private

    monkeypatch.setattr(linux_process_calls, "used_cpu_ms", lambda _: said.cpu)
    monkeypatch.setattr(linux_process_calls, "resident_bytes", lambda _: said.resident)
    monkeypatch.setattr(linux_process_calls, "private_bytes", walk)
    return said


@pytest.fixture
def watch() -> Iterator[ProcessWatch]:
    yield ProcessWatch(4711)


def test_pages_are_walked_now_and_then(kernel: Kernel, watch: ProcessWatch) -> None:
    for _ in range(100):
        kernel.look(watch)
    assert len(kernel.walks) == 1 + int(99 * EVERY_S / MEASURE_S)
    assert watch.usage.memory_bytes == 40 * MIB


def test_who_may_have_too_much_is_measured_at_once(kernel: Kernel, watch: ProcessWatch) -> None:
    kernel.look(watch, may=200 * MIB)
    kernel.private, kernel.resident = 201 * MIB, 300 * MIB
    kernel.look(watch, may=200 * MIB)
    assert watch.usage.memory_bytes == 201 * MIB
    kernel.private = 100 * MIB  # most of it is shared: it may, and is looked at more closely
    kernel.look(watch, may=200 * MIB)
    assert watch.usage.memory_bytes == 100 * MIB
    kernel.look(watch, may=0)
    assert kernel.walks == [2, 4, 6], "0: it may take any"


def test_load_is_what_it_takes_over_a_minute_without_its_start(
    kernel: Kernel, watch: ProcessWatch
) -> None:
    for _ in range(3):
        kernel.cpu += 900
        kernel.look(watch, works=False)
    assert watch.usage.cpu_permille is None
    for turn in range(60):
        kernel.cpu += 600 if turn % 30 == 0 else 6  # a commit each minute
        kernel.look(watch)
        assert watch.usage.cpu_permille is not None
    assert 3 < watch.usage.cpu_permille < 20
    for _ in range(int(3 * LATELY_S / EVERY_S)):
        kernel.cpu += 1_000
        kernel.look(watch)
    assert 450 < watch.usage.cpu_permille < 501, "half a core, since three minutes"


def test_a_process_that_is_gone_says_nothing(watch: ProcessWatch) -> None:
    watch.pid = 2**22 + 1  # above what Linux gives
    watch.update_usage(1.0, MIB, has_started=True)
    watch.update_usage(40.0, MIB, has_started=True)
    assert watch.usage.memory_bytes is None
    assert watch.usage.cpu_permille is None


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux")
def test_no_process_has_more_private_memory_than_is_resident() -> None:
    private, resident = private_bytes(os.getpid()), resident_bytes(os.getpid())
    assert private is not None
    assert resident is not None
    assert 0 < private <= resident + MIB


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux")
def test_a_process_is_measured_whose_name_the_kernel_cut_within_a_letter() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", NAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        watch = ProcessWatch(process.pid)
        watch.update_usage(1.0, MIB, has_started=True)
        watch.update_usage(2.0, MIB, has_started=True)
        process.communicate(b"\n")
    assert watch.usage.cpu_ms is not None
    assert (watch.usage.memory_bytes or 0) > MIB


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux")
def test_memory_of_what_a_process_has_started_is_found() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        own, *below = process_tree(process.pid)
        assert own == process.pid
        assert (private_bytes(own) or 0) < 40 * MIB
        assert sum(private_bytes(pid) or 0 for pid in below) > 80 * MIB
        watch = ProcessWatch(process.pid)
        watch.update_usage(1.0, 0, has_started=True, has_children=True)
        assert (watch.usage.memory_bytes or 0) > 80 * MIB
        process.communicate(b"\n")
    assert process_tree(process.pid) == [process.pid], "who is gone has nobody"


def test_memory_here_is_that_of_a_machine() -> None:
    assert 64 < machine_or_cgroup_memory_mib() < 1 << 30
