"""Idle sinks that share a table come to rest, and none loses the way to its tag (TABLE-4)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.iceberg_table_world import IcebergWorld

from headgate.control_protocol.ports import Lineage, PrimaryTable
from headgate.control_protocol.testing.contract.world import (
    claim_table,
    commit,
    record,
    require_landed,
)

SINKS = ("east", "north", "west")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[IcebergWorld]:
    world = IcebergWorld(tmp_path)
    yield world
    world.close()


class SharingSink:
    """One sink of several on the table; it renews its tag where a table check asks for it."""

    def __init__(self, world: IcebergWorld, name: str) -> None:
        self.world, self.name, self.number = world, name, 0
        self.table: PrimaryTable = world.open(name)
        claim_table(self.table, sink=name)

    def commit(self, *, rows: bool) -> None:
        view = self.table.read()
        assert view.lineage is Lineage.CONTAINS_TAG, self.name
        self.number += 1
        files = (self.world.write_file(self.number),) if rows else ()
        new = record(1, self.number, self.number, sink=self.name)
        require_landed(commit(self.table, view, new, *files))

    def check(self) -> bool:
        """Return whether the tag had to be renewed."""
        if not self.table.read().is_tag_behind:
            return False
        self.commit(rows=False)
        return True


@pytest.mark.parametrize("number", [2, 3])
def test_idle_sinks_come_to_rest(world: IcebergWorld, number: int) -> None:
    sinks = [SharingSink(world, name) for name in SINKS[:number]]

    sinks[0].commit(rows=True)
    for _ in range(number):
        [each.check() for each in sinks]
    assert not any(each.check() for each in sinks)


def test_an_expired_snapshot_between_head_and_tag_is_not_awaited(world: IcebergWorld) -> None:
    east, west = SharingSink(world, "east"), SharingSink(world, "west")
    assert not east.table.read().is_tag_behind, "each snapshot above is under a tag, and stays"
    west.commit(rows=False)
    assert east.table.read().is_tag_behind, "what was under the other's tag may expire now"


def test_others_than_sinks_ask_for_a_renewal(world: IcebergWorld) -> None:
    east = SharingSink(world, "east")
    world.append_foreign(77)
    assert east.table.read().is_tag_behind


@pytest.mark.parametrize("seed", range(6))
def test_whatever_expires_meanwhile_no_sink_loses_its_way(world: IcebergWorld, seed: int) -> None:
    """Others' tags move, and what was under them expires before anybody has looked."""
    chance = random.Random(seed)
    sinks = [SharingSink(world, name) for name in SINKS]
    for _ in range(25):
        sink = chance.choice(sinks)
        match chance.choice(["check", "rows", "renewal", "expiry", "expiry without a log"]):
            case "check":
                sink.check()
            case "rows":
                sink.commit(rows=True)
            case "renewal":
                sink.commit(rows=False)
            case "expiry":
                world.expire_all()
            case _:
                world.expire_all()
                world.lose_history()
        assert {each.table.read().lineage for each in sinks} == {Lineage.CONTAINS_TAG}
    for _ in SINKS:
        [each.check() for each in sinks]
    assert not any(each.check() for each in sinks)
