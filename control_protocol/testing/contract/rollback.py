"""Tests a table that its owner may set back to an older state."""

from __future__ import annotations

from headgate.control_protocol.ports import Lineage, Refused, SinkTable, TableView
from headgate.control_protocol.testing.contract.world import (
    RollbackWorld,
    claim_table,
    commit,
    record,
    require_landed,
)


class RollbackContract:
    """The tests take a fixture ``world``, a ``RollbackWorld``."""

    def test_a_rollback_behind_the_tag_is_seen(self, world: RollbackWorld) -> None:
        table = world.open()
        first = claim_table(table)
        second = require_landed(commit(table, first, record(1, 1, 3), world.write_file(1)))
        third = require_landed(commit(table, second, record(1, 2, 6), world.write_file(2)))
        assert second.head is not None
        world.roll_back(second.head)
        view = table.read()
        assert view.lineage is Lineage.ROLLED_BACK
        assert (view.record, view.branch_record) == (third.record, second.record)
        assert world.visible_file_numbers() == [1]

    def test_a_rollback_with_later_foreign_commits_is_seen(self, world: RollbackWorld) -> None:
        table, _ = fill_and_roll_back(world)
        world.append_foreign(7)
        assert table.read().lineage is Lineage.ROLLED_BACK

    def test_a_claim_after_a_rollback_goes_on_from_the_branch(self, world: RollbackWorld) -> None:
        table, _ = fill_and_roll_back(world)
        view = require_landed(commit(table, table.read(), record(2, 0)))
        assert view.lineage is Lineage.CONTAINS_TAG
        require_landed(commit(table, view, record(2, 1, 3), world.write_file(2)))
        assert world.visible_file_numbers() == [2]

    def test_a_rollback_before_the_tag_is_refused_to_a_stale_base(
        self, world: RollbackWorld
    ) -> None:
        table, second = fill_and_roll_back(world)
        assert isinstance(commit(table, second, record(1, 2, 6), world.write_file(2)), Refused)


def fill_and_roll_back(world: RollbackWorld) -> tuple[SinkTable, TableView]:
    """Return a table that was set back behind its first file, and its sink's view before that."""
    table = world.open()
    first = claim_table(table)
    second = require_landed(commit(table, first, record(1, 1, 3), world.write_file(1)))
    assert first.head is not None
    world.roll_back(first.head)
    return table, second
