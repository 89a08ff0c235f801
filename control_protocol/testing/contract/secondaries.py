"""Tests a table that is delivered to for another one: its rows were decided before, maybe by
another process.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from headgate.control_protocol.commit_record import REPLAY, CommitRecord, Replayed
from headgate.control_protocol.errors import StopSink
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import TopicId
from headgate.control_protocol.ports import CommitOutcome, Landed, Refused, SinkTable, Unknown
from headgate.control_protocol.testing.contract.world import (
    SecondaryWorld,
    commit,
    record,
    require_landed,
)


class SecondaryContract:
    """The tests take a fixture ``world``, a ``SecondaryWorld``."""

    def test_files_are_taken_long_after_they_were_written(self, world: SecondaryWorld) -> None:
        decided = (world.write_file(10), world.write_file(11))
        world.open().require_files_fit_and_exist(decided)
        for number in range(1, 4):
            table = world.open()
            require_landed(deliver(table, delivery_record(1, number), world.write_file(number)))
        view = require_landed(deliver(world.open(), delivery_record(2, 1), *decided))
        assert world.visible_file_numbers() == [1, 2, 3, 10, 11]
        assert view.record == delivery_record(2, 1)
        assert world.open().read() == view

    def test_the_first_commit_may_bring_rows_for_nobody_claims_a_secondary(
        self, world: SecondaryWorld
    ) -> None:
        require_landed(deliver(world.open(), delivery_record(1, 1), world.write_file(1)))
        assert world.visible_file_numbers() == [1]

    def test_two_deliver_the_same_and_one_is_refused(self, world: SecondaryWorld) -> None:
        one, other = world.open(), world.open()
        stale, file = other.read(), world.write_file(1)
        require_landed(deliver(one, delivery_record(1, 1), file))
        late = commit(other, stale, delivery_record(1, 1), file)
        assert isinstance(late, Refused)
        assert world.visible_file_numbers() == [1]

    def test_an_empty_delivery_fences_one_that_comes_late(self, world: SecondaryWorld) -> None:
        zombie, heir = world.open(), world.open()
        stale, file = zombie.read(), world.write_file(1)
        require_landed(deliver(heir, delivery_record(2, 0)))
        late = commit(zombie, stale, delivery_record(1, 1), file)
        assert isinstance(late, Refused)
        assert world.visible_file_numbers() == []

    @pytest.mark.parametrize("did_land", [True, False])
    def test_a_lost_answer_is_unknown_and_the_secondary_tells(
        self, world: SecondaryWorld, *, did_land: bool
    ) -> None:
        table, file = world.open(), world.write_file(1)
        world.lose_next_answer(landed=did_land)
        assert isinstance(deliver(table, delivery_record(1, 1), file), Unknown)
        found = table.read().record
        assert (found == delivery_record(1, 1)) is did_land
        if not did_land:
            require_landed(deliver(table, delivery_record(1, 1), file))
        assert world.visible_file_numbers() == [1]

    def test_what_the_table_cannot_be_given_is_refused_before_it_is_decided(
        self, world: SecondaryWorld
    ) -> None:
        sound, unfit = world.write_file(1), world.write_unfit_file()
        table = world.open()
        with pytest.raises(StopSink):
            table.require_files_fit_and_exist((sound, unfit))
        table.require_files_fit_and_exist((sound,))
        assert table.read().record is None

    def test_files_that_are_gone_are_neither_decided_nor_delivered(
        self, world: SecondaryWorld
    ) -> None:
        """Else rows would be decided that nobody can deliver, or a lost file would have landed."""
        file = world.write_file(1)
        gone = replace(file, path=f"{file.path}.gone")
        with pytest.raises(StopSink):
            world.open().require_files_fit_and_exist((gone,))
        table = world.open()
        with suppress(StopSink):
            assert not isinstance(deliver(table, delivery_record(1, 1), gone), Landed)
        assert world.open().read().record is None
        require_landed(deliver(world.open(), delivery_record(1, 1), file))
        assert world.visible_file_numbers() == [1]

    def test_the_record_of_a_secondary_keeps_what_a_replay_gave_back(
        self, world: SecondaryWorld
    ) -> None:
        mark = Replayed(record(1, 1, 3).offsets, {"trips": TopicId("id-of-trips")})
        said = replace(delivery_record(1, 1), replayed=mark, command=REPLAY)
        require_landed(deliver(world.open(), said, world.write_file(1)))
        assert world.open().read().record == said


def delivery_record(epoch: int, number: int) -> CommitRecord:
    """Return the record of a delivery of this transaction's rows."""
    return replace(record(epoch, number, number), primary="uuid-of-the-lead")


def deliver(table: SinkTable, record: CommitRecord, *files: WrittenFile) -> CommitOutcome:
    return commit(table, table.read(), record, *files)
