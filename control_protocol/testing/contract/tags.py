"""Tests a table whose owner can remove the sink's tag from it."""

from __future__ import annotations

from headgate.control_protocol.ports import Lineage, Refused
from headgate.control_protocol.testing.contract.world import (
    TagWorld,
    claim_table,
    commit,
    record,
    require_landed,
)


class TagContract:
    """The tests take a fixture ``world``, a ``TagWorld``."""

    def test_a_deleted_tag_is_not_a_first_start(self, world: TagWorld) -> None:
        table = world.open()
        require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
        world.delete_tag()
        view = table.read()
        assert (view.tag, view.record) == (None, None)
        assert view.lineage is Lineage.TAG_MISSING
        assert view.branch_record == record(1, 1, 3)

    def test_tag_and_marker_gone_is_no_first_start(self, world: TagWorld) -> None:
        """Filling the table again from the beginning would double its rows."""
        table = world.open()
        require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
        world.append_foreign(7)
        world.delete_tag()
        world.delete_claim_marker()
        view = world.open().read()
        assert view.lineage is Lineage.TAG_MISSING
        assert view.branch_record == record(1, 1, 3)

    def test_tag_and_marker_gone_after_a_rollback_is_no_first_start(self, world: TagWorld) -> None:
        world.append_foreign(7)
        table = world.open()
        before = table.read().head
        require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
        assert before is not None
        world.roll_back(before)
        world.delete_tag()
        world.delete_claim_marker()
        view = world.open().read()
        assert view.lineage is Lineage.TAG_MISSING
        assert view.branch_record is None

    def test_the_marker_alone_shows_that_it_is_no_first_start(self, world: TagWorld) -> None:
        table = world.open()
        require_landed(commit(table, claim_table(table), record(1, 1, 3), world.write_file(1)))
        world.delete_tag()
        for number in (7, 8):
            world.append_foreign(number)
        world.expire_all()
        view = world.open().read()
        assert view.lineage is Lineage.TAG_MISSING
        assert view.branch_record is None

    def test_what_another_sink_wrote_does_not_count(self, world: TagWorld) -> None:
        claim_table(world.open("one"), sink="one")
        world.delete_tag("one")
        world.delete_claim_marker("one")
        assert world.open("on").read().lineage is Lineage.FRESH
        assert world.open("one").read().lineage is Lineage.TAG_MISSING

    def test_a_commit_whose_tag_was_deleted_is_refused(self, world: TagWorld) -> None:
        table = world.open()
        view = claim_table(table)
        world.delete_tag()
        assert isinstance(commit(table, view, record(1, 1, 3), world.write_file(1)), Refused)

    def test_another_sinks_marker_does_not_count(self, world: TagWorld) -> None:
        claim_table(world.open("one"), sink="one")
        assert world.open("other").read().lineage is Lineage.FRESH
