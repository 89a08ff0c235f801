"""Runs the workload ``upsert``: a table with many keys takes changes, and is then read.

Each system has a table of its own, which headgate filled with the same keys, unmeasured. headgate's
is read twice: as the last commit left it, and after a pass of headgate's own compaction.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from comparison.changelog import Changelog
from comparison.headgate_sink import Headgate
from comparison.job import Job, System
from comparison.measure import Course, Measured, changed, filled
from comparison.reading import READERS, Read, compact, read
from comparison.target import NAME
from comparison.topic import SEED, Topic

COMPACTED = "headgate's, compacted"


@dataclass(frozen=True, slots=True)
class Reads:
    """What each reader needed for a table; ``None``: it did not end in time, or failed.

    ``made_cpu_s``: what the compaction cost before, if there was one.
    """

    table: str
    by: dict[str, Read | None]
    made_cpu_s: float | None = None


def upserts(
    systems: Sequence[System], course: Course, topic: Topic, *, keys: int, changes: int
) -> tuple[list[Measured], list[Reads]]:
    """Return the runs and the cost of reading their tables, next to headgate's compacted rows.

    ``keys`` is a multiple of the topic's partitions.
    """
    changelog = Changelog(SEED, topic.partitions)
    topic.append(changelog.filled(keys))
    jobs = [_filled(course, topic, keys) for _ in systems]
    topic.append(changelog.changed(changes))
    added = keys, changelog.upserts
    pairs = list(zip(systems, jobs, strict=True))
    runs = [changed(system, course, job, changes, added=added) for system, job in pairs]
    ours = next(job for system, job in pairs if isinstance(system, Headgate))
    easy = compact(ours.target)
    reads = [Reads(COMPACTED, {name: read(name, easy, easy) for name in READERS})]
    for number, (system, job) in enumerate(pairs):
        table = f"{job.target.lake.database}:{NAME}"
        as_left = [Reads(system.name, {name: read(name, table, easy) for name in READERS})]
        if isinstance(system, Headgate):
            cpu_s = _maintained(job)
            again = {name: read(name, table, easy) for name in READERS}
            as_left.append(Reads(f"{system.name}, maintained", again, cpu_s))
        found = {one.found for its in as_left for one in its.by.values() if one}
        runs[number] = replace(runs[number], exact=found == {changelog.expected})
        reads += as_left
    return runs, reads


def _maintained(job: Job) -> float:
    """Compact the table as ``headgate maintain`` does; return the CPU-seconds of that process."""
    command = [str(Path(sys.executable).with_name("headgate")), "maintain"]
    command += [str(job.target.home / "sink.toml"), "--only", "compact"]
    before = os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def _filled(course: Course, topic: Topic, keys: int) -> Job:
    job = course.job(topic.name)
    filled(Headgate("in-process"), course, job, keys)
    return replace(job, begin=(keys // topic.partitions,) * topic.partitions)
