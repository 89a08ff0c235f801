"""PENDING-9: a secondary table of another primary table, or beyond this one; and a primary table
that went back."""

from __future__ import annotations

from dataclasses import replace

from protocol.coordinating import EPOCH, SETTINGS, Coordinator
from protocol.following import (
    ONE,
    OTHER,
    PRIMARY,
    deciding,
    delivered_by,
    following,
    pending,
    secondary,
)
from protocol.values import offsets, record, view

from headgate.control_protocol.errors import SecondaryForeign
from headgate.control_protocol.events import StartCommit
from headgate.control_protocol.machine_io import Stop
from headgate.control_protocol.offsets import Offsets
from headgate.control_protocol.ports import Lineage, TableView
from headgate.coordinator.inputs_and_actions import DeliverPendingCommits, SecondariesRead
from headgate.coordinator.phases import Phase
from headgate.coordinator.settings import RollbackPolicy, TableRecreatedPolicy


def found_again(coordinator: Coordinator) -> None:
    """What looks wrong is looked at once more: others may have claimed between the two reads."""
    coordinator.until(Phase.RECOVERING)
    coordinator.reads()
    coordinator.follows()
    assert coordinator.reads_primary
    assert not coordinator.wants(Stop)
    coordinator.reads()
    coordinator.follows()


def test_one_that_another_table_delivered_stops_the_sink() -> None:
    coordinator = following(secondaries=(secondary(ONE, primary="uuid-0"), secondary(OTHER)))
    found_again(coordinator)
    assert isinstance(coordinator.error, SecondaryForeign)
    assert "uuid-0" in coordinator.error.message


def test_one_beyond_the_leads_decision_stops_the_sink() -> None:
    coordinator = following(secondaries=(secondary(ONE, EPOCH - 1, 5), secondary(OTHER)))
    found_again(coordinator)
    assert isinstance(coordinator.error, SecondaryForeign)
    assert "decided is 6.4" in coordinator.error.message


def test_it_is_gone_on_with_where_the_policy_says_so() -> None:
    settings = replace(SETTINGS, on_table_recreated=TableRecreatedPolicy.RESTART)
    theirs = (secondary(ONE, primary="uuid-0"), secondary(OTHER))
    coordinator = following(secondaries=theirs, settings=settings)
    coordinator.until(Phase.CLAIMING)
    (claim,) = coordinator.attempt.record.pending_commits
    assert (claim.table, claim.manifest, claim.transaction) == (
        ONE,
        "",
        coordinator.attempt.record.transaction,
    )


def back(*secondaries: TableView) -> Coordinator:
    """The primary table was rolled back behind 6.4, which its tag names still, and is followed
    there."""
    settings = replace(SETTINGS, on_rollback=RollbackPolicy.FOLLOW_TABLE)
    coordinator = following(secondaries=secondaries, settings=settings)
    older = replace(deciding(EPOCH - 1, 2, pending(ONE, EPOCH - 1, 2)), offsets=offsets(5, 20))
    newer = deciding(EPOCH - 1, 4, pending(ONE, EPOCH - 1, 4))
    coordinator.table = view(newer, lineage=Lineage.ROLLED_BACK, on_branch=older)
    return coordinator


def test_a_primary_that_went_back_claims_its_secondaries_before_start() -> None:
    coordinator = back(secondary(ONE, EPOCH - 1, 1), secondary(OTHER))
    coordinator.until(Phase.CLAIMING)
    pending_commits = coordinator.attempt.record.pending_commits
    assert [
        (pending_commit.table, pending_commit.rows, pending_commit.is_claim)
        for pending_commit in pending_commits
    ] == [
        (ONE, 2, False),
        (ONE, 0, True),
        (OTHER, 0, True),
    ]
    coordinator.until(Phase.DELIVERING)
    coordinator.reads()
    coordinator.follows()
    claimed_at = pending_commits[1].transaction
    assert delivered_by(coordinator) == {
        ONE: [pending_commits[0].transaction, claimed_at],
        OTHER: [claimed_at],
    }
    assert not coordinator.said
    coordinator.delivers()
    coordinator.follows()
    assert coordinator.phase is Phase.STARTING


def test_start_waits_for_that_however_long_it_takes() -> None:
    coordinator = back(secondary(ONE, EPOCH - 1, 1), secondary(OTHER))
    coordinator.until(Phase.DELIVERING)
    for _ in range(5):
        coordinator.reads()
        coordinator.follows()
        coordinator.unanswered()
        assert coordinator.phase is Phase.DELIVERING
        coordinator.waits(60_000)
    coordinator.until(Phase.STARTING)


def test_start_waits_while_what_is_claimed_does_not_answer_a_read() -> None:
    """A busy table, or one that cannot be reached, is left out of what was read."""
    coordinator = back(secondary(ONE, EPOCH - 1, 1), secondary(OTHER))
    coordinator.until(Phase.DELIVERING)
    for _ in range(5):
        coordinator.looks(read=SecondariesRead({OTHER: coordinator.secondaries[OTHER]}))
        if coordinator.wants(DeliverPendingCommits):
            coordinator.delivers()
            coordinator.looks(read=SecondariesRead({OTHER: coordinator.secondaries[OTHER]}))
        assert coordinator.phase is Phase.DELIVERING
        assert f"not delivered yet to {ONE}" in coordinator.told
        coordinator.waits(60_000)
    coordinator.until(Phase.STARTING)
    assert coordinator.secondaries[ONE].record.transaction.epoch == EPOCH  # type: ignore[union-attr]


def test_what_a_zombie_delivered_meanwhile_is_said_to_be_there() -> None:
    coordinator = back(secondary(ONE, EPOCH - 1, 1), secondary(OTHER))
    coordinator.until(Phase.DELIVERING)
    coordinator.reads()
    ahead = replace(record(EPOCH - 1, 4, offsets(10, 20)), primary=PRIMARY)
    coordinator.follows(replace(secondary(ONE, snapshot=88), record=ahead, branch_record=ahead))
    coordinator.until(Phase.STARTING)
    (start,) = coordinator.said
    assert isinstance(start, StartCommit)
    assert start.offsets == offsets(5, 20)
    assert start.tables[1].offsets == Offsets(dict.fromkeys(list(offsets(10)), 10))


def test_a_secondary_claimed_for_a_primary_that_was_created_anew_since_is_claimed_again() -> None:
    """Its record names the table of that name which is gone, with an epoch as high as ours."""
    settings = replace(SETTINGS, on_table_recreated=TableRecreatedPolicy.RESTART)
    theirs = (secondary(ONE, EPOCH, 0, primary="uuid-gone"), secondary(OTHER))
    coordinator = following(secondaries=theirs, settings=settings)
    coordinator.table = view()
    coordinator.start = offsets(0, 0)
    coordinator.until(Phase.DELIVERING)
    coordinator.reads()
    coordinator.follows()
    assert ONE in delivered_by(coordinator)


def test_an_upgrade_claims_secondaries_whose_record_names_no_lead() -> None:
    """Version 1 committed the quarantine first, and died before the table."""
    ahead = secondary(ONE, EPOCH - 1, 5, primary=None)
    coordinator = following(secondaries=(ahead, secondary(OTHER)))
    coordinator.until(Phase.CLAIMING)
    assert [
        pending_commit.table for pending_commit in coordinator.attempt.record.pending_commits
    ] == [ONE]
    coordinator.until(Phase.STARTING)
    assert coordinator.secondaries[ONE].record.primary == PRIMARY  # type: ignore[union-attr]
