"""PENDING-3: the table's call comes first, and decides; the quarantine is delivered to."""

from __future__ import annotations

import pytest
from protocol.quarantining import at_work, exactly_once

from headgate.control_protocol.testing import CommitFault

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

    assert quarantine.land_or_return_refusal() is not None
    exactly_once(stage)


def test_a_late_first_try_that_lands_is_found() -> None:
    stage, quarantine = at_work()
    stage.produce(4, 4)
    quarantine.faults.append(CommitFault.LATE_UNKNOWN)
    stage.until("no answer")
    assert quarantine.land_or_return_refusal() is None
    stage.settles()
    exactly_once(stage)


def test_foreign_commits_on_the_quarantine_are_built_upon() -> None:
    stage, quarantine = at_work()
    quarantine.compact()
    stage.produce(4, 4)
    stage.settles()
    exactly_once(stage)


def test_a_zombie_between_the_two_calls_finds_delivered_what_it_owes() -> None:
    stage, quarantine = at_work()
    stage.produce(3, 3)
    quarantine.faults.append(CommitFault.LATE_UNKNOWN)
    stage.until("quarantine: alice commits")
    stage.nodes["alice"].asleep = True
    stage.session_expires("alice", "bob")
    stage.until("quarantine: bob commits")
    assert quarantine.land_or_return_refusal() is not None
    stage.settles()
    stage.nodes["alice"].asleep = False
    stage.share("bob", "alice")
    stage.produce(2, 2)
    stage.settles()
    exactly_once(stage)
