"""D2: the manifests of followers are written before the decision."""

from __future__ import annotations

from dataclasses import replace

from protocol.coordinating import EPOCH, SETTINGS
from protocol.following import ONE, OTHER, at, drafting, follower, following
from protocol.values import COORDINATOR

from headgate.coordinator.actions import (
    CallFailed,
    CommitTable,
    DescribeFollowers,
    DraftManifests,
    TidyDrafts,
)
from headgate.coordinator.transitions import Phase


def test_per_follower_its_files_are_drafted_and_nothing_is_decided_yet() -> None:
    coordinator = drafting()
    assert coordinator.phase is Phase.DRAFTING
    drafts = {draft.table.table: draft for draft in coordinator.only(DraftManifests).drafts}
    assert {name: sum(f.records for f in d.files) for name, d in drafts.items()} == {
        ONE: 2,
        OTHER: 1,
    }
    assert drafts[ONE].transaction == at(EPOCH, 1)
    assert drafts[ONE].coordinator == COORDINATOR
    assert not coordinator.wants(CommitTable)


def test_the_decision_follows_the_drafts() -> None:
    coordinator = drafting()
    coordinator.drafts()
    assert coordinator.phase is Phase.COMMITTING
    assert [debt.table for debt in coordinator.attempt.record.debts] == [ONE, OTHER]
    assert [debt.rows for debt in coordinator.attempt.record.debts] == [2, 1]


def test_what_could_not_be_drafted_is_drafted_again_for_the_same_tables() -> None:
    coordinator = drafting()
    coordinator.owed = None
    coordinator.given(CallFailed("storage"))
    coordinator.waits(100)
    assert coordinator.wants(DescribeFollowers)
    coordinator.follows()
    coordinator.drafts()
    assert coordinator.phase is Phase.COMMITTING


def test_a_follower_that_is_another_table_by_then_is_not_drafted_for() -> None:
    coordinator = drafting()
    coordinator.owed = None
    coordinator.given(CallFailed("storage"))
    coordinator.waits(100)
    coordinator.follows(replace(follower(ONE), uuid="uuid-anew"))
    assert coordinator.phase is Phase.RECOVERING


def test_files_that_grew_too_old_meanwhile_are_given_up() -> None:
    coordinator = drafting(replace(SETTINGS, claim_age_max_ms=50_000))
    coordinator.owed = None
    coordinator.given(CallFailed("storage"))
    coordinator.waits(60_000)
    assert coordinator.phase is Phase.RECOVERING


def test_a_new_epoch_clears_away_what_older_ones_drafted_and_never_decided() -> None:
    coordinator = following()
    coordinator.until(Phase.OPEN)
    tidy = coordinator.only(TidyDrafts)
    assert (tidy.before, tidy.owed) == (EPOCH, frozenset())
