"""PENDING-6: delivered means that the secondary table's record is at or above the transaction."""

from __future__ import annotations

import pytest
from protocol.coordinating import EPOCH
from protocol.following import ONE, OTHER, PRIMARY, delivering, following, pending, secondary
from protocol.values import view

from headgate.control_protocol.ports import Unknown
from headgate.coordinator.inputs_and_actions import DeliveriesAnswered, DeliverPendingCommits
from headgate.coordinator.phases import Phase
from headgate.coordinator.secondary_pending_commits import is_delivered


@pytest.mark.parametrize(
    ("epoch", "number", "expected"),
    [(5, 7, False), (5, 8, True), (5, 9, True), (6, 0, True), (4, 99, False)],
)
def test_at_or_above_and_never_equality(epoch: int, number: int, expected: bool) -> None:
    assert is_delivered(pending(ONE, 5, 8), secondary(ONE, epoch, number), PRIMARY) is expected


def test_transactions_of_another_primary_or_of_version_1_say_nothing() -> None:
    assert not is_delivered(pending(ONE, 5, 8), secondary(ONE, 9, 9, primary="uuid-0"), PRIMARY)
    assert not is_delivered(pending(ONE, 5, 8), secondary(ONE, 9, 9, primary=None), PRIMARY)
    assert not is_delivered(pending(ONE, 5, 8), view(), PRIMARY)
    assert not is_delivered(pending(ONE, 5, 8), None, PRIMARY)


def test_who_is_late_finds_it_delivered() -> None:
    coordinator = delivering()
    coordinator.follows(secondary(ONE, EPOCH, 1), secondary(OTHER, EPOCH, 1))
    assert not coordinator.wants(DeliverPendingCommits)
    assert coordinator.phase is Phase.OPEN


def test_of_two_one_may_be_delivered_by_another() -> None:
    coordinator = delivering()
    coordinator.follows(secondary(ONE, EPOCH, 1))
    (delivery,) = coordinator.only(DeliverPendingCommits).deliveries
    assert delivery.base.table == OTHER


def test_a_crash_between_two_tables_delivers_the_one_that_is_left() -> None:
    pending_commits = (pending(ONE, EPOCH - 1, 4), pending(OTHER, EPOCH - 1, 4))
    behind = (secondary(ONE, EPOCH - 1, 4), secondary(OTHER, EPOCH - 1, 3))
    coordinator = following(*pending_commits, secondaries=behind)
    coordinator.until(Phase.DELIVERING)
    coordinator.follows()
    (delivery,) = coordinator.only(DeliverPendingCommits).deliveries
    assert delivery.pending_commits == pending_commits[1:]


def test_hundreds_of_tables_that_do_not_answer_are_one_line() -> None:
    coordinator = delivering()
    coordinator.follows()
    slow = {f"lake.t{n}": Unknown(f"lake.t{n} does not answer in time") for n in range(200)}
    coordinator.given(DeliveriesAnswered(slow))
    assert coordinator.told.count("not confirmed") == 1
    assert coordinator.told.endswith("; lake.t2 does not answer in time; and 197 more")
