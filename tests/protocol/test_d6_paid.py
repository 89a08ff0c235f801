"""D6: paid means that the follower's record is at or above the transaction."""

from __future__ import annotations

import pytest
from protocol.coordinating import EPOCH
from protocol.following import LEAD, ONE, OTHER, follower, following, owed, paying
from protocol.values import view

from headgate.control_protocol.ports import Unknown
from headgate.coordinator.actions import PayDebts, PaymentsAnswered
from headgate.coordinator.debts import paid
from headgate.coordinator.transitions import Phase


@pytest.mark.parametrize(
    ("epoch", "number", "expected"),
    [(5, 7, False), (5, 8, True), (5, 9, True), (6, 0, True), (4, 99, False)],
)
def test_at_or_above_and_never_equality(epoch: int, number: int, expected: bool) -> None:
    assert paid(owed(ONE, 5, 8), follower(ONE, epoch, number), LEAD) is expected


def test_transactions_of_another_lead_or_of_version_1_say_nothing() -> None:
    assert not paid(owed(ONE, 5, 8), follower(ONE, 9, 9, lead="uuid-0"), LEAD)
    assert not paid(owed(ONE, 5, 8), follower(ONE, 9, 9, lead=None), LEAD)
    assert not paid(owed(ONE, 5, 8), view(), LEAD)
    assert not paid(owed(ONE, 5, 8), None, LEAD)


def test_who_is_late_finds_it_paid() -> None:
    coordinator = paying()
    coordinator.reads()
    coordinator.follows(follower(ONE, EPOCH, 1), follower(OTHER, EPOCH, 1))
    assert not coordinator.wants(PayDebts)
    assert coordinator.phase is Phase.OPEN


def test_of_two_one_may_be_paid_by_another() -> None:
    coordinator = paying()
    coordinator.reads()
    coordinator.follows(follower(ONE, EPOCH, 1))
    (payment,) = coordinator.only(PayDebts).payments
    assert payment.base.table == OTHER


def test_a_crash_between_two_tables_pays_the_one_that_is_left() -> None:
    debts = (owed(ONE, EPOCH - 1, 4), owed(OTHER, EPOCH - 1, 4))
    behind = (follower(ONE, EPOCH - 1, 4), follower(OTHER, EPOCH - 1, 3))
    coordinator = following(*debts, followers=behind)
    coordinator.until(Phase.PAYING)
    coordinator.reads()
    coordinator.follows()
    (payment,) = coordinator.only(PayDebts).payments
    assert payment.debts == debts[1:]


def test_hundreds_of_tables_that_do_not_answer_are_one_line() -> None:
    coordinator = paying()
    coordinator.reads()
    coordinator.follows()
    slow = {f"lake.t{n}": Unknown(f"lake.t{n} does not answer in time") for n in range(200)}
    coordinator.given(PaymentsAnswered(slow))
    assert coordinator.told.count("not confirmed") == 1
    assert coordinator.told.endswith("; lake.t2 does not answer in time; and 197 more")
