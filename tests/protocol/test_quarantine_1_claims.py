"""QUARANTINE-1: a claim claims the table alone; a quarantine that lost rows is a named error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from protocol.coordinating import SETTINGS, Coordinator
from protocol.following import ONE, delivering
from protocol.quarantining import at_work, exactly_once
from protocol.values import COORDINATOR, offsets, record, view
from scenarios.stage import COORDINATORS, SINK, Stage

from headgate.control_protocol.commit_record import CommitRecord, PendingCommit
from headgate.control_protocol.errors import SinkNameTaken, TableRecreated
from headgate.control_protocol.identifiers import Epoch, TopicId, tag_name
from headgate.control_protocol.testing import CommitFault, FakeCatalog
from headgate.coordinator.inputs_and_actions import LeadershipGained
from headgate.coordinator.phases import Phase
from headgate.coordinator.recovery import next_epoch
from headgate.coordinator.secondary_pending_commits import build_deliveries
from headgate.coordinator.settings import (
    CoordinatorSettings,
    RollbackPolicy,
    TableRecreatedPolicy,
    TagMissingPolicy,
)


def second_life(stage: Stage) -> None:
    """Alice is gone, and Bob has to read and claim."""
    stage.kill("alice")
    stage.produce(3, 3)
    stage.session_expires("alice", "bob")


def test_a_claim_touches_the_table_alone() -> None:
    stage, quarantine = at_work()
    before = quarantine.sequence_number
    second_life(stage)
    stage.until("bob:    START")
    assert quarantine.sequence_number == before
    stage.settles()
    exactly_once(stage)


def test_a_dead_coordinators_late_delivery_is_refused_once_another_delivered() -> None:
    stage, quarantine = at_work()
    stage.produce(3, 3)
    quarantine.faults.append(CommitFault.LATE_UNKNOWN)
    stage.nodes["alice"].dies_at = "delivered"
    stage.until("killed")
    stage.session_expires("alice", "bob")
    stage.until("quarantine: bob commits")

    assert quarantine.land_or_return_refusal() is not None
    stage.settles()
    exactly_once(stage)


def test_one_that_lands_before_that_is_found_and_acknowledged() -> None:
    stage, quarantine = at_work()
    stage.produce(3, 3)
    quarantine.faults.append(CommitFault.LATE_UNKNOWN)
    stage.nodes["alice"].dies_at = "delivered"
    stage.until("killed")
    assert quarantine.land_or_return_refusal() is None
    delivered = quarantine.sequence_number
    stage.session_expires("alice", "bob")
    stage.until("bob:    START")
    stage.passes(500)
    assert quarantine.sequence_number == delivered
    stage.settles()
    exactly_once(stage)


def delivered_by(primary: CommitRecord, before: CommitRecord | None) -> CommitRecord:
    """The secondary table's record after a delivery."""
    pending = PendingCommit(primary.transaction, COORDINATOR, "uuid-q", "lake.q", "m.avro", rows=2)
    secondary = replace(view(before), uuid="uuid-q", table="lake.q")
    (delivery,) = build_deliveries(view(primary), (pending,), {"lake.q": secondary}, ())
    return delivery.record


def test_its_topic_ids_are_those_of_its_newest_delivery() -> None:
    """Kept from the first one on, they would call the rows of a topic created anew the old's."""
    anew = record(8, 1, offsets(2, 1), topic_ids={"trips": TopicId("anew")})
    stored = delivered_by(anew, record(6, 3, offsets(7, 5)))

    assert stored.topic_ids == {"trips": "anew"}
    assert stored.offsets == offsets(2, 1)
    again = delivered_by(replace(anew, offsets=offsets(1, 3)), stored)
    assert again.offsets == offsets(2, 3)


def test_one_of_another_group_is_not_claimed() -> None:
    coordinator = Coordinator(view(record(6, 4, offsets(10, 20))))
    theirs = record(6, 4, offsets(10, 20), group="another")
    aside = replace(view(theirs), table="lake.aside", uuid="uuid-aside")
    coordinator.follow(aside)
    coordinator.given(LeadershipGained())
    coordinator.reads()
    coordinator.follows()
    coordinator.described()

    assert isinstance(coordinator.error, SinkNameTaken)
    assert "another" in coordinator.error.message


def test_its_offsets_never_go_back() -> None:
    stored = delivered_by(record(8, 1, offsets(6, 9)), record(6, 3, offsets(7, 5)))
    assert stored.offsets == offsets(7, 9)


def test_those_of_a_topic_that_was_created_anew_do_not_count() -> None:
    kept = record(6, 3, offsets(7, 5), topic_ids={"trips": TopicId("another")})
    assert delivered_by(record(8, 1, offsets(6, 1)), kept).offsets == offsets(6, 1)


def test_an_epoch_is_above_that_of_all() -> None:
    table = view(record(3, 1, offsets(1)))
    assert next_epoch((table, view(record(9, 1, offsets(1)))), Epoch(5)) == 10


def roll_back(quarantine: FakeCatalog) -> None:
    quarantine.roll_back(1)


def delete_tag(quarantine: FakeCatalog) -> None:
    quarantine.delete_tag(tag_name(SINK))


HARM: list[tuple[Callable[[FakeCatalog], None], str, CoordinatorSettings]] = [
    (roll_back, "HG-201", replace(COORDINATORS, on_rollback=RollbackPolicy.KEEP_OFFSETS)),
    (delete_tag, "HG-203", replace(COORDINATORS, on_tag_missing=TagMissingPolicy.FOLLOW_TABLE)),
    (
        FakeCatalog.recreate,
        "HG-202",
        replace(COORDINATORS, on_table_recreated=TableRecreatedPolicy.RESTART),
    ),
]


@pytest.mark.parametrize(("harm", "code", "policy"), HARM)
def test_one_that_lost_rows_stops_the_sink_unless_told_otherwise(
    harm: Callable[[FakeCatalog], None], code: str, policy: CoordinatorSettings
) -> None:
    stage, quarantine = at_work()
    harm(quarantine)
    second_life(stage)
    stage.until(f"bob stops: {code}")

    stage.settings = policy
    stage.enter("carol")
    stage.session_expires("bob", "carol")
    stage.until("carol:  START")
    before = len(stage.catalog.visible_rows())
    stage.produce(1, 1)
    stage.until("ACK", times=2)
    assert len(stage.catalog.visible_rows()) > before
    assert stage.doubles() == 0


def test_one_that_is_gone_stops_the_sink() -> None:
    stage, quarantine = at_work()
    quarantine.drop()
    second_life(stage)
    stage.until("bob stops: HG-102")


def test_a_follow_table_rollback_of_the_table_doubles_nothing_in_it() -> None:
    stage, _ = at_work(
        replace(COORDINATORS, on_rollback=RollbackPolicy.FOLLOW_TABLE),
    )
    stage.catalog.roll_back(1)
    second_life(stage)
    stage.settles()
    exactly_once(stage)


def test_a_table_created_anew_doubles_nothing_in_it() -> None:
    stage, _ = at_work(
        replace(COORDINATORS, on_table_recreated=TableRecreatedPolicy.RESTART),
    )
    stage.catalog.recreate()
    second_life(stage)
    stage.settles()
    exactly_once(stage)


def test_one_that_is_replaced_within_an_epoch_stops_the_sink() -> None:
    """What was pending for it would expire, and the rows that it had are missing in the new one."""
    coordinator = delivering()
    anew = replace(view(None, uuid="uuid-anew"), table=ONE, location=f"s3://{ONE}")
    coordinator.secondaries[ONE] = anew
    coordinator.until(Phase.STOPPED)
    assert isinstance(coordinator.error, TableRecreated)
    assert "uuid-anew" in coordinator.error.message


def test_its_successor_is_gone_on_with_where_the_policy_says_so() -> None:
    settings = replace(SETTINGS, on_table_recreated=TableRecreatedPolicy.RESTART)
    coordinator = delivering(settings)
    anew = replace(view(None, uuid="uuid-anew"), table=ONE, location=f"s3://{ONE}")
    coordinator.secondaries[ONE] = anew
    coordinator.until(Phase.RECOVERING)
    coordinator.until(Phase.CLAIMING)
    assert coordinator.attempt.record.secondaries[ONE] == "uuid-anew"
    assert [each.table for each in coordinator.attempt.record.expired] == [ONE]
    coordinator.until(Phase.COLLECTING)
