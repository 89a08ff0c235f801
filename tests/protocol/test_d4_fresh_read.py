"""D4: a debt is paid only when a fresh read shows it under the lead's tag."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH
from protocol.following import ONE, OTHER, deciding, paying
from protocol.values import RIVAL, offsets, record, view

from headgate.control_protocol.ports import Lineage, TableView
from headgate.coordinator.actions import DescribeFollowers, PayDebts, ReadTable
from headgate.coordinator.transitions import Phase


def test_the_lead_is_read_first_then_the_followers_and_then_they_are_paid() -> None:
    coordinator = paying()
    assert coordinator.wants(ReadTable)
    assert not coordinator.wants(PayDebts)
    coordinator.reads()
    assert coordinator.wants(DescribeFollowers)
    coordinator.follows()
    assert {p.base.table for p in coordinator.only(PayDebts).payments} == {ONE, OTHER}


@pytest.mark.parametrize(
    ("found", "phase"),
    [
        (view(deciding()), Phase.RECOVERING),
        (view(record(EPOCH + 1, 0, offsets(10, 20), RIVAL), snapshot=900), Phase.FOLLOWING),
        (view(deciding(), uuid="uuid-anew"), Phase.RECOVERING),
    ],
    ids=["the decision is not there", "another has claimed", "another table"],
)
def test_what_is_not_there_is_not_paid(found: TableView, phase: Phase) -> None:
    coordinator = paying()
    coordinator.reads(found)
    assert coordinator.phase is phase
    assert not coordinator.wants(PayDebts)


def test_neither_is_what_another_history_shows() -> None:
    """A promoted replica has the decision, and may lack a payment that was struck off (D7)."""
    coordinator = paying()
    coordinator.reads(replace(coordinator.table, head=900, tag=900))
    assert coordinator.phase is Phase.RECOVERING
    assert not coordinator.wants(PayDebts)


def test_neither_is_what_a_rollback_took() -> None:
    coordinator = paying()
    coordinator.reads(replace(coordinator.table, lineage=Lineage.ROLLED_BACK))
    assert coordinator.phase is Phase.RECOVERING
