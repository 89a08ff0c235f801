"""PENDING-8: what was pending for too long expires; it is named, and nobody delivers to it any
more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol import suspension
from protocol.coordinating import EPOCH, IDENTITY, SETTINGS, WALL_AHEAD_MS, Coordinator
from protocol.following import (
    ONE,
    OTHER,
    announces,
    deciding,
    following,
    pending,
    secondary,
)
from protocol.values import view

from headgate.control_protocol.errors import HeadgateError, TableMissing
from headgate.control_protocol.ports import TableView
from headgate.coordinator.inputs_and_actions import (
    CommitTable,
    DeliverPendingCommits,
    SecondariesRead,
    StageManifests,
    TidyStagedManifests,
)
from headgate.coordinator.phases import Phase
from headgate.coordinator.secondary_delivery import newly_expired_log_lines
from headgate.coordinator.secondary_pending_commits import (
    EXPIRED_MAX,
    expired_commits_for_record,
    is_unfenced_against_expired,
)

AGE_MS = 100_000
AGEING = replace(SETTINGS, claim_age_max_ms=AGE_MS, delivery_timeout_ms=100)
NOW_MS = 1_000_000 + WALL_AHEAD_MS


def owing(age_ms: int) -> Coordinator:
    """Its primary table has pending the first secondary table something of this age."""
    pending_commit = pending(ONE, EPOCH - 1, 3, since_ms=NOW_MS - age_ms)
    behind = (secondary(ONE, EPOCH - 1, 2), secondary(OTHER))
    return following(pending_commit, secondaries=behind, settings=AGEING)


def test_a_claim_lets_expire_what_is_too_old() -> None:
    coordinator = owing(AGE_MS + 1)
    coordinator.until(Phase.CLAIMING)
    assert coordinator.attempt.record.pending_commits == ()
    assert [pending_commit.rows for pending_commit in coordinator.attempt.record.expired] == [2]
    assert "never came into lake.one" in coordinator.told


def test_no_epoch_clears_away_what_has_expired() -> None:
    """Its rows can be written again as long as its manifest names them (SUSPEND-6): the epoch whose
    claim let it expire deleted that."""
    coordinator = owing(AGE_MS + 1)
    coordinator.until(Phase.CLAIMING)
    (expired,) = coordinator.attempt.record.expired
    while not coordinator.wants(TidyStagedManifests):
        coordinator.goes_on()
    assert coordinator.only(TidyStagedManifests).pending == {expired.manifest}


def test_what_is_pending_is_as_old_as_its_files_and_not_as_whatever_might_have_come() -> None:
    """Else every pending commit of a coordinator that has led for long was nearly due when it was
    made."""
    made = following(settings=AGEING)
    made.until(Phase.COLLECTING)
    for _ in range(6):
        announces(made, rows=0, aside={})
        made.until(Phase.OPEN)
        made.now_ms += AGE_MS // 5
        made.until(Phase.COLLECTING)
    announces(made)
    (draft, _) = made.only(StageManifests).drafts
    assert made.now_ms + WALL_AHEAD_MS - draft.since_ms <= AGE_MS // 2


def test_what_is_younger_is_carried_on() -> None:
    coordinator = owing(AGE_MS)
    coordinator.until(Phase.CLAIMING)
    assert len(coordinator.attempt.record.pending_commits) == 1
    assert coordinator.attempt.record.expired == ()


def test_only_tables_with_something_old_are_named_when_it_expires_soon() -> None:
    old = pending(ONE, EPOCH - 1, 3, since_ms=NOW_MS - AGE_MS + 5_000)
    young = pending(OTHER, EPOCH - 1, 4, rows=5)
    behind = (secondary(ONE, EPOCH - 1, 2), secondary(OTHER, EPOCH - 1, 2))
    coordinator = following(old, young, secondaries=behind, settings=AGEING)
    coordinator.until(Phase.DELIVERING)
    coordinator.reads()
    coordinator.follows()
    coordinator.unanswered()
    assert f"7 rows stay pending for {ONE}, {OTHER}" in coordinator.told
    assert f"2 rows pending for {ONE} expire soon" in coordinator.told


def test_one_that_grows_too_old_is_not_delivered_and_expires_with_the_next_decision() -> None:
    coordinator = owing(AGE_MS - 5_000)
    coordinator.until(Phase.DELIVERING)
    coordinator.reads()
    coordinator.follows()
    coordinator.unanswered()
    assert coordinator.phase is Phase.OPEN
    assert "expire soon" in coordinator.told
    coordinator.now_ms += 5_001
    coordinator.until(Phase.COLLECTING)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    assert coordinator.wants(CommitTable), "an idle sink says so too"
    decision = coordinator.attempt.record
    assert [pending_commit.rows for pending_commit in decision.expired] == [2]
    assert [pending_commit.manifest for pending_commit in decision.pending_commits] == [""], (
        "only its tag is moved"
    )


def test_nothing_newer_is_delivered_in_front_of_it() -> None:
    """Else the secondary table's record would pass it, as if it had been delivered."""
    old = pending(ONE, EPOCH - 1, 3, since_ms=NOW_MS - AGE_MS + 1_000)
    young = pending(ONE, EPOCH - 1, 4, since_ms=NOW_MS)
    behind = (secondary(ONE, EPOCH - 1, 2), secondary(OTHER))
    coordinator = following(old, young, secondaries=behind, settings=AGEING)
    coordinator.until(Phase.DELIVERING)
    coordinator.now_ms += 2_000
    coordinator.reads()
    coordinator.follows()
    assert not coordinator.wants(DeliverPendingCommits)
    assert coordinator.term.delivery.pending == (old, young)


def test_whoever_slept_through_a_expire_finds_the_secondaries_tag_moved() -> None:
    """A zombie knows the secondary table as it was when it began to deliver; so is its tag until
    then."""
    coordinator = owing(AGE_MS + 1)
    coordinator.until(Phase.OPEN)
    coordinator.until(Phase.COLLECTING)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    coordinator.until(Phase.DELIVERING)
    coordinator.reads()
    coordinator.follows()
    (delivery,) = coordinator.only(DeliverPendingCommits).deliveries
    (expired,) = (
        coordinator.term.primary.view.record.expired if coordinator.term.primary.view.record else ()
    )
    assert delivery.base.uuid == expired.secondary
    assert delivery.record.transaction > expired.transaction
    assert (
        delivery.record.records,
        [pending_commit.manifest for pending_commit in delivery.pending_commits],
    ) == (0, [""])


def test_one_that_has_moved_since_is_not_moved_again() -> None:
    expired = pending(ONE, EPOCH - 1, 3)
    empty = replace(pending(ONE, EPOCH - 1, 4), manifest="")
    assert is_unfenced_against_expired(secondary(ONE, EPOCH - 1, 2), (expired,), ())
    assert not is_unfenced_against_expired(secondary(ONE, EPOCH - 1, 2), (expired,), (empty,))
    assert not is_unfenced_against_expired(secondary(ONE, EPOCH - 1, 3), (expired,), ())
    assert not is_unfenced_against_expired(secondary(OTHER, EPOCH - 1, 2), (expired,), ())


def test_what_has_expired_stays_named() -> None:
    coordinator = owing(AGE_MS + 1)
    coordinator.until(Phase.OPEN)
    stored = coordinator.table.record
    assert stored
    heir = following(secondaries=(secondary(ONE, EPOCH - 1, 2), secondary(OTHER)), settings=AGEING)
    heir.table = coordinator.table
    heir.until(Phase.CLAIMING)
    assert heir.attempt.record.expired == stored.expired


def test_of_very_many_the_older_ones_are_named_in_sums_that_fence_as_each_of_them() -> None:
    """Else a record would reach what it can be read with, and nobody could claim any more."""
    named = tuple(pending((ONE, OTHER)[n % 2], EPOCH - 1, n + 1) for n in range(EXPIRED_MAX))
    late = pending(ONE, EPOCH - 1, EXPIRED_MAX + 1)
    stored = replace(deciding(EPOCH - 1, EXPIRED_MAX), expired=named)
    expired = expired_commits_for_record(stored, (late,))
    assert expired[2:] == (*named, late)[-EXPIRED_MAX // 2 :]
    assert [pending_commit.manifest for pending_commit in expired[:2]] == ["", ""]
    assert sum(pending_commit.rows for pending_commit in expired) == sum(
        pending_commit.rows for pending_commit in (*named, late)
    )
    assert is_unfenced_against_expired(secondary(ONE, EPOCH - 1, 498), expired[:2], ())
    assert not is_unfenced_against_expired(secondary(ONE, EPOCH - 1, 501), expired[:2], ())
    (told,) = newly_expired_log_lines(replace(stored, expired=expired), stored)
    assert f"2 rows of transaction {late.transaction} never came" in told.text


def test_each_of_very_many_that_expire_at_once_is_named_and_told() -> None:
    """Those beyond the newest 500 went into sums at once: no log, and no record, named them."""
    stored = replace(deciding(EPOCH - 1, EXPIRED_MAX), expired=(pending(OTHER, EPOCH - 1, 1),))
    late = tuple(pending(ONE, EPOCH - 1, n + 2) for n in range(EXPIRED_MAX))
    expired = expired_commits_for_record(stored, late)
    assert expired[1:] == late
    told = newly_expired_log_lines(replace(stored, expired=expired), stored)
    assert len(told) == EXPIRED_MAX
    assert (
        len(expired_commits_for_record(replace(stored, expired=expired), ()))
        == 2 + EXPIRED_MAX // 2
    )


def heir() -> Coordinator:
    """A ledger's coordinator that judges nothing new. The one before let a routed table's pending
    commit expire with its claim, and ended before its next decision."""
    expired = (pending(ONE, EPOCH - 2, 3),)
    made = Coordinator(view(replace(deciding(EPOCH - 1, 4), expired=expired)), AGEING)
    made.follow(secondary("lake.trips_quarantine"))
    made.state = replace(made.state, identity=replace(made.state.identity, routed=True))
    judges(made)
    return made


def judges(made: Coordinator) -> None:
    made.until(Phase.COLLECTING)
    made.waits(SETTINGS.commit_timeout_ms)


def reads(
    made: Coordinator, *found: TableView, troubles: dict[str, HeadgateError] | None = None
) -> None:
    assert made.reads_tables == (ONE,)
    made.pending = None
    views = {each.table: each for each in found}
    made.looks(read=SecondariesRead(views, troubles or {}))


def test_a_routed_table_that_the_one_before_did_not_get_to_is_read_and_moved() -> None:
    made = heir()
    reads(made, secondary(ONE, EPOCH - 2, 2))
    assert made.wants(CommitTable)
    (empty,) = made.attempt.record.pending_commits
    assert (empty.table, empty.manifest) == (ONE, "")


def test_a_routed_table_that_has_moved_since_is_read_once() -> None:
    made = heir()
    reads(made, secondary(ONE, EPOCH - 2, 3))
    assert not made.wants(CommitTable)
    judges(made)
    assert not made.reads_secondaries


@pytest.mark.parametrize("troubles", [{}, {ONE: TableMissing("dropped", "create it")}])
def test_a_routed_table_that_cannot_be_read_is_asked_for_again(
    troubles: dict[str, HeadgateError],
) -> None:
    """It may come back. Nobody suspends it when it is not there: no row goes to it."""
    made = heir()
    reads(made, troubles=troubles)
    assert not made.wants(CommitTable)
    assert not made.term.suspensions.suspended
    judges(made)
    reads(made, secondary(ONE, EPOCH - 2, 2))
    assert made.wants(CommitTable)


def test_what_a_claim_without_tables_to_read_has_decided_is_as_old_as_its_files() -> None:
    """It had not asked the wall clock: its first decisions expired with the next claim."""
    made = Coordinator(settings=AGEING, identity=replace(IDENTITY, routed=True, makes_anew=True))
    made.until(Phase.COLLECTING)
    assert (made.term.delivery.secondaries, made.table.filled) == ({}, {})
    suspension.announces(made)
    suspension.reads(made, suspension.table())
    (draft,) = made.only(StageManifests).drafts
    assert 0 <= made.now_ms + WALL_AHEAD_MS - draft.since_ms <= SETTINGS.commit_interval_ms * 2


def test_what_was_decided_by_no_wall_clock_is_as_old_as_the_claim_that_finds_it() -> None:
    """Only that is known: earlier versions decided some by a clock that counts from the boot."""
    coordinator = owing(NOW_MS - 1_000_000)
    coordinator.until(Phase.CLAIMING)
    claim = coordinator.attempt.record
    assert [each.since_ms for each in claim.pending_commits] == [NOW_MS]
    assert claim.expired == ()
    coordinator.until(Phase.OPEN)
    heir = following(secondaries=(secondary(ONE, EPOCH - 1, 2), secondary(OTHER)), settings=AGEING)
    heir.table, heir.now_ms = coordinator.table, coordinator.now_ms + AGE_MS + 1
    heir.until(Phase.CLAIMING)
    assert [each.rows for each in heir.attempt.record.expired] == [2]
