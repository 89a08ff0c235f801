"""Mutants of the small target with a key: which record of a key counts, and what is counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from contract.broken import broken
from contract.small_target import KeyedRows, SmallTable, Version

from headgate.control_protocol.commit_record import KeyCounts
from headgate.control_protocol.events import FileKind, WrittenFile
from headgate.control_protocol.ports import CommitAttempt, CommitOutcome, Landed, TableView, Unknown
from headgate.control_protocol.table_format import files_with_transaction_ranks
from headgate.control_protocol.testing.contract import KeyContract, KeyedSecondaryContract
from headgate.control_protocol.testing.contract.world import KeyChange

COMMIT = (SmallTable, "commit")
NEXT = (SmallTable, "next")
SAME = (SmallTable, "as_it_was")
RESOLVED = (SmallTable, "resolve")
ORDER = (SmallTable, "in_order")
REFUSE = (SmallTable, "require_files_fit_and_exist")


@broken(KeyContract.test_key_3_the_last_record_of_a_key_wins_whatever_file_it_came_in, ORDER)
def the_last_file_wins(right: Any, self: SmallTable, attempt: CommitAttempt) -> list[KeyChange]:
    """Records of a key count in the order of their files."""
    contents = self.server.contents
    return [change for file in attempt.files for change in contents[file.path]]


@broken(
    KeyContract.test_key_3_the_last_record_of_a_key_wins_whatever_file_it_came_in,
    (SmallTable, "became"),
)
def absent_keys_are_deleted(right: Any, self: Any, change: KeyChange, before: KeyedRows) -> str:
    """A key that the table did not have is counted as deleted."""
    return "deleted" if change.value is None else right(self, change, before)


@broken(KeyContract.test_key_3_a_commit_without_files_keeps_the_rows, NEXT)
def only_keys_that_are_named_stay(
    right: Any, self: SmallTable, before: Version, number: int, attempt: CommitAttempt
) -> Version:
    """A commit without files leaves a table without rows."""
    version = right(self, before, number, attempt)
    return version if attempt.files else replace(version, rows={})


@broken(KeyContract.test_key_9_a_deleted_key_may_come_back_from_another_partition, RESOLVED)
def deleted_keys_are_remembered(
    right: Any, self: SmallTable, before: KeyedRows, attempt: CommitAttempt
) -> tuple[KeyedRows, KeyCounts]:
    """A key stays with the partition that deleted it."""
    deleted = vars(self.server).setdefault("deleted", {})
    for change in self.in_order(attempt):
        self.refuse_two_partitions(change, deleted.get(change.key))
        if change.value is None:
            deleted[change.key] = change
    return right(self, before, attempt)


@broken(
    KeyContract.test_key_3_between_commits_the_later_one_is_newer_whatever_its_offsets, RESOLVED
)
def a_higher_offset_stays(
    right: Any, self: SmallTable, before: KeyedRows, attempt: CommitAttempt
) -> tuple[KeyedRows, KeyCounts]:
    """A row is kept where its record had a higher offset than the commit's."""
    after, counts = right(self, before, attempt)
    newest = {change.key: change.offset for change in self.in_order(attempt)}
    kept = {k: row for k, row in before.items() if newest.get(k, row.offset) < row.offset}
    return {**after, **kept}, counts


@broken(
    KeyContract.test_key_8_a_key_in_two_partitions_is_refused_and_nothing_of_it_lands,
    (SmallTable, "refuse_two_partitions"),
)
def two_partitions_are_fine(right: Any, *_: object) -> None:
    """A key may be in two partitions."""


@broken(
    KeyContract.test_key_8_a_key_in_two_partitions_is_refused_and_nothing_of_it_lands,
    (SmallTable, "refuse_two_partitions"),
)
def deletes_from_anywhere(
    right: Any, self: SmallTable, change: KeyChange, before: KeyChange | None
) -> None:
    """Only records that put a row are compared with the row's partition."""
    if change.value is not None:
        right(self, change, before)


@broken(KeyContract.test_key_5_a_refused_commit_resolves_its_keys_again, SAME)
def keyed_commits_are_carried_on(right: Any, _: Any, now: TableView, base: TableView) -> bool:
    """A commit with keys is not refused where others were quicker: it finds the keys now."""
    return now.uuid == base.uuid


@broken(KeyContract.test_key_3_a_lost_answer_changes_each_key_once, (SmallTable, "send"))
def deletes_before_the_record(right: Any, self: SmallTable, *args: Any) -> CommitOutcome:
    """Keys are changed in one step and the record is written in the next, which does not come."""
    outcome = right(self, *args)
    if isinstance(outcome, Unknown):
        newest = self.server.versions[-1]
        self.server.versions[-1] = replace(newest, rows=args[-1].rows)
    return outcome


@broken(
    KeyedSecondaryContract.test_key_3_a_delivery_resolves_all_that_it_brings_and_later_transactions_are_newer,
    ORDER,
)
def transactions_of_a_delivery_are_one(
    right: Any, self: SmallTable, attempt: CommitAttempt
) -> list[KeyChange]:
    """Offsets decide between records of two transactions, too."""
    return right(self, replace(attempt, transactions=()))


@broken(
    KeyedSecondaryContract.test_key_3_the_same_offset_of_a_topic_and_of_its_older_self_are_two_records,
    ORDER,
)
def an_offset_is_one_record(
    right: Any, self: SmallTable, attempt: CommitAttempt
) -> list[KeyChange]:
    """A record whose partition and offset came before in the delivery is taken for a repetition."""
    changes = right(self, attempt)
    last = {(change.key, change.partition, change.offset): change for change in changes}
    return [change for change in changes if change in last.values()]


@broken(
    KeyedSecondaryContract.test_key_8_a_key_in_two_partitions_is_found_between_transactions_too,
    ORDER,
)
def partitions_compared_within_a_transaction(
    right: Any, self: SmallTable, attempt: CommitAttempt
) -> list[KeyChange]:
    """A later transaction's record of a key replaces those of earlier ones unseen."""
    newest = {
        change.key: number
        for file, number in sorted(files_with_transaction_ranks(attempt), key=lambda each: each[1])
        for change in self.server.contents[file.path]
    }
    found = {
        change: number
        for file, number in files_with_transaction_ranks(attempt)
        for change in self.server.contents[file.path]
    }
    return [change for change in right(self, attempt) if found[change] == newest[change.key]]


@broken(
    KeyedSecondaryContract.test_key_2_key_files_are_looked_at_before_they_are_decided_and_outlive_the_answer,
    COMMIT,
)
def key_files_go_with_the_delivery(
    right: Any, self: SmallTable, attempt: CommitAttempt
) -> CommitOutcome:
    """Key files are removed as soon as their delivery has landed."""
    outcome = right(self, attempt)
    if isinstance(outcome, Landed):
        for file in attempt.files:
            if file.kind is FileKind.KEYS:
                del self.server.contents[file.path]
    return outcome


@broken(
    KeyedSecondaryContract.test_key_2_a_key_file_that_is_gone_is_refused_before_it_is_decided,
    REFUSE,
)
def key_files_are_not_looked_at(right: Any, self: SmallTable, files: Sequence[WrittenFile]) -> None:
    """Only files of rows are looked at before they are decided."""
    right(self, [file for file in files if file.kind is FileKind.ROWS])
