"""D5: a payment is one call per follower for its oldest debts, with the tag and head as read."""

from __future__ import annotations

from protocol.coordinating import EPOCH
from protocol.following import LEAD, ONE, OTHER, at, follower, following, owed, paid_by, paying
from protocol.values import offsets

from headgate.coordinator.actions import PayDebts
from headgate.coordinator.transitions import Phase


def test_the_oldest_come_first_and_several_go_in_one_call() -> None:
    debts = (owed(ONE, 5, 8), owed(OTHER, 5, 8), owed(ONE, 6, 2), owed(ONE, 6, 3))
    behind = (follower(ONE, 5, 7), follower(OTHER, 5, 7))
    coordinator = following(*debts, followers=behind)
    coordinator.until(Phase.PAYING)
    coordinator.reads()
    coordinator.follows()
    assert paid_by(coordinator) == {ONE: [at(5, 8), at(6, 2), at(6, 3)], OTHER: [at(5, 8)]}


def test_its_record_is_the_newest_debts_with_the_leads_offsets_and_uuid() -> None:
    coordinator = paying()
    coordinator.reads()
    coordinator.follows()
    one = coordinator.only(PayDebts).payments[0].record
    assert one.transaction == at(EPOCH, 1)
    assert one.offsets == offsets(16, 20)
    assert (one.records, one.lead) == (2, LEAD)


def test_it_is_built_on_the_follower_as_it_was_read_just_now() -> None:
    coordinator = paying()
    coordinator.reads()
    compacted = follower(ONE, snapshot=77)
    coordinator.follows(compacted)
    assert coordinator.only(PayDebts).payments[0].base == compacted


def test_a_refusal_is_followed_by_a_fresh_read_and_another_call() -> None:
    coordinator = paying()
    coordinator.reads()
    coordinator.follows()
    coordinator.unanswered(refused=True)
    coordinator.waits(100)
    coordinator.reads()
    coordinator.follows(follower(ONE, snapshot=99))
    (one, _) = coordinator.only(PayDebts).payments
    assert one.base.tag == 99
