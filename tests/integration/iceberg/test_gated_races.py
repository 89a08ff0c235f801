"""Two committers, each held between its check of what is required and its swap: one lands.

Here pyiceberg checks and swaps by itself. Where a server does (REST), ``test_racing`` and the
contract ask it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event
from typing import Any

import pytest
from contract.iceberg_table_world import IcebergWorld
from contract.test_sink_table import own_table
from object_store import ObjectStore
from postgres_server import PostgresServer
from pyiceberg.catalog import Catalog

from headgate.control_protocol.identifiers import SinkName
from headgate.control_protocol.ports import CommitOutcome, Landed
from headgate.control_protocol.testing.contract.world import claimed, commit, landed, record
from headgate.tables.iceberg.catalog import load_catalog
from headgate.tables.iceberg.table import IcebergTable

pytestmark = pytest.mark.integration

ROUNDS = 4
GATE_S = 5.0


class Committers:
    """A table in a catalog, and as many openings of it as there are committers."""

    def __init__(self, folder: Path, properties: dict[str, str]) -> None:
        self.world = IcebergWorld(folder, properties, table=own_table())
        self._properties = {**self.world.catalog.properties, **properties}
        self._name = str(folder)

    def opened(self) -> tuple[Catalog, IcebergTable]:
        catalog = load_catalog(self._name, self._properties)
        return catalog, IcebergTable(catalog, self.world.name, SinkName("sink"))


@pytest.fixture(params=["sqlite", "postgres", "glue"])
def committers(request: pytest.FixtureRequest, tmp_path: Path) -> Committers:
    local = {"warehouse": f"file://{tmp_path}/warehouse"}
    if request.param == "glue":
        store: ObjectStore = request.getfixturevalue("object_store")
        return Committers(tmp_path, {**store.glue(), **local})
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        return Committers(tmp_path, {**local, "type": "sql", "uri": server.uri})
    return Committers(tmp_path, {**local, "type": "sql", "uri": f"sqlite:///{tmp_path}/c.db"})


def held(catalog: Catalog, wait: Callable[[], object]) -> None:
    """What is required was checked by then; the swap is behind it."""
    writes: Callable[..., None] = catalog._write_metadata  # type: ignore[attr-defined]

    def write(*arguments: Any, **named: Any) -> None:
        wait()
        writes(*arguments, **named)

    catalog._write_metadata = write  # type: ignore[attr-defined]


def test_point_4_of_two_that_were_checked_at_once_one_lands(committers: Committers) -> None:
    claimed(committers.world.open())
    expected = [raced(committers, number) for number in range(1, ROUNDS + 1)]
    assert committers.world.numbers() == expected


def raced(committers: Committers, number: int) -> int:
    """Which of two files is the one that landed."""
    gate = Barrier(2)

    def wait() -> None:
        with suppress(BrokenBarrierError):
            gate.wait(GATE_S)

    view = committers.world.open().read()
    numbers = [number * 10, number * 10 + 1]
    files = [committers.world.file(number) for number in numbers]
    racers = [committers.opened() for _ in files]
    for catalog, _ in racers:
        held(catalog, wait)

    def race(racer: int) -> CommitOutcome:
        return commit(racers[racer][1], view, record(1, number, number), files[racer])

    with ThreadPoolExecutor(2) as threads:
        outcomes = list(threads.map(race, range(2)))
    for catalog, _ in racers:
        catalog.close()
    assert Counter(isinstance(o, Landed) for o in outcomes) == {True: 1, False: 1}, outcomes
    return numbers[next(r for r, outcome in enumerate(outcomes) if isinstance(outcome, Landed))]


def test_point_4_a_committer_that_slept_through_its_heirs_commits_undoes_nothing(
    committers: Committers,
) -> None:
    """As ``hms_pause`` of Hive, where the sleeper overwrote what had landed meanwhile."""
    world = committers.world
    view = claimed(world.open())
    (sleepy, zombie), (_, heir) = committers.opened(), committers.opened()
    asleep, awake = Event(), Event()

    def sleep() -> None:
        asleep.set()
        assert awake.wait(60)

    held(sleepy, sleep)
    files = [world.file(1), world.file(2), world.file(3)]
    with ThreadPoolExecutor(1) as threads:
        outcome = threads.submit(commit, zombie, view, record(1, 1, 3), files[0])
        assert asleep.wait(60)
        view = landed(commit(heir, heir.read(), record(2, 0)))
        view = landed(commit(heir, view, record(2, 1, 3), files[1]))
        awake.set()
        assert not isinstance(outcome.result(60), Landed)
    landed(commit(heir, view, record(2, 2, 6), files[2]))
    assert world.numbers() == [2, 3]
