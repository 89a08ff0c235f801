"""TABLE-2: the tag's snapshot carries the sink's whole state: a coordinator needs nothing else."""

from __future__ import annotations

from protocol.coordinating import EPOCH, Coordinator
from protocol.values import (
    ALICE,
    COORDINATOR,
    GROUP,
    P0,
    P1,
    SINK,
    TOPIC_ID,
    offsets,
    status,
)

from headgate.control_protocol import commit_record_codec
from headgate.control_protocol.commit_record import CommitRecord
from headgate.control_protocol.events import Pause
from headgate.control_protocol.ports import TableView
from headgate.coordinator.phases import Phase


def test_a_commit_says_all_that_the_next_coordinator_needs() -> None:
    said, _ = committed()

    assert (said.sink, said.group_id, said.coordinator) == (SINK, GROUP, COORDINATOR)
    assert (said.transaction.epoch, said.transaction.number) == (EPOCH, 1)
    assert said.offsets == offsets(15, 22)
    assert said.topic_ids == {"trips": TOPIC_ID}
    assert said.records == 7
    assert said.valid_through_ms == 300
    assert said.paused


def test_it_comes_out_of_the_summary_as_it_went_in() -> None:
    said, _ = committed()

    assert commit_record_codec.decode_record(SINK, commit_record_codec.encode_record(said)) == said


def test_hc09_a_successor_begins_with_the_table_alone() -> None:
    _, table = committed()
    successor = Coordinator.at(Phase.OPEN, table=table)

    assert successor.term.progress.offsets == offsets(15, 22)
    assert successor.term.epoch == EPOCH + 1
    assert successor.term.progress.valid_through_ms == 300
    assert successor.term.pause.paused


def committed() -> tuple[CommitRecord, TableView]:
    """One commit's record, and the table after it."""
    coordinator = Coordinator.at(Phase.COLLECTING)
    coordinator.hears(Pause(), ALICE)
    times = {P0: 500, P1: 300}
    both = status(1, {P0: (10, 15), P1: (20, 22)}, written_in=(EPOCH, 1), timestamps=times)
    coordinator.hears(both, ALICE, transaction=1)
    coordinator.waits(1)
    return coordinator.attempt.record, coordinator.takes()
