"""How ``make test`` deals its tests out to workers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import workers

WAITING = [f"tests/integration/operations/test_run.py::test_{n}" for n in range(8)]
COMPUTING = [
    "tests/repository/test_public_names.py::test_names",
    "tests/protocol/test_outcome_2_resolution.py::test_rule",
    *(f"tests/simulation/test_mutants.py::test_{n}" for n in range(4)),
]


@dataclass(eq=False)
class Worker:
    """As xdist's controller of a worker, with one that runs nothing by itself."""

    number: int
    queue: list[int] = field(default_factory=list)
    shutting_down: bool = False

    @property
    def gateway(self) -> SimpleNamespace:
        return SimpleNamespace(id=f"gw{self.number}")

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        self.queue += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def dealt(tests: Sequence[str], count: int, patient: Sequence[int] = ()) -> list[list[str]]:
    """What each of the workers ran; the ``patient`` ones begin when the others have nothing."""
    config: Any = SimpleNamespace(
        getvalue=lambda _: [f"{count}*popen"], option=SimpleNamespace(loadscopereorder=False)
    )
    dealing = workers.Dealing(config)
    nodes: list[Any] = [Worker(number) for number in range(count)]
    for node in nodes:
        dealing.add_node(node)
        dealing.add_node_collection(node, tests)
    dealing.schedule()
    ran: list[list[str]] = [[] for _ in nodes]
    while ready := [node for node in nodes if node.queue]:
        now = [node for node in ready if node.number not in patient] or ready
        for node in now:
            index = node.queue.pop(0)
            ran[node.number].append(tests[index])
            dealing.mark_test_complete(node, index)
    assert sorted(chain(*ran)) == sorted(tests), "each test runs once"
    return ran


def test_the_last_worker_computes_from_the_longest_on_and_does_not_wait() -> None:
    *others, last = dealt([*WAITING, *COMPUTING], 3)
    assert last[0] == COMPUTING[0]
    assert set(last) <= set(COMPUTING)
    assert set(WAITING) <= {test for ran in others for test in ran}


def test_what_the_last_worker_has_left_the_others_do() -> None:
    *others, last = dealt([*WAITING, *COMPUTING], 3, patient=[2])
    assert set(COMPUTING) & {test for ran in others for test in ran}
    assert len(last) <= 3, "no more than it was dealt at first"


@pytest.mark.parametrize(
    ("tests", "count"), [(WAITING, 3), (COMPUTING, 3), ([*WAITING, *COMPUTING], 2)]
)
def test_where_nothing_is_to_be_shared_all_workers_are_alike(
    tests: Sequence[str], count: int
) -> None:
    assert not workers.computing_workers(count, tests)
    assert all(dealt(tests, count))


@pytest.mark.parametrize(
    ("count", "apart"), [(3, ["gw2"]), (5, ["gw4"]), (6, ["gw4", "gw5"]), (9, ["gw7", "gw8"])]
)
def test_of_many_workers_two_are_set_apart_for_what_computes(count: int, apart: list[str]) -> None:
    assert workers.computing_workers(count, [*WAITING, *COMPUTING]) == apart


def test_what_shares_something_dear_goes_to_one_worker() -> None:
    one, other = (
        f"tests/integration/{module}.py::test_it"
        for module in ("iceberg/test_partitions", "sink/test_nanoseconds")
    )
    assert workers.scope(one) == workers.scope(other) == "iceberg_spark"
    assert not workers.is_computing(workers.scope(one))


def test_the_longest_scopes_come_first_and_a_new_file_counts_as_some_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long, short, new, brief = (f"tests/unit/{name}.py" for name in ("a", "b", "c", "d"))
    seconds = {long: 9.0, short: 0.5, brief + "::test_other": 0.4}
    monkeypatch.setattr(workers, "measure_scopes", lambda: seconds)
    items: list[Any] = [SimpleNamespace(nodeid=f"{m}::test_it") for m in (brief, new, short, long)]
    workers.order(items)
    assert [item.nodeid.partition("::")[0] for item in items] == [long, new, short, brief]


def test_durations_are_kept_by_scope_and_those_of_gone_modules_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    this, other = "tests/repository/test_public_names.py", "tests/conftest.py"
    monkeypatch.setattr(workers, "DURATIONS", tmp_path / "durations.json")
    monkeypatch.setattr(workers, "measure_scopes", lambda: {"tests/unit/gone.py": 7.0, other: 3.0})
    durations = workers.Durations()
    for nodeid, taken in ((f"{this}::test_a", 1.0), (f"{this}::test_b", 0.52)):
        report: Any = SimpleNamespace(nodeid=nodeid, duration=taken)
        durations.pytest_runtest_logreport(report)
    durations.pytest_sessionfinish()
    assert json.loads(workers.DURATIONS.read_text()) == {this: 1.5, other: 3.0}


def test_the_successor_of_a_worker_that_died_gets_something_to_do() -> None:
    config: Any = SimpleNamespace(
        getvalue=lambda _: ["1*popen"], option=SimpleNamespace(loadscopereorder=False)
    )
    dealing = workers.Dealing(config)
    first: Any = Worker(0)
    dealing.add_node(first)
    dealing.add_node_collection(first, WAITING)
    dealing.schedule()
    for _ in range(3):
        dealing.mark_test_complete(first, first.queue.pop(0))
    dying = WAITING[first.queue[0]]
    assert dealing.remove_node(first) == dying
    successor: Any = Worker(1)
    dealing.add_node(successor)
    dealing.add_node_collection(successor, WAITING)
    dealing.schedule()
    while successor.queue:
        dealing.mark_test_complete(successor, successor.queue.pop(0))
    assert not dealing.has_pending
