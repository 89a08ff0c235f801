"""One system, one topic: how fast, at what cost, and whether every row is there once."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from comparison.job import Job, Running, System
from comparison.process_tree import Watch
from comparison.target import Found, Seen, TableWatch, Target
from comparison.topic import Topic
from comparison.workloads import Workload

_SETTLE_S = 2.0
_STEADY_COMMITS_MIN = 3


@dataclass(frozen=True, slots=True)
class Course:
    """What is the same for every system of a comparison."""

    bootstrap: str
    home: Path
    workload: Workload
    interval_ms: int
    cores: int
    timeout_s: float

    def job(self, topic: str) -> Job:
        run = f"bench-{uuid.uuid4().hex[:10]}"
        target = Target(self.home / run, self.workload)
        return Job(run, self.bootstrap, topic, self.workload, target, self.interval_ms, self.cores)


@dataclass(frozen=True, slots=True)
class Measured:
    """Times in seconds, memory in bytes. ``steady``: rows per CPU-second between the first commit
    and the last full one, where there were enough of them. Delays in milliseconds, per row from
    its producer to its being visible, only where records came at a pace.
    """

    system: str
    rows: int
    start_cpu_s: float
    cpu_s: float
    wall_s: float
    steady: float | None
    memory_bytes: int
    lean_bytes: int
    found: Found
    delays_ms: tuple[float, float] | None = None

    @property
    def rows_per_cpu_s(self) -> float:
        return self.rows / self.cpu_s if self.cpu_s else 0.0

    @property
    def exact(self) -> bool:
        return 0 < self.rows == self.found.rows == self.found.distinct


@dataclass(slots=True)
class _Session:
    running: Running
    processes: Watch
    table: TableWatch
    began_s: float
    start_cpu_s: float


@contextmanager
def _started(system: System, job: Job) -> Iterator[_Session]:
    running = system.start(job)
    try:
        time.sleep(_SETTLE_S)
        processes = Watch(running.pid)
        table = TableWatch(job.target)
        try:
            began_s = time.time()
            running.go()
            yield _Session(running, processes, table, began_s, processes.cpu_at(began_s))
        finally:
            table.close()
            processes.close()
    finally:
        running.stop()


def backlog(system: System, course: Course, topic: str, rows: int) -> Measured:
    """Everything is there already: how fast it gets into the table."""
    job = course.job(topic)
    with _started(system, job) as session:
        _await_rows(session, rows, course.timeout_s)
    return _measured(system, job, session, rows)


def live(system: System, course: Course, partitions: int, pace: tuple[int, int]) -> Measured:
    """``pace``: records per second, and how many. The first interval is for warming up: its rows
    count for exactness only.
    """
    rate, rows = pace
    name = f"bench-{uuid.uuid4().hex[:10]}"
    topic = Topic(course.bootstrap, name, course.workload, partitions)
    job = course.job(name)
    with _started(system, job) as session:
        sent_s = topic.pace(rows, rate)
        _await_rows(session, rows, course.timeout_s)
    measured = _measured(system, job, session, rows)
    delays = _delays_ms(job.target, session.table.seen, sent_s, course.interval_ms)
    return replace(measured, delays_ms=delays)


def _await_rows(session: _Session, rows: int, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while session.table.rows < rows and time.monotonic() < deadline:
        session.running.check()
        time.sleep(0.05)


def _measured(system: System, job: Job, session: _Session, rows: int) -> Measured:
    seen, processes = session.table.seen, session.processes
    ended_s = next((look.at_s for look in seen if look.rows >= rows), time.time())
    memory, lean = processes.peak_bytes()
    return Measured(
        system=system.name,
        rows=rows,
        start_cpu_s=session.start_cpu_s,
        cpu_s=processes.cpu_at(ended_s) - session.start_cpu_s,
        wall_s=ended_s - session.began_s,
        steady=_steady(seen, processes),
        memory_bytes=memory,
        lean_bytes=lean,
        found=job.target.found(),
    )


def _steady(seen: list[Seen], processes: Watch) -> float | None:
    grown = [after for before, after in pairwise(seen) if after.rows > before.rows]
    if len(grown) < _STEADY_COMMITS_MIN:
        return None
    first, last = grown[0], grown[-2]
    cpu_s = processes.cpu_at(last.at_s) - processes.cpu_at(first.at_s)
    return (last.rows - first.rows) / cpu_s if cpu_s else None


def _delays_ms(
    target: Target,
    seen: list[Seen],
    sent_s: np.ndarray[tuple[int], np.dtype[np.float64]],
    interval_ms: int,
) -> tuple[float, float]:
    warm_s = sent_s[0] + max(interval_ms / 1000, 10.0)
    delays = []
    for at_s, ids in target.commits(seen):
        sent = sent_s[np.asarray(ids)]
        delays.append((at_s - sent[sent >= warm_s]) * 1000)
    half, most = np.percentile(np.concatenate(delays), [50, 99])
    return float(half), float(most)
