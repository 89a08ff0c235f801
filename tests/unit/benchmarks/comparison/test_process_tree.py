"""What a tree of processes cost is counted whole, also of those that have ended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from comparison.process_tree import ProcessTree, Watch

# Says how much CPU time it used, its ended child included, and waits for the end of its input.
BUSY = """
import resource, subprocess, sys, time
def burn():
    while time.process_time() < 0.3:
        pass
if sys.argv[1:] == ["child"]:
    burn()
else:
    block = bytearray(b"x" * 50_000_000)
    burn()
    subprocess.run([sys.executable, "-c", sys.stdin.readline().strip(), "child"], check=True)
    usages = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(sum(u.ru_utime + u.ru_stime for u in usages), flush=True)
    sys.stdin.readline()
"""
CHILD = "import time\nwhile time.process_time() < 0.3: pass"


@contextmanager
def busy() -> Iterator[tuple[subprocess.Popen[str], float]]:
    """A process that has done its work, and the CPU seconds that it claims."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin and process.stdout
    process.stdin.write(f"exec({CHILD!r})\n")
    process.stdin.flush()
    try:
        yield process, float(process.stdout.readline())
    finally:
        process.communicate("\n")


def test_the_time_of_an_ended_child_counts() -> None:
    with busy() as (process, claimed_s):
        used_s = ProcessTree(process.pid).usage().cpu_s
    assert claimed_s >= 0.6
    assert abs(used_s - claimed_s) < 0.1  # the kernel counts in hundredths


@pytest.mark.wide
def test_the_sum_does_not_fall_when_the_tree_is_gone() -> None:
    with busy() as (process, _):
        tree = ProcessTree(process.pid)
        before = tree.usage()
    after = tree.usage()
    assert before.cpu_s > 0
    assert (after.cpu_s, after.memory_bytes) == (before.cpu_s, 0)


@pytest.mark.wide
def test_memory_is_that_of_the_whole_tree() -> None:
    with busy() as (process, _):
        usage = ProcessTree(process.pid).usage()
    assert usage.memory_bytes > 50_000_000
    assert usage.lean_bytes == usage.memory_bytes  # no Java in it


def test_a_watch_answers_for_every_moment() -> None:
    with busy() as (process, _):
        watch = Watch(process.pid, interval_s=0.01)
        first = watch.cpu_at(0)
        watch.close()
    assert first == watch.cpu_at(float("inf")) > 0
    assert watch.peak_bytes()[0] > 50_000_000
