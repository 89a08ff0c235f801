"""Tests a table as audit, status and check read it (``table_history.TableReader``).

What a table committed wrongly, an audit finds; what its reader tells wrongly, nobody finds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.identifiers import TopicId
from headgate.control_protocol.ports import TableView
from headgate.control_protocol.table_history import History, Newest, SinkCommit, TableReader
from headgate.control_protocol.testing.contract.world import (
    OthersReaderWorld,
    ReaderWorld,
    claim_table,
    commit,
    record,
    require_landed,
)

Brought = list[tuple[WrittenFile, ...]]

NOT_LONG_AGO = Newest(2, sys.maxsize)


class ReaderContract:
    """The tests take a fixture ``world``, a ``ReaderWorld``."""

    def test_a_table_that_no_sink_has_claimed_has_no_history(self, world: ReaderWorld) -> None:
        with closing(world.reader()) as reader:
            history = reader.history()
            assert (history.commits, history.foreign, history.unreadable) == ((), (), ())
            assert (history.tag, history.current_record, history.claimed) == (None, None, False)
            assert history.complete
            assert reader.view().record is None
            assert (row_count_of(reader), read_number_column(reader)) == (0, [])
            assert "number" in reader.columns()

    def test_the_sinks_commits_are_told_in_order_each_with_what_it_added(
        self, world: ReaderWorld
    ) -> None:
        view, brought = fill_table(world)
        with closing(world.reader()) as reader:
            history = reader.history()
            found = history.commits
            assert [each.record for each in found] == expected_commit_records(brought)
            assert [(each.added_records, each.added_files) for each in found] == [
                (sum(file.records for file in files), len(files)) for files in brought
            ]
            for told, files in zip(found, brought, strict=True):
                assert added_files_of(reader, told) == paths_with_row_counts(files)
            assert len({each.snapshot_id for each in found}) == len(found)
            assert sorted(each.committed_ms for each in found) == [e.committed_ms for e in found]
            assert (history.foreign, history.unreadable, history.complete) == ((), (), True)
            require_same_view(history, reader.view(), view)

    def test_the_history_is_tagged_at_the_sinks_newest_commit(self, world: ReaderWorld) -> None:
        fill_table(world)
        with closing(world.reader()) as reader:
            history, newest = reader.history(), reader.history().commits[-1]
            assert history.tag == newest.snapshot_id
            assert (history.claimed, history.tag_on_branch) == (True, True)
            assert history.current_record == history.tagged == newest.record

    def test_a_history_of_the_newest_commits_may_hold_more(self, world: ReaderWorld) -> None:
        fill_table(world)
        with closing(world.reader()) as reader:
            whole, part = reader.history(), reader.history(NOT_LONG_AGO)
            assert len(part.commits) >= NOT_LONG_AGO.snapshots
            assert whole.commits[-len(part.commits) :] == part.commits
            assert part.complete is (len(part.commits) == len(whole.commits))
            assert (part.current_record, part.tag, part.head) == (
                whole.current_record,
                whole.tag,
                whole.head,
            )

    def test_the_live_files_and_rows_are_those_that_were_committed(
        self, world: ReaderWorld
    ) -> None:
        _, brought = fill_table(world)
        with closing(world.reader()) as reader:
            came = {
                (path, rows): told.snapshot_id
                for told, files in commits_with_files(reader, brought)
                for path, rows in paths_with_row_counts(files)
            }
            assert row_count_of(reader) == sum(rows for _, rows in came)
            live = reader.live_files()
            for file in live:
                assert reader.stored_size_and_rows(file) == (file.size_bytes, file.records)
            named = {(file.path, file.records): file.added_by for file in live}
            assert named == came or not {path for path, _ in named} & {path for path, _ in came}
            assert read_number_column(reader) == expected_number_column(brought)

    def test_rows_are_read_with_the_columns_that_were_asked_for(self, world: ReaderWorld) -> None:
        _, brought = fill_table(world)
        with closing(world.reader()) as reader:
            count, files = reader.scan(["number"])
            each = list(files)
            assert count == len(each) == len(reader.live_files())
            for file in each:
                little, whole = list(file.batches()), list(file.at_once())
                assert {name for rows in little for name in rows.schema.names} == {"number"}
                assert number_column_of_batches(little) == number_column_of_batches(whole)
            assert read_number_column(reader) == expected_number_column(brought)

    def test_what_other_sinks_committed_is_not_the_sinks_own(self, world: ReaderWorld) -> None:
        view = claim_table(world.open())
        other = world.open("other")
        file = world.write_file(7)
        require_landed(
            commit(other, claim_table(other, sink="other"), record_of_other_sink(1), file)
        )
        require_landed(commit(world.open(), require_record_unchanged(world, view), record(1, 1, 3)))
        with closing(world.reader()) as reader:
            history = reader.history()
            assert [each.record for each in history.commits] == [record(1, 0), record(1, 1, 3)]
            assert {each.sink for each in history.foreign} == {"other"}
            assert all(e.topic_ids == {"trips": TopicId("id-of-trips")} for e in history.foreign)
            assert sum(each.added_records for each in history.foreign) == file.records
            assert sum(each.removed_row_count for each in history.foreign) == 0
            assert row_count_of(reader) == file.records
        with closing(world.reader("other")) as reader:
            history = reader.history()
            assert [each.record for each in history.commits] == [
                record_of_other_sink(0),
                record_of_other_sink(1),
            ]
            assert {each.sink for each in history.foreign} == {"sink"}

    def test_a_reader_notices_that_the_table_moved_and_shows_it_as_it_was(
        self, world: ReaderWorld
    ) -> None:
        view, brought = fill_table(world)
        with closing(world.reader()) as lazy, closing(world.reader()) as reader:
            before = read_all(reader)
            assert not reader.has_table_changed()
            table, number = world.open(), len(brought)
            require_landed(
                commit(
                    table,
                    require_record_unchanged(world, view),
                    record(1, number, 90),
                    world.write_file(9),
                )
            )
            for each, name in ((reader, "read before"), (lazy, "not read before")):
                assert each.has_table_changed()
                for was, now in zip(before, read_all(each), strict=True):
                    assert was == now, f"{name}: it is of the time when it was opened"
        with closing(world.reader()) as afresh:
            assert afresh.history().commits[-1].record == record(1, number, 90)
            assert not afresh.has_table_changed()

    def test_a_reader_notices_what_other_sinks_commit(self, world: ReaderWorld) -> None:
        fill_table(world)
        with closing(world.reader()) as reader:
            claim_table(world.open("other"), sink="other")
            assert reader.has_table_changed()


class OthersReaderContract:
    """The same with writers that are not sinks. The tests take an ``OthersReaderWorld``."""

    def test_rows_of_others_are_counted_as_theirs(self, world: OthersReaderWorld) -> None:
        view, brought = fill_table(world)
        world.append_foreign(9)
        require_landed(
            commit(world.open(), require_record_unchanged(world, view), record(1, len(brought), 90))
        )
        with closing(world.reader()) as reader:
            history = reader.history()
            ours = sum(file.records for files in brought for file in files)
            assert [each.record for each in history.commits[:-1]] == expected_commit_records(
                brought
            )
            assert {each.sink for each in history.foreign} == {None}
            theirs = sum(each.added_records for each in history.foreign)
            assert row_count_of(reader) - ours == theirs > 0
            assert sum(each.removed_row_count for each in history.foreign) == 0
            assert set(read_number_column(reader)) == {*expected_number_column(brought), 9}

    def test_a_compaction_adds_and_removes_no_row(self, world: OthersReaderWorld) -> None:
        _, brought = fill_table(world)
        world.compact()
        with closing(world.reader()) as reader:
            history = reader.history()
            assert [each.record for each in history.commits] == expected_commit_records(brought)
            assert sum(each.removed_row_count for each in history.foreign) == 0
            assert read_number_column(reader) == expected_number_column(brought)
            assert row_count_of(reader) == len(expected_number_column(brought))
            for told, files in commits_with_files(reader, brought):
                assert reader.added_files(told) is None or added_files_of(
                    reader, told
                ) == paths_with_row_counts(files)


def fill_table(world: ReaderWorld) -> tuple[TableView, Brought]:
    """Return a table with a claim, and commits of one file, two and none; and their files."""
    table = world.open()
    view, brought = claim_table(table), Brought([()])
    for numbers in ((1,), (2, 3), ()):
        brought.append(tuple(map(world.write_file, numbers)))
        view = require_landed(
            commit(table, view, expected_commit_records(brought)[-1], *brought[-1])
        )
    return view, brought


def expected_commit_records(brought: Brought) -> list[CommitRecord]:
    return [record(1, number, 3 * number) for number in range(len(brought))]


def expected_number_column(brought: Brought) -> list[int]:
    numbers = (1, 2, 3)
    files = [file for each in brought for file in each]
    return [n for n, file in zip(numbers, files, strict=True) for _ in range(file.records)]


def record_of_other_sink(number: int) -> CommitRecord:
    return record(1, number, 3 * number, sink="other")


def require_record_unchanged(world: ReaderWorld, before: TableView) -> TableView:
    view = world.open().read()
    assert view.record == before.record
    return view


def paths_with_row_counts(files: Sequence[WrittenFile]) -> list[tuple[str, int]]:
    return sorted((file.path, file.records) for file in files)


def added_files_of(reader: TableReader, commit: SinkCommit) -> list[tuple[str, int]]:
    return sorted(reader.added_files(commit) or ())


def commits_with_files(
    reader: TableReader, brought: Brought
) -> list[tuple[SinkCommit, tuple[WrittenFile, ...]]]:
    return list(zip(reader.history().commits, brought, strict=True))


def row_count_of(reader: TableReader) -> int:
    return sum(file.records for file in reader.live_files())


def read_number_column(reader: TableReader) -> list[int]:
    _, files = reader.scan(["number"])
    return sorted(n for file in files for n in number_column_of_batches(file.batches()))


def number_column_of_batches(batches: Iterable[Any]) -> list[int]:
    return [number for rows in batches for number in rows.column("number").to_pylist()]


def read_all(reader: TableReader) -> tuple[TableView, History, list[str], list[int]]:
    live = sorted(file.path for file in reader.live_files())
    return reader.view(), reader.history(), live, read_number_column(reader)


def require_same_view(history: History, seen: TableView, committed: TableView) -> None:
    """The reader's view is that of the table, whose numbers may be others."""
    assert (history.table, history.uuid) == (committed.table, committed.uuid)
    assert (seen.uuid, seen.record, seen.lineage) == (
        committed.uuid,
        committed.record,
        committed.lineage,
    )
