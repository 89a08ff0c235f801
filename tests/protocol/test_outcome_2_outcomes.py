"""OUTCOME-2: after anything but "landed" the table is read, and the table alone decides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, SETTINGS, Coordinator, moved_by, with_foreign_commit
from protocol.values import ALICE, COORDINATOR, P0, P1, RIVAL, offsets, record, status, view

from headgate.control_protocol.events import AckCommit
from headgate.control_protocol.machine_io import Append
from headgate.control_protocol.ports import CommitAttempt, Landed, Lineage
from headgate.coordinator.inputs_and_actions import CallFailed, CommitAnswered, CommitTable, Look
from headgate.coordinator.phases import Phase


def test_landed_is_believed() -> None:
    coordinator, _ = committing()
    coordinator.lands()

    (ack,) = coordinator.said
    assert isinstance(ack, AckCommit)
    assert ack.tables[0].snapshot_id == coordinator.table.tag


def test_a_commit_that_landed_and_was_rolled_back_before_its_answer_is_not_believed() -> None:
    """A proxy sends a request twice, and somebody rolls the table back in between: whoever commits
    on that head has passed rows which are not in the table (seed 213480 of the simulation)."""
    coordinator, _ = committing()
    before = coordinator.table.head
    back = replace(coordinator.takes(), head=before, lineage=Lineage.ROLLED_BACK)
    coordinator.given(CommitAnswered(Landed(100, back)))

    assert coordinator.phase is Phase.RECOVERING
    assert not coordinator.wants(Append)


def test_after_a_refusal_the_table_is_read_at_once() -> None:
    coordinator, _ = committing()
    coordinator.refused()

    assert coordinator.reads_primary
    assert not coordinator.wants(Append)


def test_after_an_unknown_outcome_the_table_is_read_before_anything_is_said() -> None:
    coordinator, _ = committing()
    coordinator.unsure()
    assert coordinator.actions[1:] == ()
    coordinator.waits(SETTINGS.retry_backoff_ms)

    assert coordinator.actions == (Look(primary=True),)


def test_x11_our_commit_under_the_tag_had_landed() -> None:
    coordinator, _ = committing()
    coordinator.takes()
    coordinator.unsure()
    coordinator.waits(SETTINGS.retry_backoff_ms)
    coordinator.reads()

    assert not coordinator.wants(CommitTable)
    (ack,) = coordinator.said
    assert isinstance(ack, AckCommit)
    assert ack.offsets == offsets(15, 22)


def test_f57_it_is_recognised_with_foreign_commits_on_top() -> None:
    coordinator, _ = committing()
    table = with_foreign_commit(coordinator.takes())
    coordinator.unsure()
    coordinator.waits(SETTINGS.retry_backoff_ms)
    coordinator.reads(table)

    assert isinstance(coordinator.said[0], AckCommit)


def test_our_tag_untouched_the_same_files_go_on_the_new_head() -> None:
    coordinator, first = committing()
    coordinator.unsure()
    coordinator.waits(SETTINGS.retry_backoff_ms)
    moved = with_foreign_commit(coordinator.table)
    coordinator.reads(moved)

    again = coordinator.attempt
    assert (again.files, again.record) == (first.files, first.record)
    assert again.base == moved


def test_f11_the_first_try_lands_late_and_the_second_is_refused() -> None:
    coordinator, first = committing()
    coordinator.unsure()
    coordinator.waits(SETTINGS.retry_backoff_ms)
    coordinator.reads()
    assert coordinator.wants(CommitTable)
    coordinator.table = moved_by(coordinator.table, first)
    coordinator.refused()
    coordinator.reads()

    assert not coordinator.wants(CommitTable)
    assert isinstance(coordinator.said[0], AckCommit)


def test_x10_refused_many_times_then_unreachable_then_in() -> None:
    """No refusal stops the sink; what was to be committed stays the same to the end."""
    coordinator, first = committing()
    for _ in range(20):
        coordinator.refused()
        while not coordinator.wants(CommitTable):
            if coordinator.reads_primary:
                coordinator.reads(with_foreign_commit(coordinator.table))
            else:
                coordinator.waits(SETTINGS.retry_backoff_max_ms)
    coordinator.unsure()
    for _ in range(5):
        coordinator.waits(SETTINGS.retry_backoff_max_ms)
        coordinator.given(CallFailed("503"))
    coordinator.waits(SETTINGS.retry_backoff_max_ms)
    coordinator.reads()
    assert coordinator.attempt.files == first.files
    coordinator.lands()

    assert isinstance(coordinator.said[0], AckCommit)


def test_waits_double_up_to_the_longest() -> None:
    coordinator, _ = committing()
    waits = []
    for _ in range(6):
        coordinator.unsure()
        began_ms = coordinator.now_ms
        while not coordinator.reads_primary:
            coordinator.waits(1)
        waits.append(coordinator.now_ms - began_ms)
        coordinator.reads()

    assert waits == [10, 20, 40, 80, 80, 80]


@pytest.mark.parametrize("epoch", [EPOCH, EPOCH + 1, EPOCH + 9])
def test_another_coordinators_record_of_the_same_or_a_higher_epoch_supersedes(epoch: int) -> None:
    coordinator, _ = committing()
    coordinator.refused()
    coordinator.reads(view(record(epoch, 0, offsets(10, 20), RIVAL), snapshot=500))

    assert coordinator.phase is Phase.FOLLOWING
    assert not coordinator.wants(CommitTable)


def test_a_lower_epochs_commit_that_came_first_is_taken_up_by_a_new_claim() -> None:
    """A dead coordinator's call landed between our read and our claim."""
    coordinator = Coordinator.at(Phase.CLAIMING)
    coordinator.refused()
    coordinator.reads(view(record(EPOCH - 1, 5, offsets(12, 25), RIVAL), snapshot=500))
    assert coordinator.phase is Phase.RECOVERING
    coordinator.until(Phase.OPEN)

    assert coordinator.term.progress.offsets == offsets(12, 25)


def test_our_own_older_record_is_a_commit_that_the_catalog_forgot() -> None:
    """F63: it said success and did not keep it. What is not in the table is read again."""
    coordinator, _ = committing()
    kept = coordinator.table
    coordinator.lands()
    coordinator.until(Phase.COLLECTING)
    more = status(2, {P0: (15, 16), P1: (22, 22)}, written_in=(EPOCH, 2))
    coordinator.hears(more, ALICE, transaction=2)
    coordinator.waits(1)
    coordinator.refused()
    coordinator.reads(kept)
    assert coordinator.phase is Phase.RECOVERING
    coordinator.until(Phase.OPEN)

    assert coordinator.term.progress.offsets == offsets(10, 20)
    assert coordinator.term.epoch == EPOCH + 1


def test_a_tag_moved_by_hand_begins_again() -> None:
    coordinator, _ = committing()
    coordinator.refused()
    coordinator.reads(view(record(3, 1, offsets(1, 1), COORDINATOR), snapshot=7))

    assert coordinator.phase is Phase.RECOVERING


def committing() -> tuple[Coordinator, CommitAttempt]:
    coordinator = Coordinator.at(Phase.COLLECTING)
    both = status(1, {P0: (10, 15), P1: (20, 22)}, written_in=(EPOCH, 1))
    coordinator.hears(both, ALICE, transaction=1)
    coordinator.waits(1)
    return coordinator, coordinator.attempt
