"""Groups tests for the workers when several run side by side (``make test``).

Every worker is a process with a broker and servers of its own. What is quick, and what shares
something dear to start, stays together; all other tests go, one by one, to whoever is free. Long
ones come first, so that nobody waits for the last.

Tests with a broker wait most of the time, others compute all of it. When three workers or more
share both, the last one takes what computes, from the longest on and at a low priority: it uses the
cores while the other workers wait. What it has left they do at the end.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

TESTS = Path(__file__).parent

LONG_FIRST = (
    "integration/operations/demo/test_demo.py",
    "integration/faults",
    "integration/spark",
    "contract",
    "../examples",
    "integration",
)

COMPUTING = (
    "repository",
    "compatibility",
    "scenarios",
    "protocol",
    "unit",
    "exploration",
    "simulation",
)
"""What waits for nobody; the longest come last, from where the computing worker takes them."""

SHARE_MIN = 3
"""With fewer workers nobody is set apart for what computes."""
NICENESS = 3

DEAR = ("iceberg_spark", "java_with_iceberg")
"""What one worker starts for all modules that name it: a JVM with Spark and Iceberg, and for the
second a Hive metastore beside it."""

ONE_BY_ONE = ("integration/", "simulation/", "exploration/")
"""Where a test may go to another worker than its neighbour, unless they share something."""

SHARING = ('scope="module"', "@cache")
"""What a module says whose tests share a fixture, or a walk through seeds."""


class Dealing(LoadScopeScheduling):  # type: ignore[misc] # pytest-xdist is not typed for this
    """Deals the tests out by ``scope``."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self._computes(node) and (last := self._last_computing()):
            self.workqueue.move_to_end(last, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        """End the computing worker after the last test that computes: it has a low priority."""
        if self._computes(node) and not self._last_computing():
            if not node.shutting_down:
                node.shutdown()
            return
        super()._reschedule(node)

    def _computes(self, node: WorkerController) -> bool:
        return node.gateway.id == self._computing

    @cached_property
    def _computing(self) -> str | None:
        return computing_worker(self.numnodes, self.collection or ())

    def _last_computing(self) -> str | None:
        """The scope at the end of what is left, if its tests compute."""
        last = next(reversed(self.workqueue), None)
        return last if last and is_computing(last) else None


def computing_worker(count: int, nodeids: Sequence[str]) -> str | None:
    """Which of so many workers takes what computes of these tests, and nothing else; or nobody."""
    both = len({is_computing(nodeid) for nodeid in nodeids}) > 1
    return f"gw{count - 1}" if both and count >= SHARE_MIN else None


def give_way(nodeids: Sequence[str]) -> None:
    """Let this process have what the other workers leave, if it is the one that computes."""
    count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    if os.environ["PYTEST_XDIST_WORKER"] == computing_worker(count, nodeids):
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
    """Sort by how long tests of their folders take, and by nothing else."""
    items.sort(key=lambda item: _rank(item.nodeid))


def _rank(nodeid: str) -> int:
    module = _module(nodeid)
    if scope(nodeid) in DEAR:
        return -1
    folders = (*LONG_FIRST, *COMPUTING)
    ranks = (rank for rank, folder in enumerate(folders) if module.startswith(folder))
    return next(ranks, len(LONG_FIRST) - 1)


def _module(nodeid: str) -> str:
    """The path of its module below the folder of the tests, or beside it."""
    path = nodeid.partition("::")[0]
    return path.removeprefix("tests/") if path.startswith("tests/") else f"../{path}"


@cache
def _text(module: str) -> str:
    path = TESTS / module
    return path.read_text() if path.is_file() else ""
