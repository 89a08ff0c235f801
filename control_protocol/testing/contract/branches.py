"""Tests a table with branches."""

from __future__ import annotations

from headgate.control_protocol.ports import Lineage, Refused
from headgate.control_protocol.testing.contract.world import (
    BranchWorld,
    claim_table,
    commit,
    record,
    require_landed,
)


class BranchContract:
    """The tests take a fixture ``world``, a ``BranchWorld``."""

    def test_a_commit_to_another_branch_costs_at_most_a_repetition(
        self, world: BranchWorld
    ) -> None:
        table = world.open()
        view = claim_table(table)
        world.append_foreign(9, "audit")
        file = world.write_file(1)
        outcome = commit(table, view, record(1, 1, 3), file)
        if isinstance(outcome, Refused):
            again = table.read()
            assert (again.tag, again.head) == (view.tag, view.head)
            outcome = commit(table, again, record(1, 1, 3), file)
        require_landed(outcome)
        assert (world.visible_file_numbers(), world.visible_file_numbers("audit")) == ([1], [9])

    def test_a_new_branch_begins_at_mains_head_and_leaves_main(self, world: BranchWorld) -> None:
        world.append_foreign(1)
        table = world.open(branch="audit")
        view = table.read()
        assert (view.head, view.lineage) == (None, Lineage.FRESH)
        view = require_landed(commit(table, view, record(1, 0)))
        require_landed(commit(table, view, record(1, 1, 3), world.write_file(2)))
        assert (world.visible_file_numbers(), world.visible_file_numbers("audit")) == ([1], [1, 2])

    def test_on_an_empty_table_two_first_claims_of_a_branch_race_and_one_lands(
        self, world: BranchWorld
    ) -> None:
        one, other = world.open(branch="audit"), world.open(branch="audit")
        view, stale = one.read(), other.read()
        view = require_landed(commit(one, view, record(1, 0)))
        require_landed(commit(one, view, record(1, 1, 3), world.write_file(1)))
        assert isinstance(commit(other, stale, record(1, 0)), Refused)
        assert (world.visible_file_numbers(), world.visible_file_numbers("audit")) == ([], [1])

    def test_a_sink_that_changes_its_branch_is_no_first_start(self, world: BranchWorld) -> None:
        table = world.open()
        require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
        view = world.open(branch="audit").read()
        assert view.lineage is Lineage.TAG_MISSING
        assert view.branch_record == record(1, 1, 3)  # it would begin at main's head

    def test_the_sinks_of_another_branch_are_not_among_the_others(self, world: BranchWorld) -> None:
        claim_table(world.open("copy"), sink="copy")
        assert world.open(branch="audit").read().others == {}
