"""I6: what a table was given back of the quarantine, its own record says, and payments keep it."""

from __future__ import annotations

from dataclasses import replace

from protocol.following import ONE, OTHER, follower, paying
from protocol.values import offsets

from headgate.control_protocol.identifiers import TopicId
from headgate.control_protocol.ports import TableView
from headgate.control_protocol.record import REPLAY, Replayed
from headgate.coordinator.actions import PayDebts

GIVEN = Replayed(offsets(7, 9), {"orders": TopicId("id-1")})


def given_back(table: TableView) -> TableView:
    """As a person's command leaves the table: its tag has moved, its transaction has not."""
    assert table.record is not None
    record = replace(table.record, replayed=GIVEN, command=REPLAY)
    return replace(table, record=record, tag=99, head=99)


def test_i6_a_payment_carries_on_what_the_table_was_given_back() -> None:
    coordinator = paying()
    coordinator.reads()
    coordinator.follows(given_back(follower(ONE)))
    one, other = (payment.record for payment in coordinator.only(PayDebts).payments)
    assert (one.replayed, one.command) == (GIVEN, None)
    assert other.replayed is None


def test_i6_a_replay_pays_no_debt_and_a_payment_refused_by_it_is_made_again() -> None:
    coordinator = paying()
    coordinator.reads()
    coordinator.follows()
    coordinator.unanswered(refused=True)
    coordinator.waits(100)
    coordinator.reads()
    coordinator.follows(given_back(follower(ONE)))
    payments = {each.base.table: each for each in coordinator.only(PayDebts).payments}
    assert payments.keys() == {ONE, OTHER}
    assert (payments[ONE].base.tag, payments[ONE].record.replayed) == (99, GIVEN)
