"""Mutants of the shipped fakes: a table that others write to, set back, expire and branch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from contract.broken import broken

from headgate.control_protocol import commit_record_codec
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.identifiers import SinkName, TopicId, tag_name
from headgate.control_protocol.ports import CommitAttempt, CommitOutcome, Lineage, Refused
from headgate.control_protocol.testing import FakeCatalog, FakeTable
from headgate.control_protocol.testing.catalog import FakeSnapshot, Request
from headgate.control_protocol.testing.contract import (
    BranchContract,
    ExpiryContract,
    OthersContract,
    RollbackContract,
    TagContract,
)

CALL = (FakeCatalog, "apply_or_return_refusal")
COMMIT = (FakeTable, "commit")
LINEAGE = (FakeTable, "_judge_branch_lineage")
CLAIMED = (FakeTable, "_was_ever_claimed_by_this_sink")
RECORD = (FakeTable, "_record_of_snapshot")
OTHERS = (FakeTable, "_topic_ids_of_other_sinks")
SNAPSHOT = (FakeCatalog, "new_snapshot")

# ----------------------------------------------------------------------------------------- others


@broken(OthersContract.test_the_first_claim_on_data_of_others_keeps_them, SNAPSHOT)
def claims_begin_anew(right: Any, self: FakeCatalog, *args: Any) -> FakeSnapshot:
    """A sink's first commit leaves out what was in the table before."""
    made = right(self, *args)
    return made if self.tags or not made.summary else replace(made, files=args[1])


@broken(OthersContract.test_a_refused_attempt_lands_on_a_fresh_read, COMMIT)
def refuses_for_good(right: Any, self: FakeTable, attempt: CommitAttempt) -> CommitOutcome:
    """Who was overtaken by a foreign writer must write the files again."""
    outcome = right(self, attempt)
    return replace(outcome, for_good=True) if isinstance(outcome, Refused) else outcome


@broken(OthersContract.test_a_refused_attempt_lands_on_a_fresh_read, CALL)
def head_not_compared(right: Any, self: FakeCatalog, request: Request) -> str | None:
    """A commit replaces what others have committed since."""
    base = replace(request.base, head=self.branches.get(request.branch))
    snapshot = replace(request.snapshot, sequence_number=self.sequence_number + 1)
    return right(self, replace(request, base=base, snapshot=snapshot))


@broken(OthersContract.test_compaction_between_commits_changes_nothing, LINEAGE)
def compaction_is_a_rollback(right: Any, self: FakeTable, tag: int | None) -> Lineage:
    """The sink's newest files must be in the head as they were."""
    head = self._catalog.head(self._branch)
    files = self._catalog.snapshots[tag].files if tag else ()
    gone = head is None or not set(files) <= set(head.files)
    return Lineage.ROLLED_BACK if files and gone else right(self, tag)


@broken(OthersContract.test_the_other_sinks_of_a_branch_say_what_they_read, OTHERS)
def sees_no_other_sink(right: Any, self: FakeTable) -> dict[SinkName, Mapping[str, TopicId]]:
    """Nobody says which topics the other sinks read."""
    return {}


# --------------------------------------------------------------------------------------- rollback


@broken(RollbackContract.test_a_rollback_behind_the_tag_is_seen, LINEAGE)
def rollbacks_go_unseen(right: Any, self: FakeTable, tag: int | None) -> Lineage:
    """What is under the tag is in the branch."""
    return right(self, tag) if tag is None else Lineage.CONTAINS_TAG


@broken(RollbackContract.test_a_rollback_behind_the_tag_is_seen, RECORD)
def keeps_no_record_after_a_rollback(right: Any, self: FakeTable, tag: int) -> CommitRecord | None:
    """The sink's record is the newest one that the branch holds."""
    return self._newest_record_on_branch()


@broken(RollbackContract.test_a_rollback_with_later_foreign_commits_is_seen, LINEAGE)
def a_later_head_is_a_good_one(right: Any, self: FakeTable, tag: int | None) -> Lineage:
    """A head that is newer than the tag has the tag among its ancestors."""
    catalog = self._catalog
    head = catalog.head(self._branch)
    if tag and head and head.sequence_number > catalog.snapshots[tag].sequence_number:
        return Lineage.CONTAINS_TAG
    return right(self, tag)


@broken(RollbackContract.test_a_claim_after_a_rollback_goes_on_from_the_branch, SNAPSHOT)
def goes_on_from_the_tag(
    right: Any, self: FakeCatalog, branch: str, files: Any, summary: Mapping[str, str]
) -> FakeSnapshot:
    """A commit builds on the sink's newest one, and so brings back what was taken back."""
    made = right(self, branch, files, summary)
    tags = [self.snapshots[tag] for tag in self.tags.values()] if summary else []
    kept = [file for tagged in tags for file in tagged.files if file not in made.files]
    return replace(made, files=(*kept, *made.files))


@broken(RollbackContract.test_a_rollback_before_the_tag_is_refused_to_a_stale_base, COMMIT)
def rollbacks_do_not_count(right: Any, self: FakeTable, attempt: CommitAttempt) -> CommitOutcome:
    """A base counts as long as nobody has moved the tag."""
    now = self.read()
    same = (now.uuid, now.tag) == (attempt.base.uuid, attempt.base.tag)
    return right(self, replace(attempt, base=now) if same else attempt)


# ------------------------------------------------------------------------------------------- tags


@broken(TagContract.test_a_deleted_tag_is_not_a_first_start, CLAIMED)
def no_tag_is_a_first_start(right: Any, self: FakeTable) -> bool:
    """A sink without a tag has never been here."""
    return False


@broken(TagContract.test_tag_and_marker_gone_is_no_first_start, CLAIMED)
def the_marker_is_all(right: Any, self: FakeTable) -> bool:
    """Only the marker says that the sink has been here."""
    return commit_record_codec.claim_marker_property(self._sink) in self._catalog.properties


@broken(TagContract.test_tag_and_marker_gone_after_a_rollback_is_no_first_start, CLAIMED)
def the_branch_is_all(right: Any, self: FakeTable) -> bool:
    """Without a marker, only the branch's own history is searched for records."""
    marker = commit_record_codec.claim_marker_property(self._sink) in self._catalog.properties
    return marker or self._newest_record_on_branch() is not None


@broken(TagContract.test_the_marker_alone_shows_that_it_is_no_first_start, CLAIMED)
def the_marker_is_not_read(right: Any, self: FakeTable) -> bool:
    """Only snapshots say that the sink has been here."""
    found = self._catalog.snapshots.values()
    return any(commit_record_codec.holds_record(self._sink, snapshot.summary) for snapshot in found)


@broken(TagContract.test_what_another_sink_wrote_does_not_count, CLAIMED)
def names_are_compared_by_their_beginning(right: Any, self: FakeTable) -> bool:
    """A record of the sink ``one`` is taken for one of ``on``."""
    own = f"headgate.{self._sink}"
    found = self._catalog.snapshots.values()
    return any(name.startswith(own) for snapshot in found for name in snapshot.summary)


@broken(TagContract.test_a_commit_whose_tag_was_deleted_is_refused, COMMIT)
def a_deleted_tag_is_set_again(right: Any, self: FakeTable, attempt: CommitAttempt) -> Any:
    """A commit does not look whether the tag is still there."""
    now = self.read()
    gone = now.tag is None and now.head == attempt.base.head
    return right(self, replace(attempt, base=now) if gone else attempt)


@broken(TagContract.test_another_sinks_marker_does_not_count, CLAIMED)
def any_marker_counts(right: Any, self: FakeTable) -> bool:
    """A table that any sink has filled is nobody's first start."""
    return bool(self._catalog.properties)


# ----------------------------------------------------------------------------------------- expiry


@broken(
    ExpiryContract.test_the_record_survives_expiry_of_every_other_snapshot,
    (FakeCatalog, "expire_snapshots"),
)
def the_tag_holds_nothing(right: Any, self: FakeCatalog, keep: int = 1) -> None:
    """A tag goes with the files of old states, and takes the record with it."""
    self.tags.clear()
    right(self, keep)


@broken(ExpiryContract.test_maintenance_and_an_expiry_do_not_stop_an_idle_sink, LINEAGE)
def what_has_expired_was_taken_back(right: Any, self: FakeTable, tag: int | None) -> Lineage:
    """A tag that the ancestors that are left do not have was rolled back."""
    line = self._catalog.ancestry(self._catalog.branches.get(self._branch))
    known = tag is None or any(snapshot.snapshot_id == tag for snapshot in line)
    return right(self, tag) if known else Lineage.ROLLED_BACK


@broken(ExpiryContract.test_appends_of_others_and_an_expiry_do_not_stop_an_idle_sink, LINEAGE)
def only_compaction_is_known(right: Any, self: FakeTable, tag: int | None) -> Lineage:
    """Behind appends of others, nobody knows what became of an expired tag."""
    found = right(self, tag)
    head = self._catalog.head(self._branch)
    line = self._catalog.ancestry(head.snapshot_id if head else None)
    if tag is None or head is None or any(each.snapshot_id == tag for each in line):
        return found
    return found if head.rewrites else Lineage.UNDECIDABLE


@broken(ExpiryContract.test_a_claim_without_rows_survives_the_expiry_of_its_state, LINEAGE)
def a_claim_has_to_be_found(right: Any, self: FakeTable, tag: int | None) -> Lineage:
    """A tag without rows that has expired from the branch is undecidable."""
    found = right(self, tag)
    line = self._catalog.ancestry(self._catalog.branches.get(self._branch))
    empty = tag is not None and not self._catalog.snapshots[tag].files
    lost = all(snapshot.snapshot_id != tag for snapshot in line)
    return Lineage.UNDECIDABLE if empty and lost else found


@broken(
    ExpiryContract.test_a_rollback_is_seen_though_its_traces_have_expired,
    (FakeCatalog, "ancestry_in_metadata_log"),
)
def the_log_is_not_read(
    right: Any, self: FakeCatalog, snapshot_id: int | None
) -> Iterator[FakeSnapshot]:
    """What has expired is not looked for where the table still remembers it."""
    return self.ancestry(snapshot_id)


@broken(ExpiryContract.test_what_nobody_can_know_stays_undecidable, LINEAGE)
def as_many_rows_are_enough(right: Any, self: FakeTable, tag: int | None) -> Lineage:
    """Where it is undecidable, a head with as many rows as the tag has those rows."""
    found, head = right(self, tag), self._catalog.head(self._branch)
    if found is not Lineage.UNDECIDABLE or tag is None or head is None:
        return found
    rows = [sum(f.records for f in each.files) for each in (head, self._catalog.snapshots[tag])]
    return Lineage.CONTAINS_TAG if rows[0] >= rows[1] else found


@broken(ExpiryContract.test_as_many_rows_of_others_and_a_compaction_hide_no_rollback, LINEAGE)
def a_compaction_with_as_many_rows_is_enough(
    right: Any, self: FakeTable, tag: int | None
) -> Lineage:
    """A head that changed no row, with as many as the tag, has the same rows."""
    found, head = right(self, tag), self._catalog.head(self._branch)
    if found is not Lineage.UNDECIDABLE or tag is None or head is None or not head.rewrites:
        return found
    rows = [sum(f.records for f in each.files) for each in (head, self._catalog.snapshots[tag])]
    return Lineage.CONTAINS_TAG if rows[0] == rows[1] else found


# --------------------------------------------------------------------------------------- branches


@broken(BranchContract.test_a_commit_to_another_branch_costs_at_most_a_repetition, SNAPSHOT)
def builds_on_the_newest_of_any_branch(
    right: Any, self: FakeCatalog, branch: str, files: Any, summary: Mapping[str, str]
) -> FakeSnapshot:
    """A commit has the files of the newest snapshot, of whatever branch."""
    made = right(self, branch, files, summary)
    newest = max(self.snapshots.values(), key=lambda each: each.sequence_number, default=None)
    return replace(made, files=(*newest.files, *files)) if newest else made


@broken(BranchContract.test_a_new_branch_begins_at_mains_head_and_leaves_main, CALL)
def main_follows(right: Any, self: FakeCatalog, request: Request) -> str | None:
    """A commit to a branch moves main as well."""
    refusal = right(self, request)
    if refusal is None:
        self.branches["main"] = request.snapshot.snapshot_id
    return refusal


@broken(BranchContract.test_a_new_branch_begins_at_mains_head_and_leaves_main, SNAPSHOT)
def branches_begin_empty(
    right: Any, self: FakeCatalog, branch: str, files: Any, summary: Mapping[str, str]
) -> FakeSnapshot:
    """A branch begins without the files of main."""
    made = right(self, branch, files, summary)
    return made if branch in self.branches else replace(made, files=files)


@broken(BranchContract.test_on_an_empty_table_two_first_claims_of_a_branch_race_and_one_lands, CALL)
def first_claims_of_a_branch_are_free(
    right: Any, self: FakeCatalog, request: Request
) -> str | None:
    """Who found no branch makes it, even if it is there by now."""
    if request.base.head is not None:
        return right(self, request)
    head, tag = self.branches.get(request.branch), tag_name(request.sink, request.branch)
    base = replace(request.base, head=head, tag=self.tags.get(tag))
    snapshot = replace(request.snapshot, sequence_number=self.sequence_number + 1)
    return right(self, replace(request, base=base, snapshot=snapshot))


@broken(BranchContract.test_a_sink_that_changes_its_branch_is_no_first_start, CLAIMED)
def each_branch_has_a_first_start(right: Any, self: FakeTable) -> bool:
    """A sink that is new to the branch is new to the table."""
    return self._branch in self._catalog.branches and right(self)


@broken(BranchContract.test_the_sinks_of_another_branch_are_not_among_the_others, OTHERS)
def sinks_of_all_branches(right: Any, self: FakeTable) -> dict[SinkName, Mapping[str, TopicId]]:
    """Sinks of main are among those of every branch."""
    other = FakeTable(self._catalog, self._sink)
    return {**right(other), **right(self)}
