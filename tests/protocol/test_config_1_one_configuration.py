"""CONFIG-1: all participants of a sink have one configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest
from protocol.coordinating import EPOCH, Coordinator
from protocol.participating import Participant
from protocol.values import ALICE, COORDINATOR, P0, P1, SINK, TABLE, status, view

from headgate.control_protocol.commit_record import offset_metadata_of_table
from headgate.control_protocol.errors import GroupTaken, OtherConfiguration
from headgate.control_protocol.events import DIGEST, StartCommit
from headgate.control_protocol.identifiers import TopicId
from headgate.control_protocol.machine_io import Append, LogLine, Stop
from headgate.control_protocol.machine_io import Stop as Refusal
from headgate.control_protocol.offsets import Offsets
from headgate.coordinator.inputs_and_actions import CommitTable
from headgate.coordinator.phases import Phase

SAID = {"table.branch": "main", "format": f"{DIGEST}1", "source.topics": "trips"}


def hears_a_start(own_table: str | None) -> Participant:
    participant = Participant()
    participant.state = replace(participant.state, table=own_table)
    participant.owns(P0)
    participant.hears_itself()
    participant.start(1, Offsets({P0: 5}))
    return participant


def test_a_start_for_another_table_ends_the_participant() -> None:
    participant = hears_a_start("lake.elsewhere")
    (stop,) = participant.all(Stop)
    assert isinstance(stop.error, OtherConfiguration)
    assert stop.error.code == "HG-114"
    assert f"table.identifier is {TABLE!r} there and 'lake.elsewhere' here" in stop.error.message
    assert participant.state.term.writing is None


@pytest.mark.parametrize("own_table", [None, TABLE])
def test_a_start_for_its_own_table_is_worked_on(own_table: str | None) -> None:
    participant = hears_a_start(own_table)
    assert participant.all(Stop) == []
    assert participant.state.term.writing is not None


def hears(said: dict[str, str], own: dict[str, str]) -> Participant:
    """A participant with these parts in its file hears a START that says those."""
    coordinator = Coordinator()
    identity = replace(coordinator.state.identity, configuration=said)
    coordinator.state = replace(coordinator.state, identity=identity)
    coordinator.until(Phase.STARTING)
    (append,) = coordinator.all(Append)
    (start,) = append.events
    assert isinstance(start.event, StartCommit)
    participant = Participant()
    participant.state = replace(participant.state, configuration=own)
    participant.owns(P0)
    participant.hears(start.event, COORDINATOR, epoch=start.epoch, transaction=start.transaction)
    return participant


def test_start_carries_what_must_be_equal() -> None:
    participant = hears(SAID, SAID)
    assert participant.all(Stop) == []
    assert participant.state.term.writing is not None


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"table.branch": "audit"}, "table.branch is 'main' there and 'audit' here"),
        ({"format": f"{DIGEST}2"}, "format is not the same"),
        ({"source.topics": "other"}, "source.topics is 'trips' there and 'other' here"),
    ],
    ids=str,
)
def test_who_differs_names_it_and_stops_before_it_reads(own: dict[str, str], words: str) -> None:
    participant = hears(SAID, {**SAID, **own})
    (stop,) = participant.all(Stop)
    assert isinstance(stop.error, OtherConfiguration)
    assert words in stop.error.message
    assert participant.state.term.writing is None


@pytest.mark.parametrize(("said", "own"), [({}, SAID), (SAID, {})], ids=["old", "unasked"])
def test_what_one_of_both_does_not_say_is_not_compared(
    said: dict[str, str], own: dict[str, str]
) -> None:
    assert hears(said, own).all(Stop) == []


# ---------------------------------------------------------------- the control topic's name and id


def claims_with(control_topic_id: str, before: str | None) -> Coordinator:
    coordinator = Coordinator()
    identity = replace(coordinator.state.identity, control_topic="trips-control")
    coordinator.state = replace(coordinator.state, identity=identity)
    stored = coordinator.table.record
    assert stored is not None
    old = TopicId(before) if before else None
    coordinator.table = replace(coordinator.table, record=replace(stored, control_topic_id=old))
    coordinator.control_topic_id = TopicId(control_topic_id)
    while not coordinator.all(CommitTable):
        coordinator.goes_on()
    return coordinator


def test_the_record_carries_the_control_topics_name_and_id() -> None:
    coordinator = claims_with("id-2", None)
    (claim,) = coordinator.all(CommitTable)
    assert claim.attempt.record.control_topic_id == "id-2"
    assert claim.attempt.record.control_topic == "trips-control"
    assert coordinator.all(LogLine) == []
    coordinator.until(Phase.COLLECTING)
    written = status(1, {P0: (10, 15), P1: (20, 20)}, written_in=(EPOCH, 1))
    coordinator.hears(written, ALICE, transaction=1)
    coordinator.waits(0)
    assert coordinator.attempt.record.control_topic_id == "id-2"
    assert coordinator.attempt.record.control_topic == "trips-control"


def test_another_control_topic_than_at_the_last_commit_is_told_by_its_id() -> None:
    (tell,) = claims_with("id-2", "id-1").all(LogLine)
    assert tell.trouble
    assert "id-2" in tell.text
    assert "id-1" in tell.text


# ------------------------------------------------------------------------------ the group's sink


def test_a_first_start_in_another_sinks_group_is_refused() -> None:
    coordinator = Coordinator(view(None))
    coordinator.start, coordinator.note = (
        Offsets({P0: 0}),
        offset_metadata_of_table("uuid-9", SINK[:-1]),
    )
    while not coordinator.all(Refusal):
        coordinator.goes_on()
    assert isinstance(coordinator.error, GroupTaken)
    assert coordinator.error.code == "HG-115"
    assert f"sink {SINK[:-1]!r}" in coordinator.error.message
