"""TABLE-3: every call to the table requires the UUID, tag and head that its state was read from."""

from __future__ import annotations

from dataclasses import replace

from protocol.coordinating import Coordinator, with_foreign_commit
from protocol.values import P0, RIVAL, offsets, record, status, view

from headgate.coordinator.phases import Phase


def test_the_claim_stands_on_the_table_as_it_was_read() -> None:
    coordinator = Coordinator.at(Phase.CLAIMING)

    assert coordinator.attempt.base == coordinator.table


def test_a_commit_stands_on_the_table_as_our_last_commit_left_it() -> None:
    coordinator = Coordinator.at(Phase.COLLECTING)
    left = coordinator.table
    coordinator.hears(status(1, {P0: (10, 15)}, written_in=(7, 1)), RIVAL, transaction=1)
    coordinator.waits(500)

    assert coordinator.attempt.base == left
    assert coordinator.term.primary.view == left


def test_a_commit_does_not_pass_over_a_head_that_nobody_read() -> None:
    """A foreign commit in between is found by the refusal, never assumed away."""
    coordinator = Coordinator.at(Phase.COLLECTING)
    ours = coordinator.table
    coordinator.table = with_foreign_commit(ours)
    coordinator.hears(status(1, {P0: (10, 15)}, written_in=(7, 1)), RIVAL, transaction=1)
    coordinator.waits(500)

    assert coordinator.attempt.base.head == ours.head


def test_the_next_try_stands_on_what_was_read_after_the_refusal() -> None:
    coordinator = Coordinator.at(Phase.CLAIMING)
    coordinator.refused()
    moved = with_foreign_commit(coordinator.table)
    coordinator.reads(moved)

    assert coordinator.attempt.base == moved


def test_a_table_with_another_uuid_gets_no_second_try_of_the_same_files() -> None:
    coordinator = Coordinator.at(Phase.CLAIMING)
    coordinator.refused()
    coordinator.reads(replace(view(record(6, 4, offsets(10, 20), RIVAL)), uuid="uuid-2"))

    assert coordinator.phase is Phase.RECOVERING
