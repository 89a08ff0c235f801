"""Q3: the quarantine's call comes first; the table's outcome is the commit's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.quarantining import at_work, exactly_once
from protocol.values import COORDINATOR, RIVAL, offsets, record, view

from headgate.control_protocol.ports import CommitAttempt, TableView
from headgate.control_protocol.testing import CommitFault
from headgate.coordinator.fencing import Resolution, resolve

FAULTS = [CommitFault.REFUSED, CommitFault.LANDED_UNKNOWN, CommitFault.LOST_UNKNOWN]


@pytest.mark.parametrize("on_table", FAULTS)
@pytest.mark.parametrize("on_quarantine", FAULTS)
def test_whatever_becomes_of_either_call_each_record_is_there_once(
    on_quarantine: CommitFault, on_table: CommitFault
) -> None:
    stage, quarantine = at_work()
    stage.produce(4, 4)
    quarantine.faults.append(on_quarantine)
    stage.catalog.faults.append(on_table)
    stage.settles()

    exactly_once(stage)
    assert not quarantine.faults
    assert not stage.catalog.faults
    assert sum("stops" in line or "steps down" in line for line in stage.lines) == 0


def test_a_late_first_try_of_the_quarantine_is_refused_by_the_second() -> None:
    stage, quarantine = at_work()
    stage.produce(4, 4)
    quarantine.faults.append(CommitFault.LATE_UNKNOWN)
    stage.settles()

    assert quarantine.land() is not None
    exactly_once(stage)


def test_a_late_first_try_that_lands_is_found() -> None:
    stage, quarantine = at_work()
    stage.produce(4, 4)
    quarantine.faults.append(CommitFault.LATE_UNKNOWN)
    stage.until("no answer")
    assert quarantine.land() is None
    stage.settles()
    exactly_once(stage)


def test_foreign_commits_on_the_quarantine_are_built_upon() -> None:
    stage, quarantine = at_work()
    quarantine.compact()
    stage.produce(4, 4)
    stage.settles()
    exactly_once(stage)


def test_a_zombie_between_the_two_calls_is_refused_by_the_table() -> None:
    stage, _ = at_work()
    stage.produce(3, 3)
    stage.catalog.faults.append(CommitFault.LATE_UNKNOWN)
    stage.until("table: alice commits")
    stage.nodes["alice"].asleep = True
    stage.session_expires("alice", "bob")
    stage.until("bob:    START")
    assert stage.catalog.land() is not None
    stage.settles()
    stage.nodes["alice"].asleep = False
    stage.share("bob", "alice")
    stage.produce(2, 2)
    stage.settles()
    exactly_once(stage)


OURS = record(7, 5, offsets(15))
BASE = replace(
    view(record(7, 4, offsets(10)), snapshot=100),
    quarantine=view(record(7, 2, offsets(8)), snapshot=50, uuid="uuid-q"),
)


@pytest.mark.parametrize(
    ("quarantine", "resolution"),
    [
        (BASE.quarantine, Resolution.AGAIN),
        (view(OURS, snapshot=51, uuid="uuid-q"), Resolution.AGAIN),
        (view(record(8, 0, offsets(8), RIVAL), snapshot=51, uuid="uuid-q"), Resolution.SUPERSEDED),
        (
            view(record(6, 9, offsets(8), COORDINATOR), snapshot=49, uuid="uuid-q"),
            Resolution.RECOVER,
        ),
        (view(record(7, 2, offsets(8)), snapshot=50, uuid="uuid-r"), Resolution.RECOVER),
    ],
)
def test_an_untouched_table_is_tried_again_if_the_quarantine_allows(
    quarantine: TableView, resolution: Resolution
) -> None:
    attempt = CommitAttempt(BASE, OURS, quarantined=())
    assert resolve(attempt, replace(BASE, quarantine=quarantine)) is resolution


@pytest.mark.parametrize(
    ("quarantine", "resolution"),
    [
        (BASE.quarantine, Resolution.LANDED),
        (view(OURS, snapshot=51, uuid="uuid-q"), Resolution.LANDED),
        (view(record(8, 0, offsets(8), RIVAL), snapshot=51, uuid="uuid-q"), Resolution.SUPERSEDED),
        (view(record(7, 2, offsets(8)), snapshot=50, uuid="uuid-r"), Resolution.RECOVER),
    ],
)
def test_whoever_claimed_the_quarantine_supersedes_what_landed_in_the_table(
    quarantine: TableView, resolution: Resolution
) -> None:
    landed = replace(view(OURS, snapshot=101), quarantine=quarantine)
    assert resolve(CommitAttempt(BASE, OURS, quarantined=()), landed) is resolution


def test_a_claim_of_which_another_has_the_quarantine_is_not_begun() -> None:
    """Else its next commit would go on top of a higher epoch's in the quarantine (seed 12433)."""
    claim = record(7, 0, offsets(10))
    aside = view(record(8, 0, offsets(8), RIVAL), snapshot=51, uuid="uuid-q")
    landed = replace(view(claim, snapshot=101), quarantine=aside)
    assert resolve(CommitAttempt(BASE, claim, quarantined=()), landed) is Resolution.RECOVER
