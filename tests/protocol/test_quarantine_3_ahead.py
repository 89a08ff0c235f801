"""QUARANTINE-3: START says where the quarantine is ahead, and what it holds is written no second
time."""

from __future__ import annotations

from dataclasses import replace

from protocol.coordinating import EPOCH, Coordinator
from protocol.participating import Participant
from protocol.quarantining import at_work, exactly_once, offsets_in
from protocol.values import P0, P1, RIVAL, TABLE, folder, offsets, record, view
from scenarios.stage import COORDINATORS

from headgate.control_protocol.events import Limits, StartCommit, TableStart
from headgate.control_protocol.identifiers import TopicId
from headgate.control_protocol.offsets import Offsets
from headgate.coordinator.phases import Phase
from headgate.coordinator.settings import RollbackPolicy

TABLE_VIEW = view(record(EPOCH - 1, 4, offsets(10, 20), RIVAL))


def told(aside: Offsets, *, topic_id: str = "trips-id-1") -> Offsets:
    """What START says of a quarantine whose record has these offsets."""
    kept = record(EPOCH - 1, 4, aside, RIVAL, topic_ids={"trips": TopicId(topic_id)})
    kept = replace(kept, primary=TABLE_VIEW.uuid)
    coordinator = Coordinator(TABLE_VIEW)
    coordinator.follow(replace(view(kept), uuid="uuid-q", table="lake.aside"))
    coordinator.until(Phase.STARTING)
    (start,) = coordinator.said
    assert isinstance(start, StartCommit)
    assert [named.table for named in start.tables] == [TABLE, "lake.aside"]
    assert start.offsets == offsets(10, 20)
    return start.tables[1].offsets


def test_only_partitions_in_which_it_is_ahead_are_named() -> None:
    assert told(offsets(15, 20)) == Offsets({P0: 15})
    assert told(offsets(15, 25)) == offsets(15, 25)
    assert told(offsets(3, 4)) == Offsets()


def test_offsets_of_another_topic_say_nothing() -> None:
    assert told(offsets(15, 25), topic_id="trips-id-0") == Offsets()


def test_a_batch_carries_it_to_the_writer() -> None:
    participant = Participant()
    participant.owns(P0, P1)
    participant.hears_itself()
    table = TableStart(TABLE, "uuid-1", 0, 0, folder(1, 1))
    aside = TableStart("lake.aside", "uuid-q", 0, 0, "s3://lake/aside/1", Offsets({P0: 15}))
    participant.hears(
        StartCommit(None, offsets(10, 20), {}, (table, aside), Limits()), transaction=1
    )
    participant.end(1)
    participant.source_ends({P0: 12})

    assert participant.batch.quarantine == aside


def test_a_table_that_went_back_is_read_again_without_what_the_quarantine_holds() -> None:
    stage, quarantine = at_work(replace(COORDINATORS, on_rollback=RollbackPolicy.FOLLOW_TABLE))
    kept = offsets_in(quarantine)
    stage.catalog.roll_back(1)
    stage.produce(1, 1)
    stage.until("quarantine C=")
    stage.settles()
    exactly_once(stage)
    assert offsets_in(quarantine) >= kept
