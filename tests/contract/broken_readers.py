"""Mutants of the page's folder: what its reader tells, its stamps, and its new columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq
from contract.broken import broken
from contract.small_folder import EvolvingTable, Folder, FolderReader, StampedTable

from headgate.control_protocol.columns import Struct
from headgate.control_protocol.commit_tokens import ANY
from headgate.control_protocol.errors import RetryLater
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    EvolvedTable,
    Refused,
    TableView,
)
from headgate.control_protocol.table_history import History, LiveFile, Newest
from headgate.control_protocol.testing.contract import (
    CommitTokenContract,
    EvolutionContract,
    OthersReaderContract,
    ReaderContract,
)

HISTORY = (FolderReader, "history")
SCAN = (FolderReader, "scan")
LIVE = (FolderReader, "live_files")
ADMITS = (StampedTable, "admits")
EVOLVE = (EvolvingTable, "evolve")
TESTS = ReaderContract


def with_commits(history: History, **changed: Any) -> History:
    return replace(history, commits=tuple(replace(each, **changed) for each in history.commits))


def with_foreign(history: History, **changed: Any) -> History:
    return replace(history, foreign=tuple(replace(each, **changed) for each in history.foreign))


# --------------------------------------------------------------------------------------- the sink's


@broken(TESTS.test_a_table_that_no_sink_has_claimed_has_no_history, HISTORY)
def claimed_by_nobody(right: Any, *args: Any) -> History:
    """A table that no sink has claimed says that it is claimed."""
    return replace(right(*args), claimed=True)


@broken(TESTS.test_a_table_that_no_sink_has_claimed_has_no_history, (FolderReader, "columns"))
def columns_unknown(right: Any, *args: Any) -> list[str]:
    """It says no columns."""
    return []


@broken(TESTS.test_the_sinks_commits_are_told_in_order_each_with_what_it_added, HISTORY)
def newest_first(right: Any, *args: Any) -> History:
    """The newest commit comes first."""
    found = right(*args)
    return replace(found, commits=found.commits[::-1])


@broken(TESTS.test_the_sinks_commits_are_told_in_order_each_with_what_it_added, HISTORY)
def newest_left_out(right: Any, *args: Any) -> History:
    """The newest commit is missing."""
    found = right(*args)
    return replace(found, commits=found.commits[:-1])


@broken(TESTS.test_the_sinks_commits_are_told_in_order_each_with_what_it_added, HISTORY)
def added_rows_uncounted(right: Any, *args: Any) -> History:
    """A commit does not say how many rows it added."""
    return with_commits(right(*args), added_records=0)


@broken(TESTS.test_the_sinks_commits_are_told_in_order_each_with_what_it_added, HISTORY)
def one_file_each(right: Any, *args: Any) -> History:
    """Every commit is said to have added one file."""
    return with_commits(right(*args), added_files=1)


@broken(
    TESTS.test_the_sinks_commits_are_told_in_order_each_with_what_it_added,
    (FolderReader, "added_files"),
)
def adds_nothing(right: Any, *args: Any) -> list[tuple[str, int]]:
    """Which files a commit added is not told."""
    return []


@broken(
    TESTS.test_the_sinks_commits_are_told_in_order_each_with_what_it_added, (FolderReader, "view")
)
def view_without_record(right: Any, *args: Any) -> TableView:
    """The reader's view has no record of the sink."""
    return replace(right(*args), record=None)


@broken(TESTS.test_the_history_is_tagged_at_the_sinks_newest_commit, HISTORY)
def tag_is_the_first_commit(right: Any, *args: Any) -> History:
    """The tag does not move on."""
    found = right(*args)
    return replace(found, tag=1) if found.commits else found


@broken(TESTS.test_a_history_of_the_newest_commits_may_hold_more, HISTORY)
def newest_are_the_oldest(right: Any, self: Any, newest: Newest | None = None) -> History:
    """Whoever asks for the newest commits is given the oldest."""
    found = right(self)
    return replace(found, commits=found.commits[: newest.snapshots]) if newest else found


@broken(TESTS.test_a_history_of_the_newest_commits_may_hold_more, HISTORY)
def a_part_is_the_whole(right: Any, self: Any, newest: Newest | None = None) -> History:
    """Who is given a part of the history is told that it is complete."""
    found = right(self)
    return replace(found, commits=found.commits[-newest.snapshots :]) if newest else found


# ----------------------------------------------------------------------------------- files and rows


@broken(TESTS.test_the_live_files_and_rows_are_those_that_were_committed, LIVE)
def a_live_file_left_out(right: Any, *args: Any) -> list[LiveFile]:
    """The first file is not among the live ones."""
    return right(*args)[1:]  # type: ignore[no-any-return]


@broken(TESTS.test_the_live_files_and_rows_are_those_that_were_committed, LIVE)
def all_came_at_once(right: Any, *args: Any) -> list[LiveFile]:
    """All files are said to have come with one commit."""
    return [replace(each, added_by=2) for each in right(*args)]


@broken(
    TESTS.test_the_live_files_and_rows_are_those_that_were_committed,
    (FolderReader, "stored_size_and_rows"),
)
def another_size(right: Any, *args: Any) -> tuple[int, int]:
    """A file is said to be longer than it is."""
    size, rows = right(*args)
    return size + 1, rows


@broken(TESTS.test_rows_are_read_with_the_columns_that_were_asked_for, SCAN)
def files_miscounted(right: Any, *args: Any) -> tuple[int, Iterator[Any]]:
    """A scan announces a file more than it reads."""
    count, files = right(*args)
    return count + 1, files


@broken(TESTS.test_rows_are_read_with_the_columns_that_were_asked_for, SCAN)
def a_file_unread(right: Any, *args: Any) -> tuple[int, Iterator[Any]]:
    """A scan leaves out a file, and announces it."""
    count, files = right(*args)
    return count, iter(list(files)[1:])


@broken(TESTS.test_rows_are_read_with_the_columns_that_were_asked_for, SCAN)
def other_columns(right: Any, self: Any, columns: Sequence[str]) -> tuple[int, Iterator[Any]]:
    """A scan reads a column that nobody asked for."""
    count, files = right(self, columns)

    def more(batches: Any) -> Any:
        return lambda: (rows.append_column("more", rows.column(0)) for rows in batches())

    return count, (replace(file, batches=more(file.batches)) for file in files)


# ---------------------------------------------------------------------------------- those of others


@broken(TESTS.test_what_other_sinks_committed_is_not_the_sinks_own, HISTORY)
def others_untold(right: Any, *args: Any) -> History:
    """What others committed is not told."""
    return replace(right(*args), foreign=())


@broken(TESTS.test_what_other_sinks_committed_is_not_the_sinks_own, HISTORY)
def others_without_topics(right: Any, *args: Any) -> History:
    """Of other sinks it is not told what they read."""
    return with_foreign(right(*args), topic_ids={})


@broken(TESTS.test_a_reader_notices_that_the_table_moved_and_shows_it_as_it_was, (Folder, "view"))
def looks_again(right: Any, self: Any, sink: Any, versions: Any) -> TableView:
    """A view is of now, whenever the versions were read."""
    return right(self, sink, self.versions())  # type: ignore[no-any-return]


@broken(
    TESTS.test_a_reader_notices_that_the_table_moved_and_shows_it_as_it_was,
    (FolderReader, "has_table_changed"),
)
def always_moves(right: Any, *args: Any) -> bool:
    """The table is always said to have moved."""
    return True


@broken(TESTS.test_a_reader_notices_what_other_sinks_commit, (FolderReader, "has_table_changed"))
def the_sink_alone_moves_it(right: Any, self: Any) -> bool:
    """Only the sink's own commits are noticed."""
    return self.folder.view(self.sink, self.folder.versions()).tag != self.view().tag


@broken(OthersReaderContract.test_rows_of_others_are_counted_as_theirs, HISTORY)
def rows_of_others_uncounted(right: Any, *args: Any) -> History:
    """Of others' commits it is not told how many rows they brought."""
    return with_foreign(right(*args), added_records=0)


@broken(OthersReaderContract.test_a_compaction_adds_and_removes_no_row, HISTORY)
def compactions_take_rows_away(right: Any, *args: Any) -> History:
    """Others' commits are told as if they had taken a row away."""
    return with_foreign(right(*args), operation="overwrite", row_deletes=1)


# --------------------------------------------------------------------------------------- the stamps


@broken(
    CommitTokenContract.test_token_2_no_token_is_given_twice_and_files_belong_to_their_own,
    (StampedTable, "new_token"),
)
def the_same_stamp_for_all(right: Any, self: Any) -> str:
    """Every transaction has the same stamp."""
    return f"{self.folder.root}/{ANY}_0.parquet"


@broken(
    CommitTokenContract.test_token_2_files_land_under_the_token_that_came_before_the_claim, ADMITS
)
def void_before_the_claim(right: Any, self: Any, marks: set[str]) -> bool:
    """The first stamp, which came before the claim, brings nothing."""
    return right(self, marks) and not marks & set(self.given[:1])


@broken(
    CommitTokenContract.test_token_2_the_next_transaction_has_its_token_before_one_lands, ADMITS
)
def the_newest_stamp_alone(right: Any, self: Any, marks: set[str]) -> bool:
    """When the next stamp is given, the one before brings nothing any more."""
    return right(self, marks) and marks <= set(self.given[-1:])


@broken(CommitTokenContract.test_token_2_an_unused_token_blocks_no_later_commit, ADMITS)
def stamps_must_be_used(right: Any, self: Any, marks: set[str]) -> bool:
    """Once a stamp was given, no commit lands without files."""
    return right(self, marks) and bool(marks or not self.given)


@broken(
    CommitTokenContract.test_token_2_what_comes_after_its_commit_is_refused_for_good,
    (StampedTable, "commit"),
)
def late_files_are_refused_for_now(right: Any, self: Any, attempt: CommitAttempt) -> CommitOutcome:
    """What comes after its commit is refused as if it might land with the next try."""
    outcome = right(self, attempt)
    return replace(outcome, for_good=False) if isinstance(outcome, Refused) else outcome


@broken(CommitTokenContract.test_token_2_what_comes_after_its_commit_is_refused_for_good, ADMITS)
def late_files_land(right: Any, self: Any, marks: set[str]) -> bool:
    """A stamp may be used again."""
    return len(marks) <= 1


@broken(CommitTokenContract.test_token_2_files_of_two_tokens_never_land_in_one_commit, ADMITS)
def stamps_mixed(right: Any, self: Any, marks: set[str]) -> bool:
    """A commit brings files of any stamps that have not landed."""
    return all(right(self, {mark}) for mark in marks)


# -------------------------------------------------------------------------------------- new columns


@broken(
    EvolutionContract.test_schema_3_a_new_column_stands_behind_the_others_and_has_another_number,
    EVOLVE,
)
def changes_untold(right: Any, *args: Any) -> EvolvedTable:
    """What was done to the columns is not told."""
    return replace(right(*args), changes=())


@broken(
    EvolutionContract.test_schema_3_a_new_column_stands_behind_the_others_and_has_another_number,
    EVOLVE,
)
def the_view_before(right: Any, self: Any, base: TableView, columns: Struct) -> EvolvedTable:
    """The table's columns are new, and the view that is returned is not."""
    return replace(right(self, base, columns), view=base)


@broken(
    EvolutionContract.test_schema_3_files_of_before_land_beside_those_of_afterwards,
    (EvolvingTable, "commit"),
)
def all_columns_or_none(right: Any, self: Any, attempt: CommitAttempt) -> CommitOutcome:
    """Files that lack a column are refused."""
    self.read()
    wanted = len(self.folder.columns.fields)
    found = [pq.read_schema(unquote(urlparse(file.path).path)) for file in attempt.files]
    lacking = any(len(schema.names) < wanted for schema in found)
    return Refused("a column is missing", for_good=True) if lacking else right(self, attempt)


@broken(EvolutionContract.test_schema_8_columns_that_are_there_already_need_no_change, EVOLVE)
def changed_again(right: Any, *args: Any) -> EvolvedTable:
    """Columns that are there are said to be new."""
    return replace(right(*args), changes=("+more",))


@broken(EvolutionContract.test_schema_3_whoever_was_overtaken_changes_nothing, EVOLVE)
def changes_for_anybody(right: Any, self: Any, base: TableView, columns: Struct) -> EvolvedTable:
    """Who was overtaken changes the columns all the same."""
    return right(self, self.read(), columns)  # type: ignore[no-any-return]


@broken(EvolutionContract.test_schema_7_a_name_that_differs_in_case_alone_is_refused, EVOLVE)
def refusals_untold(right: Any, *args: Any) -> EvolvedTable:
    """Which columns the table will not have is not told."""
    return replace(right(*args), refused=())


@broken(EvolutionContract.test_schema_8_a_lost_answer_is_asked_for_again, EVOLVE)
def takes_silence_for_consent(
    right: Any, self: Any, base: TableView, columns: Struct
) -> EvolvedTable:
    """A lost answer is taken for columns that were not wanted."""
    try:
        return right(self, base, columns)  # type: ignore[no-any-return]
    except RetryLater:
        return EvolvedTable(base)
