"""Coordinators that fight over a keyed table, and a catalog that lies: the table is the fold.

The oracle is a dictionary: of each key the last record below the offsets in the table's own record.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from integration.readers import read_with_duckdb, read_with_pyiceberg
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableResponse
from support.keyed_world import NAME, Event, KeyedWorld, keyed_table, rows_of
from support.local_catalog import local_catalog

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.identifiers import (
    Epoch,
    Sender,
    SinkName,
    TransactionId,
    TransactionNumber,
)
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import CommitAttempt, Landed, Refused, Unknown
from headgate.tables.iceberg.table import IcebergTable

pytestmark = pytest.mark.integration

Call = Callable[[], CommitTableResponse]


class LyingCatalog:
    """Answers are lost, before or after they took effect; calls come late, or a second time, or
    are overtaken by others after they were prepared."""

    def __init__(self, real: Catalog, chance: random.Random, version: int) -> None:
        self.moved = 0
        self._real = real
        self._version = version
        self._chance = chance
        self._late: list[Call] = []

    def commit_table(self, *arguments: object) -> CommitTableResponse:
        def call() -> CommitTableResponse:
            return self._real.commit_table(*arguments)  # type: ignore[arg-type]

        lie = self._chance.choice(["none", "overtaken", "lost", "landed", "late", "twice"])
        if lie == "overtaken":
            self.move_head()
        if lie == "lost":
            raise ConnectionError("nothing took effect")
        if lie == "late":
            self._late.append(call)
            raise ConnectionError("it is still under way")
        answer = call()
        if lie == "landed":
            raise ConnectionError("it took effect")
        return call() if lie == "twice" else answer

    def move_head(self) -> None:
        """As others do, at the worst time."""
        _moved(self._real, self._version, self.moved)
        self.moved += 1

    def arrive(self) -> None:
        """What was under way: refused, unless nothing has happened since."""
        while self._late:
            with suppress(CommitFailedException):
                self._late.pop()()

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 12))]
)
@pytest.mark.parametrize(
    ("version", "partition_by"),
    [pytest.param(2, (), marks=pytest.mark.wide), (3, ("bucket(3, id)",))],
)
def test_key_5_rivals_stale_heads_and_lies_leave_the_fold(
    tmp_path: Path, seed: int, version: int, partition_by: tuple[str, ...]
) -> None:
    chance = random.Random(f"{seed}{version}")
    real = local_catalog(tmp_path).catalog
    world = KeyedWorld.create(real, version, partition_by)
    lying = LyingCatalog(real, chance, version)
    rivals = [keyed_table(lying, ("id",)) for _ in range(2)]  # type: ignore[arg-type]
    for number in range(14):
        attempt = world.attempt(world.files([_event(chance) for _ in range(chance.randint(1, 25))]))
        stale = [attempt]
        while not _in_it(world, attempt):
            world.table = chance.choice(rivals)
            outcome = world.table.commit(chance.choice(stale))
            assert isinstance(outcome, Landed | Refused | Unknown)
            if chance.random() < 0.3:
                lying.arrive()
            if chance.random() < 0.3:
                lying.move_head()
            if chance.random() < 0.2:  # a coordinator dies, and another begins with nothing
                rivals[chance.randrange(2)] = keyed_table(lying, ("id",))  # type: ignore[arg-type]
            stale.append(CommitAttempt(world.table.read(), attempt.record, attempt.files))
        if number % 3 == 2:
            _check(world)
    _check(world)
    assert lying.moved


def _event(chance: random.Random) -> Event:
    return Event((chance.randint(0, 40),), None if chance.random() < 0.3 else chance.choice("ab"))


def _in_it(world: KeyedWorld, attempt: CommitAttempt) -> bool:
    record = world.table.read().record
    return record is not None and record.transaction == attempt.record.transaction


def _moved(catalog: Catalog, version: int, number: int) -> None:
    """By a compaction that puts all rows in new files. pyiceberg writes no tables of version 3:
    there another sink begins."""
    if version == 3:
        sink = SinkName(f"other-{number}")
        other = IcebergTable(catalog, NAME, sink, threads=False)
        claim = CommitRecord(
            sink=sink,
            group_id="other",
            transaction=TransactionId(Epoch(1), TransactionNumber(0)),
            coordinator=Sender("member", "one"),
            offsets=Offsets({}),
        )
        assert isinstance(other.commit(CommitAttempt(other.read(), claim, ())), Landed)
        return
    table = catalog.load_table(NAME)
    rows = table.scan().to_arrow()
    (table.overwrite if len(rows) else table.append)(rows)


def _check(world: KeyedWorld) -> None:
    location = world.load().metadata_location
    for read in (read_with_pyiceberg, read_with_duckdb):
        assert rows_of(read(location)) == world.source.expected_rows(), read.__name__
