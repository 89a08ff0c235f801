"""D9: a follower of another lead, or beyond this one; and a lead that went back."""

from __future__ import annotations

from dataclasses import replace

from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.following import LEAD, ONE, OTHER, deciding, follower, following, owed, paid_by
from protocol.values import offsets, record, view

from headgate.control_protocol.errors import FollowerForeign
from headgate.control_protocol.events import StartCommit
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import Lineage, TableView
from headgate.coordinator.actions import ReadTable, Stop
from headgate.coordinator.settings import RollbackPolicy, TableRecreatedPolicy
from headgate.coordinator.transitions import Phase


def found_again(coordinator: Coordinator) -> None:
    """What looks wrong is looked at once more: others may have claimed between the two reads."""
    coordinator.until(Phase.RECOVERING)
    coordinator.reads()
    coordinator.follows()
    assert coordinator.wants(ReadTable)
    assert not coordinator.wants(Stop)
    coordinator.reads()
    coordinator.follows()


def test_one_that_another_table_paid_stops_the_sink() -> None:
    coordinator = following(followers=(follower(ONE, lead="uuid-0"), follower(OTHER)))
    found_again(coordinator)
    assert isinstance(coordinator.error, FollowerForeign)
    assert "uuid-0" in coordinator.error.message


def test_one_beyond_the_leads_decision_stops_the_sink() -> None:
    coordinator = following(followers=(follower(ONE, EPOCH - 1, 5), follower(OTHER)))
    found_again(coordinator)
    assert isinstance(coordinator.error, FollowerForeign)
    assert "decided is 6.4" in coordinator.error.message


def test_it_is_gone_on_with_where_the_policy_says_so() -> None:
    settings = replace(SETTINGS, on_table_recreated=TableRecreatedPolicy.RESTART)
    theirs = (follower(ONE, lead="uuid-0"), follower(OTHER))
    coordinator = following(followers=theirs, settings=settings)
    coordinator.until(Phase.CLAIMING)
    (claim,) = coordinator.attempt.record.debts
    assert (claim.table, claim.manifest, claim.transaction) == (
        ONE,
        "",
        coordinator.attempt.record.transaction,
    )


def back(*followers: TableView) -> Coordinator:
    """The lead was rolled back behind 6.4, which its tag names still, and is followed there."""
    settings = replace(SETTINGS, on_rollback=RollbackPolicy.FOLLOW_TABLE)
    coordinator = following(followers=followers, settings=settings)
    older = replace(deciding(EPOCH - 1, 2, owed(ONE, EPOCH - 1, 2)), offsets=offsets(5, 20))
    newer = deciding(EPOCH - 1, 4, owed(ONE, EPOCH - 1, 4))
    coordinator.table = view(newer, lineage=Lineage.ROLLED_BACK, on_branch=older)
    return coordinator


def test_a_lead_that_went_back_claims_its_followers_before_start() -> None:
    coordinator = back(follower(ONE, EPOCH - 1, 1), follower(OTHER))
    coordinator.until(Phase.CLAIMING)
    debts = coordinator.attempt.record.debts
    assert [(debt.table, debt.rows, debt.claim) for debt in debts] == [
        (ONE, 2, False),
        (ONE, 0, True),
        (OTHER, 0, True),
    ]
    coordinator.until(Phase.PAYING)
    coordinator.reads()
    coordinator.follows()
    claimed_at = debts[1].transaction
    assert paid_by(coordinator) == {ONE: [debts[0].transaction, claimed_at], OTHER: [claimed_at]}
    assert not coordinator.said
    coordinator.pays()
    coordinator.follows()
    assert coordinator.phase is Phase.STARTING


def test_start_waits_for_that_however_long_it_takes() -> None:
    coordinator = back(follower(ONE, EPOCH - 1, 1), follower(OTHER))
    coordinator.until(Phase.PAYING)
    for _ in range(5):
        coordinator.reads()
        coordinator.follows()
        coordinator.unanswered()
        assert coordinator.phase is Phase.PAYING
        coordinator.waits(60_000)
    coordinator.until(Phase.STARTING)


def test_what_a_zombie_paid_meanwhile_is_said_to_be_there() -> None:
    coordinator = back(follower(ONE, EPOCH - 1, 1), follower(OTHER))
    coordinator.until(Phase.PAYING)
    coordinator.reads()
    ahead = replace(record(EPOCH - 1, 4, offsets(10, 20)), lead=LEAD)
    coordinator.follows(replace(follower(ONE, snapshot=88), record=ahead, branch_record=ahead))
    coordinator.until(Phase.STARTING)
    (start,) = coordinator.said
    assert isinstance(start, StartCommit)
    assert start.offsets == offsets(5, 20)
    assert start.tables[1].offsets == Offsets(dict.fromkeys(list(offsets(10)), 10))


def test_a_follower_claimed_for_a_lead_that_was_created_anew_since_is_claimed_again() -> None:
    """Its record names the table of that name which is gone, with an epoch as high as ours."""
    settings = replace(SETTINGS, on_table_recreated=TableRecreatedPolicy.RESTART)
    theirs = (follower(ONE, EPOCH, 0, lead="uuid-gone"), follower(OTHER))
    coordinator = following(followers=theirs, settings=settings)
    coordinator.table = view()
    coordinator.start = offsets(0, 0)
    coordinator.until(Phase.PAYING)
    coordinator.reads()
    coordinator.follows()
    assert ONE in paid_by(coordinator)


def test_an_upgrade_claims_followers_whose_record_names_no_lead() -> None:
    """Version 1 committed the quarantine first, and died before the table."""
    ahead = follower(ONE, EPOCH - 1, 5, lead=None)
    coordinator = following(followers=(ahead, follower(OTHER)))
    coordinator.until(Phase.CLAIMING)
    assert [debt.table for debt in coordinator.attempt.record.debts] == [ONE]
    coordinator.until(Phase.STARTING)
    assert coordinator.followers[ONE].record.lead == LEAD  # type: ignore[union-attr]
