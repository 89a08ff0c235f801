"""Tests a table that gets new columns (rules SCHEMA-3, SCHEMA-5 and SCHEMA-8)."""

from __future__ import annotations

import pytest

from headgate.control_protocol.columns import Column, Struct
from headgate.control_protocol.errors import RetryLater
from headgate.control_protocol.testing.contract.world import (
    EvolutionWorld,
    claim_table,
    commit,
    record,
    require_landed,
)

MORE = Struct((Column("more", "string", required=False),))


class EvolutionContract:
    """The tests take a fixture ``world``, an ``EvolutionWorld``."""

    def test_schema_3_a_new_column_stands_behind_the_others_and_has_another_number(
        self, world: EvolutionWorld
    ) -> None:
        table = world.open()
        view, before = claim_table(table), world.columns()
        done = table.evolve(view, MORE)
        assert world.columns() == [*before, "more"]
        assert (len(done.changes), done.refused) == (1, ())
        assert done.view.schema_id != view.schema_id
        assert (done.view.uuid, done.view.tag) == (view.uuid, view.tag)
        assert world.open().read() == done.view

    def test_schema_3_files_of_before_land_beside_those_of_afterwards(
        self, world: EvolutionWorld
    ) -> None:
        table = world.open()
        view, old = claim_table(table), world.write_file(1)
        table.evolve(view, MORE)
        view = require_landed(commit(table, table.read(), record(1, 1, 3), old))
        require_landed(commit(table, view, record(1, 2, 6), world.write_file(2)))
        assert world.visible_file_numbers() == [1, 2]
        assert world.columns()[-1] == "more"

    def test_schema_8_columns_that_are_there_already_need_no_change(
        self, world: EvolutionWorld
    ) -> None:
        view = world.open().evolve(claim_table(world.open()), MORE).view
        again = world.open().evolve(view, MORE)
        assert (again.changes, again.refused, again.view) == ((), (), view)

    def test_schema_3_whoever_was_overtaken_changes_nothing(self, world: EvolutionWorld) -> None:
        stale, before = claim_table(world.open()), world.columns()
        heir = claim_table(world.open(), epoch=2)
        done = world.open().evolve(stale, MORE)
        assert (done.changes, done.view) == ((), heir)
        assert world.columns() == before

    def test_schema_7_a_name_that_differs_in_case_alone_is_refused(
        self, world: EvolutionWorld
    ) -> None:
        view = world.open().evolve(claim_table(world.open()), MORE).view
        more = Struct((Column("MORE", "string", required=False),))
        done = world.open().evolve(view, more)
        assert [refusal.path for refusal in done.refused] == [("MORE",)]
        assert world.columns()[-1] == "more"

    @pytest.mark.parametrize("did_land", [True, False])
    def test_schema_8_a_lost_answer_is_asked_for_again(
        self, world: EvolutionWorld, *, did_land: bool
    ) -> None:
        table = world.open()
        view = claim_table(table)
        world.lose_next_answer(landed=did_land)
        with pytest.raises(RetryLater):
            table.evolve(view, MORE)
        done = table.evolve(view, MORE)
        assert bool(done.changes) is not did_land
        assert world.columns().count("more") == 1
