"""D7: struck off by a read of the follower; END waits for payments a while, and no longer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.following import ONE, OTHER, announces, at, follower, following, owed, paying

from headgate.control_protocol import debts_codec
from headgate.control_protocol.ports import Landed
from headgate.control_protocol.record import Debt
from headgate.coordinator.actions import (
    CallFailed,
    DescribeFollowers,
    Drafted,
    PayDebts,
    PaymentsAnswered,
    ReadTable,
    StrikeOff,
)
from headgate.coordinator.payment import DEBTS_MAX
from headgate.coordinator.transitions import Phase

PATIENT = replace(SETTINGS, pay_timeout_ms=300)


def asked(coordinator: Coordinator) -> Coordinator:
    coordinator.reads()
    coordinator.follows()
    assert coordinator.wants(PayDebts)
    return coordinator


def test_an_answer_strikes_nothing_off() -> None:
    coordinator = asked(paying())
    coordinator.owed = None
    never = {ONE: Landed(1, follower(ONE, EPOCH, 1)), OTHER: Landed(1, follower(OTHER, EPOCH, 1))}
    coordinator.given(PaymentsAnswered(never))
    assert coordinator.wants(DescribeFollowers)
    assert len(coordinator.term.debts) == 2
    coordinator.follows()
    assert len(coordinator.term.debts) == 2
    coordinator.waits(10_000)
    assert coordinator.phase is Phase.OPEN
    assert len(coordinator.term.debts) == 2


def test_a_read_does_and_the_next_decision_names_what_is_left() -> None:
    coordinator = asked(paying())
    coordinator.pays()
    coordinator.follows()
    assert coordinator.phase is Phase.OPEN
    assert coordinator.term.debts == ()
    coordinator.until(Phase.COLLECTING)
    announces(coordinator)
    coordinator.drafts()
    assert {d.transaction for d in coordinator.attempt.record.debts} == {at(EPOCH, 2)}


def test_payments_that_do_not_come_hold_the_next_end_up_for_so_long() -> None:
    coordinator = asked(paying(PATIENT))
    coordinator.unanswered()
    assert coordinator.phase is Phase.PAYING
    coordinator.waits(299)
    coordinator.reads()
    coordinator.follows()
    coordinator.unanswered()
    coordinator.waits(1)
    assert coordinator.phase is Phase.OPEN
    assert "stay owed" in coordinator.told


def test_who_owes_for_longer_is_tried_once_per_transaction() -> None:
    coordinator = asked(paying(PATIENT))
    coordinator.unanswered()
    coordinator.waits(10_000)
    assert coordinator.phase is Phase.OPEN
    coordinator.until(Phase.PAYING)
    asked(coordinator)
    coordinator.unanswered()
    assert coordinator.phase is Phase.OPEN


def test_what_stays_owed_is_logged_when_it_changes() -> None:
    coordinator = asked(paying(PATIENT))
    coordinator.unanswered()
    coordinator.waits(10_000)
    assert "3 rows stay owed" in coordinator.told
    _is_not_paid(coordinator)
    assert coordinator.told == "", "it is what was logged before"
    (some, *_) = coordinator.term.debts
    coordinator.state = replace(coordinator.state, term=replace(coordinator.term, debts=(some,)))
    _is_not_paid(coordinator)
    assert f"{some.rows} rows stay owed to {some.table}" in coordinator.told


def test_an_empty_debt_that_is_not_paid_is_not_logged() -> None:
    empty = replace(owed(ONE, EPOCH, 99, rows=0), manifest="", size_bytes=0)
    coordinator = following(settings=PATIENT)
    coordinator.until(Phase.OPEN)
    coordinator.state = replace(coordinator.state, term=replace(coordinator.term, debts=(empty,)))
    _is_not_paid(coordinator)
    assert empty in coordinator.term.debts
    assert coordinator.told == ""


def _is_not_paid(coordinator: Coordinator) -> None:
    coordinator.until(Phase.PAYING)
    asked(coordinator)
    coordinator.unanswered()
    assert coordinator.phase is Phase.OPEN


def test_with_too_many_debts_nothing_goes_on() -> None:
    debts = tuple(owed(ONE, EPOCH - 1, number) for number in range(1, DEBTS_MAX + 1))
    behind = (follower(ONE, EPOCH - 2, 1), follower(OTHER))
    coordinator = following(*debts, followers=behind, settings=PATIENT)
    newest = replace(coordinator.table.record, transaction=at(EPOCH - 1, DEBTS_MAX))  # type: ignore[type-var]
    coordinator.table = replace(coordinator.table, record=newest, branch_record=newest)
    coordinator.until(Phase.PAYING)
    for _ in range(5):
        asked(coordinator)
        coordinator.unanswered()
        coordinator.waits(60_000)
        assert coordinator.phase is Phase.PAYING
    asked(coordinator)
    coordinator.pays()
    coordinator.follows()
    assert coordinator.phase is Phase.OPEN


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_decision_names_no_more_than_can_be_read(beyond: int) -> None:
    coordinator = paying()
    coordinator.until(Phase.COLLECTING)
    announces(coordinator)
    count = debts_codec.DEBTS_MAX - len(coordinator.term.debts) + beyond
    coordinator.owed = None
    coordinator.given(Drafted((owed(ONE, EPOCH, coordinator.term.closing),) * count))
    assert coordinator.phase is (Phase.RECOVERING if beyond else Phase.COMMITTING)


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_decision_without_drafts_names_no_more_than_can_be_read(beyond: int) -> None:
    coordinator = paying()
    coordinator.until(Phase.COLLECTING)
    many = (owed(ONE, EPOCH, 1),) * (debts_codec.DEBTS_MAX + beyond)
    coordinator.state = replace(coordinator.state, term=replace(coordinator.term, debts=many))
    announces(coordinator, aside={})
    assert coordinator.phase is (Phase.RECOVERING if beyond else Phase.COMMITTING)


def test_what_cannot_be_read_is_read_again() -> None:
    coordinator = paying(PATIENT)
    coordinator.owed = None
    coordinator.given(CallFailed("the catalog is away"))
    assert coordinator.phase is Phase.PAYING
    coordinator.waits(100)
    assert coordinator.wants(ReadTable)
    coordinator.owed = None
    coordinator.given(CallFailed("the catalog is away"))
    coordinator.waits(300)
    assert coordinator.phase is Phase.OPEN


def test_a_follower_that_does_not_answer_holds_up_no_other() -> None:
    coordinator = paying()
    coordinator.reads()
    away = coordinator.followers.pop(ONE)
    coordinator.follows()
    (payment,) = coordinator.only(PayDebts).payments
    assert payment.base.table == OTHER
    coordinator.pays()
    coordinator.followers[ONE] = away
    assert coordinator.phase is Phase.PAYING


def deleting(name: str) -> Debt:
    return replace(owed(name, EPOCH - 1, 4), rows=0, deletes=2)


def test_key_files_go_with_the_read_that_strikes_their_debt_off() -> None:
    stale = follower(ONE, EPOCH - 1, 3)
    coordinator = following(deleting(ONE), owed(ONE, EPOCH - 1, 4), followers=(stale,))
    coordinator.until(Phase.PAYING)
    coordinator.reads()
    coordinator.follows()
    asked_for = coordinator.wants(PayDebts)
    assert asked_for
    coordinator.pays()
    assert not coordinator.wants(StrikeOff)
    coordinator.follows()
    assert coordinator.term.debts == ()
    assert coordinator.only(StrikeOff).debts == (deleting(ONE),)
