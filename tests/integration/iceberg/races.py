"""Holds two committers of one table between checking the requirements and the swap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

from contract.iceberg_table_world import IcebergWorld
from pyiceberg.catalog import Catalog

from headgate.control_protocol.ports import CommitOutcome, Landed
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)
from headgate.tables.iceberg.table import IcebergTable

ROUNDS = 4

Committer = Callable[[Callable[[], object]], tuple[Catalog, IcebergTable]]
"""One more opening of the table; it calls what it is given before each of its swaps."""


def of_two_one_lands(
    world: IcebergWorld, committer: Committer, at_gate: Callable[[Barrier], object]
) -> None:
    """Both have checked the same table when they come to the gate; so some rounds."""
    claim_table(world.open())
    expected = [_raced(world, committer, at_gate, number) for number in range(1, ROUNDS + 1)]
    assert world.visible_file_numbers() == expected


def _raced(
    world: IcebergWorld, committer: Committer, at_gate: Callable[[Barrier], object], number: int
) -> int:
    """Which of two files is the one that landed."""
    gate = Barrier(2)
    view = world.open().read()
    numbers = [number * 10, number * 10 + 1]
    files = [world.write_file(each) for each in numbers]
    racers = [committer(lambda: at_gate(gate)) for _ in files]

    def race(racer: int) -> CommitOutcome:
        return commit(racers[racer][1], view, record(1, number, number), files[racer])

    with ThreadPoolExecutor(2) as threads:
        outcomes = list(threads.map(race, range(2)))
    for catalog, _ in racers:
        catalog.close()
    assert Counter(isinstance(o, Landed) for o in outcomes) == {True: 1, False: 1}, outcomes
    return numbers[next(r for r, outcome in enumerate(outcomes) if isinstance(outcome, Landed))]


def a_sleeper_undoes_nothing(world: IcebergWorld, committer: Committer) -> None:
    """As ``hms_pause`` of pyiceberg's Hive, where the sleeper overwrote what had landed."""
    outcome = slept_through_an_heirs_commit(world, committer)
    assert not isinstance(outcome, Landed), outcome
    heir, file = world.open(), world.write_file(3)
    require_landed(commit(heir, heir.read(), record(2, 2, 6), file))
    assert world.visible_file_numbers() == [2, 3]


def slept_through_an_heirs_commit(world: IcebergWorld, committer: Committer) -> CommitOutcome:
    """What the sleeper (file 1) is told when its heir (file 2) has landed meanwhile."""
    view = claim_table(world.open())
    asleep, awake = Event(), Event()

    def sleep() -> None:
        asleep.set()
        assert awake.wait(60)

    catalog, zombie = committer(sleep)
    heir = world.open()
    files = [world.write_file(1), world.write_file(2)]
    with ThreadPoolExecutor(1) as threads:
        outcome = threads.submit(commit, zombie, view, record(1, 1, 3), files[0])
        assert asleep.wait(60)
        view = require_landed(commit(heir, heir.read(), record(2, 0)))
        require_landed(commit(heir, view, record(2, 1, 3), files[1]))
        awake.set()
        told = outcome.result(60)
    catalog.close()
    return told
