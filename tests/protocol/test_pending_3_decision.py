"""PENDING-3: the primary table's commit decides; its record names what is pending, and claims carry
that on."""

from __future__ import annotations

from dataclasses import replace

from protocol.coordinating import EPOCH
from protocol.following import ONE, OTHER, announces, at, drafting, following, pending, secondary

from headgate.coordinator.inputs_and_actions import DeliverPendingCommits
from headgate.coordinator.phases import Phase


def test_a_decision_names_what_is_left_and_what_is_new() -> None:
    left = pending(ONE, EPOCH - 1, 3)
    coordinator = following(left, secondaries=(secondary(ONE, EPOCH - 1, 2), secondary(OTHER)))
    coordinator.until(Phase.DELIVERING)
    coordinator.reads()
    coordinator.follows()
    coordinator.unanswered()
    coordinator.until(Phase.COLLECTING)
    announces(coordinator)
    coordinator.drafts()
    pending_commits = coordinator.attempt.record.pending_commits
    assert [
        (pending_commit.table, pending_commit.transaction) for pending_commit in pending_commits
    ] == [
        (ONE, at(EPOCH - 1, 3)),
        (ONE, at(EPOCH, 1)),
        (OTHER, at(EPOCH, 1)),
    ]


def test_a_claim_carries_pending_commits_on() -> None:
    pending_commits = (pending(ONE, EPOCH - 1, 3), pending(OTHER, EPOCH - 1, 4))
    behind = (secondary(ONE, EPOCH - 1, 2), secondary(OTHER, EPOCH - 1, 2))
    coordinator = following(*pending_commits, secondaries=behind)
    coordinator.until(Phase.CLAIMING)
    assert coordinator.attempt.record.pending_commits == pending_commits


def test_what_the_secondaries_have_is_not_carried_on() -> None:
    pending_commits = (pending(ONE, EPOCH - 1, 3), pending(OTHER, EPOCH - 1, 4))
    coordinator = following(
        *pending_commits, secondaries=(secondary(ONE, EPOCH - 1, 3), secondary(OTHER, 5, 9))
    )
    coordinator.until(Phase.CLAIMING)
    assert coordinator.attempt.record.pending_commits == pending_commits[1:]


def test_start_does_not_wait_for_pending_commits_of_an_intact_lead() -> None:
    behind = (secondary(ONE, EPOCH - 1, 2), secondary(OTHER))
    coordinator = following(pending(ONE, EPOCH - 1, 3), secondaries=behind)
    coordinator.until(Phase.STARTING)
    assert not coordinator.wants(DeliverPendingCommits)
    coordinator.hears_itself()
    assert coordinator.phase is Phase.DELIVERING


def test_a_transaction_without_rows_for_secondaries_decides_at_once() -> None:
    coordinator = following()
    coordinator.until(Phase.COLLECTING)
    announces(coordinator, aside={})
    assert coordinator.phase is Phase.COMMITTING
    assert coordinator.attempt.record.pending_commits == ()


def test_the_record_bears_the_fingerprint_of_the_routing() -> None:
    coordinator = following()
    identity = replace(coordinator.state.identity, routing="r2")
    coordinator.state = replace(coordinator.state, identity=identity)
    before = coordinator.table.record
    assert before
    coordinator.table = replace(coordinator.table, record=replace(before, routing="r1"))
    coordinator.until(Phase.CLAIMING)
    assert coordinator.attempt.record.routing == "r2"
    assert "decide what a row is" in coordinator.told


def test_an_attempt_that_is_repeated_owes_the_same() -> None:
    coordinator = drafting()
    coordinator.drafts()
    first = coordinator.attempt.record
    coordinator.refused()
    coordinator.reads(replace(coordinator.table, head=4_000))
    assert coordinator.attempt.record == first
