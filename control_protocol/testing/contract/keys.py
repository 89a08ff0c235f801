"""Tests a table with a key: records replace rows, and delete them (rules KEY-2 to KEY-5, KEY-8 to
KEY-10).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from headgate.control_protocol.commit_record import CommitRecord, KeyCounts
from headgate.control_protocol.errors import KeyInTwoPartitions, StopSink
from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Refused,
    SinkTable,
    TableView,
    Unknown,
)
from headgate.control_protocol.testing.contract.secondaries import delivery_record
from headgate.control_protocol.testing.contract.world import (
    KeyChange,
    KeyedSecondaryWorld,
    KeyedWorld,
    commit,
    record,
    require_landed,
)


def decided_record(epoch: int, number: int) -> CommitRecord:
    """Return the record of a commit to the table that decides."""
    return record(epoch, number, number)


class KeyContract:
    """The tests take a fixture ``world``, a ``KeyedWorld``."""

    said = staticmethod(decided_record)

    def test_key_3_the_last_record_of_a_key_wins_whatever_file_it_came_in(
        self, world: KeyedWorld
    ) -> None:
        table = world.open()
        files = (
            *world.write_changes(putting_change(1, "new", 3), putting_change(2, "x", 4)),
            *world.write_changes(
                putting_change(1, "old", 1), putting_change(3, "y", 1, partition=1)
            ),
        )
        view = self.commit_and_require_landed(table, 1, *files)
        assert key_counts_of(view) == KeyCounts(inserted=3, superseded=1)
        more = world.write_changes(
            putting_change(1, "newer", 5), putting_change(2, "z", 6), putting_change(4, "four", 9)
        )
        less = world.write_changes(
            deleting_change(2, 7),
            deleting_change(3, 2, partition=1),
            deleting_change(9, 3, partition=1),
        )
        view = self.commit_and_require_landed(
            table, 2, *less, *more, *world.write_changes(deleting_change(4, 8))
        )
        assert key_counts_of(view) == KeyCounts(
            inserted=1, updated=1, deleted=2, absent=1, superseded=2
        )
        assert world.read_rows() == {1: "newer", 4: "four"}
        assert world.open().read() == view

    def test_key_3_a_commit_without_files_keeps_the_rows(self, world: KeyedWorld) -> None:
        table = world.open()
        before = self.commit_and_require_landed(
            table, 1, *world.write_changes(putting_change(1, "a", 1), putting_change(2, "b", 2))
        )
        view = self.commit_and_require_landed(table, 2)
        assert view.tag != before.tag
        assert self.said(1, 2).is_same_commit(view.record)
        assert world.read_rows() == {1: "a", 2: "b"}
        self.commit_and_require_landed(table, 3, *world.write_changes(putting_change(1, "c", 3)))
        assert world.read_rows() == {1: "c", 2: "b"}

    def test_key_9_a_deleted_key_may_come_back_from_another_partition(
        self, world: KeyedWorld
    ) -> None:
        table = world.open()
        self.commit_and_require_landed(
            table, 1, *world.write_changes(putting_change(1, "a", 1), putting_change(2, "b", 2))
        )
        view = self.commit_and_require_landed(
            table, 2, *world.write_changes(deleting_change(1, 3), deleting_change(7, 4))
        )
        assert key_counts_of(view) == KeyCounts(deleted=1, absent=1)
        view = self.commit_and_require_landed(
            table, 3, *world.write_changes(putting_change(1, "again", 9, partition=1))
        )
        assert key_counts_of(view) == KeyCounts(inserted=1)
        assert world.read_rows() == {1: "again", 2: "b"}

    def test_key_3_between_commits_the_later_one_is_newer_whatever_its_offsets(
        self, world: KeyedWorld
    ) -> None:
        """The topic was re-created: its offsets begin at 0 again."""
        table = world.open()
        self.commit_and_require_landed(
            table,
            1,
            *world.write_changes(putting_change(1, "old", 90), putting_change(2, "old", 91)),
        )
        view = self.commit_and_require_landed(
            table, 2, *world.write_changes(putting_change(1, "new", 0), deleting_change(2, 1))
        )
        assert key_counts_of(view) == KeyCounts(updated=1, deleted=1)
        assert world.read_rows() == {1: "new"}

    def test_key_8_a_key_in_two_partitions_is_refused_and_nothing_of_it_lands(
        self, world: KeyedWorld
    ) -> None:
        view = self.commit_and_require_landed(
            world.open(), 1, *world.write_changes(putting_change(1, "a", 3))
        )
        for changes in (
            [putting_change(1, "b", 9, partition=1)],
            [deleting_change(1, 9, partition=1)],
            [putting_change(7, "b", 9, partition=1), putting_change(7, "c", 9)],
        ):
            with pytest.raises(KeyInTwoPartitions):
                self.commit_on_fresh_read(world.open(), 2, *world.write_changes(*changes))
        assert world.read_rows() == {1: "a"}
        assert world.open().read().record == view.record

    def test_key_5_a_refused_commit_resolves_its_keys_again(self, world: KeyedWorld) -> None:
        zombie, heir = world.open(), world.open()
        files = world.write_changes(putting_change(1, "late", 5), deleting_change(2, 6))
        stale = zombie.read()
        self.commit_and_require_landed(
            heir, 1, *world.write_changes(putting_change(1, "a", 1), putting_change(2, "b", 2))
        )
        assert isinstance(commit(zombie, stale, self.said(1, 2), *files), Refused)
        assert world.read_rows() == {1: "a", 2: "b"}
        view = self.commit_and_require_landed(world.open(), 2, *files)
        assert key_counts_of(view) == KeyCounts(updated=1, deleted=1)
        assert world.read_rows() == {1: "late"}

    @pytest.mark.parametrize("did_land", [True, False])
    def test_key_3_a_lost_answer_changes_each_key_once(
        self, world: KeyedWorld, *, did_land: bool
    ) -> None:
        table, files = (
            world.open(),
            world.write_changes(putting_change(1, "a", 1), deleting_change(2, 2)),
        )
        world.lose_next_answer(landed=did_land)
        assert isinstance(self.commit_on_fresh_read(table, 1, *files), Unknown)
        view = table.read()
        assert self.said(1, 1).is_same_commit(view.record) is did_land
        if not did_land:
            view = self.commit_and_require_landed(table, 1, *files)
        assert key_counts_of(view) == KeyCounts(inserted=1, absent=1)
        assert world.read_rows() == {1: "a"}

    def commit_on_fresh_read(
        self, table: SinkTable, number: int, *files: WrittenFile
    ) -> CommitOutcome:
        """Commit on what a fresh read shows."""
        return commit(table, table.read(), self.said(1, number), *files)

    def commit_and_require_landed(
        self, table: SinkTable, number: int, *files: WrittenFile
    ) -> TableView:
        return require_landed(self.commit_on_fresh_read(table, number, *files))


class KeyedSecondaryContract(KeyContract):
    """The same of deliveries, which may bring several transactions at once.

    The tests take a fixture ``world``, a ``KeyedSecondaryWorld``.
    """

    said = staticmethod(delivery_record)

    def test_key_3_a_delivery_resolves_all_that_it_brings_and_later_transactions_are_newer(
        self, world: KeyedSecondaryWorld
    ) -> None:
        """Whatever their offsets, and in whatever order their files are named (KEY-3)."""
        before = world.write_changes(
            putting_change(1, "old", 90),
            putting_change(2, "old", 91),
            putting_change(3, "old", 92),
            deleting_change(4, 93),
            putting_change(5, "old", 94),
        )
        anew = world.write_changes(
            putting_change(4, "new", 0), putting_change(1, "new", 1), deleting_change(5, 2)
        )
        view = require_landed(deliver_transactions_together(world.open(), 2, (anew, before)))
        assert key_counts_of(view) == KeyCounts(inserted=4, absent=1, superseded=3)
        assert world.read_rows() == {1: "new", 2: "old", 3: "old", 4: "new"}
        more = (
            world.write_changes(putting_change(1, "newest", 2)),
            world.write_changes(deleting_change(2, 95), putting_change(9, "9", 96)),
        )
        view = require_landed(deliver_transactions_together(world.open(), 4, more))
        assert key_counts_of(view) == KeyCounts(inserted=1, updated=1, deleted=1)
        assert world.read_rows() == {1: "newest", 3: "old", 4: "new", 9: "9"}

    def test_key_3_the_same_offset_of_a_topic_and_of_its_older_self_are_two_records(
        self, world: KeyedSecondaryWorld
    ) -> None:
        before, anew = (
            world.write_changes(putting_change(1, "old", 0)),
            world.write_changes(putting_change(1, "new", 0)),
        )
        view = require_landed(deliver_transactions_together(world.open(), 2, (anew, before)))
        assert key_counts_of(view) == KeyCounts(inserted=1, superseded=1)
        assert world.read_rows() == {1: "new"}

    def test_key_8_a_key_in_two_partitions_is_found_between_transactions_too(
        self, world: KeyedSecondaryWorld
    ) -> None:
        files = (
            world.write_changes(putting_change(1, "b", 1, partition=1)),
            world.write_changes(putting_change(1, "a", 1)),
        )
        with pytest.raises(KeyInTwoPartitions):
            deliver_transactions_together(world.open(), 2, files)
        assert world.read_rows() == {}

    def test_key_2_key_files_are_looked_at_before_they_are_decided_and_outlive_the_answer(
        self, world: KeyedSecondaryWorld
    ) -> None:
        """A database that lost the delivery may have the decision, and is delivered again
        (PENDING-4)."""
        table, files = (
            world.open(),
            world.write_changes(putting_change(1, "a", 1), deleting_change(2, 2)),
        )
        assert {file.kind for file in files} == set(FileKind)
        table.require_files_fit_and_exist(files)
        self.commit_and_require_landed(table, 1, *files)
        world.open().require_files_fit_and_exist(files)

    def test_key_2_a_key_file_that_is_gone_is_refused_before_it_is_decided(
        self, world: KeyedSecondaryWorld
    ) -> None:
        """Once it is decided nobody writes it again: what it deletes would stay for ever."""
        (keys_of,) = world.write_changes(deleting_change(1, 1))
        lost = replace(keys_of, path=f"{keys_of.path}.gone")
        with pytest.raises(StopSink):
            world.open().require_files_fit_and_exist((lost,))
        assert world.open().read().record is None


def putting_change(key: int, value: str, offset: int, *, partition: int = 0) -> KeyChange:
    return KeyChange(key, value, offset, partition)


def deleting_change(key: int, offset: int, *, partition: int = 0) -> KeyChange:
    return KeyChange(key, None, offset, partition)


def key_counts_of(view: TableView) -> KeyCounts | None:
    assert view.record is not None
    return view.record.keys


def deliver_transactions_together(
    table: SinkTable, number: int, files_newest_first: Sequence[Sequence[WrittenFile]]
) -> CommitOutcome:
    """Deliver what several transactions brought, up to the one of this number."""
    numbered = [
        (file, len(files_newest_first) - place)
        for place, files in enumerate(files_newest_first)
        for file in files
    ]
    files, numbers = zip(*numbered, strict=True)
    return table.commit(
        CommitAttempt(table.read(), delivery_record(1, number), files, transactions=numbers)
    )
