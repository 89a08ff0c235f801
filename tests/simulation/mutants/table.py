"""TABLE-1 to TABLE-5: the table, its tag and what a commit requires; and the rules that follow from
it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulation.mutants.mutant import Family, Planted

from headgate.control_protocol import commit_record_codec
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import CommitOutcome, Landed, TableView, Unknown
from headgate.control_protocol.testing import FakeCatalog, FakeTable
from headgate.coordinator import epoch_claim, machine, table_checks
from headgate.coordinator.phases import Phase
from headgate.coordinator.recovery import Resolution
from headgate.coordinator.state import Timer

FAMILY = Family()

COMMIT = (FakeTable, "commit")
CALL = (FakeCatalog, "apply_or_return_refusal")


@FAMILY.replaces("TABLE-1", (FakeCatalog, "expire_snapshots"))
def tag_grows_too_old(right: Any, self: FakeCatalog, keep: int = 1) -> None:
    """The tag has the table's age limit, and goes when snapshots expire."""
    self.tags.clear()
    right(self, keep)


@FAMILY.replaces("TABLE-2", (commit_record_codec, "encode_record"))
def forgets_topic_ids(right: Any, record: Any) -> Any:
    """The record carries no topic ids."""
    return right(replace(record, topic_ids=dict.fromkeys(record.topic_ids, "same")))


@FAMILY.replaces("TABLE-2", (commit_record_codec, "encode_record"))
def forgets_pause(right: Any, record: Any) -> Any:
    """The record does not say that the sink is paused."""
    return right(replace(record, paused=False))


@FAMILY.replaces(
    "TABLE-2", (epoch_claim, "fit_offsets_to_sources"), (machine, "fit_offsets_to_sources")
)
def topic_ids_ignored(right: Any, offsets: Offsets, ids: object, topics: Any, settings: Any) -> Any:
    """Topic ids are not compared."""
    return right(offsets, {}, topics, settings)


@FAMILY.replaces("TABLE-3", COMMIT)
def rebases(right: Any, self: FakeTable, attempt: Any) -> CommitOutcome:
    """The library rebases behind our back."""
    return right(self, replace(attempt, base=self.read()))


@FAMILY.replaces("OUTCOME-1", COMMIT)
def deletes_on_unknown(right: Any, self: FakeTable, attempt: Any) -> CommitOutcome:
    """Files of a commit with an unknown outcome are deleted."""
    outcome = right(self, attempt)
    if isinstance(outcome, Unknown):
        for file in attempt.files:
            self._catalog.storage.files.pop(file.path, None)
    return outcome


@FAMILY.replaces("OUTCOME-1", (machine, "on_commit_answer"))
def unknown_is_landed(right: Any, state: Any, outcome: CommitOutcome, now_ms: int) -> Any:
    """An unknown commit is taken for landed."""
    if isinstance(outcome, Unknown) and state.call.attempt:
        view = replace(state.call.attempt.base, record=state.call.attempt.record)
        outcome = Landed(0, view)
    return right(state, outcome, now_ms)


@FAMILY.replaces("OUTCOME-1", (machine, "on_commit_answer"))
def unknown_is_not_landed(right: Any, state: Any, outcome: CommitOutcome, now_ms: int) -> Any:
    """An unknown commit is settled as if nothing had been committed."""
    if isinstance(outcome, Unknown) and state.phase is Phase.COMMITTING:
        settlement = replace(state.term.progress.settlement, offsets=state.term.progress.offsets)
        term = replace(state.term, progress=replace(state.term.progress, settlement=settlement))
        return machine.settle_transaction(replace(state, term=term), None)
    return right(state, outcome, now_ms)


@FAMILY.patches("TABLE-4")
def rolled_back_is_fine() -> tuple[Planted, ...]:
    """Where the branch stands to the tag is not looked at."""
    right = machine.judge_attempt

    def resolve(attempt: Any, view: TableView) -> Resolution:
        same = view.tag == attempt.base.tag and view.uuid == attempt.base.uuid
        return Resolution.AGAIN if same else right(attempt, view)

    return (
        (epoch_claim, "record_to_resume_from", lambda view, settings: view.record),
        (machine, "judge_attempt", resolve),
    )


@FAMILY.replaces("TABLE-4", (machine, "look_before_end"))
def never_looks_round(right: Any, state: Any, now_ms: int) -> Any:
    """END looks at the sources only, however long ago it looked at the tables."""
    return right(state.with_deadline(Timer.LOOK, None), now_ms)


@FAMILY.replaces("TABLE-4", (table_checks, "_have_others_moved_branch"))
def moved_since_it_was_read(_right: Any, known: TableView, found: TableView) -> bool:
    """What others did before the last read, such as one between a decision and its delivery, is
    found by no table check."""
    return (found.uuid, found.tag, found.head) != (known.uuid, known.tag, known.head)


@FAMILY.replaces("TABLE-4", (machine, "on_look_at_secondaries"))
def looks_at_the_primary_table_only(_right: Any, state: Any, *_: object) -> Any:
    """What others did to the secondary tables is found by no table check."""
    return state, ()


@FAMILY.replaces("TABLE-3", CALL)
def uuid_not_required(right: Any, self: FakeCatalog, request: Any) -> Any:
    """A commit does not require the table's UUID."""
    base = replace(request.base, uuid=self.uuid, tag=self.tags.get("headgate-sim"))
    if request.base.uuid == self.uuid:
        return right(self, request)
    base = replace(base, head=self.branches.get(request.branch))
    snapshot = replace(request.snapshot, sequence_number=self.sequence_number + 1)
    return right(self, replace(request, base=base, snapshot=snapshot))


@FAMILY.replaces("TABLE-3", CALL)
def tag_not_required(right: Any, self: FakeCatalog, request: Any) -> Any:
    """A commit does not require the sink's tag: any branch head will do."""
    base = replace(
        request.base,
        tag=self.tags.get("headgate-sim"),
        head=self.branches.get(request.branch),
    )
    head = self.head(request.branch)
    new = len(request.snapshot.files) - len(_files(self, request.snapshot.parent_id))
    files = request.snapshot.files[len(request.snapshot.files) - new :] if new else ()
    snapshot = replace(
        request.snapshot,
        parent_id=head.snapshot_id if head else None,
        sequence_number=self.sequence_number + 1,
        files=(*(head.files if head else ()), *files),
    )
    return right(self, replace(request, base=base, snapshot=snapshot))


def _files(catalog: FakeCatalog, snapshot_id: int | None) -> tuple[Any, ...]:
    snapshot = catalog.snapshots.get(snapshot_id) if snapshot_id is not None else None
    return snapshot.files if snapshot else ()


@FAMILY.replaces("TABLE-3", CALL)
def head_not_required(right: Any, self: FakeCatalog, request: Any) -> Any:
    """A commit does not require the branch head: foreign commits are left behind."""
    base = replace(request.base, head=self.branches.get(request.branch))
    snapshot = replace(request.snapshot, sequence_number=self.sequence_number + 1)
    return right(self, replace(request, base=base, snapshot=snapshot))
