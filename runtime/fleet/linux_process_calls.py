"""Asks the kernel about processes, and ties the life of one to that of another."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from headgate.runtime.fleet.spec_source import Usage

MEASURE_S = 30.0
"""How often private memory is measured. The kernel walks all pages of a process for it, 4 ms for an
idle sink: each two seconds that was as much as the sink itself takes."""
LATELY_S = 60.0
"""Over so long is averaged what a process takes of the cores: one commit is no load."""

_PR_SET_PDEATHSIG = 1
_OOM_SCORE = "500"
"""Between 0 and 1,000: the kernel, out of memory, ends a sink before its worker."""


def die_with_parent(parent_pid: int) -> None:
    """Let the kernel kill this process once ``parent_pid``, which has forked it, is gone.

    Linux only: elsewhere a process may outlive its worker, which the table's lock makes harmless.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it went before the kernel was asked
        os._exit(1)


def raise_own_oom_score() -> None:
    """Let the kernel, when it is out of memory, choose this process before others."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)


def private_bytes(pid: int) -> int | None:
    """Return the memory that only this process uses; ``None`` where the kernel does not say."""
    return _sum_sizes(Path(f"/proc/{pid}/smaps_rollup"), _PRIVATE)


def process_tree(pid: int) -> list[int]:
    """Return a process and those below it, such as its JVM; it alone where nobody says."""
    found = [pid]
    for each in found:  # grows meanwhile
        with suppress(OSError):
            for path in Path(f"/proc/{each}/task").glob("*/children"):
                found += map(int, path.read_text().split())
    return found


def machine_or_cgroup_memory_mib() -> int:
    """Return the memory of this machine, or what this process's control group may take of it."""
    bytes_here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        group = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip()
        limit = Path(f"/sys/fs/cgroup{group}/memory.max").read_text()
        bytes_here = min(bytes_here, int(limit))  # "max" is no number
    return bytes_here // (1024 * 1024)


def resident_bytes(pid: int) -> int | None:
    """Return the memory that a process has, shared or not: never less than ``private_bytes``, and
    hundreds of times cheaper to ask for. ``None`` where the kernel does not say."""
    return _sum_sizes(Path(f"/proc/{pid}/status"), _RESIDENT)


def _sum_sizes(kernel_file: Path, names: Collection[bytes]) -> int | None:
    """Return the bytes in lines such as ``VmRSS: 12 kB``; ``None`` without the file."""
    try:
        lines = kernel_file.read_bytes().split(b"\n")  # a process's name may be no UTF-8
    except OSError:
        return None
    sizes = (line.partition(b":") for line in lines)
    return sum(1024 * int(size.split()[0]) for name, _, size in sizes if name in names)


def used_cpu_ms(pid: int) -> int | None:
    """Return the processor time that a process has taken; ``None`` where nobody says."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    user, system = stat.rpartition(b")")[2].split()[11:13]  # the name before may hold anything
    return (int(user) + int(system)) * 1_000 // os.sysconf("SC_CLK_TCK")


_RESIDENT = frozenset({b"VmRSS", b"VmSwap"})
_PRIVATE = frozenset({b"Private_Clean", b"Private_Dirty", b"Swap"})


def kill_group(leader_pid: int) -> None:
    """Kill what is left of a process's group, such as its JVM."""
    with suppress(OSError):
        os.killpg(leader_pid, signal.SIGKILL)


def kill_process_and_group(pid: int) -> None:
    """Kill a process that was not seen to end, and its group, which it may not lead yet."""
    kill_group(pid)
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def send_term_signal(pid: int) -> None:
    """Ask a process to end in order."""
    with suppress(OSError):
        os.kill(pid, signal.SIGTERM)


class ProcessWatch:
    """Watches what one process takes, or it and those below it, every few seconds."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.usage = Usage()
        self._measured_s = self._looked_s = -math.inf
        self._works_for_s = self._permille = 0.0

    def update_usage(
        self,
        now_s: float,
        remeasured_above_bytes: int,
        *,
        has_started: bool,
        has_children: bool = False,
    ) -> None:
        """Look again. Not ``has_started``: to start takes much, and says nothing of its load."""
        pids = process_tree(self.pid) if has_children else [self.pid]
        spent_ms, before_ms = _sum_over_processes(used_cpu_ms, pids), self.usage.cpu_ms
        lately = None
        # What a child took goes with it.
        if has_started and spent_ms is not None and before_ms is not None and spent_ms >= before_ms:
            since_s = now_s - self._looked_s
            self._works_for_s += since_s
            weight = since_s / min(self._works_for_s, LATELY_S)
            self._permille += min(1.0, weight) * ((spent_ms - before_ms) / since_s - self._permille)
            lately = round(self._permille)
        self._looked_s = now_s
        self.usage = Usage(
            self._memory_remeasured_if_due(now_s, remeasured_above_bytes, pids), spent_ms, lately
        )

    def _memory_remeasured_if_due(
        self, now_s: float, remeasured_above_bytes: int, pids: Sequence[int]
    ) -> int | None:
        """Measure now and then, and whenever it may have more than it may have."""
        if now_s - self._measured_s < MEASURE_S:
            resident = _sum_over_processes(resident_bytes, pids)
            if not remeasured_above_bytes or resident is None or resident <= remeasured_above_bytes:
                return self.usage.memory_bytes
        self._measured_s = now_s
        return _sum_over_processes(private_bytes, pids)


def _sum_over_processes(ask: Callable[[int], int | None], pids: Sequence[int]) -> int | None:
    """Return what the processes have together; ``None`` if nothing is known of the first."""
    first, *others = (ask(pid) for pid in pids)
    return None if first is None else first + sum(each or 0 for each in others)
