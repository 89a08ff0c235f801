"""Groups tests for the workers when several run side by side (``make test``).

Every worker is a process with a broker and servers of its own. What is quick, and what shares
something dear to start, stays together; all other tests go, one by one, to whoever is free. Long
ones come first, so that nobody waits for the last.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

TESTS = Path(__file__).parent

LONG_FIRST = (
    "integration/operations/demo/test_demo.py",
    "integration/faults",
    "integration/spark",
    "simulation",
    "exploration",
    "integration",
    "contract",
)

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


def scope(nodeid: str) -> str:
    """The name of what stays together with this test."""
    module = nodeid.partition("::")[0].removeprefix("tests/")
    text = _text(module)
    for dear in DEAR:
        if dear in text:
            return dear
    shared = any(word in text for word in SHARING)
    return module if shared or not module.startswith(ONE_BY_ONE) else nodeid


def order(items: list[pytest.Item]) -> None:
    """Sort by how long tests of their folders take, and by nothing else."""
    items.sort(key=lambda item: _rank(item.nodeid))


def _rank(nodeid: str) -> int:
    where = scope(nodeid)
    module = nodeid.removeprefix("tests/")
    ranks = (rank for rank, folder in enumerate(LONG_FIRST) if module.startswith(folder))
    return -1 if where in DEAR else next(ranks, len(LONG_FIRST))


@cache
def _text(module: str) -> str:
    path = TESTS / module
    return path.read_text() if path.is_file() else ""
