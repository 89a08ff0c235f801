"""What the kernel says of a process and of those that it has started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headgate.runtime.fleet.processes import memory_here_mib, private_bytes, process_tree

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux")
MIB = 1024 * 1024
EATS = "taken = b'x' * (80 << 20); print(flush=True); input()"
STARTS = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {EATS!r}])
"""


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
        process.communicate(b"\n")
    assert process_tree(process.pid) == [process.pid], "who is gone has nobody"


def test_memory_here_is_that_of_a_machine() -> None:
    assert 64 < memory_here_mib() < 1 << 30
