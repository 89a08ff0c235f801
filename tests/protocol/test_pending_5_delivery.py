"""PENDING-5: a delivery is one call per secondary table for its oldest pending commits, with the
tag and head as read."""

from __future__ import annotations

from protocol.coordinating import EPOCH
from protocol.following import (
    ONE,
    OTHER,
    PRIMARY,
    at,
    delivered_by,
    delivering,
    following,
    pending,
    secondary,
)
from protocol.values import offsets

from headgate.coordinator.inputs_and_actions import DeliverPendingCommits
from headgate.coordinator.phases import Phase


def test_the_oldest_come_first_and_several_go_in_one_call() -> None:
    pending_commits = (
        pending(ONE, 5, 8),
        pending(OTHER, 5, 8),
        pending(ONE, 6, 2),
        pending(ONE, 6, 3),
    )
    behind = (secondary(ONE, 5, 7), secondary(OTHER, 5, 7))
    coordinator = following(*pending_commits, secondaries=behind)
    coordinator.until(Phase.DELIVERING)
    coordinator.follows()
    assert delivered_by(coordinator) == {ONE: [at(5, 8), at(6, 2), at(6, 3)], OTHER: [at(5, 8)]}


def test_its_record_is_the_newest_pending_commits_with_the_leads_offsets_and_uuid() -> None:
    coordinator = delivering()
    coordinator.follows()
    one = coordinator.only(DeliverPendingCommits).deliveries[0].record
    assert one.transaction == at(EPOCH, 1)
    assert one.offsets == offsets(16, 20)
    assert (one.records, one.primary) == (2, PRIMARY)


def test_it_is_built_on_the_secondary_as_it_was_read_just_now() -> None:
    coordinator = delivering()
    compacted = secondary(ONE, snapshot=77)
    coordinator.follows(compacted)
    assert coordinator.only(DeliverPendingCommits).deliveries[0].base == compacted


def test_a_refusal_is_followed_by_a_fresh_read_and_another_call() -> None:
    coordinator = delivering()
    coordinator.follows()
    coordinator.unanswered(refused=True)
    coordinator.waits(100)
    coordinator.follows(secondary(ONE, snapshot=99))
    (one, _) = coordinator.only(DeliverPendingCommits).deliveries
    assert one.base.tag == 99
