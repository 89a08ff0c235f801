"""Tests a table to which others write as well, and whose files they replace."""

from __future__ import annotations

from headgate.control_protocol.identifiers import SinkName, TopicId
from headgate.control_protocol.ports import Lineage, Refused
from headgate.control_protocol.testing.contract.world import (
    OthersWorld,
    claim_table,
    commit,
    record,
    require_landed,
)


class OthersContract:
    """The tests take a fixture ``world``, a ``OthersWorld``."""

    def test_the_first_claim_on_data_of_others_keeps_them(self, world: OthersWorld) -> None:
        world.append_foreign(1)
        before = world.open().read()
        assert before.lineage is Lineage.FRESH
        assert before.head is not None
        claim_table(world.open())
        assert world.visible_file_numbers() == [1]

    def test_a_refused_attempt_lands_on_a_fresh_read(self, world: OthersWorld) -> None:
        table = world.open()
        stale = claim_table(table)
        world.append_foreign(7)
        file = world.write_file(1)
        refused = commit(table, stale, record(1, 1, 3), file)
        assert isinstance(refused, Refused)
        assert not refused.for_good, "the same file lands below"
        view = table.read()
        assert view.lineage is Lineage.CONTAINS_TAG
        assert (view.record, view.tag) == (stale.record, stale.tag)
        require_landed(commit(table, view, record(1, 1, 3), file))
        assert world.visible_file_numbers() == [1, 7]

    def test_compaction_between_commits_changes_nothing(self, world: OthersWorld) -> None:
        table = world.open()
        view = claim_table(table)
        for number in (1, 2):
            view = require_landed(
                commit(table, view, record(1, number, number), world.write_file(number))
            )
        world.compact()
        assert isinstance(commit(table, view, record(1, 3, 3), world.write_file(3)), Refused)
        view = table.read()
        assert view.lineage is Lineage.CONTAINS_TAG
        require_landed(commit(table, view, record(1, 3, 3), world.write_file(3)))
        assert world.visible_file_numbers() == [1, 2, 3]

    def test_the_other_sinks_of_a_branch_say_what_they_read(self, world: OthersWorld) -> None:
        claim_table(world.open("copy"), sink="copy")
        view = world.open().read()
        assert view.others == {SinkName("copy"): {"trips": TopicId("id-of-trips")}}
        assert world.open("copy").read().others == {}
        claim_table(world.open())
        assert set(world.open("copy").read().others) == {SinkName("sink")}
