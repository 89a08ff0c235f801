"""SUSPEND-6: what a table was given back of the quarantine, its own record says, and deliveries
keep it."""

from __future__ import annotations

from dataclasses import replace

from protocol.following import ONE, OTHER, delivering, secondary
from protocol.values import offsets

from headgate.control_protocol.commit_record import REPLAY, Replayed
from headgate.control_protocol.identifiers import TopicId
from headgate.control_protocol.ports import TableView
from headgate.coordinator.inputs_and_actions import DeliverPendingCommits

GIVEN = Replayed(offsets(7, 9), {"orders": TopicId("id-1")})


def given_back(table: TableView) -> TableView:
    """As a person's command leaves the table: its tag has moved, its transaction has not."""
    assert table.record is not None
    record = replace(table.record, replayed=GIVEN, command=REPLAY)
    return replace(table, record=record, tag=99, head=99)


def test_suspend_6_a_delivery_carries_on_what_the_table_was_given_back() -> None:
    coordinator = delivering()
    coordinator.follows(given_back(secondary(ONE)))
    one, other = (
        delivery.record for delivery in coordinator.only(DeliverPendingCommits).deliveries
    )
    assert (one.replayed, one.command) == (GIVEN, None)
    assert other.replayed is None


def test_suspend_6_a_replay_delivers_nothing_and_a_delivery_refused_by_it_is_made_again() -> None:
    coordinator = delivering()
    coordinator.follows()
    coordinator.unanswered(refused=True)
    coordinator.waits(100)
    coordinator.follows(given_back(secondary(ONE)))
    deliveries = {
        each.base.table: each for each in coordinator.only(DeliverPendingCommits).deliveries
    }
    assert deliveries.keys() == {ONE, OTHER}
    assert (deliveries[ONE].base.tag, deliveries[ONE].record.replayed) == (99, GIVEN)
