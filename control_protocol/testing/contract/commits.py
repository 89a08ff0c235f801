"""Tests what every table promises to the coordinator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headgate.control_protocol.errors import TableMissing
from headgate.control_protocol.identifiers import TopicId, TopicPartition
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import CommitAttempt, Landed, Lineage, Refused, Unknown
from headgate.control_protocol.testing.contract.races import RaceContract
from headgate.control_protocol.testing.contract.world import (
    World,
    claim_table,
    commit,
    record,
    require_landed,
)


class CoreContract(RaceContract):
    """The tests take a fixture ``world``, a ``World``."""

    def test_an_untouched_table_is_fresh(self, world: World) -> None:
        view = world.open().read()
        assert (view.head, view.tag, view.record, view.branch_record) == (None, None, None, None)
        assert view.lineage is Lineage.FRESH
        assert view.uuid
        assert view.location

    def test_the_first_claim_lands_and_is_read_back_whole(self, world: World) -> None:
        view = claim_table(world.open())
        again = world.open().read()
        assert again == view
        assert again.record == again.branch_record == record(1, 0)
        assert again.lineage is Lineage.CONTAINS_TAG

    def test_two_first_claims_race_and_one_lands(self, world: World) -> None:
        one, other = world.open(), world.open()
        view, stale = one.read(), other.read()
        require_landed(commit(one, view, record(1, 0)))
        assert isinstance(commit(other, stale, record(1, 0)), Refused)
        assert world.open().read().record == record(1, 0)

    def test_files_and_record_land_together(self, world: World) -> None:
        table = world.open()
        view = claim_table(table)
        after = require_landed(
            commit(table, view, record(1, 1, 6), world.write_file(1), world.write_file(2))
        )
        assert world.visible_file_numbers() == [1, 2]
        assert after.record == record(1, 1, 6)
        assert world.open().read() == after

    def test_each_commit_continues_from_the_view_of_the_last(self, world: World) -> None:
        table = world.open()
        view = claim_table(table)
        for number in range(1, 6):
            view = require_landed(
                commit(table, view, record(1, number, number), world.write_file(number))
            )
        assert world.visible_file_numbers() == [1, 2, 3, 4, 5]

    def test_an_empty_commit_moves_the_tag_and_keeps_the_rows(self, world: World) -> None:
        table = world.open()
        view = require_landed(
            commit(table, claim_table(table), record(1, 1, 3), world.write_file(1))
        )
        after = require_landed(commit(table, view, record(1, 2, 3)))
        assert after.tag != view.tag
        assert world.visible_file_numbers() == [1]

    def test_a_second_coordinator_fences_the_first(self, world: World) -> None:
        zombie, heir = world.open(), world.open()
        stale = claim_table(zombie)
        view = claim_table(heir, epoch=2)
        assert isinstance(commit(zombie, stale, record(1, 1, 3), world.write_file(1)), Refused)
        require_landed(commit(heir, view, record(2, 1, 3), world.write_file(2)))
        assert world.visible_file_numbers() == [2]

    def test_a_stale_base_is_refused_on_a_newly_opened_table(self, world: World) -> None:
        stale = claim_table(world.open())
        claim_table(world.open(), epoch=2)
        outcome = commit(world.open(), stale, record(1, 1, 3), world.write_file(1))
        assert isinstance(outcome, Refused)
        assert world.visible_file_numbers() == []

    def test_a_base_whose_tag_is_older_than_its_head_is_refused(self, world: World) -> None:
        """As of a server that came back without its newest commits, and has as many again."""
        table = world.open()
        first = claim_table(table)
        second = require_landed(commit(table, first, record(1, 1, 3), world.write_file(1)))
        file = world.write_file(2)
        stale = replace(second, tag=first.tag, record=first.record, branch_record=first.record)
        assert isinstance(commit(table, stale, record(1, 2, 6), file), Refused)
        assert isinstance(commit(world.open(), stale, record(1, 2, 6), file), Refused)
        assert world.open().read() == second
        require_landed(commit(table, second, record(1, 2, 6), file))
        assert world.visible_file_numbers() == [1, 2]

    def test_the_same_attempt_twice_lands_once(self, world: World) -> None:
        table = world.open()
        attempt = CommitAttempt(claim_table(table), record(1, 1, 3), (world.write_file(1),))
        require_landed(table.commit(attempt))
        assert isinstance(table.commit(attempt), Refused)
        assert world.visible_file_numbers() == [1]

    def test_two_sinks_share_a_table(self, world: World) -> None:
        one, other = world.open("one"), world.open("other")
        claim_table(one, sink="one")
        view = claim_table(other, epoch=4, sink="other")
        require_landed(commit(other, view, record(4, 1, 3, sink="other"), world.write_file(1)))
        view = one.read()
        assert view.record == record(1, 0, sink="one")
        assert view.branch_record == view.record
        assert view.lineage is Lineage.CONTAINS_TAG
        after = require_landed(commit(one, view, record(1, 1, 3, sink="one"), world.write_file(2)))
        assert world.open("one").read() == after, "with what it tells of the other sink"
        assert other.read().record == record(4, 1, 3, sink="other")
        assert world.visible_file_numbers() == [1, 2]

    def test_a_recreated_table_has_another_uuid_and_refuses(self, world: World) -> None:
        table = world.open()
        view = claim_table(table)
        file = world.write_file(1)
        world.recreate()
        outcome = commit(table, view, record(1, 1, 3), file)
        assert isinstance(outcome, Refused)
        after = table.read()
        assert after.uuid != view.uuid
        assert after.lineage is Lineage.FRESH
        claim_table(world.open())  # a table that counts its commits is as far as the first was
        assert isinstance(commit(world.open(), view, record(1, 1, 3), file), Refused)
        assert world.visible_file_numbers() == []

    def test_a_large_record_is_read_back_whole(self, world: World) -> None:
        table = world.open()
        view = claim_table(table)
        places = (TopicPartition(f"trips.{number % 7}", number) for number in range(3_000))
        offsets = Offsets({place: 10**12 + place.partition**2 for place in places})
        topics = {f"trips.{number}": TopicId(f"id-{number}") for number in range(7)}
        large = replace(record(1, 1, 3), group_id="Gruppe Łódź", offsets=offsets, topic_ids=topics)
        after = require_landed(commit(table, view, large, world.write_file(1)))
        assert world.open().read() == after
        assert after.record == large

    def test_a_dropped_table_is_missing(self, world: World) -> None:
        table = world.open()
        view = claim_table(table)
        world.drop()
        assert not isinstance(commit(table, view, record(1, 1, 3)), Landed)
        with pytest.raises(TableMissing):
            table.read()

    @pytest.mark.parametrize("did_land", [True, False])
    def test_a_lost_answer_is_unknown_and_the_table_tells(
        self, world: World, *, did_land: bool
    ) -> None:
        table = world.open()
        view = claim_table(table)
        file = world.write_file(1)
        world.lose_next_answer(landed=did_land)
        assert isinstance(commit(table, view, record(1, 1, 3), file), Unknown)
        after = table.read()
        assert record(1, 1, 3).is_same_commit(after.record) is did_land
        if not did_land:
            assert (after.tag, after.head) == (view.tag, view.head)
            after = require_landed(commit(table, after, record(1, 1, 3), file))
        require_landed(commit(table, after, record(1, 2, 6), world.write_file(2)))
        assert world.visible_file_numbers() == [1, 2]

    def test_repeating_an_attempt_that_landed_unseen_is_refused(self, world: World) -> None:
        table = world.open()
        view = claim_table(table)
        attempt = CommitAttempt(view, record(1, 1, 3), (world.write_file(1),))
        world.lose_next_answer(landed=True)
        assert isinstance(table.commit(attempt), Unknown)
        assert isinstance(table.commit(attempt), Refused)
        assert world.visible_file_numbers() == [1]
