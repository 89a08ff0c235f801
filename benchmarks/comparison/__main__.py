"""Runs ``make bench``: a few minutes by default, ``--full`` for everything. See the README."""

from __future__ import annotations

import argparse
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from comparison.changelog import UPSERT
from comparison.headgate_sink import Headgate
from comparison.job import System
from comparison.lake import Lake, rest_lake_on_s3
from comparison.measure import Course, Measured, backlog, live
from comparison.report import line, show, show_reads
from comparison.topic import Topic
from comparison.upserts import upserts
from comparison.workloads import WORKLOADS as ROWS
from comparison.workloads import Workload
from headgate.operations.local_kafka.broker import EmbeddedKafka, ensure_broker_jars
from rivals.connect import Connect
from rivals.flink import Flink

WORKLOADS = {**ROWS, UPSERT.name: UPSERT}
SYSTEMS: dict[str, Callable[[], System]] = {
    "in-process": lambda: Headgate("in-process"),
    "hashed": lambda: Headgate("in-process", hashed="string"),
    "hashed-bytes": lambda: Headgate("in-process", hashed="fixed(32)"),
    "spark": lambda: Headgate("spark"),
    "connect": Connect,
    "flink": Flink,
}
HASHED = ("hashed", "hashed-bytes")
RIVALS = [name for name in SYSTEMS if name not in HASHED]
DERIVING = {"spark", "flink"}
OURS = {"in-process", *HASHED, "spark"}  # the others only read JSON: for Avro they want a registry


@dataclass(frozen=True, slots=True)
class Plan:
    """One comparison. ``rate`` 0: all records are there at the start.

    ``keys``: how many the table has before its rows change.
    """

    workload: str
    rows: int
    partitions: int = 4
    interval_ms: int = 5_000
    rate: int = 0
    keys: int = 0

    @property
    def title(self) -> str:
        pace = f"{self.rate:,} records/s" if self.rate else "backlog"
        keys = f" to {self.keys:,} keys" if self.keys else ""
        return (
            f"{self.workload}: {self.rows:,} rows{keys}, {self.partitions} partitions, "
            f"commit every {self.interval_ms / 1000:g} s, {pace}"
        )


def plans(given: argparse.Namespace) -> Iterator[Plan]:
    if given.workload:
        for workload in given.workload:
            keyed = given.keys if WORKLOADS[workload].key else 0
            yield Plan(workload, given.rows, given.partitions, given.interval_ms, given.rate, keyed)
    elif not given.full:
        yield Plan("taxi", given.rows, given.partitions, given.interval_ms)
    else:
        yield from FULL


FULL = (
    Plan("taxi", 20_000_000),
    *(Plan("taxi", 4_000_000, partitions) for partitions in (1, 16)),
    *(Plan("wide-json", 400_000, partitions) for partitions in (1, 4, 16)),
    Plan("events", 4_000_000),
    Plan("derived", 4_000_000),
    Plan("nested", 2_000_000),
    Plan("trips", 2_000_000),
    Plan("upsert", 3_000_000, keys=5_000_000),
    Plan("avro", 4_000_000),
    Plan("wide-avro", 400_000),
    # Freshness; at 50,000 records/s these are also 50,000, 500,000 and 3,000,000 rows per commit.
    Plan("taxi", 3_000_000, interval_ms=1_000, rate=50_000),
    Plan("taxi", 4_000_000, interval_ms=10_000, rate=50_000),
    Plan("taxi", 12_000_000, interval_ms=60_000, rate=50_000),
    # 1,000 and 1,000,000 rows per commit.
    Plan("taxi", 60_000, interval_ms=1_000, rate=1_000),
    Plan("taxi", 6_000_000, interval_ms=20_000, rate=50_000),
)


def main() -> None:
    given = _arguments()
    with ExitStack() as stack:
        home = given.home or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bootstrap = given.bootstrap
        if not bootstrap:
            kafka = EmbeddedKafka(home / "kafka", ensure_broker_jars(), heap="1g")
            bootstrap = stack.enter_context(kafka).bootstrap
        lake = stack.enter_context(rest_lake_on_s3(home / "lake")) if given.rest_s3 else None
        exact = [run(plan, given, home, bootstrap, lake) for plan in plans(given)]
    raise SystemExit(0 if all(exact) else 1)


def run(
    plan: Plan, given: argparse.Namespace, home: Path, bootstrap: str, lake: Lake | None = None
) -> bool:
    workload = WORKLOADS[plan.workload]
    chosen = [name for name in given.systems if _can(name, workload)]
    course = Course(bootstrap, home, workload, plan.interval_ms, given.cores, given.timeout_s, lake)
    if plan.keys:
        return _upserts(
            plan, given, course, [SYSTEMS[n]() for _ in range(given.repeat) for n in chosen]
        )
    filled = ""
    if not plan.rate:
        topic = Topic(bootstrap, f"bench-{uuid.uuid4().hex[:10]}", workload, plan.partitions)
        topic.fill(plan.rows)
        filled = topic.name
    runs: list[Measured] = []
    for system in (SYSTEMS[name]() for _ in range(given.repeat) for name in chosen):
        load = os.getloadavg()[0]
        if plan.rate:
            measured = live(system, course, plan.partitions, (plan.rate, plan.rows))
        else:
            measured = backlog(system, course, filled, plan.rows)
        runs.append(measured)
        _tell(plan, given, measured, load)
    show(plan.title, runs, Flink.name)
    return all(measured.exact for measured in runs)


def _upserts(
    plan: Plan, given: argparse.Namespace, course: Course, systems: Sequence[System]
) -> bool:
    name = f"bench-{uuid.uuid4().hex[:10]}"
    topic = Topic(course.bootstrap, name, course.workload, plan.partitions)
    load = os.getloadavg()[0]
    runs, reads = upserts(systems, course, topic, keys=plan.keys, changes=plan.rows)
    for measured in runs:
        _tell(plan, given, measured, load)
    show(plan.title, runs, Flink.name)
    show_reads(f"{plan.title}: who reads the table", reads)
    return all(measured.exact for measured in runs)


def _tell(plan: Plan, given: argparse.Namespace, measured: Measured, load: float) -> None:
    text = line(plan.title, measured)
    print(f"load before {load:.1f}: {text}", flush=True)
    if given.out:
        with given.out.open("a") as out:
            out.write(text + "\n")


def _can(system: str, workload: Workload) -> bool:
    if (workload.derived and system not in DERIVING) or (workload.key and system == "connect"):
        return False
    return system in OURS or workload.format == "json"


def _arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--full", action="store_true", help="every workload, pace and size: hours")
    add("--systems", nargs="+", choices=SYSTEMS, default=RIVALS, metavar="SYSTEM",
        help=f"which, and in which order: {', '.join(SYSTEMS)}")  # fmt: skip
    add("--workload", nargs="+", choices=WORKLOADS, metavar="WORKLOAD",
        help=f"instead of the plan: {', '.join(WORKLOADS)}")  # fmt: skip
    add("--rows", type=int, default=10_000_000)
    add("--keys", type=int, default=5_000_000, help="of upsert: keys that the table has before")
    add("--partitions", type=int, default=4)
    add("--interval-ms", type=int, default=3_000, help="commit interval")
    add("--rate", type=int, default=0, help="records per second; 0: all there at the start")
    add("--cores", type=int, default=2, help="tasks that each system works with")
    add("--repeat", type=int, default=1, help="runs of each system")
    add("--bootstrap", default="", help="a running broker; else one is started")
    add("--rest-s3", action="store_true",
        help="a REST catalog with files on S3, instead of SQLite with local files")  # fmt: skip
    add("--home", type=Path, help="folder for everything, kept; else a temporary one")
    add("--out", type=Path, help="append one JSON line per run to this file")
    add("--timeout-s", type=float, default=900, help="bound on one run")
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
