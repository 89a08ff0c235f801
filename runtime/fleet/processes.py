"""Asks the kernel about processes, and ties the life of one to that of another."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_OOM_SCORE = "500"
"""Between 0 and 1,000: the kernel, out of memory, ends a sink before its worker."""


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process once ``parent``, which has forked it, is gone.

    Linux only: elsewhere a process may outlive its worker, which the table's lock makes harmless.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before the kernel was asked
        os._exit(1)


def be_killed_first() -> None:
    """Let the kernel, when it is out of memory, choose this process before others."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)


def private_bytes(pid: int) -> int | None:
    """Return the memory that only this process uses; ``None`` where the kernel does not say."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    sizes = (line.split() for line in lines)
    return sum(1024 * int(words[1]) for words in sizes if words[0] in _PRIVATE)


def process_tree(pid: int) -> list[int]:
    """Return a process and those below it, such as its JVM; it alone where nobody says."""
    found = [pid]
    for each in found:  # grows meanwhile
        with suppress(OSError):
            for path in Path(f"/proc/{each}/task").glob("*/children"):
                found += map(int, path.read_text().split())
    return found


def memory_here_mib() -> int:
    """Return the memory of this machine, or what this process's control group may take of it."""
    bytes_here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        group = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip()
        limit = Path(f"/sys/fs/cgroup{group}/memory.max").read_text()
        bytes_here = min(bytes_here, int(limit))  # "max" is no number
    return bytes_here // (1024 * 1024)


def cpu_ms(pid: int) -> int | None:
    """Return the processor time that a process has taken; ``None`` where nobody says."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    user, system = stat.rpartition(")")[2].split()[11:13]  # the name before may hold anything
    return (int(user) + int(system)) * 1_000 // os.sysconf("SC_CLK_TCK")


_PRIVATE = frozenset({"Private_Clean:", "Private_Dirty:", "Swap:"})


def kill_group(leader: int) -> None:
    """Kill what is left of a process's group, such as its JVM."""
    with suppress(OSError):
        os.killpg(leader, signal.SIGKILL)


def kill_process(pid: int) -> None:
    """Kill a process that was not seen to end, and its group, which it may not lead yet."""
    kill_group(pid)
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def ask_to_end(pid: int) -> None:
    """Ask a process to end in order."""
    with suppress(OSError):
        os.kill(pid, signal.SIGTERM)
