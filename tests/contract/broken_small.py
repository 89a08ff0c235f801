"""Mutants of the small target: commits, deliveries, and what a ledger remembers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Barrier
from typing import Any

from contract.broken import broken
from contract.small_target import Server, SmallTable, Version

from headgate.control_protocol.errors import TableMissing
from headgate.control_protocol.events import WrittenFile
from headgate.control_protocol.ports import (
    CommitAttempt,
    CommitOutcome,
    Landed,
    Refused,
    TableView,
    Unknown,
)
from headgate.control_protocol.testing.contract import (
    CoreContract,
    LedgerContract,
    RaceContract,
    SecondaryContract,
)

WAIT_S_MAX = 30
COMMIT = (SmallTable, "commit")
NEXT = (SmallTable, "next")
SAME = (SmallTable, "as_it_was")
VIEW = (SmallTable, "view")
REFUSE = (SmallTable, "require_files_fit_and_exist")

# ------------------------------------------------------------------------------------ every table


@broken(RaceContract.test_of_two_that_commit_at_the_same_moment_one_lands, (Server, "put"))
def sets_in_a_second_step(right: Any, self: Server, uuid: str, number: int, new: Version) -> bool:
    """It compares, and sets then; in between the other one has its turn."""
    if number != len(self.versions):
        return False
    vars(self).setdefault("turn", Barrier(2)).wait(WAIT_S_MAX)
    self.versions.append(new)
    return True


@broken(CoreContract.test_an_untouched_table_is_fresh, VIEW)
def location_unsaid(right: Any, *args: Any) -> TableView:
    """A view does not say where the table lies."""
    return replace(right(*args), location="")


@broken(CoreContract.test_the_first_claim_lands_and_is_read_back_whole, COMMIT)
def answers_with_the_view_before(right: Any, self: SmallTable, attempt: Any) -> CommitOutcome:
    """A commit that landed returns the table as it was before, with the new tag."""
    outcome = right(self, attempt)
    if isinstance(outcome, Landed):
        head = outcome.snapshot_id
        return Landed(head, replace(attempt.base, head=head, tag=head))
    return outcome


@broken(CoreContract.test_two_first_claims_race_and_one_lands, SAME)
def first_claims_are_free(right: Any, _: Any, now: TableView, base: TableView) -> bool:
    """Who found no tag needs none."""
    return right(_, now, base) or (base.tag is None and now.uuid == base.uuid)


@broken(CoreContract.test_files_and_record_land_together, COMMIT)
def record_without_files(right: Any, self: SmallTable, attempt: CommitAttempt) -> CommitOutcome:
    """Of several files only the first lands."""
    return right(self, replace(attempt, files=attempt.files[:1]))


@broken(CoreContract.test_each_commit_continues_from_the_view_of_the_last, NEXT)
def keeps_the_newest_files_only(right: Any, self: Any, before: Version, *args: Any) -> Version:
    """A commit replaces the files of the one before."""
    return right(self, replace(before, files=()), *args)


@broken(CoreContract.test_an_empty_commit_moves_the_tag_and_keeps_the_rows, NEXT)
def empty_commits_move_nothing(
    right: Any, self: SmallTable, before: Version, number: int, attempt: CommitAttempt
) -> Version:
    """A commit without files is not the sink's newest."""
    if attempt.files or self.sink not in before.said:
        return right(self, before, number, attempt)
    return before


@broken(CoreContract.test_a_second_coordinator_fences_the_first, SAME)
def any_head_will_do(right: Any, _: Any, now: TableView, base: TableView) -> bool:
    """Attempts are carried to the newest version, whoever made that."""
    return now.uuid == base.uuid


@broken(CoreContract.test_a_stale_base_is_refused_on_a_newly_opened_table, SAME)
def trusts_its_own_memory(right: Any, self: SmallTable, now: TableView, base: TableView) -> bool:
    """What counts is what this connection knows, and not what the attempt is based on."""
    known = vars(self).setdefault("known", now)
    return right(self, now, known if base.tag else base)


@broken(CoreContract.test_a_base_whose_tag_is_older_than_its_head_is_refused, SAME)
def tag_not_compared(right: Any, _: Any, now: TableView, base: TableView) -> bool:
    """A table that is as far as it was when it was read has the same history."""
    return (now.uuid, now.head) == (base.uuid, base.head)


@broken(CoreContract.test_the_same_attempt_twice_lands_once, COMMIT)
def repeats_are_welcome(right: Any, self: SmallTable, attempt: CommitAttempt) -> CommitOutcome:
    """An attempt of the sink's newest transaction is a retry, and is done once more."""
    now = self.read()
    if now.record and now.record.is_same_commit(attempt.record):
        attempt = replace(attempt, base=now)
    return right(self, attempt)


@broken(CoreContract.test_two_sinks_share_a_table, NEXT)
def sinks_share_a_record(right: Any, self: Any, before: Version, *args: Any) -> Version:
    """The table remembers the newest commit, of whatever sink."""
    return right(self, replace(before, said={}), *args)


@broken(CoreContract.test_two_sinks_share_a_table, COMMIT)
def forgets_other_sinks(right: Any, self: SmallTable, attempt: CommitAttempt) -> CommitOutcome:
    """The view after a commit tells of no other sink, though the table's next one does."""
    outcome = right(self, attempt)
    if isinstance(outcome, Landed):
        return Landed(outcome.snapshot_id, replace(outcome.view, others={}))
    return outcome


@broken(CoreContract.test_a_recreated_table_has_another_uuid_and_refuses, SAME)
def uuid_not_compared(right: Any, _: Any, now: TableView, base: TableView) -> bool:
    """A table that was created again is the same table, as far as it goes."""
    return (now.head, now.tag) == (base.head, base.tag)


@broken(CoreContract.test_a_large_record_is_read_back_whole, NEXT)
def large_records_are_cut(right: Any, *args: Any) -> Version:
    """A value of the record has room for 4,000 characters."""
    version = right(*args)
    said = {
        sink: (number, {key: value[:4_000] for key, value in record.items()})
        for sink, (number, record) in version.said.items()
    }
    return replace(version, said=said)


@broken(CoreContract.test_a_dropped_table_is_missing, (SmallTable, "read"))
def what_is_dropped_is_empty(right: Any, self: SmallTable) -> TableView:
    """A table that is not there is read as one without commits."""
    try:
        return right(self)
    except TableMissing:
        return self.view(self.server.uuid, 0, Version())


@broken(CoreContract.test_a_lost_answer_is_unknown_and_the_table_tells, COMMIT)
def no_answer_is_a_refusal(right: Any, self: SmallTable, attempt: Any) -> CommitOutcome:
    """After a lost connection a commit is taken for refused."""
    outcome = right(self, attempt)
    return Refused("it failed") if isinstance(outcome, Unknown) else outcome


@broken(CoreContract.test_repeating_an_attempt_that_landed_unseen_is_refused, COMMIT)
def a_repetition_has_landed(right: Any, self: SmallTable, attempt: Any) -> CommitOutcome:
    """An attempt that is the table's newest commit is answered as if it had just landed."""
    now = self.read()
    if now.tag and now.record and now.record.is_same_commit(attempt.record):
        return Landed(now.tag, now)
    return right(self, attempt)


# -------------------------------------------------------------------------------------- secondary
# tables


@broken(SecondaryContract.test_files_are_taken_long_after_they_were_written, NEXT)
def pending_files_expire(
    right: Any, self: SmallTable, before: Version, number: int, attempt: CommitAttempt
) -> Version:
    """Files that are older than the newest ones of the table are left out."""
    newest = max((_age(file) for file in before.files), default=0)
    young = tuple(file for file in attempt.files if _age(file) > newest)
    return right(self, before, number, replace(attempt, files=young))


@broken(
    SecondaryContract.test_the_first_commit_may_bring_rows_for_nobody_claims_a_secondary,
    COMMIT,
)
def wants_to_be_claimed(right: Any, self: SmallTable, attempt: CommitAttempt) -> CommitOutcome:
    """The first commit of a sink may bring no rows."""
    if attempt.files and attempt.base.tag is None:
        return Refused("nobody has claimed it")
    return right(self, attempt)


@broken(SecondaryContract.test_two_deliver_the_same_and_one_is_refused, SAME)
def delivers_a_pending_commit_twice(
    right: Any, self: SmallTable, now: TableView, base: TableView
) -> bool:
    """Deliveries only add: they need not find the table as it was."""
    return now.uuid == base.uuid and (now.record is None or bool(now.record.primary))


@broken(SecondaryContract.test_an_empty_delivery_fences_one_that_comes_late, COMMIT)
def empty_deliveries_are_not_made(
    right: Any, self: SmallTable, attempt: CommitAttempt
) -> CommitOutcome:
    """A delivery without files has landed, as there is nothing to do."""
    if attempt.record.primary and not attempt.files:
        return Landed(1, replace(attempt.base, head=1, tag=1, record=attempt.record))
    return right(self, attempt)


@broken(
    SecondaryContract.test_a_lost_answer_is_unknown_and_the_secondary_tells,
    (SmallTable, "send"),
)
def files_before_the_record(right: Any, self: SmallTable, *args: Any) -> CommitOutcome:
    """Rows are added in one step and the record in the next, which does not come."""
    outcome = right(self, *args)
    if isinstance(outcome, Unknown):
        newest = self.server.versions[-1]
        self.server.versions[-1] = replace(newest, files=args[-1].files)
    return outcome


@broken(
    SecondaryContract.test_what_the_table_cannot_be_given_is_refused_before_it_is_decided,
    REFUSE,
)
def takes_everything(right: Any, self: SmallTable, files: Sequence[WrittenFile]) -> None:
    """Nobody looks at files before their rows are decided."""


@broken(
    SecondaryContract.test_files_that_are_gone_are_neither_decided_nor_delivered,
    (SmallTable, "require_there"),
)
def decides_what_is_gone(right: Any, self: SmallTable, files: Sequence[WrittenFile]) -> None:
    """Nobody looks whether files exist."""


@broken(SecondaryContract.test_files_that_are_gone_are_neither_decided_nor_delivered, COMMIT)
def delivers_what_is_gone(right: Any, self: SmallTable, attempt: CommitAttempt) -> CommitOutcome:
    """Files that are gone are left out of a delivery, which lands."""
    there = tuple(file for file in attempt.files if file.path in self.server.contents)
    return right(self, replace(attempt, files=there))


@broken(SecondaryContract.test_the_record_of_a_secondary_keeps_what_a_replay_gave_back, NEXT)
def keeps_no_replay(
    right: Any, self: SmallTable, before: Version, number: int, attempt: CommitAttempt
) -> Version:
    """The record does not say what the table was given again."""
    record = replace(attempt.record, replayed=None)
    return right(self, before, number, replace(attempt, record=record))


def _age(file: WrittenFile) -> int:
    """Files are numbered in the order in which they were written."""
    return int(file.path.rpartition("/")[2])


# ---------------------------------------------------------------------------------------- ledgers


@broken(
    LedgerContract.test_ledger_2_what_was_filled_is_remembered_until_a_commit_forgets_it,
    (SmallTable, "filled_after"),
)
def forgets_nothing(
    right: Any, self: SmallTable, before: Mapping[str, str], attempt: CommitAttempt
) -> Mapping[str, str]:
    """``forgets`` is not heeded."""
    return right(self, before, replace(attempt, forgets=frozenset()))


@broken(
    LedgerContract.test_ledger_2_what_was_filled_is_remembered_until_a_commit_forgets_it,
    (SmallTable, "filled_after"),
)
def remembers_one_commit(
    right: Any, self: SmallTable, before: Mapping[str, str], attempt: CommitAttempt
) -> Mapping[str, str]:
    """Only the tables of the newest commit are remembered."""
    return right(self, {}, attempt)


@broken(LedgerContract.test_ledger_2_a_refused_decision_remembers_nothing, COMMIT)
def remembers_what_was_refused(
    right: Any, self: SmallTable, attempt: CommitAttempt
) -> CommitOutcome:
    """The ledger's memory is written before the decision, by a call of its own."""
    versions = self.server.versions
    versions[-1] = replace(versions[-1], filled=self.filled_after(versions[-1].filled, attempt))
    return right(self, attempt)
