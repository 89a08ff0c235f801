"""D8: what was owed for too long lapses; it is named, and nobody pays it any more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, SETTINGS, WALL_AHEAD_MS, Coordinator
from protocol.following import (
    ONE,
    OTHER,
    announces,
    deciding,
    follower,
    following,
    owed,
)
from protocol.values import view

from headgate.control_protocol.errors import HeadgateError, TableMissing
from headgate.control_protocol.ports import TableView
from headgate.coordinator.actions import (
    CommitTable,
    DescribeFollowers,
    DraftManifests,
    FollowersRead,
    PayDebts,
    TidyDrafts,
)
from headgate.coordinator.debts import LAPSED_MAX, lapsed_so_far, unfenced
from headgate.coordinator.payment import told_lapsed
from headgate.coordinator.transitions import Phase

AGE_MS = 100_000
AGEING = replace(SETTINGS, claim_age_max_ms=AGE_MS, pay_timeout_ms=100)
NOW_MS = 1_000_000 + WALL_AHEAD_MS


def owing(age_ms: int) -> Coordinator:
    """Its lead owes the first follower something of this age."""
    debt = owed(ONE, EPOCH - 1, 3, since_ms=NOW_MS - age_ms)
    behind = (follower(ONE, EPOCH - 1, 2), follower(OTHER))
    return following(debt, followers=behind, settings=AGEING)


def test_a_claim_lets_lapse_what_is_too_old() -> None:
    coordinator = owing(AGE_MS + 1)
    coordinator.until(Phase.CLAIMING)
    assert coordinator.attempt.record.debts == ()
    assert [debt.rows for debt in coordinator.attempt.record.lapsed] == [2]
    assert "never came into lake.one" in coordinator.told


def test_no_epoch_clears_away_what_has_lapsed() -> None:
    """Its rows can be written again as long as its manifest names them (I6): the epoch whose claim
    let it lapse deleted that."""
    coordinator = owing(AGE_MS + 1)
    coordinator.until(Phase.CLAIMING)
    (lapsed,) = coordinator.attempt.record.lapsed
    while not coordinator.wants(TidyDrafts):
        coordinator.goes_on()
    assert coordinator.only(TidyDrafts).owed == {lapsed.manifest}


def test_what_is_owed_is_as_old_as_its_files_and_not_as_whatever_might_have_come() -> None:
    """Else every debt of a coordinator that has led for long was nearly due when it was made."""
    made = following(settings=AGEING)
    made.until(Phase.COLLECTING)
    for _ in range(6):
        announces(made, rows=0, aside={})
        made.until(Phase.OPEN)
        made.now_ms += AGE_MS // 5
        made.until(Phase.COLLECTING)
    announces(made)
    (draft, _) = made.only(DraftManifests).drafts
    assert made.now_ms + WALL_AHEAD_MS - draft.since_ms <= AGE_MS // 2


def test_what_is_younger_is_carried_on() -> None:
    coordinator = owing(AGE_MS)
    coordinator.until(Phase.CLAIMING)
    assert len(coordinator.attempt.record.debts) == 1
    assert coordinator.attempt.record.lapsed == ()


def test_one_that_grows_too_old_is_not_paid_and_lapses_with_the_next_decision() -> None:
    coordinator = owing(AGE_MS - 5_000)
    coordinator.until(Phase.PAYING)
    coordinator.reads()
    coordinator.follows()
    coordinator.unanswered()
    assert coordinator.phase is Phase.OPEN
    assert "lapse soon" in coordinator.told
    coordinator.now_ms += 5_001
    coordinator.until(Phase.COLLECTING)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    assert coordinator.wants(CommitTable), "an idle sink says so too"
    decision = coordinator.attempt.record
    assert [debt.rows for debt in decision.lapsed] == [2]
    assert [debt.manifest for debt in decision.debts] == [""], "only its tag is moved"


def test_nothing_newer_is_paid_in_front_of_it() -> None:
    """Else the follower's record would pass it, as if it had been paid."""
    old = owed(ONE, EPOCH - 1, 3, since_ms=NOW_MS - AGE_MS + 1_000)
    young = owed(ONE, EPOCH - 1, 4, since_ms=NOW_MS)
    behind = (follower(ONE, EPOCH - 1, 2), follower(OTHER))
    coordinator = following(old, young, followers=behind, settings=AGEING)
    coordinator.until(Phase.PAYING)
    coordinator.now_ms += 2_000
    coordinator.reads()
    coordinator.follows()
    assert not coordinator.wants(PayDebts)
    assert coordinator.term.debts == (old, young)


def test_whoever_slept_through_a_lapse_finds_the_followers_tag_moved() -> None:
    """A zombie knows the follower as it was when it began to pay; so is its tag until then."""
    coordinator = owing(AGE_MS + 1)
    coordinator.until(Phase.OPEN)
    coordinator.until(Phase.COLLECTING)
    coordinator.waits(SETTINGS.commit_timeout_ms)
    coordinator.until(Phase.PAYING)
    coordinator.reads()
    coordinator.follows()
    (payment,) = coordinator.only(PayDebts).payments
    (lapsed,) = coordinator.term.view.record.lapsed if coordinator.term.view.record else ()
    assert payment.base.uuid == lapsed.follower
    assert payment.record.transaction > lapsed.transaction
    assert (payment.record.records, [debt.manifest for debt in payment.debts]) == (0, [""])


def test_one_that_has_moved_since_is_not_moved_again() -> None:
    lapsed = owed(ONE, EPOCH - 1, 3)
    empty = replace(owed(ONE, EPOCH - 1, 4), manifest="")
    assert unfenced(follower(ONE, EPOCH - 1, 2), (lapsed,), ())
    assert not unfenced(follower(ONE, EPOCH - 1, 2), (lapsed,), (empty,))
    assert not unfenced(follower(ONE, EPOCH - 1, 3), (lapsed,), ())
    assert not unfenced(follower(OTHER, EPOCH - 1, 2), (lapsed,), ())


def test_what_has_lapsed_stays_named() -> None:
    coordinator = owing(AGE_MS + 1)
    coordinator.until(Phase.OPEN)
    stored = coordinator.table.record
    assert stored
    heir = following(followers=(follower(ONE, EPOCH - 1, 2), follower(OTHER)), settings=AGEING)
    heir.table = coordinator.table
    heir.until(Phase.CLAIMING)
    assert heir.attempt.record.lapsed == stored.lapsed


def test_of_very_many_the_older_ones_are_named_in_sums_that_fence_as_each_of_them() -> None:
    """Else a record would reach what it can be read with, and nobody could claim any more."""
    named = tuple(owed((ONE, OTHER)[n % 2], EPOCH - 1, n + 1) for n in range(LAPSED_MAX))
    late = owed(ONE, EPOCH - 1, LAPSED_MAX + 1)
    stored = replace(deciding(EPOCH - 1, LAPSED_MAX), lapsed=named)
    lapsed = lapsed_so_far(stored, (late,))
    assert lapsed[2:] == (*named, late)[-LAPSED_MAX // 2 :]
    assert [debt.manifest for debt in lapsed[:2]] == ["", ""]
    assert sum(debt.rows for debt in lapsed) == sum(debt.rows for debt in (*named, late))
    assert unfenced(follower(ONE, EPOCH - 1, 498), lapsed[:2], ())
    assert not unfenced(follower(ONE, EPOCH - 1, 501), lapsed[:2], ())
    (told,) = told_lapsed(replace(stored, lapsed=lapsed), stored)
    assert f"2 rows of transaction {late.transaction} never came" in told.text


def test_each_of_very_many_that_lapse_at_once_is_named_and_told() -> None:
    """Those beyond the newest 500 went into sums at once: no log, and no record, named them."""
    stored = replace(deciding(EPOCH - 1, LAPSED_MAX), lapsed=(owed(OTHER, EPOCH - 1, 1),))
    late = tuple(owed(ONE, EPOCH - 1, n + 2) for n in range(LAPSED_MAX))
    lapsed = lapsed_so_far(stored, late)
    assert lapsed[1:] == late
    told = told_lapsed(replace(stored, lapsed=lapsed), stored)
    assert len(told) == LAPSED_MAX
    assert len(lapsed_so_far(replace(stored, lapsed=lapsed), ())) == 2 + LAPSED_MAX // 2


def heir() -> Coordinator:
    """A ledger's coordinator that judges nothing new. The one before let a routed table's debt
    lapse with its claim, and ended before its next decision."""
    lapsed = (owed(ONE, EPOCH - 2, 3),)
    made = Coordinator(view(replace(deciding(EPOCH - 1, 4), lapsed=lapsed)), AGEING)
    made.follow(follower("lake.trips_quarantine"))
    made.state = replace(made.state, identity=replace(made.state.identity, routed=True))
    judges(made)
    return made


def judges(made: Coordinator) -> None:
    made.until(Phase.COLLECTING)
    made.waits(SETTINGS.commit_timeout_ms)


def reads(
    made: Coordinator, *found: TableView, troubles: dict[str, HeadgateError] | None = None
) -> None:
    assert made.only(DescribeFollowers).tables == (ONE,)
    made.owed = None
    views = {each.table: each for each in found}
    made.given(FollowersRead(views, made.now_ms + WALL_AHEAD_MS, troubles or {}))


def test_a_routed_table_that_the_one_before_did_not_get_to_is_read_and_moved() -> None:
    made = heir()
    reads(made, follower(ONE, EPOCH - 2, 2))
    assert made.wants(CommitTable)
    (empty,) = made.attempt.record.debts
    assert (empty.table, empty.manifest) == (ONE, "")


def test_a_routed_table_that_has_moved_since_is_read_once() -> None:
    made = heir()
    reads(made, follower(ONE, EPOCH - 2, 3))
    assert not made.wants(CommitTable)
    judges(made)
    assert not made.wants(DescribeFollowers)


@pytest.mark.parametrize("troubles", [{}, {ONE: TableMissing("dropped", "create it")}])
def test_a_routed_table_that_cannot_be_read_is_asked_for_again(
    troubles: dict[str, HeadgateError],
) -> None:
    """It may come back. Nobody parks it when it is not there: no row goes to it."""
    made = heir()
    reads(made, troubles=troubles)
    assert not made.wants(CommitTable)
    assert not made.term.parked
    judges(made)
    reads(made, follower(ONE, EPOCH - 2, 2))
    assert made.wants(CommitTable)
