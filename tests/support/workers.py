"""Groups tests for the workers when several run side by side (``make test``).

Every worker is a process with servers of its own; the broker is that of all (shared_broker.py).
What is quick, and what shares something dear to start, stays together; all other tests go, one by
one, to whoever is free. Long ones come first, as ``durations.json`` has them, so that nobody waits
for the last.

Tests with a broker wait most of the time, others compute all of it. When three workers or more
share both, the last one takes what computes, of six the last two, at a low priority: they use the
cores while the other workers wait. What they have left the others do at the end.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Container, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import cast

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

TESTS = Path(__file__).parents[1]

DURATIONS = TESTS / "durations.json"
"""Seconds by scope, as ``make durations`` has measured them; a new test counts as ``NEW_S``."""
KEPT_MIN_S = 0.3
NEW_S = 2.0

COMPUTING = (
    "repository",
    "compatibility",
    "scenarios",
    "protocol",
    "unit",
    "exploration",
    "simulation",
)
"""Folders of what waits for nobody."""

SHARE_MIN, TWO_SHARE_MIN = 3, 6
"""With fewer workers nobody is set apart for what computes, or one."""
NICENESS = 3

DEAR = ("iceberg_spark", "java_with_iceberg")
"""What one worker starts for all modules that name it: a JVM with Spark and Iceberg, and for the
second a Hive metastore beside it."""

ONE_BY_ONE = ("integration/", "simulation/", "exploration/", "spark_query/")
"""Where a test may go to another worker than its neighbour, unless they share something."""

SHARING = ('scope="module"', "@cache")
"""What a module says whose tests share a fixture, or a walk through seeds."""


class Dealing(LoadScopeScheduling):  # type: ignore[misc] # pytest-xdist is not typed for this
    """Deals the tests out by ``scope``."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if wanted := self._next(computing=self._computes(node)):
            self.workqueue.move_to_end(wanted, last=False)
        super()._assign_work_unit(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Give back what a worker that died has not done, and nothing else.

        Also what it had done would be dealt out: its successor would have nothing to run of that,
        and would be asked for nothing more, so that the run stood still (pytest-xdist 3.8).
        """
        work = self.assigned_work[node].items()
        if left := {name: tests for name, tests in work if not all(tests.values())}:
            self.assigned_work[node] = left
        return cast("str | None", super().remove_node(node))

    def _reschedule(self, node: WorkerController) -> None:
        """End a computing worker after the last test that computes: it has a low priority."""
        if self._computes(node) and not self._next(computing=True):
            if not node.shutting_down:
                node.shutdown()
            return
        super()._reschedule(node)

    def _computes(self, node: WorkerController) -> bool:
        return node.gateway.id in self._computing

    @cached_property
    def _computing(self) -> Sequence[str]:
        return computing_workers(self.numnodes, self.collection or ())

    def _next(self, *, computing: bool) -> str | None:
        """Return the longest scope that is left of this sort; with all workers alike, of any."""
        alike = not self._computing
        return next((s for s in self.workqueue if alike or is_computing(s) == computing), None)


class Durations:
    """Measures, as a plugin of the process that deals out, how long each scope takes."""

    def __init__(self) -> None:
        self._seconds = Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[scope(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        kept = {name: taken for name, taken in measure_scopes().items() if _exists(name)}
        seconds = {**kept, **self._seconds}
        lines = {n: round(s, 1) for n, s in sorted(seconds.items()) if s >= KEPT_MIN_S}
        DURATIONS.write_text(json.dumps(lines, indent=0) + "\n")


@cache
def measure_scopes() -> dict[str, float]:
    """Return the seconds of every scope that takes longer than ``KEPT_MIN_S``."""
    return dict(json.loads(DURATIONS.read_text())) if DURATIONS.exists() else {}


def _exists(scope_name: str) -> bool:
    return scope_name in DEAR or (TESTS.parent / scope_name.partition("::")[0]).exists()


def computing_workers(count: int, nodeids: Sequence[str]) -> Sequence[str]:
    """Which of so many workers take what computes of these tests, and nothing else."""
    both = len({is_computing(nodeid) for nodeid in nodeids}) > 1
    apart = (count >= SHARE_MIN) + (count >= TWO_SHARE_MIN) if both else 0
    return [f"gw{number}" for number in range(count - apart, count)]


def give_way(nodeids: Sequence[str]) -> None:
    """Let this process have what the other workers leave, if it is one that computes."""
    count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    if os.environ["PYTEST_XDIST_WORKER"] in computing_workers(count, nodeids):
        os.nice(NICENESS)


def is_computing(nodeid: str) -> bool:
    """Whether this test, or one of this scope, waits for nobody."""
    return _module(nodeid).partition("/")[0] in COMPUTING


def scope(nodeid: str) -> str:
    """The name of what stays together with this test."""
    module = _module(nodeid)
    text = _text(module)
    for dear in DEAR:
        if dear in text:
            return dear
    shared = any(word in text for word in SHARING)
    together = shared or not module.startswith(ONE_BY_ONE)
    return nodeid.partition("::")[0] if together else nodeid


def order(items: list[pytest.Item]) -> None:
    """Sort by how long their scopes take, the longest first."""
    files = {name.partition("::")[0] for name in measure_scopes()}
    items.sort(key=lambda item: -_seconds(item.nodeid, files))


def _seconds(nodeid: str, files: Container[str]) -> float:
    known = nodeid.partition("::")[0] in files
    return measure_scopes().get(scope(nodeid), 0.0 if known else NEW_S)


def _module(nodeid: str) -> str:
    """The path of its module below the folder of the tests, or beside it."""
    path = nodeid.partition("::")[0]
    return path.removeprefix("tests/") if path.startswith("tests/") else f"../{path}"


@cache
def _text(module: str) -> str:
    path = TESTS / module
    return path.read_text() if path.is_file() else ""
