"""D3: the lead's commit decides; its record names what is owed, and claims carry that on."""

from __future__ import annotations

from dataclasses import replace

from protocol.coordinating import EPOCH
from protocol.following import ONE, OTHER, announces, at, drafting, follower, following, owed

from headgate.coordinator.actions import PayDebts
from headgate.coordinator.transitions import Phase


def test_a_decision_names_what_is_left_and_what_is_new() -> None:
    left = owed(ONE, EPOCH - 1, 3)
    coordinator = following(left, followers=(follower(ONE, EPOCH - 1, 2), follower(OTHER)))
    coordinator.until(Phase.PAYING)
    coordinator.reads()
    coordinator.follows()
    coordinator.unanswered()
    coordinator.until(Phase.COLLECTING)
    announces(coordinator)
    coordinator.drafts()
    debts = coordinator.attempt.record.debts
    assert [(debt.table, debt.transaction) for debt in debts] == [
        (ONE, at(EPOCH - 1, 3)),
        (ONE, at(EPOCH, 1)),
        (OTHER, at(EPOCH, 1)),
    ]


def test_a_claim_carries_debts_on() -> None:
    debts = (owed(ONE, EPOCH - 1, 3), owed(OTHER, EPOCH - 1, 4))
    behind = (follower(ONE, EPOCH - 1, 2), follower(OTHER, EPOCH - 1, 2))
    coordinator = following(*debts, followers=behind)
    coordinator.until(Phase.CLAIMING)
    assert coordinator.attempt.record.debts == debts


def test_what_the_followers_have_is_not_carried_on() -> None:
    debts = (owed(ONE, EPOCH - 1, 3), owed(OTHER, EPOCH - 1, 4))
    coordinator = following(*debts, followers=(follower(ONE, EPOCH - 1, 3), follower(OTHER, 5, 9)))
    coordinator.until(Phase.CLAIMING)
    assert coordinator.attempt.record.debts == debts[1:]


def test_start_does_not_wait_for_debts_of_an_intact_lead() -> None:
    behind = (follower(ONE, EPOCH - 1, 2), follower(OTHER))
    coordinator = following(owed(ONE, EPOCH - 1, 3), followers=behind)
    coordinator.until(Phase.STARTING)
    assert not coordinator.wants(PayDebts)
    coordinator.hears_itself()
    assert coordinator.phase is Phase.PAYING


def test_a_transaction_without_rows_for_followers_decides_at_once() -> None:
    coordinator = following()
    coordinator.until(Phase.COLLECTING)
    announces(coordinator, aside={})
    assert coordinator.phase is Phase.COMMITTING
    assert coordinator.attempt.record.debts == ()


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
