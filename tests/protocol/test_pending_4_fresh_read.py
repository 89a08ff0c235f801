"""PENDING-4: a pending commit is delivered only when a fresh read shows it under the primary
table's tag."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH
from protocol.following import ONE, OTHER, deciding, delivering
from protocol.values import RIVAL, offsets, record, view

from headgate.control_protocol.ports import Lineage, TableView
from headgate.coordinator.inputs_and_actions import DeliverPendingCommits
from headgate.coordinator.phases import Phase


def test_the_primary_is_read_first_then_the_secondaries_and_then_they_are_delivered() -> None:
    coordinator = delivering()
    assert coordinator.reads_primary
    assert not coordinator.wants(DeliverPendingCommits)
    assert coordinator.reads_secondaries
    coordinator.follows()
    assert {p.base.table for p in coordinator.only(DeliverPendingCommits).deliveries} == {
        ONE,
        OTHER,
    }


@pytest.mark.parametrize(
    ("found", "phase"),
    [
        (view(deciding()), Phase.RECOVERING),
        (view(record(EPOCH + 1, 0, offsets(10, 20), RIVAL), snapshot=900), Phase.FOLLOWING),
        (view(deciding(), uuid="uuid-anew"), Phase.RECOVERING),
    ],
    ids=["the decision is not there", "another has claimed", "another table"],
)
def test_what_is_not_there_is_not_delivered(found: TableView, phase: Phase) -> None:
    coordinator = delivering()
    coordinator.reads(found)
    assert coordinator.phase is phase
    assert not coordinator.wants(DeliverPendingCommits)


def test_neither_is_what_another_history_shows() -> None:
    """A promoted replica has the decision, and may lack a delivery that was acknowledged
    (PENDING-7)."""
    coordinator = delivering()
    coordinator.reads(replace(coordinator.table, head=900, tag=900))
    assert coordinator.phase is Phase.RECOVERING
    assert not coordinator.wants(DeliverPendingCommits)


def test_neither_is_what_a_rollback_took() -> None:
    coordinator = delivering()
    coordinator.reads(replace(coordinator.table, lineage=Lineage.ROLLED_BACK))
    assert coordinator.phase is Phase.RECOVERING
