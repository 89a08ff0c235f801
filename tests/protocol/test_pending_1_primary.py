"""PENDING-1: one table leads, all others follow: claims touch the primary table alone."""

from __future__ import annotations

from protocol.coordinating import EPOCH
from protocol.following import ONE, OTHER, following, secondary
from protocol.values import TABLE

from headgate.control_protocol.events import StartCommit
from headgate.coordinator.inputs_and_actions import DeliverPendingCommits, StageManifests
from headgate.coordinator.phases import Phase


def test_a_claim_is_one_commit_on_the_lead() -> None:
    coordinator = following()
    coordinator.until(Phase.CLAIMING)
    assert coordinator.attempt.base.table == TABLE
    assert not coordinator.attempt.files
    coordinator.until(Phase.OPEN)
    assert not coordinator.wants(StageManifests)
    assert not coordinator.wants(DeliverPendingCommits)
    assert coordinator.secondaries == {ONE: secondary(ONE), OTHER: secondary(OTHER)}


def test_the_primary_knows_its_secondaries_by_uuid_and_the_settings() -> None:
    coordinator = following()
    coordinator.until(Phase.CLAIMING)
    assert coordinator.attempt.record.secondaries == {ONE: "uuid-one", OTHER: "uuid-other"}


def test_start_names_the_secondaries_behind_the_lead() -> None:
    coordinator = following()
    coordinator.until(Phase.STARTING)
    (start,) = coordinator.said
    assert isinstance(start, StartCommit)
    assert [table.table for table in start.tables] == [TABLE, ONE, OTHER]
    assert start.tables[2].file_prefix == f"s3://{OTHER}/data/headgate/rides/{EPOCH}-c1/1"
