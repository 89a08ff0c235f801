"""Tests a table that forgets older states, with or without traces."""

from __future__ import annotations

import pytest

from headgate.control_protocol.ports import Lineage, TableView
from headgate.control_protocol.testing.contract.world import (
    ExpiryWorld,
    claim_table,
    commit,
    record,
    require_landed,
)


class ExpiryContract:
    """The tests take a fixture ``world``, a ``ExpiryWorld``."""

    def test_the_record_survives_expiry_of_every_other_snapshot(self, world: ExpiryWorld) -> None:
        table = world.open()
        view = require_landed(
            commit(table, claim_table(table), record(1, 1, 3), world.write_file(1))
        )
        world.expire_all()
        after = world.open().read()
        assert (after.record, after.lineage) == (view.record, Lineage.CONTAINS_TAG)
        require_landed(commit(table, after, record(1, 2, 6), world.write_file(2)))
        assert world.visible_file_numbers() == [1, 2]

    @pytest.mark.parametrize("keeps_history", [True, False])
    def test_maintenance_and_an_expiry_do_not_stop_an_idle_sink(
        self, world: ExpiryWorld, *, keeps_history: bool
    ) -> None:
        table = world.open()
        view = require_landed(
            commit(table, claim_table(table), record(1, 1, 3), world.write_file(1))
        )
        maintain_and_expire(world, keeps_history=keeps_history)
        after = world.open().read()
        assert after.lineage is Lineage.CONTAINS_TAG
        assert after.record == view.record
        require_landed(commit(table, after, record(1, 2, 6), world.write_file(2)))
        assert world.visible_file_numbers() == [1, 2]

    @pytest.mark.parametrize("keeps_history", [True, False])
    def test_appends_of_others_and_an_expiry_do_not_stop_an_idle_sink(
        self, world: ExpiryWorld, *, keeps_history: bool
    ) -> None:
        table = world.open()
        view = require_landed(
            commit(table, claim_table(table), record(1, 1, 3), world.write_file(1))
        )
        view = require_landed(commit(table, view, record(1, 2, 3)))  # a tag renewed without rows
        for number in (7, 8, 9):
            world.append_foreign(number)
        expire_states(world, keeps_history=keeps_history)
        after = table.read()
        assert (after.lineage, after.branch_record) == (Lineage.CONTAINS_TAG, None)
        require_landed(commit(table, after, record(1, 3, 6), world.write_file(2)))
        assert world.visible_file_numbers() == [1, 2, 7, 8, 9]

    @pytest.mark.parametrize("keeps_history", [True, False])
    def test_a_claim_without_rows_survives_the_expiry_of_its_state(
        self, world: ExpiryWorld, *, keeps_history: bool
    ) -> None:
        table = world.open()
        claim_table(table)
        for number in (1, 2, 3):
            world.append_foreign(number)
        expire_states(world, keeps_history=keeps_history)
        assert table.read().lineage is Lineage.CONTAINS_TAG

    def test_a_rollback_is_seen_though_its_traces_have_expired(self, world: ExpiryWorld) -> None:
        assert fill_roll_back_and_expire(world, keeps_history=True).lineage is Lineage.ROLLED_BACK

    def test_what_nobody_can_know_stays_undecidable(self, world: ExpiryWorld) -> None:
        view = fill_roll_back_and_expire(world, keeps_history=False)
        assert view.lineage is Lineage.UNDECIDABLE
        assert view.record is not None
        for number in (8, 9, 10, 11):  # as many rows as were taken away, and more
            world.append_foreign(number)
            expire_states(world, keeps_history=False)
            assert world.open().read().lineage is Lineage.UNDECIDABLE, "others' rows prove nothing"

    def test_as_many_rows_of_others_and_a_compaction_hide_no_rollback(
        self, world: ExpiryWorld
    ) -> None:
        """The head has as many rows as the tag, and changed none; yet they are other rows."""
        table = world.open()
        first = require_landed(
            commit(table, claim_table(table), record(1, 1, 3), world.write_file(1))
        )
        require_landed(commit(table, first, record(1, 2, 6), world.write_file(2)))
        assert first.head is not None
        world.roll_back(first.head)
        world.append_foreign(7)
        world.compact()
        expire_states(world, keeps_history=False)
        assert table.read().lineage is Lineage.UNDECIDABLE
        assert world.visible_file_numbers() == [1, 7], "the rows of the last commit are gone"


def maintain_and_expire(world: ExpiryWorld, *, keeps_history: bool) -> None:
    """Make two commits of others that change no row, and expire all that can go."""
    world.compact()
    world.compact()
    expire_states(world, keeps_history=keeps_history)


def expire_states(world: ExpiryWorld, *, keeps_history: bool) -> None:
    world.expire_all()
    if not keeps_history:
        world.lose_history()


def fill_roll_back_and_expire(world: ExpiryWorld, *, keeps_history: bool) -> TableView:
    table = world.open()
    first = require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
    require_landed(commit(table, first, record(1, 2, 6), world.write_file(2), world.write_file(3)))
    assert first.head is not None
    world.roll_back(first.head)
    world.append_foreign(7)
    world.compact()
    expire_states(world, keeps_history=keeps_history)
    return table.read()
