"""Measures one system on one topic: speed, cost, and whether every row is there once."""

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
from comparison.lake import Lake, local_lake
from comparison.process_tree import Watch
from comparison.target import Found, Seen, TableWatch, Target
from comparison.topic import Topic
from comparison.workloads import Workload

_SETTLE_S = 2.0
_STEADY_COMMITS_MIN = 3


@dataclass(frozen=True, slots=True)
class Course:
    """What is the same for every system of a comparison; without a lake each run has its own."""

    bootstrap: str
    home: Path
    workload: Workload
    interval_ms: int
    cores: int
    timeout_s: float
    lake: Lake | None = None

    def job(self, topic: str) -> Job:
        run = f"bench-{uuid.uuid4().hex[:10]}"
        home = self.home / run
        home.mkdir(parents=True)
        target = Target(home, self.workload, self.lake or local_lake(home))
        return Job(run, self.bootstrap, topic, self.workload, target, self.interval_ms, self.cores)


@dataclass(frozen=True, slots=True)
class Measured:
    """Times in seconds, memory in bytes.

    ``steady``: rows per CPU-second between the first commit and the last full one, if there were
    enough. Delays in milliseconds, per row from its producer to its visibility, only if records
    came at a pace.
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
    exact: bool
    delays_ms: tuple[float, float] | None = None
    apart_ms: tuple[float, float] | None = None

    @property
    def rows_per_cpu_s(self) -> float:
        return self.rows / self.cpu_s if self.cpu_s else 0.0


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
    """Measure how fast a topic that is filled already gets into the table."""
    job = course.job(topic)
    with _started(system, job) as session:
        _await_rows(session, rows, course.timeout_s)
    return _whole(_measured(system, session, rows, job.target.found()))


def filled(system: System, course: Course, job: Job, rows: int) -> None:
    """Bring what the topic has already into the table, unmeasured."""
    with _started(system, job) as session:
        _await_rows(session, rows, course.timeout_s)
        if session.table.rows < rows:
            raise SystemExit(f"{job.target.home}: {session.table.rows} of {rows} rows are there")


def changed(
    system: System, course: Course, job: Job, records: int, *, added: tuple[int, int]
) -> Measured:
    """Do as ``backlog``, into a table that has rows; its result is not checked.

    ``added``: how many rows had ever been added to it before, and are at the end.
    """
    before, after = added
    with _started(system, job) as session:
        _await_rows(session, after, course.timeout_s)
    run = _measured(system, session, records, job.target.counted(), until=after)
    return replace(run, steady=run.steady and run.steady * records / (after - before))


def live(system: System, course: Course, partitions: int, pace: tuple[int, int]) -> Measured:
    """Measure a steady pace: records per second, and how many.

    The first interval is for warming up: its rows only count for exactness.
    """
    rate, rows = pace
    name = f"bench-{uuid.uuid4().hex[:10]}"
    topic = Topic(course.bootstrap, name, course.workload, partitions)
    job = course.job(name)
    with _started(system, job) as session:
        sent_s = topic.pace(rows, rate)
        _await_rows(session, rows, course.timeout_s)
    measured = _whole(_measured(system, session, rows, job.target.found()))
    warm_s = sent_s[0] + max(course.interval_ms / 1000, 10.0)
    return replace(
        measured,
        delays_ms=_delays_ms(job.target, session.table.seen, sent_s, warm_s),
        apart_ms=apart_ms(session.table.seen, (warm_s, sent_s[-1])),
    )


def _await_rows(session: _Session, rows: int, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while session.table.rows < rows and time.monotonic() < deadline:
        session.running.check()
        time.sleep(0.05)


def _whole(run: Measured) -> Measured:
    """Print whether each row is there once."""
    return replace(run, exact=0 < run.rows == run.found.rows == run.found.distinct)


def _measured(
    system: System, session: _Session, rows: int, found: Found, until: int = 0
) -> Measured:
    """``until``: how many rows had been added to the table when it had all, if not ``rows``."""
    seen, processes = session.table.seen, session.processes
    ended_s = next((look.at_s for look in seen if look.rows >= (until or rows)), time.time())
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
        found=found,
        exact=False,
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
    warm_s: float,
) -> tuple[float, float]:
    delays = []
    for at_s, ids in target.commits(seen):
        sent = sent_s[np.asarray(ids)]
        delays.append((at_s - sent[sent >= warm_s]) * 1000)
    return _half_and_most(np.concatenate(delays))


def apart_ms(seen: list[Seen], between_s: tuple[float, float]) -> tuple[float, float] | None:
    """Return the time from one commit with rows to the next, while records came."""
    first_s, last_s = between_s
    grown = [after.at_s for before, after in pairwise(seen) if after.rows > before.rows]
    apart = np.diff([at_s for at_s in grown if first_s <= at_s <= last_s]) * 1000
    return _half_and_most(apart) if len(apart) else None


def _half_and_most(
    times: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> tuple[float, float]:
    half, most = np.percentile(times, [50, 99])
    return float(half), float(most)
