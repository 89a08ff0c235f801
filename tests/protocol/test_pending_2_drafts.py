"""PENDING-2: the manifests of secondary tables are written before the decision."""

from __future__ import annotations

from dataclasses import replace

from protocol.coordinating import EPOCH, SETTINGS
from protocol.following import ONE, OTHER, at, drafting, following, secondary
from protocol.values import COORDINATOR, SINK

from headgate.control_protocol.identifiers import staging_folder, table_staging_folder
from headgate.coordinator.inputs_and_actions import (
    CallFailed,
    CommitTable,
    StageManifests,
    TidyStagedManifests,
)
from headgate.coordinator.phases import Phase


def test_per_secondary_its_files_are_drafted_and_nothing_is_decided_yet() -> None:
    coordinator = drafting()
    assert coordinator.phase is Phase.DRAFTING
    drafts = {draft.table.table: draft for draft in coordinator.only(StageManifests).drafts}
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
    assert [
        pending_commit.table for pending_commit in coordinator.attempt.record.pending_commits
    ] == [ONE, OTHER]
    assert [
        pending_commit.rows for pending_commit in coordinator.attempt.record.pending_commits
    ] == [2, 1]


def test_what_could_not_be_drafted_is_drafted_again_for_the_same_tables() -> None:
    coordinator = drafting()
    coordinator.pending = None
    coordinator.given(CallFailed("storage"))
    coordinator.waits(100)
    assert coordinator.reads_secondaries
    coordinator.follows()
    coordinator.drafts()
    assert coordinator.phase is Phase.COMMITTING


def test_a_secondary_that_is_another_table_by_then_is_not_drafted_for() -> None:
    coordinator = drafting()
    coordinator.pending = None
    coordinator.given(CallFailed("storage"))
    coordinator.waits(100)
    coordinator.follows(replace(secondary(ONE), uuid="uuid-anew"))
    assert coordinator.phase is Phase.RECOVERING


def test_files_that_grew_too_old_meanwhile_are_given_up() -> None:
    coordinator = drafting(replace(SETTINGS, claim_age_max_ms=50_000))
    coordinator.pending = None
    coordinator.given(CallFailed("storage"))
    coordinator.waits(60_000)
    assert coordinator.phase is Phase.RECOVERING


def test_a_new_epoch_clears_away_what_older_ones_drafted_and_never_decided() -> None:
    coordinator = following()
    coordinator.until(Phase.OPEN)
    tidy = coordinator.only(TidyStagedManifests)
    assert (tidy.before, tidy.pending) == (EPOCH, frozenset())


def test_tables_in_one_location_stage_in_folders_of_their_own() -> None:
    """One deletes what an older epoch staged in its folder, and never what the other lives on."""
    one, other = (table_staging_folder("s3://lake/t", SINK, uuid) for uuid in ("u1", "u2"))
    assert one == f"s3://lake/t/metadata/headgate/{SINK}/u1"
    assert not other.startswith(one)
    assert staging_folder(one, EPOCH, COORDINATOR).startswith(f"{one}/")
