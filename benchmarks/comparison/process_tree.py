"""Measures a process and all its descendants: CPU time, and peak memory."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from dataclasses import dataclass

import psutil

_MEMORY_EVERY = 4


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage at one moment (``time.time``). ``lean_bytes``: memory without Java's processes.

    Pages that processes share are counted once in total (proportional set size).
    """

    at_s: float
    cpu_s: float
    memory_bytes: int
    lean_bytes: int


class ProcessTree:
    """The tree of one root process.

    A process that ends hands its time to whoever waits for it, so the time of live processes and of
    their waited-for children is everything. One that vanishes in between still counts with its last
    known value, since the sum never falls.
    """

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu_s = 0.0

    def usage(self, *, memory: bool = True) -> Usage:
        """Measure; memory costs milliseconds, and is zero without it."""
        cpu_s, total, lean = 0.0, 0, 0
        for process in self._live():
            try:
                with process.oneshot():
                    cpu_s += sum(process.cpu_times()[:4])  # own and waited-for children's
                    share = process.memory_full_info().pss if memory else 0
                    total += share
                    lean += 0 if process.exe().endswith("/java") else share
            except psutil.Error:
                continue
        self._cpu_s = max(self._cpu_s, cpu_s)
        return Usage(time.time(), self._cpu_s, total, lean)

    def _live(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return []


class Watch:
    """Looks at a tree several times a second, from a thread of its own, until closed."""

    def __init__(self, pid: int, interval_s: float = 0.2) -> None:
        self._tree = ProcessTree(pid)
        self._interval_s = interval_s
        self._samples = [self._tree.usage()]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(self._interval_s):
            memory = len(self._samples) % _MEMORY_EVERY == 0
            self._samples.append(self._tree.usage(memory=memory))

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def cpu_at(self, moment_s: float) -> float:
        """Return the CPU seconds used until then, interpolated between two looks."""
        samples = list(self._samples)
        place = bisect_left(samples, moment_s, key=lambda sample: sample.at_s)
        if place == 0 or place == len(samples):
            return samples[min(place, len(samples) - 1)].cpu_s
        before, after = samples[place - 1], samples[place]
        part = (moment_s - before.at_s) / (after.at_s - before.at_s)
        return before.cpu_s + part * (after.cpu_s - before.cpu_s)

    def peak_bytes(self) -> tuple[int, int]:
        """Return the peak memory of all, and of all without Java's processes."""
        samples = list(self._samples)
        return max(s.memory_bytes for s in samples), max(s.lean_bytes for s in samples)
